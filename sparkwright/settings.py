"""What a user writes down, typed: model profiles, engine releases, platforms.

Data files hold plain dicts (`profile = dict(...)`), so that every mistake of an inventory can be
reported at once and pyinfra can print them as JSON; these models read them.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Container, Iterable
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Annotated, Any, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from sparkwright import units

ARCHITECTURES = ("aarch64", "x86_64")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Accounts' own folders, which the unit can't see (ProtectHome, PrivateTmp).
HIDDEN_FOLDERS = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")
# Set by sparkwright for every instance: paths of its own, and what keeps a start from the network.
_OWN_VARIABLES = (
    *("PATH", "HOME", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "HF_HOME"),
    *("FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "SPARKWRIGHT_ENDPOINT"),
    *("VLLM_ENGINE_READY_TIMEOUT_S", "LD_PRELOAD", "LD_LIBRARY_PATH", "RAY_ADDRESS"),
)
_SECRET_VARIABLES = ("VLLM_API_KEY", "HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN")
# Options with which what is deployed could not be reached, proven or supervised.
_OWN_OPTIONS = (
    *("config", "uds", "ssl-keyfile", "ssl-certfile", "root-path", "headless"),
    *("nnodes", "node-rank", "master-addr", "master-port", "download-dir", "grpc"),
    "api-server-count",
)
_SECRET_ENDINGS = ("-token", "-secret", "-password")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Options of vLLM that a profile's field of another name sets.
RENAMED = {
    "served-model-name": "served_names",
    "shutdown-timeout": "shutdown_timeout_s",
    "distributed-executor-backend": "ray",
}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(entry) for entry in value)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return value is None or isinstance(value, str | int | float | bool)


Tokens = Annotated[int, BeforeValidator(units.tokens), Field(le=10**9)]
Bytes = Annotated[int, BeforeValidator(units.size), Field(le=10**15)]
Seconds = Annotated[int, BeforeValidator(units.seconds)]
Fraction = Annotated[float, BeforeValidator(units.fraction)]


class Setting(BaseModel):
    """Base of everything that is read from data files: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _switch_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python counts True as 1; in a data file it is a slip."""
        field = cls.model_fields[info.field_name or ""]
        kinds = {field.annotation, *get_args(field.annotation)}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise ValueError("write a number")
        if isinstance(value, bytes):
            raise ValueError("write a text, without the b")
        if isinstance(value, set | frozenset):
            raise ValueError("write a list: a set has no order, so each run would differ")
        return value


class Expects(Setting):
    """What was measured for a profile, so that a start and a verification can be compared."""

    tokens_per_s: float | None = Field(None, gt=0, description="decode rate of one stream")
    cold_start_s: int | None = Field(None, gt=0, description="first start, kernels compiled")
    warm_start_s: int | None = Field(None, gt=0, description="start with caches in place")
    weights_gib: float | None = Field(
        None, gt=0, le=10000, description="size of the weights once loaded, on all Sparks together"
    )
    disk_gib: float | None = Field(
        None, gt=0, le=10000, description="size of the whole download; default: weights_gib"
    )


def _raise_all(complaints: Iterable[str | None]) -> None:
    """All mistakes of a field at once, a line each (errors.problems_of takes them apart)."""
    found = [complaint for complaint in complaints if complaint]
    if found:
        raise ValueError("\n".join(found))


def _option_complaint(name: str, fields: Container[str]) -> str | None:
    """What is wrong with the name of an extra option of `vllm serve`."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        plain = re.sub(r"[^a-z0-9]+", "-", name.split("=")[0].lower()).strip("-")
        right = plain if len(plain) > 1 else "tensor-parallel-size"
        return f"{name!r}: write the long name without dashes in front, such as {right!r}"
    if name == "api-key":
        return "a key on the command line shows in `ps`: use the field api_key"
    if name.endswith(_SECRET_ENDINGS):
        return f"{name!r} would show a secret: HF_TOKEN where you deploy, api_key"
    if name in _OWN_OPTIONS:
        return f"{name!r} would take the server out of sparkwright's hands"
    field = RENAMED.get(name, name.replace("-", "_"))
    return f"{name!r} is the field {field}: set that one" if field in fields else None


def _variable_complaint(name: str, text: str) -> str | None:
    """What is wrong with an environment variable for the engine."""
    if not _ENV_NAME.fullmatch(name):
        return f"{name!r} is no name of an environment variable"
    if not text.isprintable():
        return f"{name} holds a line break or another control character"
    if name in _SECRET_VARIABLES:
        return f"{name} is a secret: use api_key, or HF_TOKEN where you deploy"
    if name in _OWN_VARIABLES:
        return f"{name} is set by sparkwright, for paths of its own: remove it"
    return None


class ModelProfile(Setting):
    """One model and how it is served: the `profile` of a file in `group_data/`.

    Fields that vLLM has too carry vLLM's names. Units: *_s seconds, *_gib GiB, *_bytes bytes,
    lengths in tokens.
    """

    model: str = Field(description="Hugging Face id (`org/name`) or absolute path on the host")
    revision: str | None = Field(
        None, validate_default=True, description="commit of a Hugging Face id, 40 hex digits"
    )
    served_names: tuple[str, ...] = Field(
        (), description="names in the API; default: the id, or the last part of the path"
    )
    host: str = Field("127.0.0.1", description="address the server binds to")
    port: int = Field(8000, ge=1024, le=65535, description="distinct on one host")
    api_key: str | None = Field(
        None, description="`generate` (once, on the host) or `env:NAME` (of the controller)"
    )

    engine: str | None = Field(
        None, description="vLLM versions that can serve it, such as `>=0.28` or `>=0.27,<0.33`"
    )

    quantization: str | None = Field(
        None,
        description="how the checkpoint is quantized; `nvfp4` is understood. vLLM finds it by "
        "itself: needed only where it must be forced",
    )
    online_quantization: str | None = Field(
        None, description="quantize a BF16 checkpoint while loading: `fp8`, `nvfp4`, ..."
    )
    kv_cache_dtype: str | None = Field(None, description="type of the KV cache, such as `fp8`")
    max_model_len: Tokens | None = Field(None, ge=1, description="context length, tokens")
    gpu_memory_utilization: Fraction = Field(
        0.85,
        gt=0,
        le=1,
        description="memory budget, share of the Spark's memory; weights, KV cache and all else "
        "that the engine holds on the GPU",
    )
    kv_cache_memory_bytes: Bytes | None = Field(
        None, ge=1, description="size of the KV cache, instead of what the budget leaves for it"
    )
    max_num_seqs: int | None = Field(None, ge=1, description="concurrent sequences")
    max_num_batched_tokens: Tokens | None = Field(
        None, ge=1, description="tokens in one step of the engine (prefill chunk)"
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=2, description="number of Sparks that serve it as one: 1, or 2 for a pair"
    )
    ray: str | None = Field(
        None,
        description="`address:port` of a Ray cluster that runs already; it places the model on its "
        "nodes, instead of a pair (docs/two-sparks.md)",
    )
    load_format: str | None = Field(None, description="how weights are read; `dummy`: random ones")
    enforce_eager: bool = Field(False, description="no CUDA graphs, no torch.compile: slow")
    attention_backend: str | None = Field(None, description="such as `FLASHINFER`, `TRITON_ATTN`")
    moe_backend: str | None = Field(None, description="kernels of the experts, such as `marlin`")
    linear_backend: str | None = Field(None, description="kernels of the other layers")
    reasoning_parser: str | None = Field(None, description="takes the thinking out of the answer")
    tool_call_parser: str | None = Field(None, description="switches automatic tool choice on")
    speculative_config: dict[str, Any] | None = Field(
        None, description="speculative decoding, as vLLM's `--speculative-config`"
    )
    extra_args: dict[str, Any] = Field(
        {}, description="further options of `vllm serve`, long names without dashes in front"
    )
    env: dict[str, str] = Field({}, description="environment variables of the engine")

    config: dict[str, Any] | None = Field(
        None,
        description="excerpt of the model's config.json, in its own words: what the size of the "
        "KV cache follows from. Needed where that file is not on the machine you deploy from",
    )
    runtime_gib: float | None = Field(
        None, gt=0, le=1000, description="GPU memory beside weights and KV cache (docs/memory.md)"
    )
    accept_freeze_risk: str | None = Field(
        None,
        description="why a budget above 0.90, or less than 8 GiB for the OS, is right here: a "
        "Spark out of memory freezes until its power is cut",
    )

    ready_timeout_s: Seconds = Field(
        3600,
        ge=30,
        le=86400,
        description="longest start; vLLM's own 600 s is too short for a cold GB10",
    )
    shutdown_timeout_s: Seconds = Field(
        60, ge=1, le=3600, description="time that running requests get to finish; 0 hangs vLLM"
    )
    expects: Expects = Field(
        Expects(
            tokens_per_s=None,
            cold_start_s=None,
            warm_start_s=None,
            weights_gib=None,
            disk_gib=None,
        ),
        description="what was measured, to compare with",
    )

    @field_validator("model")
    @classmethod
    def _model_is_path_or_id(cls, value: str) -> str:
        path = value.rstrip("/").startswith("/") and ".." not in PurePosixPath(value).parts
        if path:
            value = posixpath.normpath("/" + value.lstrip("/"))
            path = value.isprintable()
        if not path and not _HUB_ID.fullmatch(value):
            raise ValueError("write a Hugging Face id (org/name) or an absolute path on the host")
        if f"{value.rstrip('/')}/".startswith(HIDDEN_FOLDERS):
            raise ValueError(
                f"the engine's account can't see {', '.join(HIDDEN_FOLDERS)}: put the model into "
                "/srv/models or another folder that others may read"
            )
        return value.rstrip("/")

    @field_validator("host")
    @classmethod
    def _host_is_an_address(cls, value: str) -> str:
        try:
            ip_address(value if "%" not in value else "")
        except ValueError:
            name = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", value)
            if not name or not re.search("[A-Za-z]", value):
                raise ValueError(
                    "write an address: 127.0.0.1 (this host only), 0.0.0.0 (all), or one of its own"
                ) from None
        return value

    @field_validator("env")
    @classmethod
    def _env_is_sane(cls, value: dict[str, str]) -> dict[str, str]:
        _raise_all(_variable_complaint(name, text) for name, text in value.items())
        return value

    @field_validator("extra_args", "speculative_config", "config")
    @classmethod
    def _values_are_plain(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if not _is_plain(value):
            raise ValueError("write numbers, texts, True, False, None, lists and dicts of these")
        return value

    @field_validator("served_names")
    @classmethod
    def _names_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not name or not name.isprintable() or name.startswith("-") or name != name.strip():
                raise ValueError(f"{name!r} is no name for a model")
        return value

    @field_validator("extra_args")
    @classmethod
    def _extra_args_are_long_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        _raise_all(_option_complaint(name, cls.model_fields) for name in value)
        return value

    @field_validator("api_key")
    @classmethod
    def _api_key_is_a_source(cls, value: str | None) -> str | None:
        source = value.removeprefix("env:") if value else None
        if value in (None, "generate") or (value != source and _ENV_NAME.fullmatch(source or "")):
            return value
        # The value is not repeated: it may be the key itself.
        raise ValueError("write 'generate' or 'env:NAME'; the key itself never goes into a file")

    @field_validator("engine")
    @classmethod
    def _engine_is_a_constraint(cls, value: str | None) -> str | None:
        try:
            SpecifierSet(value or "")
        except InvalidSpecifier:
            raise ValueError("write versions of vLLM such as '>=0.28' or '>=0.27,<0.33'") from None
        return value

    @field_validator("ray")
    @classmethod
    def _ray_is_an_address(cls, value: str | None) -> str | None:
        host, _, port = (value or "").rpartition(":")
        if value is not None and not (re.fullmatch(r"[A-Za-z0-9.-]+", host) and port.isdecimal()):
            raise ValueError("write the address of its head node, such as '192.168.100.10:6379'")
        return value

    @field_validator("accept_freeze_risk")
    @classmethod
    def _risk_has_a_reason(cls, value: str | None) -> str | None:
        if value is not None and len(re.findall(r"\w{2,}", value)) < 2:
            raise ValueError("say in a few words why, for whoever reads it next")
        return value

    @field_validator("revision")
    @classmethod
    def _revision_matches_model(cls, value: str | None, info: ValidationInfo) -> str | None:
        model = str(info.data.get("model", ""))
        if model.startswith("/") and value is not None:
            raise ValueError("revision belongs to a Hugging Face id, this model is a path")
        if model and not model.startswith("/") and not _COMMIT.fullmatch(value or ""):
            raise ValueError(
                f"pin the commit of {model}, 40 hex digits (on the model's page: Files, History), "
                "so that every Spark serves the same"
            )
        return value

    @property
    def is_path(self) -> bool:
        """True when `model` is a folder on the host."""
        return self.model.startswith("/")

    @property
    def is_local(self) -> bool:
        """True when only the Spark itself reaches the server."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def key_variable(self) -> str | None:
        """Variable of the controller's environment that holds the API key, when one does."""
        source = self.api_key or ""
        return source.removeprefix("env:") if source.startswith("env:") else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which the API serves the model."""
        default = self.model.rsplit("/", 1)[-1] if self.is_path else self.model
        return self.served_names or (default,)


class Platform(Setting):
    """What a host must be. The default is a DGX Spark (sources: docs/preflight.md)."""

    architecture: str = Field("aarch64", description="or `x86_64`")
    dgx_os: bool = Field(True, description="/etc/dgx-release must name a DGX Spark")
    gpu: str = Field("NVIDIA GB10", description="as nvidia-smi names it")
    compute_capability: str = Field(
        "12.1", pattern=r"^\d+\.\d+$", description="of the GPU; a GB10 is sm_121"
    )
    driver_branch: int = Field(580, description="the branch that NVIDIA supports on a Spark")
    cuda_major: int = Field(13, description="of driver and toolkit")
    memory_gib: float = Field(
        119.6, gt=0, le=10**5, description="least total memory; Sparks show 119.7 to 121.7 GiB"
    )
    os_reserve_gib: float = Field(8, ge=0, le=10**5, description="memory left for the OS")

    @field_validator("architecture")
    @classmethod
    def _architecture_is_known(cls, value: str) -> str:
        if value not in ARCHITECTURES:
            raise ValueError(f"allowed: {', '.join(ARCHITECTURES)}")
        return value

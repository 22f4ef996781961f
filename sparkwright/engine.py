"""How a profile becomes vLLM's options and environment, and what the lines of its log mean.

With flags/ (what each version accepts) and kvcache.py, kvpool.py (how it counts memory) this is
what another engine, SGLang say, would bring of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from sparkwright import flags, paths
from sparkwright.errors import Problem, nearest, shown
from sparkwright.settings import RENAMED, ModelProfile

# Words of guides that `vllm serve --quantization` refuses (0.26 to 0.33 were tried): a
# pre-quantized checkpoint needs no option, vLLM reads the method from its config.json.
_IMPLIED_QUANTIZATION = ("nvfp4", "fp4")

# Profile fields that are options of the same name, in the order in which people look for them.
_SAME_NAME = (
    "host",
    "port",
    "kv_cache_dtype",
    "max_model_len",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "load_format",
    "attention_backend",
    "moe_backend",
    "linear_backend",
    "reasoning_parser",
    "tool_call_parser",
    "speculative_config",
)

# A line of the journal that contains the text begins the phase. From complete real logs of 0.26.0
# on a GPU and 0.32.0 on a CPU (tests/fixtures/logs); in the order of a start.
PHASES: tuple[tuple[str, str], ...] = (
    ("non-default args:", "reading the model's configuration"),
    ("Initializing a V1 LLM engine", "starting the engine"),
    ("Loading model from scratch", "loading weights"),
    ("Starting to load model", "loading weights"),
    ("Loading safetensors", "loading weights"),
    ("Model loading took", "compiling kernels (torch.compile)"),
    ("Warming up model for the compilation", "compiling kernels (torch.compile)"),
    ("Dynamo bytecode transform", "compiling kernels (torch.compile)"),
    ("KV cache size:", "preparing the KV cache"),
    ("Autotuning process starts", "tuning kernels (FlashInfer autotune)"),
    ("Autotuning process ends", "warming up kernels"),
    ("Warming up FlashInfer attention", "warming up attention"),
    ("Capturing CUDA graphs", "capturing CUDA graphs"),
    ("Graph capturing finished", "finishing (JIT of the remaining kernels)"),
    ("init engine (profile", "starting the API server"),
    ("Application startup complete", "serving"),
)
PAIR_PHASES = (
    ("waiting for the other rank, ", "waiting for the other rank"),
    ("starts, together with ", "starting"),
    *PHASES,
)
"""The same of a pair, whose ranks first wait for each other (host/pair.py)."""


@dataclass(frozen=True)
class Quantization:
    """What `--quantization` has to say for a profile; None: nothing, vLLM finds it by itself."""

    option: str | None = None
    problem: str = ""
    field: str = "quantization"
    warning: str = ""


def quantization(
    profile: ModelProfile,
    config: Mapping[str, Any] | None,
    version: str | None,
    capability: str = "12.1",
) -> Quantization:
    """Translate the words of guides into what a version of vLLM accepts.

    config: of the model, whole or an excerpt. capability: compute capability of the GPU.
    """
    word = profile.quantization
    ready = "quantization_config" in (config or {})
    if profile.online_quantization:
        if ready:
            text = "the checkpoint is quantized already (quantization_config): take it out"
            return Quantization(problem=text, field="online_quantization")
        return _online(profile.online_quantization, version, capability, "online_quantization")
    if word not in _IMPLIED_QUANTIZATION:
        known = flags.catalog(version)
        only = known.quantization.only_family.get(word or "") if known else None
        if only not in (None, _family(capability)):
            text = f"runs on compute capability {only // 10}.x only, this GPU has {capability}"
            return Quantization(problem=text)
        return Quantization(word)
    named = re.search(r"fp4", profile.model, re.I)
    # A whole config.json without quantization_config is one of a checkpoint in BF16.
    if config and "transformers_version" in config and not ready and not named:
        return _online(str(word), version, capability, "quantization")
    guess = f"taken as a checkpoint that is {word} already; is it BF16, online_quantization='fp8'"
    return Quantization(warning="" if ready or named else guess)


def _online(word: str, version: str | None, capability: str, field: str) -> Quantization:
    known = flags.catalog(version)
    if known is None:
        return Quantization(word)
    method = known.quantization.online_for(word, capability)
    if method:
        return Quantization(method)
    can = [c.version for c in flags.catalogs() if c.quantization.online_for(word, capability)]
    family = _family(capability)
    only = known.quantization.only_family
    fits = sorted(n for n in known.quantization.online if only.get(n, family) == family)
    text = (
        f"vLLM {version} can't quantize to it while loading on compute capability {capability}; "
        f"it can: {', '.join(fits)}"
    )
    return Quantization(problem=text + (f"; so can: {', '.join(can)}" if can else ""), field=field)


def _family(capability: str) -> int:
    """120 for the 12.1 of a GB10."""
    return int(capability.split(".")[0]) * 10


def serve_options(
    profile: ModelProfile, model: str, quantization: str | None = None
) -> dict[str, Any]:
    """Options of `vllm serve` for a profile, as long names without dashes in front.

    model: what vLLM opens, a folder on the host. quantization: as the release wants it.
    """
    options: dict[str, Any] = {"model": model, "served-model-name": list(profile.names)}
    for field in _SAME_NAME:
        value = getattr(profile, field)
        if value is not None:
            options[field.replace("_", "-")] = value
    if quantization:
        options["quantization"] = quantization
    if profile.tensor_parallel_size > 1:
        options["tensor-parallel-size"] = profile.tensor_parallel_size
    if profile.ray:
        options["distributed-executor-backend"] = "ray"
    if profile.enforce_eager:
        options["enforce-eager"] = True
    if profile.tool_call_parser:
        options["enable-auto-tool-choice"] = True
    options["shutdown-timeout"] = profile.shutdown_timeout_s
    return options | profile.extra_args


def check(
    where: str, profile: ModelProfile, quantized: Quantization, version: str | None
) -> tuple[list[Problem], list[Problem]]:
    """Problems and warnings about a profile's options and variables in one version of vLLM."""
    problems, warnings = [], []
    if quantized.problem:
        value = getattr(profile, quantized.field)
        problems.append(Problem(where, quantized.field, repr(value), quantized.problem))
    if quantized.warning:
        found = repr(profile.quantization)
        warnings.append(Problem(where, "quantization", found, quantized.warning))
    known = flags.catalog(version)
    if known is None:
        reason = f"there is no list for vLLM {version}" if version else "its version is not known"
        have = ", ".join(flags.versions())
        text = f"options are not checked: {reason}, only for {have}; vLLM refuses at its start"
        return problems, [*warnings, Problem(where, "", "", text)]
    options = serve_options(profile, "/model", quantized.option)
    for complaint in known.check(known.spelled(options)):
        field = _field(complaint.option)
        problems.append(Problem(where, field, complaint.found, complaint.fix))
    method = (profile.speculative_config or {}).get("method")
    methods = known.values_of("spec-method")
    if methods and isinstance(method, str) and method not in methods:
        field = "speculative_config.method"
        problems.append(Problem(where, field, shown(method), nearest(method, methods)))
    for complaint in known.check_environment(profile.env):
        name = f"env.{complaint.option}"
        problems.append(Problem(where, name, complaint.found, complaint.fix))
    return problems, warnings


def placed(problem: Problem) -> Problem:
    """Say where an option or variable of vLLM goes that was written as a field of the profile."""
    option = problem.field.replace("_", "-")
    if not problem.fix.startswith("no such field"):
        return problem
    if re.fullmatch(r"VLLM_[A-Z0-9_]+", problem.field):
        return replace(problem, fix=f"variables go into env={{{problem.field!r}: ...}}")
    if any(option in known.options for known in flags.catalogs()):
        return replace(problem, fix=f"is an option of vLLM: extra_args={{{option!r}: ...}}")
    return problem


def _field(option: str) -> str:
    """The profile's field for an option."""
    field = RENAMED.get(option, option.replace("-", "_"))
    return field if field in ModelProfile.model_fields else f"extra_args.{option}"


def rank_options(rank: int, head: str, port: int) -> dict[str, Any]:
    """Options by which two engines become one, tensor parallel over both.

    head: address on the fabric where rank 0 listens for the other, on this port.
    """
    options: dict[str, Any] = {"nnodes": 2, "node-rank": rank, "master-addr": head}
    options["master-port"] = port
    # Without an API server of its own: the head answers for both.
    return options | ({"headless": True} if rank else {})


def serve_yaml(options: Mapping[str, Any], version: str | None = None) -> str:
    """The file for `vllm serve --config`. version: of vLLM, when it is known."""
    known = flags.catalog(version)
    spelled = known.spelled(dict(options)) if known else dict(options)
    text: str = yaml.safe_dump(spelled, sort_keys=False, allow_unicode=True)
    return text


def environment(profile: ModelProfile, name: str) -> dict[str, str]:
    """Environment of one instance.

    Every cache that a variable can move is moved below the instance's cache folder; the two that
    none moves (.humming, .tilelang) follow HOME.
    """
    cache = f"{paths.CACHES}/{name}"
    values = {
        "HOME": cache,
        "XDG_CACHE_HOME": f"{cache}/.cache",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "VLLM_CONFIG_ROOT": f"{cache}/config",
        "FLASHINFER_WORKSPACE_BASE": cache,
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "CUDA_CACHE_PATH": f"{cache}/nv",
        "HF_HOME": f"{cache}/huggingface",
        # Weights are on disk before the engine starts: a start never waits for a hub.
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
        "PYTHONUNBUFFERED": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": str(profile.ready_timeout_s),
        "CUDA_HOME": paths.CUDA_HOME,
        # Triton's own ptxas may not know sm_121a (triton-lang/triton#8539).
        "TRITON_PTXAS_PATH": f"{paths.CUDA_HOME}/bin/ptxas",
    }
    if profile.ray:
        values["RAY_ADDRESS"] = profile.ray
    return values | profile.env


def normal_start(profile: ModelProfile) -> str:
    """What is normal for a start of this profile, in words."""
    warm, cold = profile.expects.warm_start_s, profile.expects.cold_start_s
    if warm and cold:
        return f"normal: {warm} s, up to {cold} s when kernels are compiled first"
    if warm or cold:
        return f"normal: about {warm or cold} s"
    return "normal for this profile: unknown; minutes when kernels are compiled first"

"""Every mistake in what a user writes: one message with file or host, field, value and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sparkwright import engine
from sparkwright.errors import PlanError
from sparkwright.plan import RawHost, build_plan
from sparkwright.settings import EngineRelease, Expects, ModelProfile, Platform

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOCK = {"lock": "releases/vllm-0.27.1-aarch64.txt"}
PATH_MODEL = {"model": "/srv/models/tiny"}


def problems(profile: Any = None, **data: Any) -> list[str]:
    """What a plan of one host says; empty when it is fine. data: of the host."""
    host = RawHost("spark-1", ("all", "tiny"), {"release": LOCK, **data})
    try:
        build_plan([host], {"all": {}, "tiny": {"profile": profile or PATH_MODEL}})
    except PlanError as error:
        return [str(p) for p in error.problems]
    return []


# (changes to a valid profile, field, value as shown or "" when it is not shown, part of the fix)
BAD_PROFILES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"model": "tiny"}, "model", "'tiny'", "org/name"),
    ({"model": "srv/models/tiny"}, "model", "'srv/models/tiny'", "absolute path"),
    ({"model": "/srv/../etc"}, "model", "'/srv/../etc'", "absolute path"),
    ({"model": ""}, "model", "''", "absolute path"),
    ({"model": "https://hub/org/name"}, "model", "'https://hub/org/name'", "org/name"),
    ({"model": 7}, "model", "7", "valid string"),
    ({"served_names": "tiny"}, "served_names", "'tiny'", "valid tuple"),
    ({"host": None}, "host", "None", "valid string"),
    ({"model": "/home/me/model"}, "model", "'/home/me/model'", "put the model into /srv/models"),
    ({"model": "/root/model"}, "model", "'/root/model'", "can't see /home/, /root/"),
    ({"model": "/tmp/model"}, "model", "'/tmp/model'", "put the model into /srv/models"),
    ({"model": "/var/tmp/m"}, "model", "'/var/tmp/m'", "put the model into /srv/models"),
    ({"model": "/run/user/1000/m"}, "model", "'/run/user/1000/m'", "put the model into"),
    ({"host": ""}, "host", "''", "write an address: 127.0.0.1 (this host only), 0.0.0.0 (all)"),
    ({"host": "http://spark"}, "host", "'http://spark'", "write an address"),
    ({"host": "0.0.0.0:8000"}, "host", "'0.0.0.0:8000'", "write an address"),
    ({"host": "a b"}, "host", "'a b'", "write an address"),
    ({"host": "-spark"}, "host", "'-spark'", "write an address"),
    ({"host": 'a"b'}, "host", "'a\"b'", "write an address"),
    ({"host": "spark\n"}, "host", "'spark\\n'", "write an address"),
    ({"port": 80}, "port", "80", "greater than or equal to 1024"),
    ({"port": 65536}, "port", "65536", "less than or equal to 65535"),
    ({"port": "eight"}, "port", "'eight'", "valid integer"),
    ({"port": None}, "port", "None", "valid integer"),
    ({"quantization": 4}, "quantization", "4", "valid string"),
    ({"kv_cache_dtype": 8}, "kv_cache_dtype", "8", "valid string"),
    ({"max_model_len": 0}, "max_model_len", "0", "greater than or equal to 1"),
    ({"max_model_len": "64k"}, "max_model_len", "'64k'", "valid integer"),
    ({"gpu_memory_utilization": 0}, "gpu_memory_utilization", "0", "greater than 0"),
    ({"gpu_memory_utilization": 85}, "gpu_memory_utilization", "85", "less than or equal to 1"),
    ({"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes", "-1", "greater than or equal to 1"),
    ({"max_num_seqs": 0}, "max_num_seqs", "0", "greater than or equal to 1"),
    ({"max_num_seqs": 1.5}, "max_num_seqs", "1.5", "valid integer"),
    ({"max_num_batched_tokens": 0}, "max_num_batched_tokens", "0", "greater than or equal to 1"),
    ({"tensor_parallel_size": 0}, "tensor_parallel_size", "0", "greater than or equal to 1"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size", "> 1", "use 1"),
    ({"enforce_eager": "maybe"}, "enforce_eager", "'maybe'", "valid boolean"),
    ({"load_format": 1}, "load_format", "1", "valid string"),
    ({"attention_backend": 1}, "attention_backend", "1", "valid string"),
    ({"moe_backend": 1}, "moe_backend", "1", "valid string"),
    ({"linear_backend": 1}, "linear_backend", "1", "valid string"),
    ({"reasoning_parser": 1}, "reasoning_parser", "1", "valid string"),
    ({"tool_call_parser": True}, "tool_call_parser", "True", "valid string"),
    ({"speculative_config": "mtp"}, "speculative_config", "'mtp'", "valid dictionary"),
    ({"extra_args": {"--seed": 1}}, "extra_args", "", "'--seed': write the long name without"),
    ({"extra_args": {"max_logprobs": 1}}, "extra_args", "", "'max_logprobs': write the long name"),
    ({"extra_args": {"max-model-len": 1}}, "extra_args", "", "is the field max_model_len"),
    ({"extra_args": {"served-model-name": "x"}}, "extra_args", "", "is the field served_names"),
    ({"extra_args": {"shutdown-timeout": 0}}, "extra_args", "", "is the field shutdown_timeout_s"),
    ({"extra_args": {"api-key": "x"}}, "extra_args", "", "use the field api_key"),
    ({"extra_args": ["--seed"]}, "extra_args", "", "valid dictionary"),
    ({"env": {"A-B": "1"}}, "env", "", "'A-B' is no name"),
    ({"env": {"A": "1\n2"}}, "env", "", "A holds a line break"),
    ({"env": {"A": "1\x1b[0m"}}, "env", "", "A holds a line break or another control character"),
    ({"env": {"A": "tab\t"}}, "env", "", "A holds a line break or another control character"),
    ({"env": {"A": 1}}, "env.A", "", "valid string"),
    ({"env": {"HF_TOKEN": "x"}}, "env", "", "HF_TOKEN is a secret"),
    ({"env": {"VLLM_API_KEY": "x"}}, "env", "", "use api_key"),
    ({"api_key": "sk-1"}, "api_key", "", "'generate' or 'env:NAME'"),
    ({"api_key": "env:"}, "api_key", "", "'generate' or 'env:NAME'"),
    ({"api_key": "env:A B"}, "api_key", "", "'generate' or 'env:NAME'"),
    ({"ready_timeout_s": 29}, "ready_timeout_s", "29", "greater than or equal to 30"),
    ({"shutdown_timeout_s": 0}, "shutdown_timeout_s", "0", "greater than or equal to 1"),
    ({"expects": {"weights_gib": 0}}, "expects.weights_gib", "0", "greater than 0"),
    ({"expects": {"weight_gib": 1}}, "expects.weight_gib", "1", "did you mean 'weights_gib'?"),
    ({"expects": 3}, "expects", "3", "dictionary"),
    ({"max_model_length": 9}, "max_model_length", "9", "did you mean 'max_model_len'?"),
    ({"xyzzy": 1}, "xyzzy", "1", "no such field; known: api_key, "),
    ({"revision": COMMIT}, "", "", "belongs to a Hugging Face id"),
    ({"model": "org/name"}, "", "", "pin the commit of org/name"),
    ({"model": "org/name", "revision": "main"}, "", "", "pin the commit of org/name"),
    ({"model": "org/name", "revision": COMMIT[:7]}, "", "", "40 hex digits"),
]


@pytest.mark.parametrize(("change", "field", "value", "fix"), BAD_PROFILES, ids=str)
def test_bad_profile(change: dict[str, Any], field: str, value: str, fix: str) -> None:
    (said,) = problems({**PATH_MODEL, **change})
    where = "group_data/tiny.py: " + field if field else "group_data/tiny.py"
    assert said.startswith(f"{where} = {value}: " if value else f"{where}: "), said
    assert fix in said
    assert "\n" not in said


@pytest.mark.parametrize("name", ["PATH", "HOME", "HF_HOME", "VLLM_CACHE_ROOT", "LD_PRELOAD"])
def test_a_variable_that_sparkwright_sets(name: str) -> None:
    (said,) = problems({**PATH_MODEL, "env": {name: "/elsewhere"}})
    assert said == (
        f"group_data/tiny.py: env: {name} is set by sparkwright, for paths of its own: remove it"
    )


def test_every_path_of_an_engines_environment_is_sparkwrights_own() -> None:
    made = engine.environment(ModelProfile.model_validate(PATH_MODEL), "tiny")
    own = [name for name, value in made.items() if value.startswith("/var/lib/sparkwright/")]
    refused = [name for name in own if problems({**PATH_MODEL, "env": {name: "/elsewhere"}})]
    assert len(own) >= 8 and refused == own


@pytest.mark.parametrize("name", ["HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"])
def test_a_variable_that_holds_a_secret(name: str) -> None:
    (said,) = problems({**PATH_MODEL, "env": {name: "x"}})
    assert f"{name} is a secret: use api_key, or HF_TOKEN where you deploy" in said


@pytest.mark.parametrize(
    "option",
    [
        *("config", "uds", "headless", "ssl-keyfile", "ssl-certfile", "root-path"),
        *("nnodes", "node-rank", "master-addr", "master-port", "download-dir"),
    ],
)
def test_an_option_that_takes_the_server_out_of_our_hands(option: str) -> None:
    (said,) = problems({**PATH_MODEL, "extra_args": {option: "x"}})
    assert f"{option!r} would take the server out of sparkwright's hands" in said


@pytest.mark.parametrize("host", ["::", "192.0.2.7", "spark-1", "spark-1.local", "localhost"])
def test_hosts_to_bind_to(host: str) -> None:
    assert problems({**PATH_MODEL, "host": host}) == []


@pytest.mark.parametrize("model", ["/srv/home/m", "/tmpfs/m", "/rooted/m", "/opt/models/m"])
def test_folders_that_only_look_hidden(model: str) -> None:
    assert problems({"model": model}) == []


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.7", False),
        ("spark-1", False),
    ],
)
def test_who_reaches_a_server(host: str, local: bool) -> None:
    assert ModelProfile.model_validate({**PATH_MODEL, "host": host}).is_local is local


@pytest.mark.parametrize(
    ("written", "budget"),
    [({}, 0.92), ({"gpu_memory_utilization": 0.3}, 0.3), ({"kv_cache_memory_bytes": 2**30}, 0.92)],
)
def test_budget(written: dict[str, Any], budget: float) -> None:
    assert ModelProfile.model_validate({**PATH_MODEL, **written}).budget == budget


@pytest.mark.parametrize(
    ("written", "variable"), [(None, None), ("generate", None), ("env:MY_KEY", "MY_KEY")]
)
def test_variable_that_holds_the_key(written: str | None, variable: str | None) -> None:
    profile = ModelProfile.model_validate({**PATH_MODEL, "api_key": written})
    assert profile.key_variable == variable


def test_model_is_required() -> None:
    assert problems({"port": 8000}) == ["group_data/tiny.py: model: is required, add it"]


@pytest.mark.parametrize("profile", ["tiny", ["model"], 3, ModelProfile(model="/a")])
def test_profile_that_is_no_dict(profile: object) -> None:
    kind = type(profile).__name__
    assert problems(profile) == [f"group_data/tiny.py: profile = {kind}: write dict(...)"]


# (data of the host, what is said about host spark-1)
BAD_HOSTS: list[tuple[dict[str, Any], str]] = [
    ({"release": None}, "release: write release = dict(...)"),
    ({"release": "x.txt"}, "release = 'x.txt': write release = dict(...)"),
    ({"release": {}}, "release: lock: is required"),
    ({"release": {"lock": 1}}, "release: lock = 1: input should be a valid string"),
    ({"release": {"lock": "releases"}}, "release.lock = 'releases': no such file"),
    (
        {"release": {"lock": "releases/vllm-0.27.1-arch64.txt"}},
        "no such file; did you mean 'releases/vllm-0.27.1-aarch64.txt'?",
    ),
    ({"release": {**LOCK, "python": "312"}}, "release: python = '312': string should match"),
    ({"release": {**LOCK, "python": 3.12}}, "release: python = 3.12: input should be a valid str"),
    ({"release": {**LOCK, "cuda": 13}}, "release: cuda = 13: input should be a valid string"),
    ({"release": {**LOCK, "disk_gib": 0}}, "release: disk_gib = 0: input should be greater than"),
    ({"release": {**LOCK, "find_links": "/a"}}, "release: find_links = '/a': input should be a"),
    ({"release": {**LOCK, "packages": 1}}, "release: packages = 1: input should be a valid tuple"),
    ({"release": {**LOCK, "lok": "a"}}, "release: lok: no such field; did you mean 'lock'?"),
    ({"platform": "spark"}, "platform = 'spark': write platform = dict(...)"),
    ({"platform": {"architecture": "arm64"}}, "architecture = 'arm64': allowed: aarch64, x86_64"),
    ({"platform": {"dgx_os": "perhaps"}}, "dgx_os = 'perhaps': input should be a valid boolean"),
    ({"platform": {"driver_branch": "new"}}, "driver_branch = 'new': input should be a valid int"),
    ({"platform": {"cuda_major": 13.2}}, "cuda_major = 13.2: input should be a valid integer"),
    ({"platform": {"memory_gib": -1}}, "memory_gib = -1: input should be greater than 0"),
    ({"platform": {"os_reserve_gib": -1}}, "os_reserve_gib = -1: input should be greater than or"),
    ({"platform": {"gpus": "x"}}, "gpus: no such field; did you mean 'gpu'?"),
]


@pytest.mark.parametrize(("data", "expected"), BAD_HOSTS, ids=str)
def test_bad_host_data(data: dict[str, Any], expected: str) -> None:
    (said,) = problems(**data)
    assert said.startswith("host spark-1: ")
    assert expected in said


@pytest.mark.parametrize(
    "change",
    [
        {"api_key": "s3cret-value"},
        {"api_keys": "s3cret-value"},
        {"hf_token": "s3cret-value"},
        {"password": "s3cret-value"},
        {"extra_args": {"api-key": "s3cret-value"}},
        {"extra_args": "--api-key s3cret-value"},
        {"extra_args": {"--api-key": "s3cret-value"}},
        {"env": {"HF_TOKEN": "s3cret-value"}},
        {"env": {"VLLM_API_KEY": "s3cret-value"}},
        {"env": {"MY_KEY": ["s3cret-value"]}},
        {"env": "KEY=s3cret-value"},
        {"env": {"KEY": "s3cret-value\n"}},
    ],
    ids=str,
)
def test_a_secret_is_never_repeated(change: dict[str, Any]) -> None:
    (said,) = problems({**PATH_MODEL, **change})
    assert "s3cret" not in said


def test_settings_are_frozen_and_defaults_describe_a_spark() -> None:
    platform = Platform()  # type: ignore[call-arg]
    assert (platform.architecture, platform.cuda_major, platform.driver_branch) == (
        "aarch64",
        13,
        580,
    )
    with pytest.raises(ValueError, match="frozen"):
        platform.cuda_major = 12  # type: ignore[misc]
    assert EngineRelease(**LOCK).cuda == "13"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ({"model": "/srv/models/tiny/"}, ("tiny",)),
        ({"model": "org/name", "revision": COMMIT}, ("org/name",)),
        ({"model": "org/name", "revision": COMMIT, "served_names": ("a", "b")}, ("a", "b")),
    ],
)
def test_served_names(written: Mapping[str, Any], names: tuple[str, ...]) -> None:
    assert ModelProfile.model_validate(written).names == names


def test_expects_are_all_optional() -> None:
    assert Expects.model_validate({}).model_dump(exclude_none=True) == {}

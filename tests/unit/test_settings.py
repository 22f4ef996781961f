"""What users write, typed: what is accepted and what it means; mistakes are in test_bad_*.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sparkwright import engine
from sparkwright.errors import PlanError
from sparkwright.plan import RawHost, build_plan
from sparkwright.releases import EngineRelease
from sparkwright.settings import Expects, ModelProfile, Platform

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

"""Releases that do not suit a profile or a host, and runs that are limited to half a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwright import checks, engine
from sparkwright.plan import Plan, RawHost, make_plan
from sparkwright.settings import Platform

TINY = {"model": "/srv/models/tiny"}
HEADER = "# Made by sparkwright lock (uv 1) from: vllm==1.0\n# uv pip compile - --no-header {}\n"


def plan(root: Path, profile: dict[str, Any], *hosts: str, **data: Any) -> Plan:
    raw = [RawHost(name, ("tiny",), {"release": {"lock": "mine.txt"}} | data) for name in hosts]
    return make_plan(raw, {"tiny": {"profile": TINY | profile}}, root=root)


def wrong(root: Path, words: str, architecture: str = "aarch64", python: str = "3.12") -> list[str]:
    (root / "mine.txt").write_text((HEADER.format(words) if words else "") + "vllm==1.0\n")
    made = plan(root, {}, "a", release={"lock": "mine.txt", "python": python})
    (instance,) = made.hosts["a"].instances
    platform = Platform.model_validate({"architecture": architecture})
    return [str(problem) for problem in checks.wrong_lock("a", instance.release, platform)]


@pytest.mark.parametrize(
    "words",
    [
        "--python-version 3.12 --python-platform aarch64-manylinux_2_39",
        "--python-version 3.11 --universal",
        "",
    ],
)
def test_a_lock_for_this_machine(tmp_path: Path, words: str) -> None:
    assert wrong(tmp_path, words) == []


def test_a_lock_for_another_machine(tmp_path: Path) -> None:
    words = "--python-version 3.12 --python-platform x86_64-manylinux_2_39"
    assert wrong(tmp_path, words) == [
        "host a: release.lock = 'mine.txt': was made for x86_64, this host is aarch64: another lock"
    ]
    assert wrong(tmp_path, words, "x86_64") == []


def test_a_lock_for_another_python(tmp_path: Path) -> None:
    words = "--python-version 3.11 --python-platform aarch64-manylinux_2_39"
    assert wrong(tmp_path, words) == [
        "host a: release.python = '3.12': mine.txt was made for Python 3.11: write that, or make "
        "another lock"
    ]
    assert wrong(tmp_path, words, python="3.11") == []


def needs(root: Path, engine: str, lock: str, text: str = "vllm==1.0\n") -> list[str]:
    """What is said when there are releases 2.0 for both kinds of machine too."""
    (root / "releases").mkdir(exist_ok=True)
    for machine in ("aarch64", "x86_64"):
        (root / f"releases/vllm-2.0-{machine}.txt").write_text("vllm==2.0+cpu\n")
    (root / lock).write_text(text)
    made = plan(root, {"engine": engine}, "a", release={"lock": lock})
    return [str(problem) for problem in made.problems]


@pytest.mark.parametrize("engine", [">=1.0", "==1.0", ">=0.9,<2", "~=1.0", ""])
def test_an_engine_that_is_met(tmp_path: Path, engine: str) -> None:
    assert needs(tmp_path, engine, "vllm-1.0.txt") == []


@pytest.mark.parametrize(
    ("engine", "lock", "fits"),
    [
        (">=2", "vllm-1.0-aarch64.txt", "releases/vllm-2.0-aarch64.txt"),
        (">=2", "m.txt", "releases/vllm-2.0-aarch64.txt"),
        (">=3", "m.txt", "none of those in releases/: make one, `sparkwright lock`"),
    ],
)
def test_an_engine_that_is_not_met(tmp_path: Path, engine: str, lock: str, fits: str) -> None:
    assert needs(tmp_path, engine, lock) == [
        f"group_data/tiny.py: engine = {engine!r}: the release holds vLLM 1.0; releases that meet "
        f"it: {fits}"
    ]


@pytest.mark.parametrize("text", ["", "torch==2.13.0\n", "# vllm==1.0\n", "xvllm==1.0\n"])
def test_a_lock_without_an_engine(tmp_path: Path, text: str) -> None:
    assert needs(tmp_path, ">=1", "m.txt", text) == [
        "m.txt: pins no vllm==VERSION, so it is no lock of an engine: make one, `sparkwright lock`"
    ]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"a", "b", "c"}, []),
        ({"a", "b"}, []),
        ({"c"}, []),
        (set(), []),
        ({"unknown"}, []),
        ({"a"}, ["host a: --limit: b is the other half of pair p: name both"]),
        ({"b", "c"}, ["host b: --limit: a is the other half of pair p: name both"]),
    ],
)
def test_a_run_that_is_limited_to_half_a_pair(
    tmp_path: Path, chosen: set[str], said: list[str]
) -> None:
    (tmp_path / "mine.txt").write_text("vllm==1.0\n")
    data = {"release": {"lock": "mine.txt"}}
    two = {**TINY, "tensor_parallel_size": 2}
    hosts = [RawHost(name, ("two",), data | {"pair": "p"}) for name in "ab"]
    made = make_plan([*hosts, RawHost("c", (), data)], {"two": {"profile": two}}, root=tmp_path)
    assert made.problems == ()
    assert [str(problem) for problem in checks.halved_pairs(made, chosen)] == said


def test_without_a_lock_the_plan_warns_once_for_all_hosts(tmp_path: Path) -> None:
    made = plan(tmp_path, {}, "a", "b", release={"floating": "vllm"})
    assert made.problems == ()
    assert len([w for w in made.warnings if "can't be reproduced" in w.fix]) == 1


def test_on_a_ray_cluster_no_pair_is_needed_but_ray_is(tmp_path: Path) -> None:
    lock = tmp_path / "mine.txt"
    lock.write_text("vllm==1.0\n")
    profile = {"ray": "10.0.0.1:6379", "tensor_parallel_size": 2}
    (problem,) = plan(tmp_path, profile, "a").problems
    assert "mine.txt holds no ray" in str(problem)
    assert "sparkwright lock vllm==1.0 ray==VERSION" in str(problem)
    lock.write_text("vllm==1.0\nray==2.50.0\n")
    made = plan(tmp_path, profile | {"extra_args": {"pipeline-parallel-size": 2}}, "a")
    assert not made.problems
    (instance,) = made.hosts["a"].instances
    assert instance.pair is None and instance.link is None
    options = engine.serve_options(instance.profile, "/m")
    assert options["distributed-executor-backend"] == "ray"
    assert engine.environment(instance.profile, "tiny")["RAY_ADDRESS"] == "10.0.0.1:6379"
    (found,) = made.hosts["a"].estimates
    assert "Ray decides" in found.unknown["kv_tokens"]


@pytest.mark.parametrize("address", ["", "10.0.0.1", "auto", ":6379", "10.0.0.1:", "ray://a:1"])
def test_an_address_of_a_cluster_that_is_none(tmp_path: Path, address: str) -> None:
    (tmp_path / "mine.txt").write_text("vllm==1.0\nray==2.50.0\n")
    (problem,) = plan(tmp_path, {"ray": address}, "a").problems
    assert "write the address of its head node" in str(problem)

"""Mistakes between hosts, groups and profiles: each is one problem, and never a traceback."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_bad_input import LOCK, MODEL, found

NEWER = {"lock": "releases/vllm-0.33.0-aarch64.txt"}
TWO = {**MODEL, "tensor_parallel_size": 2, "gpu_memory_utilization": 0.4}
SMALL = {"model": "/srv/models/small", "port": 8001, "gpu_memory_utilization": 0.3}
PROFILES: dict[str, Any] = {
    "tiny": {**MODEL, "gpu_memory_utilization": 0.4},
    "small": SMALL,
    "same_port": {**SMALL, "port": 8000},
    "two": TWO,
    "two_more": {**TWO, "port": 8002},
    "odd_heads": {**TWO, "config": {"num_attention_heads": 9}},
}
PAIR = {"pair": "p"}

Hosts = dict[str, tuple[tuple[str, ...], dict[str, Any]]]


def pair(*names: str, group: str = "two", **more: Any) -> Hosts:
    """Hosts that share a pair; the last has further data."""
    hosts: Hosts = {name: ((group,), dict(PAIR)) for name in names}
    hosts[names[-1]][1].update(more)
    return hosts


# (hosts with groups and data, all of the place, the field and the value, part of the fix)
CASES: list[tuple[Hosts, str, str]] = [
    ({"a": (("llama",), {})}, "host a: group = 'llama'", "known: odd_heads, same_port, small, "),
    ({"a": (("tiney",), {})}, "host a: group = 'tiney'", "no such file group_data/tiney.py"),
    ({"a": (("tiny", "smal"), {})}, "host a: group = 'smal'", "did you mean 'small'?"),
    ({"a": (("Tiny",), {}), "b": (("Tiny",), {})}, "hosts a, b: group = 'Tiny'", "mean 'tiny'?"),
    ({"a": (("tiny", "same_port"), {})}, "host a: port = 8000", "profiles tiny and same_port both"),
    ({"a": (("tiny",), {}), "b": (("small",), {"ssh_hostname": "a"})},
     "host b: ssh_hostname = 'a'", "a is the same machine: write one host into both groups"),
    ({"a.local": (("tiny",), {}), "A.local": (("small",), {})},
     "host A.local: ssh_hostname = 'A.local'", "a.local is the same machine"),
    ({"a": (("two",), {})}, "host a: pair", "two is served by two Sparks"),
    ({"a": (("two",), {}), "b": (("two",), {})}, "hosts a, b: pair", "the same pair = '...'"),
    (pair("a"), "pair p", "has one host, a: write pair = 'p' into the data of the second"),
    (pair("a", "b", "c"), "pair p", "has 3 hosts, a, b, c: leave two, give the others a name of"),
    (pair("a", "b", group="tiny"), "pair p", "no profile of a and b is served by two Sparks"),
    (pair("a", "b", release=NEWER), "pair p: release = vllm-0.27.1-aarch64-", "the same release"),
    (pair("a", "b", platform={"memory_gib": 110}), "pair p: platform", "the same kind of machine"),
    (pair("a", "b", release=None), "host b: release", "write release = dict(lock="),
    (pair("a", "b", group="odd_heads"),
     "group_data/odd_heads.py: tensor_parallel_size = 2", "9 attention heads can't be split"),
    ({"a": (("two",), PAIR), "b": (("two_more",), PAIR)}, "pair p",
     "a is not in the group two_more, b is not in the group two: put both hosts of the pair into"),
    ({"a": (("two",), PAIR), "b": (("tiny",), PAIR)}, "pair p", "b is not in the group two: put"),
    ({"a": (("two",), PAIR), "b": ((), PAIR)}, "pair p", "b is not in the group two: put both"),
    ({"a": ((), PAIR)}, "pair p", "no profile of a is served by two Sparks"),
    ({"a": (("tiny",), {"release": {"lock": "releases/tools.txt"}})},
     "releases/tools.txt", "pins no vllm==VERSION, so it is no lock of an engine"),
]  # fmt: skip


@pytest.mark.parametrize(("hosts", "place", "fix"), CASES, ids=str)
def test_inventory(hosts: Hosts, place: str, fix: str) -> None:
    (problem,) = found(hosts, PROFILES)
    assert str(problem).startswith(place), problem
    assert fix in str(problem)


@pytest.mark.parametrize(
    ("name", "said"), [(None, "pair: is missing"), (7, "pair = 7: write a name")]
)
def test_half_a_pair_without_its_name_leaves_the_other_half_alone(name: object, said: str) -> None:
    one, other = found(pair("a", "b", pair=name), PROFILES)
    assert str(one).startswith(f"host b: {said}")
    assert str(other).startswith("pair p: has one host, a: write pair = 'p' into the data of")


@pytest.mark.parametrize("name", ["big-model", "bad name", "a@b", "größer", "x" * 65, "a.1", "%i"])
def test_a_file_name_that_can_not_be_a_units(name: str) -> None:
    (problem,) = found({"a": (("tiny",), {})}, PROFILES | {name: MODEL})
    assert str(problem).startswith(f"group_data/{name}.py = {name!r}: it becomes part of a unit's")
    assert "1 to 64 letters without accents, digits, _" in str(problem)


@pytest.mark.parametrize("profile", ["tiny", ["model"], 3, None, [MODEL], (MODEL,), {1}])
def test_a_profile_that_is_no_dict(profile: object) -> None:
    (problem,) = found({"a": (("tiny",), {})}, {"tiny": profile})
    kind = type(profile).__name__
    assert str(problem) == f"group_data/tiny.py: profile = {kind}: write dict(...)"


# (what the environment holds, what is said)
KEYS = [
    ("", "MY_KEY is not set where you run this: export MY_KEY=..."),
    ("a b", "MY_KEY holds blanks, quotes"),
    ("schlüssel", "MY_KEY holds blanks, quotes"),
    ("a$b", "MY_KEY holds blanks, quotes"),
    ("a\nb", "MY_KEY holds blanks, quotes"),
]


@pytest.mark.parametrize(("key", "fix"), KEYS)
def test_a_key_that_can_not_be_passed_on(key: str, fix: str) -> None:
    profile = {**MODEL, "api_key": "env:MY_KEY"}
    (problem,) = found({"a": (("tiny",), {})}, {"tiny": profile}, {"MY_KEY": key})
    assert str(problem).startswith("group_data/tiny.py: api_key = 'env:MY_KEY': ")
    assert fix in problem.fix and (not key or key not in str(problem))


def test_right_pairs_are_no_problem() -> None:
    assert found(pair("a", "b"), PROFILES) == []
    both = {name: (("two", "small"), PAIR) for name in "ab"}
    assert found(both, PROFILES) == []
    lock = {"release": dict(LOCK)}
    assert found({"a": (("two",), PAIR | lock), "b": (("two",), PAIR)}, PROFILES) == []

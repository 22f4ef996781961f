"""Which hosts are one server, and which of them leads."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.pairs import Member, Pair, find_pairs

SIZES = {"one": 1, "two": 2, "other": 2}


def members(*written: tuple[str, object, str]) -> list[Member]:
    return [Member(host, pair, tuple(profiles.split())) for host, pair, profiles in written]


def said(*written: tuple[str, object, str]) -> list[str]:
    pairs, problems = find_pairs(members(*written), SIZES)
    assert not pairs
    return [str(problem) for problem in problems]


def test_the_first_of_the_inventory_is_the_head() -> None:
    pairs, problems = find_pairs(members(("b", "p", "two"), ("a", "p", "two")), SIZES)
    assert not problems
    pair = Pair("p", ("b", "a"))
    assert pairs == {("b", "two"): pair, ("a", "two"): pair}


def test_a_pair_may_share_two_profiles_and_serve_others_alone() -> None:
    pairs, problems = find_pairs(
        members(("a", "p", "two one other"), ("b", "p", "other two")), SIZES
    )
    assert not problems
    assert set(pairs) == {(h, p) for h in "ab" for p in ("two", "other")}


def test_two_pairs_and_a_host_of_its_own() -> None:
    written = [("a", "p", "two"), ("b", "q", "two"), ("c", "p", "two"), ("d", "q", "two")]
    pairs, problems = find_pairs(members(*written, ("e", None, "one")), SIZES)
    assert not problems
    assert {key: pair.hosts for key, pair in pairs.items()} == {
        ("a", "two"): ("a", "c"),
        ("c", "two"): ("a", "c"),
        ("b", "two"): ("b", "d"),
        ("d", "two"): ("b", "d"),
    }


def test_no_pairs_at_all() -> None:
    assert find_pairs(members(("a", None, "one"), ("b", None, "")), SIZES) == ({}, [])


def test_a_profile_that_could_not_be_read_takes_one_spark() -> None:
    assert find_pairs(members(("a", None, "broken")), SIZES) == ({}, [])


# (hosts, what is said)
WRONG: list[tuple[list[tuple[str, Any, str]], str]] = [
    ([("a", "p", "two")], "pair p: has one host, a: write pair = 'p' into the data of the second"),
    (
        [("a", "p", "two"), ("b", "p", "two"), ("c", "p", "")],
        "pair p: has 3 hosts, a, b, c: leave two, give the others a name of their own",
    ),
    (
        [("a", "p", "two other"), ("b", "p", "two")],
        "pair p: b is not in the group other: put both hosts of the pair into the same group",
    ),
    (
        [("a", "p", "one"), ("b", "p", "one")],
        "pair p: no profile of a and b is served by two Sparks: put both hosts into the group of "
        "one with tensor_parallel_size=2, or take pair out",
    ),
    (
        [("a", None, "two")],
        "host a: pair: is missing: two is served by two Sparks (tensor_parallel_size=2); write "
        "the same pair = '...' into the data of both",
    ),
    ([("a", 7, "two")], "host a: pair = 7: write a name, the same for both Sparks"),
    ([("a", "", "")], "host a: pair = '': write a name, the same for both Sparks"),
    ([("a", "p ", "two")], "host a: pair = 'p ': write a name, the same for both Sparks"),
]


@pytest.mark.parametrize(("written", "expected"), WRONG)
def test_what_is_wrong_with_a_pair(written: list[tuple[str, Any, str]], expected: str) -> None:
    assert said(*written) == [expected]


def test_a_broken_pair_leaves_another_whole() -> None:
    written = [("a", "p", "two"), ("b", "q", "two"), ("c", "q", "two")]
    pairs, (problem,) = find_pairs(members(*written), SIZES)
    assert set(pairs) == {("b", "two"), ("c", "two")}
    assert problem.where == "pair p"

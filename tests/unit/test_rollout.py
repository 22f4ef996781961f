"""Who goes when, and who is held back why."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sparkwright import rollout
from sparkwright.plan import Plan, RawHost, make_plan
from sparkwright.rollout import Member, Outcome, Rollout, Row

RELEASE = {"lock": "releases/vllm-0.27.1-aarch64.txt"}
PROFILE = {"model": "/m/tiny", "gpu_memory_utilization": 0.5}
GROUPS: dict[str, dict[str, Any]] = {
    "all": {},
    "one": {"profile": PROFILE},
    "two": {"profile": {**PROFILE, "tensor_parallel_size": 2}},
}


def policy(**values: Any) -> Rollout:
    return Rollout.model_validate(values)


def plan(*hosts: tuple[str, str, dict[str, Any]], groups: Any = GROUPS) -> Plan:
    raw = [RawHost(name, (group,), {"release": RELEASE, **data}) for name, group, data in hosts]
    return make_plan(raw, groups)


def names(waves: tuple[tuple[Member, ...], ...]) -> list[list[str]]:
    return [[host for member in wave for host in member.hosts] for wave in waves]


def single(*hosts: str) -> tuple[Member, ...]:
    return tuple(Member((host,)) for host in hosts)


@pytest.mark.parametrize(
    ("values", "members", "sizes"),
    [
        ({}, 0, []),
        ({}, 1, [1]),
        ({}, 3, [1, 1, 1]),
        ({}, 40, [1, 10, 10, 10, 9]),
        ({"canary": 5}, 3, [3]),
        ({"canary": 2, "wave": 3}, 9, [2, 3, 3, 1]),
        ({"wave": "100%"}, 9, [1, 8]),
        ({"wave": "1%"}, 4, [1, 1, 1, 1]),
    ],
)
def test_sizes_of_waves(values: dict[str, Any], members: int, sizes: list[int]) -> None:
    made = rollout.waves(single(*(f"h{n}" for n in range(members))), policy(**values))
    assert [len(wave) for wave in made] == sizes
    assert [host for wave in names(made) for host in wave] == [f"h{n}" for n in range(members)]


def test_a_share_is_of_the_whole_run_not_of_what_is_left_of_it() -> None:
    made = rollout.waves(single("a", "b", "c", "d", "e"), policy(wave="25%"), of=16)
    assert names(made) == [["a"], ["b", "c", "d", "e"]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("canary", 0),
        ("canary", True),
        ("wave", 0),
        ("wave", -1),
        ("wave", 1.5),
        ("wave", "4"),
        ("wave", "101%"),
        ("wave", True),
        ("failures", 0),
        ("start_timeout_s", 0),
        ("waves", 3),
    ],
)
def test_policies_that_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        policy(**{field: value})


PAIR = (
    ("a", "one", {}),
    ("b", "two", {"pair": "left"}),
    ("c", "one", {}),
    ("d", "two", {"pair": "left"}),
)


def test_a_pair_is_one_member_where_its_head_stands() -> None:
    members = rollout.members(plan(*PAIR).hosts, set("abcd"))
    assert [str(member) for member in members] == ["a", "pair left (b, d)", "c"]
    assert names(rollout.waves(members, policy(wave=1))) == [["a"], ["b", "d"], ["c"]]


def test_only_members_that_need_a_change_and_are_whole() -> None:
    members = rollout.members(plan(*PAIR).hosts, set("abcd"))
    everyone = set("abcd")
    assert names((rollout.needing(members, {"c"}, everyone),)) == [["c"]]
    assert names((rollout.needing(members, {"d"}, everyone),)) == [["b", "d"]]
    assert names((rollout.needing(members, everyone, set("acd")),)) == [["a", "c"]]
    told = rollout.broken_pair(members[1], {"b"})
    assert told == "held back: b, of the same pair, was dropped"
    assert rollout.broken_pair(members[1], set()) is None


def test_a_limit_leaves_the_others_out() -> None:
    members = rollout.members(plan(*PAIR).hosts, {"c", "a"})
    assert names((members,)) == [["a", "c"]]


WAVES = (single("a"), (Member(("b", "d"), "left"),), single("e"))
GOOD = dict.fromkeys("abde", Outcome.UPDATED)


def test_waves_go_while_all_is_well() -> None:
    assert rollout.held_back(WAVES, 0, {}, policy()) is None
    assert rollout.held_back(WAVES, 2, GOOD | {"a": Outcome.UNCHANGED}, policy()) is None


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ROLLED_BACK, Outcome.DROPPED])
def test_half_a_pair_that_fails_is_the_pair(outcome: Outcome) -> None:
    told = rollout.held_back(WAVES, 2, GOOD | {"d": outcome}, policy())
    assert told == "held back: wave 2 pair left (b, d) failed"


def test_a_host_that_was_lost_without_a_word_has_failed() -> None:
    assert rollout.held_back(WAVES, 1, {}, policy()) == "held back: canary a failed"


def test_as_many_failures_as_the_policy_allows() -> None:
    bad = GOOD | {"a": Outcome.FAILED}
    held = bad | {"b": Outcome.HELD_BACK, "d": Outcome.HELD_BACK}
    assert rollout.held_back(WAVES, 2, held, policy()) == "held back: canary a failed"
    assert rollout.held_back(WAVES, 2, bad, policy(failures=2)) is None
    told = rollout.held_back(WAVES, 2, bad | {"b": Outcome.FAILED}, policy(failures=2))
    assert told == "held back: canary a, wave 2 pair left (b, d) failed"


def test_many_failures_are_told_shortly() -> None:
    wave = single(*"abcdefgh")
    told = rollout.held_back((wave, single("z")), 1, {}, policy())
    assert told == "held back: canary a, canary b, canary c and 5 more failed"


def test_the_policy_is_one_for_all_hosts() -> None:
    hosts = [("a", "one", {"rollout": {"canary": 1}}), ("b", "one", {"rollout": {"canary": 2}})]
    (problem,) = plan(*hosts).problems
    assert str(problem) == (
        "host b: rollout: differs from that of a: write it once, in group_data/all.py"
    )
    (problem,) = plan(("a", "one", {"rollout": 3})).problems
    assert "rollout = 3: write rollout = dict(...)" in str(problem)


def test_a_cap_on_starts() -> None:
    capped = plan(("a", "one", {"rollout": {"start_timeout_s": "5min"}}))
    assert capped.hosts["a"].instances[0].start_timeout_s == 300
    higher = plan(("a", "one", {"rollout": {"start_timeout_s": "2h"}}))
    assert higher.hosts["a"].instances[0].start_timeout_s == 3720
    slow = {"one": {"profile": {**PROFILE, "expects": {"cold_start_s": 400}}}}
    told = plan(("a", "one", {"rollout": {"start_timeout_s": 300}}), groups=slow).problems
    assert [str(problem) for problem in told] == [
        "rollout: start_timeout_s = 300: is below the start that one expects (400 s): no start "
        "could succeed"
    ]


def test_a_host_whose_turn_never_came_was_lost() -> None:
    told = rollout.held_back(WAVES, 1, {"a": Outcome.NOT_REACHED}, policy())
    assert told == "held back: canary a failed"


BROKEN = {"profile": {"model": 7}}


@pytest.mark.parametrize(
    ("data", "groups", "stops"),
    [
        ({}, {}, False),
        ({"relase": 1}, {}, False),
        ({"rollout": {"canary": 0}}, {}, False),
        ({"platform": {"gpus": 1}}, {}, True),
        ({}, {"one": GROUPS["two"]}, True),
        ({"_serial": True}, {}, True),
        ({}, {"one": BROKEN}, True),
        ({}, {"two": BROKEN}, False),
        ({}, {"one": {**GROUPS["one"], "_retries": 2}}, True),
        ({}, {"one": {**GROUPS["one"], "portt": 2}}, False),
        ({}, {"all": {"relase": 1}}, False),
        ({}, {"one": {"profile": {**PROFILE, "api_key": "env:NOT_SET"}}}, False),
    ],
)
def test_what_keeps_a_host_from_going_back(
    data: dict[str, Any], groups: dict[str, Any], stops: bool
) -> None:
    hosts = [
        RawHost("a", ("one",), {"release": RELEASE, **data}, data),
        RawHost("b", ("three",), {"release": 7}),
    ]
    whole = make_plan(hosts, GROUPS | groups)
    assert whole.problems or not (data or groups)
    assert bool(rollout.in_the_way(whole, {"a": ("all", "one")})) is stops
    assert rollout.in_the_way(whole, {"b": ("three",)}), "its group is misspelt"


def test_the_summary() -> None:
    lines = rollout.summary(
        [
            Row("spark-1", "tiny", "vllm-1", Outcome.ROLLED_BACK, "OSError: no"),
            Row("spark-2", "tiny", None, Outcome.HELD_BACK, "held back: canary spark-1 failed"),
            Row("spark-2", "big", "vllm-1", Outcome.HELD_BACK, "held back: canary spark-1 failed"),
        ]
    )
    assert lines == [
        "HOST     SERVES  RELEASE  OUTCOME",
        "spark-1  tiny    vllm-1   rolled back: OSError: no",
        "spark-2  tiny    unknown  held back: canary spark-1 failed",
        "spark-2  big     vllm-1   held back: canary spark-1 failed",
        "1 rolled back, 1 held back",
    ]


def test_a_host_that_was_left_in_the_middle_is_counted_as_such() -> None:
    lines = rollout.summary([Row("a", "tiny", "vllm-1", Outcome.IN_PROGRESS, "in progress: x")])
    assert lines[1:] == ["a     tiny    vllm-1   in progress: x", "1 in progress"]


def test_warnings_of_the_hosts_of_a_run() -> None:
    whole = plan(("a", "one", {}), ("a2", "one", {}), *PAIR[1::2])
    assert {w.where for w in whole.warnings} >= {"host a", "host a2", "host b"}
    told = {w.where for w in rollout.warnings(whole, {"a"})}
    assert "host a" in told and not told & {"host a2", "host b"}
    assert "host b" in {w.where for w in rollout.warnings(whole, {"b", "d"})}

"""The link of a pair: addresses that are derived or written down, and what contradicts."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.plan import Plan, RawHost, make_plan

PROFILE = {"model": "/m", "tensor_parallel_size": 2, "gpu_memory_utilization": 0.2}
DATA = {
    "two": {"profile": PROFILE},
    "also": {"profile": {**PROFILE, "port": 8001}},
    "one": {"profile": {"model": "/m", "port": 8002, "gpu_memory_utilization": 0.2}},
}
WRITTEN = [("10.1.0.1/30", "10.2.0.1/30"), ("10.1.0.2/30", "10.2.0.2/30")]


def plan(*fabrics: dict[str, Any] | None, groups: tuple[str, ...] = ("two",)) -> Plan:
    hosts = []
    for name, fabric in zip("ab", fabrics, strict=True):
        own: dict[str, Any] = {"pair": "desk"} | ({"fabric": fabric} if fabric else {})
        data = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}, **own}
        hosts.append(RawHost(name, groups, data, own))
    return make_plan(hosts, DATA)


def said(*fabrics: dict[str, Any] | None) -> list[str]:
    return [str(problem) for problem in plan(*fabrics).problems]


def addresses(*texts: str) -> dict[str, Any]:
    return {"addresses": texts}


def test_nothing_needs_to_be_said() -> None:
    made = plan(None, None)
    assert not made.problems
    head, worker = (made.hosts[name].link for name in "ab")
    assert head and worker and (head.rank, worker.rank) == (0, 1)
    assert head.own == worker.peer == ("192.168.100.10", "192.168.101.10")
    assert head.peer == worker.own == ("192.168.100.11", "192.168.101.11")
    assert (head.peer_host, worker.peer_host) == ("b", "a")
    assert head.prefixes == (24, 24) and head.settings.mtu == 9000
    assert head.as_json()["ports"] == [29400, 18515, 18516, 29501]


def test_what_is_written_down() -> None:
    head = plan(addresses(*WRITTEN[0]), addresses(*WRITTEN[1])).hosts["a"].link
    assert head and head.own == ("10.1.0.1", "10.2.0.1") and head.peer == ("10.1.0.2", "10.2.0.2")
    assert head.prefixes == (30, 30)


def test_two_profiles_of_a_pair_and_one_of_its_own() -> None:
    made = plan(None, None, groups=("two", "one", "also"))
    assert not made.problems
    for name in "ab":
        instances = made.hosts[name].instances
        # The one that needs no partner is not kept waiting for it.
        assert [i.name for i in instances] == ["one", "two", "also"]
        assert [i.after for i in instances] == [None, "one", "two"]
        assert [i.link is not None for i in instances] == [False, True, True]
        assert {i.name: i.master_port for i in instances[1:]} == {"also": 29501, "two": 29502}
        link = made.hosts[name].link
        assert link and link.ports == (29501, 29502)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (addresses(*WRITTEN[0]), None, "b has none: write them for both Sparks, or for none"),
        (addresses(*WRITTEN[0]), addresses(*WRITTEN[0]), "both Sparks have it: change one"),
        (
            addresses(*WRITTEN[0]),
            addresses("10.3.0.2/30", "10.2.0.2/30"),
            "rail 1 must be one subnet on both Sparks",
        ),
        (
            addresses("10.1.0.1/24", "10.1.0.3/24"),
            addresses("10.1.0.2/24", "10.1.0.4/24"),
            "each rail needs a subnet of its own",
        ),
        ({"mtu": 1500}, None, "1500 on a, 9000 on b"),
        ({"merge_nics": False}, None, "must be the same on both Sparks"),
        ({"mtu": 9216}, {"mtu": 9216}, "less than or equal to 9000"),
        ({"port": 2}, None, "0 or 1"),
        ({"sockets": "wifi"}, None, "'fabric' or 'management'"),
        ({"speed": 1}, None, "no such field"),
        (addresses("10.1.0.1", "10.2.0.1/30"), None, "needs a prefix from /8 to /30"),
        (addresses("10.1.0.0/24", "10.2.0.1/30"), None, "is no host of 10.1.0.0/24"),
        (addresses("spark-1", "10.2.0.1/30"), None, "is no IPv4 address with a prefix"),
        (addresses("127.0.0.1/8", "10.2.0.1/30"), None, "can't be the address of a rail"),
    ],
)
def test_contradictions(first: dict[str, Any], second: dict[str, Any] | None, words: str) -> None:
    problems = said(first, second)
    assert any(words in problem for problem in problems), problems


def test_a_variable_that_each_host_reads_for_itself() -> None:
    data = {"two": {"profile": {**PROFILE, "env": {"NCCL_IB_GID_INDEX": "3"}}}}
    own = {"pair": "desk", "release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
    problems = make_plan([RawHost(name, ("two",), own, {"pair": "desk"}) for name in "ab"], data)
    (problem,) = problems.problems
    assert "env.NCCL_IB_GID_INDEX: is read on each Spark" in str(problem)


def test_a_fabric_without_a_pair() -> None:
    own = {"fabric": {"mtu": 1500}}
    data = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}, **own}
    (problem,) = make_plan([RawHost("a", ("one",), data, own)], DATA).problems
    assert "this one is in none: take it out" in str(problem)
    # For all hosts, in group_data/all.py, it is for those that are in a pair.
    assert not make_plan([RawHost("a", ("one",), data)], DATA).problems

"""Pairs in a run: the link is set up on both, one member of a wave, never half of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.plan.cli import TINY, Run, Scenario
from tests.plan.fleet import ACTIVATE, HOSTS, applied, summary

pytestmark = pytest.mark.slow

PAIRED = f"{TINY}, tensor_parallel_size=2"
RIGHT = '{"missing": null, "notes": []}'
WRONG = '{"missing": "rail 1 (enp1s0f1np1) does not reach spark-2", "notes": []}'


def pairs(kinds: str, *options: str, link: str = RIGHT, **policy: object) -> Scenario:
    """Hosts of these kinds, each two a pair. link: what `fabric.py check` says."""
    hosts = f"""{HOSTS}
tiny = _fleet({kinds.split()}, rollout={policy})
for _number, (_, _data) in enumerate(tiny):
    _data["pair"] = f"p{{_number // 2}}"
    _data["fake_responses"] |= {{
        "fabric.py check": {link!r},
        "fabric.py setup": {{"stdout": "setup ran"}},
    }}
"""
    return Scenario(hosts, PAIRED, ("-y", *options))


SCENARIOS = {
    "pairs": pairs("good good good good good good", wave=1),
    "pairs-unlinked": pairs("good good", link=WRONG),
    "pair-lost": pairs("good dropped good good"),
    "pair-parallel": pairs("good good", "--parallel", "1"),
    "pair-limit": pairs("good good", "--limit", "@fake/h000"),
}


def test_a_pair_is_one_member_of_a_wave(ran: Callable[[str], Run]) -> None:
    run = ran("pairs")
    assert run.status == 0, run.output
    assert applied(run) == {
        f"{ACTIVATE}: canary": ["@fake/h000", "@fake/h001"],
        f"{ACTIVATE}: wave 2": ["@fake/h002", "@fake/h003"],
        f"{ACTIVATE}: wave 3": ["@fake/h004", "@fake/h005"],
    }
    assert not applied(run, "setup"), "the link is right already"


def test_a_link_that_is_not_right_is_set_up_on_both(ran: Callable[[str], Run]) -> None:
    run = ran("pairs-unlinked")
    assert list(applied(run, "setup").values()) == [["@fake/h000", "@fake/h001"]], run.output


def test_the_half_of_a_pair_whose_other_half_was_dropped(ran: Callable[[str], Run]) -> None:
    run = ran("pair-lost")
    assert run.status == 1 and "Traceback" not in run.output
    assert "@fake/h001, the other Spark of pair p0, was dropped: @fake/h000 is left as it is" in (
        run.output
    )
    outcomes = summary(run)
    assert outcomes["@fake/h002"] == outcomes["@fake/h003"] == "updated"
    assert outcomes["@fake/h000"] != "updated"
    assert [h for hosts in applied(run).values() for h in hosts] == ["@fake/h002", "@fake/h003"]


def test_too_few_hosts_at_a_time(ran: Callable[[str], Run]) -> None:
    run = ran("pair-parallel")
    assert run.status == 1 and applied(run) == {} and "Connected" not in run.output
    assert "1 hosts at a time are too few: the two Sparks of a pair change together" in run.output
    assert "Run again with --parallel 2" in run.output and "Traceback" not in run.output


def test_half_of_a_pair_is_refused(ran: Callable[[str], Run]) -> None:
    run = ran("pair-limit")
    assert run.status == 1 and applied(run) == {} and "Connected" not in run.output

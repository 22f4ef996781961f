"""A fleet of pretended hosts, changed canary first: who is touched, who is not, what is said.

What takes long is in test_fleet.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.plan.cli import Run, Scenario
from tests.plan.fleet import ACTIVATE, HOSTS, applied, small, summary

# An API key that is not there, and a host that can't be planned: nothing to do with the others.
_ELSEWHERE = """
tiny = _fleet(["good"])
keyed = [_spark("h001")]
other = [_fake("h002", {}, platform={"architecture": "arm64"})]
"""
SCENARIOS = {
    "canary-fails": small("bad good good"),
    "same": small("same same same"),
    "policy": small("good good", canary=0, wave="0%", failure=1, start_timeout_s="1 week"),
    "data": Scenario(f"{HOSTS}tiny = _fleet(['good'], _serial=True, _retries=3)"),
    # Enter: do it; enter: go on although a host failed.
    "asked-first": replace(small("unbuilt good good"), options=(), stdin="\n\n"),
    "interrupted": replace(small("hangs good"), interrupt=f"{ACTIVATE}: canary"),
    "back": Scenario(
        HOSTS + _ELSEWHERE, options=("-y", "--limit", "@fake/h000"), deploy="rollback.py"
    ),
    "back-misspelt": Scenario(HOSTS + "tny = _fleet(['good'])", deploy="rollback.py"),
}


def test_a_canary_that_fails_leaves_the_others_as_they_are(ran: Callable[[str], Run]) -> None:
    run = ran("canary-fails")
    assert run.status == 1
    assert applied(run) == {f"{ACTIVATE}: canary": ["@fake/h000"]}
    for host in ("@fake/h001", "@fake/h002"):
        assert f"held back: canary @fake/h000 failed; {host} stays as it is" in run.lines(host)
    assert summary(run) == {
        "@fake/h000": "rolled back: RuntimeError: boom",
        "@fake/h001": "held back: canary @fake/h000 failed",
        "@fake/h002": "held back: canary @fake/h000 failed",
    }
    assert "@fake/h001  tiny    old-1" in run.output


def test_nothing_to_do(ran: Callable[[str], Run]) -> None:
    run = ran("same")
    assert run.status == 0 and applied(run) == {}
    assert set(summary(run).values()) == {"unchanged"}
    # Nobody is asked again for the summary.
    assert "--> Asking" not in run.output


def test_mistakes_in_the_policy_are_said_at_once(ran: Callable[[str], Run]) -> None:
    run = ran("policy")
    assert run.status == 1
    for told in (
        "hosts @fake/h000, @fake/h001: rollout: canary = 0: input should be greater than or",
        "rollout: wave = '0%': write a number of members from 1, or a share of them up to '100%'",
        "rollout: failure = 1: no such field; did you mean 'failures'?",
        "rollout: start_timeout_s = '1 week': write a number of seconds",
    ):
        assert told in run.output
    run = ran("data")
    assert run.status == 1
    for key in ("_serial", "_retries"):
        told = f"host @fake/h000: {key}: a fleet could no longer be changed wave by wave: take it"
        assert told in run.output


def test_without_yes_a_host_that_fails_before_the_waves_holds_nobody_back(
    ran: Callable[[str], Run],
) -> None:
    run = ran("asked-first")
    assert run.status == 1
    assert applied(run) == {
        f"{ACTIVATE}: canary": ["@fake/h001"],
        f"{ACTIVATE}: wave 2": ["@fake/h002"],
    }
    outcomes = summary(run)
    assert outcomes.pop("@fake/h000").startswith("dropped")
    assert set(outcomes.values()) == {"updated"}


def test_a_run_that_is_stopped(ran: Callable[[str], Run]) -> None:
    run = ran("interrupted")
    assert run.status == 130 and "Traceback" not in run.output
    assert "What was begun on a host goes on there" in run.output
    assert summary(run) == {
        "@fake/h000": "in progress: starting",
        "@fake/h001": "not reached",
    }


def test_mistakes_elsewhere_do_not_keep_a_host_from_going_back(ran: Callable[[str], Run]) -> None:
    run = ran("back")
    assert run.status == 0, run.output
    assert list(applied(run, "rollback").values()) == [["@fake/h000"]]
    assert summary(run) == {"@fake/h000": "went back"}
    run = ran("back-misspelt")
    assert run.status == 1 and not applied(run, "rollback")
    assert "host @fake/h000: group = 'tny': no such file" in run.output

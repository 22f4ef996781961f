"""A large fleet, and what else of a rollout takes many runs to show."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.plan.cli import Run, Scenario
from tests.plan.fleet import ACTIVATE, HOSTS, applied, small, summary

pytestmark = pytest.mark.slow

COUNT = 200


def _kinds(seed: int, bad: float) -> list[str]:
    """What each host of a fleet of COUNT is, at random."""
    dice = random.Random(seed)
    kinds = ["good", "bad", "same", "dropped"]
    return dice.choices(kinds, weights=[0.8 - bad, bad, 0.15, 0.05], k=COUNT)


POLICY = {"canary": 2, "wave": 40, "failures": 2}
FLEETS = {seed: _kinds(seed, bad=0.03) for seed in (1,)}


def _big(seed: int) -> Scenario:
    return Scenario(f"{HOSTS}tiny = _fleet({FLEETS[seed]}, rollout={POLICY})")


SCENARIOS = {
    **{f"big-{seed}": _big(seed) for seed in FLEETS},
    "canary-is-the-first-that-changes": small("same dropped good good bad"),
    "tolerated": small("bad good good good", wave=1, failures=2),
    "last-fails": small("good good bad", wave=2),
    "stale": small("refused"),
    "serial": small("good good", "--serial"),
    "no-wait": small("good good", "--no-wait"),
    "retry": small("good good", "--retry", "2"),
    "limit-typo": small("good good", "--limit", "@fake/h000", "--limit", "@fake/h01x"),
    "limit": small("bad good good", "--limit", "@fake/h001"),
    "limit-group": small("good good", "--limit", "tiny"),
    "limit-comma": small("good good", "--limit", "@fake/h000,@fake/h001"),
    "limit-empty-group": small("good good", "--limit", "gpt_oss_120b"),
    "exclude": small("bad good good", "--exclude", "@fake/h000"),
}


def _expected(kinds: list[str]) -> tuple[dict[str, list[str]], set[str]]:
    """By a plain walk through the fleet: who changes in which wave, and who is held back."""
    going = [f"@fake/h{n:03}" for n, kind in enumerate(kinds) if kind in ("good", "bad")]
    bad = {f"@fake/h{n:03}" for n, kind in enumerate(kinds) if kind == "bad"}
    waves, failed, number = {}, 0, 0
    while going and failed < POLICY["failures"]:
        size = POLICY["wave"] if number else POLICY["canary"]
        wave, going = going[:size], going[size:]
        failed += len(bad & set(wave))
        title = f"{ACTIVATE}: {f'wave {number + 1}' if number else 'canary'}"
        waves[title] = wave
        number += 1
    return waves, set(going)


@pytest.mark.parametrize("seed", FLEETS)
def test_two_hundred_hosts(ran: Callable[[str], Run], seed: int) -> None:
    run = ran(f"big-{seed}")
    waves, held = _expected(FLEETS[seed])
    assert len(waves) > 2 and held, "the seed must make a rollout that stops on its way"
    assert run.status == 1 and "Traceback" not in run.output
    assert applied(run) == waves
    outcomes = summary(run)
    assert len(outcomes) == COUNT
    assert {host for host, told in outcomes.items() if told.startswith("held back")} == held
    words = {"same": "unchanged", "dropped": "dropped"}
    for number, kind in enumerate(FLEETS[seed]):
        host = f"@fake/h{number:03}"
        if host not in held:
            expected = words.get(kind, "updated" if kind == "good" else "rolled back")
            assert outcomes[host].startswith(expected), outcomes[host]


def test_memory_of_the_controller(ran: Callable[[str], Run]) -> None:
    for seed in FLEETS:
        assert 0 < ran(f"big-{seed}").peak < 1024**3


def test_a_host_without_change_and_a_dropped_one_are_no_members(ran: Callable[[str], Run]) -> None:
    run = ran("canary-is-the-first-that-changes")
    assert applied(run) == {
        f"{ACTIVATE}: canary": ["@fake/h002"],
        f"{ACTIVATE}: wave 2": ["@fake/h003"],
        f"{ACTIVATE}: wave 3": ["@fake/h004"],
    }
    assert summary(run)["@fake/h001"].startswith("dropped: CUDA toolkit: 12.8")
    assert run.status == 1


def test_failures_that_are_tolerated(ran: Callable[[str], Run]) -> None:
    run = ran("tolerated")
    assert [len(hosts) for hosts in applied(run).values()] == [1, 1, 1, 1]
    assert run.status == 1, "a failed host is a failed run all the same"


def test_the_last_wave_fails(ran: Callable[[str], Run]) -> None:
    run = ran("last-fails")
    assert applied(run)[f"{ACTIVATE}: wave 2"] == ["@fake/h001", "@fake/h002"]
    assert run.status == 1 and summary(run)["@fake/h001"] == "updated"


@pytest.mark.parametrize("name", ["serial", "no-wait", "retry"])
def test_a_run_without_order_is_refused(ran: Callable[[str], Run], name: str) -> None:
    run = ran(name)
    assert run.status == 1 and applied(run) == {}
    why = {"retry": "a canary that fails would be restarted again and again"}
    told = why.get(name, "waves need hosts that wait for each other")
    assert f"--{name}: {told}, nothing was done" in run.output
    assert "Traceback" not in run.output and "Who serves what" not in run.output
    assert "Connected" not in run.output


def test_a_limit_that_means_nobody(ran: Callable[[str], Run]) -> None:
    run = ran("limit-typo")
    assert run.status == 1 and "Connected" not in run.output
    assert "--limit @fake/h01x: no such host or group of hosts, nothing was done; did you mean" in (
        run.output
    )
    run = ran("limit-empty-group")
    assert run.status == 1 and "--limit gpt_oss_120b: no such host or group of" in run.output
    run = ran("limit-comma")
    assert run.status == 1 and "nothing was done; give --limit once for each" in run.output


def test_limits(ran: Callable[[str], Run]) -> None:
    run = ran("limit")
    assert run.status == 0 and applied(run) == {ACTIVATE: ["@fake/h001"]}
    assert list(summary(run)) == ["@fake/h001"]
    assert len(summary(ran("limit-group"))) == 2
    run = ran("exclude")
    assert run.status == 0 and list(applied(run).values()) == [["@fake/h001"], ["@fake/h002"]]


def test_what_an_earlier_run_came_to_is_not_said_of_this_one(ran: Callable[[str], Run]) -> None:
    assert summary(ran("stale")) == {"@fake/h000": "failed: apply ran"}

"""A fleet of pretended hosts, changed canary first: who is touched, who is not, what is said."""

from __future__ import annotations

import random
import re
import resource
from collections.abc import Callable

import pytest

from tests.plan.cli import Run, Scenario

COUNT = 200
ACTIVATE = "Activate, and prove by a generation"

# Hosts by what happens on them. check: what `activate.py check` says; apply: how a change ends.
HOSTS = """
def _spark(name, serves=False, works=True, probe=None, **data):
    proof = "8 tokens" if serves else None
    last = {"result": "serving" if works else "rolled back", "reason": "RuntimeError: boom"}
    status = {"release": "old-1", "health": "8 tokens", "last": last}
    host, made = _fake(name, probe or _probe(), **data)
    made["fake_responses"] |= {
        "activate.py check": json.dumps({"tiny": {"enabled": True, "proof": proof}}),
        "activate.py apply": {"stdout": "apply ran", "success": works},
        "activate.py rollback": {"stdout": "rollback ran", "success": works},
        "activate.py remove": {"stdout": "remove ran"},
        "sudo -n true": json.dumps({"instances": {"tiny": status}}),
    }
    return (host, made)


def _fleet(kinds, **data):
    made = {"good": {}, "bad": {"works": False}, "same": {"serves": True}}
    old = _probe(cuda={"/usr/local/cuda": "12.8"})
    made["dropped"] = {"probe": old}
    return [_spark(f"h{n:03}", **made[kind], **data) for n, kind in enumerate(kinds)]
"""


def _kinds(seed: int, bad: float) -> list[str]:
    """What each host of a fleet of COUNT is, at random."""
    dice = random.Random(seed)
    kinds = ["good", "bad", "same", "dropped"]
    return dice.choices(kinds, weights=[0.8 - bad, bad, 0.15, 0.05], k=COUNT)


POLICY = {"canary": 2, "wave": 40, "failures": 2}
FLEETS = {seed: _kinds(seed, bad=0.03) for seed in (1,)}


def _big(seed: int) -> Scenario:
    return Scenario(f"{HOSTS}tiny = _fleet({FLEETS[seed]}, rollout={POLICY})")


def _small(kinds: str, *options: str, **policy: object) -> Scenario:
    data = f"rollout={policy}" if policy else ""
    return Scenario(f"{HOSTS}tiny = _fleet({kinds.split()}, {data})", options=("-y", *options))


SCENARIOS = {
    **{f"big-{seed}": _big(seed) for seed in FLEETS},
    "canary-fails": _small("bad good good"),
    "same": _small("same same same"),
    "canary-is-the-first-that-changes": _small("same dropped good good bad"),
    "tolerated": _small("bad good good good", wave=1, failures=2),
    "last-fails": _small("good good bad", wave=2),
    "serial": _small("good good", "--serial"),
    "no-wait": _small("good good", "--no-wait"),
    "limit-typo": _small("good good", "--limit", "@fake/h000", "--limit", "@fake/h01x"),
    "limit": _small("bad good good", "--limit", "@fake/h001"),
    "limit-group": _small("good good", "--limit", "tiny"),
    "limit-empty-group": _small("good good", "--limit", "gpt_oss_120b"),
    "exclude": _small("bad good good", "--exclude", "@fake/h000"),
    "policy": _small("good good", canary=0, wave="0%", failure=1, start_timeout_s="1 week"),
    "data": Scenario(f"{HOSTS}tiny = _fleet(['good'], _serial=True)"),
}


def applied(run: Run) -> dict[str, list[str]]:
    """Hosts that ran a change, by the title of the wave's operation."""
    found: dict[str, list[str]] = {}
    body = run.output.split("--> Results:")[0]
    for part in body.split("--> Starting operation: ")[1:]:
        hosts = re.findall(r"^ *\[(@fake/h\d+)\] apply ran", part, re.M)
        if hosts:
            found[part.split("\n")[0].strip()] = sorted(hosts)
    return found


def summary(run: Run) -> dict[str, str]:
    """The outcome of each host, by the table at the end."""
    table = run.output.split("--> Who serves what now:")[1]
    return dict(re.findall(r"^    (@fake/h\d+) .*?(?:\s{2,}\S+){1}\s{2,}(\S.*)$", table, re.M))


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
        ran(f"big-{seed}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert peak < 1024**3


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


def test_a_host_without_change_and_a_dropped_one_are_no_members(ran: Callable[[str], Run]) -> None:
    run = ran("canary-is-the-first-that-changes")
    assert applied(run) == {
        f"{ACTIVATE}: canary": ["@fake/h002"],
        f"{ACTIVATE}: wave 2": ["@fake/h003"],
        f"{ACTIVATE}: wave 3": ["@fake/h004"],
    }
    assert summary(run)["@fake/h001"].startswith("dropped")
    assert run.status == 1


def test_failures_that_are_tolerated(ran: Callable[[str], Run]) -> None:
    run = ran("tolerated")
    assert [len(hosts) for hosts in applied(run).values()] == [1, 1, 1, 1]
    assert run.status == 1, "a failed host is a failed run all the same"


def test_the_last_wave_fails(ran: Callable[[str], Run]) -> None:
    run = ran("last-fails")
    assert applied(run)[f"{ACTIVATE}: wave 2"] == ["@fake/h001", "@fake/h002"]
    assert run.status == 1 and summary(run)["@fake/h001"] == "updated"


@pytest.mark.parametrize("name", ["serial", "no-wait"])
def test_a_run_without_order_is_refused(ran: Callable[[str], Run], name: str) -> None:
    run = ran(name)
    assert run.status == 1 and applied(run) == {}
    assert f"--{name}: waves need hosts that wait for each other, nothing was done" in run.output
    assert "Traceback" not in run.output and "Who serves what" not in run.output


def test_a_limit_that_means_nobody(ran: Callable[[str], Run]) -> None:
    run = ran("limit-typo")
    assert run.status == 1 and "Connected" not in run.output
    assert "--limit @fake/h01x: no such host or group of hosts, nothing was done; did you mean" in (
        run.output
    )
    run = ran("limit-empty-group")
    assert run.status == 1 and "--limit gpt_oss_120b: no such host or group of" in run.output


def test_limits(ran: Callable[[str], Run]) -> None:
    run = ran("limit")
    assert run.status == 0 and applied(run) == {ACTIVATE: ["@fake/h001"]}
    assert list(summary(run)) == ["@fake/h001"]
    assert len(summary(ran("limit-group"))) == 2
    run = ran("exclude")
    assert run.status == 0 and list(applied(run).values()) == [["@fake/h001"], ["@fake/h002"]]


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
    told = "host @fake/h000: _serial: a fleet could no longer be changed wave by wave: take it out"
    assert run.status == 1 and told in run.output

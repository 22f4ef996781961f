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

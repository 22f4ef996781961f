"""Fleets of pretended hosts, and what a run did to them."""

from __future__ import annotations

import re

from tests.plan.cli import Run, Scenario

ACTIVATE = "Activate, and prove by a generation"

# Hosts by what happens on them. check: what `activate.py check` says; apply: how a change ends.
HOSTS = """
class _Hangs(dict):
    def get(self, *_):
        import gevent

        gevent.sleep(60)


def _spark(
    name, serves=False, works=True, probe=None, built=True, hangs=False, was=None, back=False,
    **data
):
    proof = "8 tokens" if serves else None
    result = "serving" if works else "rolled back"
    last = {"result": result, "reason": "RuntimeError: boom", "at": 2}
    status = {"release": "old-1", "health": "8 tokens", "last": last, "went_back": back}
    running = {"phase": "starting", "running": True} if hangs else None
    probe = probe or _probe()
    if was:
        probe["stamps"][paths.STATE] = json.dumps({"tiny": {"last": {"at": was}}})
    host, made = _fake(name, probe, **data)
    made["fake_responses"] |= {
        "activate.py check": json.dumps({"tiny": {"enabled": True, "proof": proof}}),
        "release.py build": {"success": built},
        "activate.py apply": _Hangs() if hangs else {"stdout": "apply ran", "success": works},
        "activate.py rollback": {"stdout": "rollback ran", "success": works},
        "activate.py remove": {"stdout": "remove ran"},
        "sudo -n true": json.dumps({"instances": {"tiny": status}, "transaction": running}),
    }
    return (host, made)


def _fleet(kinds, **data):
    made = {"good": {}, "bad": {"works": False}, "same": {"serves": True}}
    old = _probe(cuda={"/usr/local/cuda": "12.8"})
    made["dropped"] = {"probe": old}
    made["unbuilt"], made["hangs"] = {"built": False}, {"hangs": True}
    made["refused"] = {"works": False, "was": 2}
    made["back"] = {"back": True}
    return [_spark(f"h{n:03}", **made[kind], **data) for n, kind in enumerate(kinds)]
"""


def small(kinds: str, *options: str, **policy: object) -> Scenario:
    """A fleet of these kinds, with a rollout policy."""
    data = f"rollout={policy}" if policy else ""
    return Scenario(f"{HOSTS}tiny = _fleet({kinds.split()}, {data})", options=("-y", *options))


def applied(run: Run, what: str = "apply") -> dict[str, list[str]]:
    """Hosts that ran a change, by the title of the wave's operation."""
    found: dict[str, list[str]] = {}
    body = run.output.split("--> Results:")[0]
    for part in body.split("--> Starting operation: ")[1:]:
        hosts = re.findall(rf"^ *\[(@fake/h\d+)\] {what} ran", part, re.M)
        if hosts:
            found[part.split("\n")[0].strip()] = sorted(hosts)
    return found


def summary(run: Run) -> dict[str, str]:
    """The outcome of each host, by the table at the end."""
    table = run.output.split("--> Who serves what now:")[1]
    return dict(re.findall(r"^    (@fake/h\d+) .*?(?:\s{2,}\S+){1}\s{2,}(\S.*)$", table, re.M))

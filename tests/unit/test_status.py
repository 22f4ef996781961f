"""What hosts answer about themselves, as people read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkwright import status
from sparkwright.status import Answer
from tests.unit.test_rollout import plan

HOSTS = plan(("a", "one", {}), ("b", "one", {}), ("off", "one", {}))
RELEASE = HOSTS.hosts["a"].instances[0].release.id
SERVES: dict[str, Any] = {
    "release": RELEASE,
    "since": 1764540000.5,
    "health": "one generated 16 tokens",
    "problem": None,
    "last": {"result": "serving", "reason": None, "at": 1764540000},
}


def answer(memory: Any = None, transaction: Any = None, **entry: Any) -> Answer:
    instances = {"one": {**SERVES, **entry}}
    return status.read({"instances": instances, "memory": memory, "transaction": transaction})


def line(given: Answer, host: str = "a") -> str:
    return status.table(HOSTS, {host: given}).splitlines()[1]


def test_a_host_that_serves() -> None:
    memory = {"available": 3 * 1024**3, "total": 8 * 1024**3}
    said = line(answer(memory))
    assert f"a     one      {RELEASE}  20" in said
    assert "one generated 16 tokens  3.0 of 8.0 GiB  serving (20" in said
    assert status.all_serve(HOSTS, {"a": answer()})


def test_a_host_that_does_not_and_why() -> None:
    last = {"result": "failed", "reason": "OSError: no\n  while loading", "at": 1764540000}
    given = answer(health=None, problem="vllm@one.service is failed", last=last)
    assert "NO: vllm@one.service is failed" in line(given)
    assert "failed: OSError: no (20" in line(given)
    assert not status.all_serve(HOSTS, {"a": given, "b": answer()})


def test_another_release_and_drift_are_said_and_serve() -> None:
    given = answer(release="old-1", problem="changed by hand: env")
    assert f"old-1 (to be {RELEASE})" in line(given)
    assert "one generated 16 tokens; changed by hand: env" in line(given)
    assert status.all_serve(HOSTS, {"a": given})


def test_a_host_that_was_not_reached_and_one_without_anything() -> None:
    silent = Answer("nothing answers at 192.0.2.1 port 22")
    assert "one      unknown  unknown  NO ANSWER: nothing answers at" in line(silent, "off")
    assert not status.all_serve(HOSTS, {"off": silent})
    assert "NO: not deployed yet" in line(status.read({}))
    assert not status.all_serve(HOSTS, {"a": status.read({})})


def test_an_instance_that_nobody_planned() -> None:
    given = status.read({"instances": {"stray": SERVES}})
    said = status.table(HOSTS, {"a": given})
    assert "(not in the inventory)" in said and "NO: not deployed yet" in said


@pytest.mark.parametrize(
    ("running", "words"),
    [
        ({"phase": "starting", "running": True}, "in progress: starting"),
        ({"phase": "switching", "running": False}, "cut off while switching: the next deploy"),
    ],
)
def test_a_transaction(running: Any, words: str) -> None:
    assert words in line(answer(transaction=running))


@pytest.mark.parametrize("odd", [{"instances": 3}, {"instances": {"one": 3}, "memory": []}, {}])
def test_an_odd_answer_is_unknown_not_an_error(odd: dict[str, Any]) -> None:
    given = status.read(odd)
    assert "unknown" in status.table(HOSTS, {"a": given})
    json.dumps(status.as_json(HOSTS, {"a": given}))


def test_when_an_instance_last_changed() -> None:
    assert status.last_at({"last": {"at": 7.5}}) == 7.5
    for entry in (None, [], {}, {"last": None}, {"last": {"at": "x"}}):
        assert status.last_at(entry) is None


def test_a_host_that_went_back() -> None:
    last = {"result": "went back", "at": 1764540000}
    given = answer(last=last, went_back=True, differs_from_staged=True)
    assert "  went back (20" in line(given)
    marked = f"{RELEASE} (differs from what was staged last: a deploy brings the inventory's)"
    assert marked in line(given)
    assert "(differs" not in line(answer(differs_from_staged=None))
    # The release says it already.
    assert "(differs" not in line(answer(release="old-1", differs_from_staged=True))


def test_a_release_that_is_gone() -> None:
    given = answer(release_gone=True)
    told = "tokens; its release folder is gone: a restart will fail, a deploy builds it  "
    assert told in line(given)
    assert not status.all_serve(HOSTS, {"a": given})


def test_an_engine_that_was_stopped() -> None:
    given = answer(health=None, problem="vllm@one.service is inactive", unit="inactive")
    assert "inactive (stopped; the next deploy starts it)" in line(given)
    failed = answer(health=None, problem="vllm@one.service is failed", unit="failed")
    assert "(stopped" not in line(failed)

"""What hosts say of themselves (`activate.py status`), typed, and as a table for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.plan import Plan

_HEAD = ("HOST", "PROFILE", "RELEASE", "SINCE", "SERVES", "MEMORY LEFT", "LAST CHANGE")


@dataclass(frozen=True)
class Serving:
    """One instance as its host sees it. None: unknown. since, at: seconds of the epoch."""

    name: str
    release: str | None
    previous_release: str | None
    since: float | None
    health: str | None
    """Its proof: tokens that a generation returned, or why that was not needed."""
    problem: str | None
    result: str | None
    """Of the last transaction."""
    reason: str
    at: float | None
    went_back: bool = False
    """What serves was put there by a rollback."""
    differs: bool = False
    """What serves is not what was staged last."""
    release_gone: bool = False
    unit: str | None = None
    """How systemd calls the state of its unit."""

    @property
    def serves(self) -> bool:
        return self.health is not None

    @property
    def rolled_back(self) -> bool:
        return self.result == "rolled back"


@dataclass(frozen=True)
class Answer:
    """What a host answered. problem: why it did not; the rest is empty then. Sizes in bytes."""

    problem: str | None = None
    instances: tuple[Serving, ...] = ()
    available: int | None = None
    total: int | None = None
    transaction: str | None = None
    """The one that is under way, or was cut off, in words."""
    raw: Mapping[str, Any] | None = None
    is_running: bool = False
    """The transaction is under way, not cut off."""


def read(value: Mapping[str, Any]) -> Answer:
    """The answer of `activate.py status`. What is missing in it is unknown."""
    instances = _mapping(value.get("instances"))
    memory = _mapping(value.get("memory"))
    running = value.get("transaction")
    phase = _text(_mapping(running).get("phase")) or "in an unknown phase"
    cut_off = _mapping(running).get("running") is False
    if cut_off:
        phase = f"cut off while {phase}: the next deploy, or the next boot, ends it"
    else:
        phase = f"in progress: {phase}"
    return Answer(
        None,
        tuple(_serving(name, _mapping(entry)) for name, entry in sorted(instances.items())),
        _whole(memory.get("available")),
        _whole(memory.get("total")),
        phase if running else None,
        value,
        bool(running) and not cut_off,
    )


def _serving(name: str, entry: Mapping[str, Any]) -> Serving:
    last = _mapping(entry.get("last"))
    return Serving(
        name,
        _text(entry.get("release")),
        _text(entry.get("previous_release")),
        _number(entry.get("since")),
        _text(entry.get("health")),
        _text(entry.get("problem")),
        _text(last.get("result")),
        reason(last.get("reason")),
        last_at(entry),
        entry.get("went_back") is True,
        entry.get("differs_from_staged") is True,
        entry.get("release_gone") is True,
        _text(entry.get("unit")),
    )


def last_at(entry: object) -> float | None:
    """When the last transaction of an instance ended. entry: the instance's, also of state.json."""
    return _number(_mapping(_mapping(entry).get("last")).get("at"))


def reason(value: object) -> str:
    """A reason as one line: a host gives a text, or a mapping with the first exception."""
    if isinstance(value, Mapping):
        value = next((v for v in value.values() if isinstance(v, str) and v), "")
    lines = [line.strip() for line in str(value or "").splitlines() if line.strip()]
    return lines[0] if lines else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def all_serve(plan: Plan, answers: Mapping[str, Answer]) -> bool:
    """Whether every instance that is planned on the hosts that were asked serves, and can start
    again."""
    for name, answer in answers.items():
        planned = plan.hosts.get(name)
        serving = {instance.name for instance in answer.instances if instance.serves}
        if answer.problem or planned is None:
            return False
        if any(instance.release_gone for instance in answer.instances):
            return False
        if not {instance.name for instance in planned.instances} <= serving:
            return False
    return True


def table(plan: Plan, answers: Mapping[str, Answer]) -> str:
    """One line an instance; hosts that did not answer, and instances that are not there, too."""
    rows: list[tuple[str, ...]] = [_HEAD]
    for name, answer in answers.items():
        rows += _rows(plan, name, answer)
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _rows(plan: Plan, name: str, answer: Answer) -> Iterable[tuple[str, ...]]:
    planned = plan.hosts.get(name)
    wanted = {i.name: i.release.id for i in planned.instances} if planned else {}
    if answer.problem:
        profiles = ", ".join(wanted) or "-"
        yield (name, profiles, "unknown", "unknown", f"NO ANSWER: {answer.problem}", "unknown", "-")
        return
    memory = _memory(answer)
    there = {instance.name for instance in answer.instances}
    for instance in answer.instances:
        release = instance.release or "unknown"
        if instance.name not in wanted:
            release += " (not in the inventory)"
        elif instance.release and instance.release != wanted[instance.name]:
            release += f" (to be {wanted[instance.name]})"
        elif instance.differs:
            # Of the inventory as it is now, a host knows nothing.
            release += " (differs from what was staged last: a deploy brings the inventory's)"
        serves = _serves(instance, instance.name in wanted)
        last = _last(instance, answer)
        yield (name, instance.name, release, _day(instance.since), serves, memory, last)
    for profile in wanted.keys() - there:
        yield (name, profile, "-", "-", "NO: not deployed yet", memory, "-")
    if not wanted and not there:
        yield (name, "-", "-", "-", "nothing, as planned", memory, "-")


def _serves(instance: Serving, is_wanted: bool) -> str:
    problem = reason(instance.problem)
    if instance.serves:
        told = "; ".join(filter(None, (instance.health, problem)))
    else:
        told = f"NO: {problem or 'unknown'}"
        if instance.unit == "inactive" and is_wanted:
            told += " (stopped; the next deploy starts it)"
    if instance.release_gone:
        told += "; its release folder is gone: a restart will fail, a deploy builds it"
    return told


def _last(instance: Serving, answer: Answer) -> str:
    if answer.transaction:
        return answer.transaction
    parts = [instance.result or "unknown"]
    if instance.reason:
        parts.append(instance.reason)
    when = f" ({_day(instance.at)})" if instance.at is not None else ""
    return ": ".join(parts) + when


def _memory(answer: Answer) -> str:
    if answer.available is None or answer.total is None:
        return "unknown"
    return f"{answer.available / 1024**3:.1f} of {answer.total / 1024**3:.1f} GiB"


def _day(at: float | None) -> str:
    return "unknown" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def as_json(plan: Plan, answers: Mapping[str, Answer]) -> Sequence[Mapping[str, Any]]:
    """The same for machines: what each host said, what is planned on it, and why it is silent."""
    return [
        {
            "host": name,
            "planned": {i.name: i.release.id for i in plan.hosts[name].instances}
            if name in plan.hosts
            else None,
            "problem": answer.problem,
            "status": answer.raw,
        }
        for name, answer in answers.items()
    ]

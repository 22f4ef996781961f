"""How a fleet is changed: a canary first, then wave by wave, until too many have failed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from sparkwright import checks, units
from sparkwright.settings import Seconds, Setting

if TYPE_CHECKING:
    from sparkwright.errors import Problem
    from sparkwright.plan import HostPlan, Plan


def _share(value: Any) -> Any:
    """A whole number of members, or a text such as "25%" as a fraction."""
    if not isinstance(value, str):
        return value
    if not value.strip().endswith("%"):
        raise ValueError("write a number of members, 4, or a share of them, '25%'")
    return units.fraction(value)


def _is_size(value: int | float) -> int | float:
    if isinstance(value, int) and value >= 1:
        return value
    if isinstance(value, float) and 0 < value <= 1:
        return value
    raise ValueError("write a number of members from 1, or a share of them up to '100%'")


Size = Annotated[int | float, BeforeValidator(_share), AfterValidator(_is_size)]


class Rollout(Setting):
    """How many Sparks change at once, and when to stop: `rollout` in `group_data/all.py`.

    A member is one Spark, or a pair that serves together.
    """

    canary: int = Field(1, ge=1, description="members that go first")
    wave: Size = Field(
        0.25,
        description="members that go together after the canary, a number or a share of all members "
        "of the run. A quarter is what Kubernetes takes down at once (maxUnavailable)",
    )
    failures: int = Field(
        1, ge=1, description="failed members with which the waves that follow are held back"
    )
    start_timeout_s: Seconds | None = Field(
        None, gt=0, description="no start may take longer, whatever a profile's ready_timeout_s is"
    )

    def wave_size(self, members: int) -> int:
        """Members of a wave after the canary, when the run has that many members."""
        if isinstance(self.wave, int):
            return self.wave
        return max(1, math.floor(self.wave * members))


@dataclass(frozen=True)
class Member:
    """What is changed together: one host, or the hosts of a pair."""

    hosts: tuple[str, ...]
    pair: str | None = None

    def __str__(self) -> str:
        names = ", ".join(self.hosts)
        return f"pair {self.pair} ({names})" if self.pair else names


class Outcome(Enum):
    """What became of a host in a run, as the summary says it."""

    UNCHANGED = "unchanged"
    UPDATED = "updated"
    ROLLED_BACK = "rolled back"
    FAILED = "failed"
    """Its turn began, and did not end well."""
    IN_PROGRESS = "in progress"
    """Its turn began, and goes on there after the run was stopped."""
    NOT_REACHED = "not reached"
    """It needs a change, and the run ended before its turn began."""
    HELD_BACK = "held back"
    DROPPED = "dropped"
    """It failed before it was known whether it needs a change: it is no member of any wave."""
    WENT_BACK = "went back"

    @property
    def good(self) -> bool:
        return self in (Outcome.UNCHANGED, Outcome.UPDATED, Outcome.WENT_BACK)


def members(plans: Mapping[str, HostPlan], chosen: Collection[str]) -> tuple[Member, ...]:
    """All members of a run, in inventory order; a pair stands where its first host stands.

    plans: in inventory order. chosen: names of the hosts that the run is limited to.
    """
    found: dict[tuple[str, ...], Member] = {}
    for name, plan in plans.items():
        if name in chosen:
            pair = next((i.pair for i in plan.instances if i.pair), None)
            hosts = tuple(h for h in pair.hosts if h in chosen) if pair else (name,)
            found.setdefault(hosts, Member(hosts, pair.name if pair else None))
    return tuple(found.values())


def needing(
    all_members: Iterable[Member], changes: Collection[str], answered: Collection[str]
) -> tuple[Member, ...]:
    """The members that need a change and can get it.

    changes: hosts that need one. answered: hosts that are still there; one that failed before is
    no member, nor is a pair that lost a host.
    """
    return tuple(
        member
        for member in all_members
        if any(host in changes for host in member.hosts)
        and all(host in answered for host in member.hosts)
    )


def waves(
    chosen: Sequence[Member], rollout: Rollout, of: int | None = None
) -> tuple[tuple[Member, ...], ...]:
    """The canary, then wave after wave, in inventory order.

    of: how many members the run has, of which a share is taken; default: those given.
    """
    size = rollout.wave_size(len(chosen) if of is None else of)
    rest = chosen[rollout.canary :]
    later = (tuple(rest[n : n + size]) for n in range(0, len(rest), size))
    first = tuple(chosen[: rollout.canary])
    return (first, *later) if first else ()


def wave_name(number: int) -> str:
    """How a wave is called, from 0: `canary`, then `wave 2`."""
    return f"wave {number + 1}" if number else "canary"


def held_back(
    planned: Sequence[Sequence[Member]],
    number: int,
    outcomes: Mapping[str, Outcome],
    rollout: Rollout,
) -> str | None:
    """Why a wave must not go, or None when it may.

    number: of the wave, from 0. outcomes: by host, of the waves before; one that is missing there
    counts as failed, since its host was lost without a word.
    """
    failed: list[str] = []
    for earlier, wave in enumerate(planned[:number]):
        for member in wave:
            became = [outcomes.get(host, Outcome.FAILED) for host in member.hosts]
            if not all(outcome.good or outcome is Outcome.HELD_BACK for outcome in became):
                failed.append(f"{wave_name(earlier)} {member}")
    if len(failed) < rollout.failures:
        return None
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    return f"held back: {', '.join(failed[:3])}{more} failed"


def in_the_way(plan: Plan, groups: Mapping[str, Collection[str]]) -> tuple[Problem, ...]:
    """The problems of an inventory with which hosts can't even go back to what they served.

    A host goes back by its own record: all that is needed of the inventory is the names of its
    instances, and an order. plan: of the whole inventory. groups: of each chosen host.
    """
    return tuple(p for p in plan.problems if _is_in_the_way(p, plan, groups))


def warnings(plan: Plan, chosen: Collection[str]) -> tuple[Problem, ...]:
    """The plan's warnings that concern hosts of a run.

    chosen: names of the hosts that the run is limited to.
    """
    hosts = [plan.hosts[name] for name in chosen if name in plan.hosts]
    instances = [one for host in hosts for one in host.instances]
    places = {f"host {host.name}" for host in hosts}
    places |= {f"group_data/{one.name}.py" for one in instances}
    places |= {f"release {one.release.id}" for one in instances}
    places |= {f"pair {one.pair.name}" for one in instances if one.pair}
    return tuple(
        warning
        for warning in plan.warnings
        if any(re.match(rf"{re.escape(place)}(:|$| \()", warning.where) for place in places)
    )


def _is_in_the_way(problem: Problem, plan: Plan, groups: Mapping[str, Collection[str]]) -> bool:
    for host, its_groups in groups.items():
        planned = plan.hosts.get(host)
        known = {instance.name for instance in planned.instances} if planned else set()
        # A misspelt group is an instance whose name is not known.
        grave = planned is None or problem.field in ("group", "pair", "--limit", *checks.DISORDER)
        if grave and re.match(rf"host {re.escape(host)}(:|$)", problem.where):
            return True
        for group in its_groups:
            if problem.where == f"group_data/{group}.py":
                unread = group not in {"all", *known}
                if unread or problem.field in checks.DISORDER:
                    return True
    return False


def broken_pair(member: Member, lost: Collection[str]) -> str | None:
    """Why a pair can't be changed although one of its hosts could, or None."""
    gone = [host for host in member.hosts if host in lost]
    return f"held back: {', '.join(gone)}, of the same pair, was dropped" if gone else None


@dataclass(frozen=True)
class Row:
    """One line of the summary: who serves what now. release: None when it is not known."""

    host: str
    profile: str
    release: str | None
    outcome: Outcome
    note: str = ""


def summary(rows: Sequence[Row]) -> list[str]:
    """The rows as a table, then a line that counts the outcomes of hosts."""
    cells = [("HOST", "SERVES", "RELEASE", "OUTCOME")]
    for row in rows:
        note = f": {row.note}" if row.note else ""
        told = row.outcome.value + note.removeprefix(f": {row.outcome.value}")
        cells.append((row.host, row.profile, row.release or "unknown", told))
    widths = [max(len(line[n]) for line in cells) for n in range(3)]
    lines = [
        "  ".join([*(c.ljust(w) for c, w in zip(line[:3], widths, strict=True)), line[3]]).rstrip()
        for line in cells
    ]
    of_host = {row.host: row.outcome for row in rows}
    counts = [(o.value, list(of_host.values()).count(o)) for o in Outcome]
    return [*lines, ", ".join(f"{count} {name}" for name, count in counts if count)]

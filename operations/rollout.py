"""What this run knows of the fleet: who needs a change, whose turn it is, what became of whom.

pyinfra finishes an operation on all hosts before it begins the next, so what one wave came to is
known in this process when the next begins: no host is asked for it.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial, wraps

import click
from gevent.pool import Pool
from pyinfra import logger
from pyinfra.api import util
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.output import echo
from pyinfra.api.state import State
from pyinfra_cli import cli
from pyinfra_cli.exceptions import CliError

from operations.planning import chosen_hosts, is_run_of, whole_plan
from operations.run import why
from operations.status import ask
from sparkwright import rollout
from sparkwright.rollout import Member, Outcome, Row
from sparkwright.status import Answer, last_at


@dataclass
class _Run:
    """One run of pyinfra."""

    answered: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    before: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """When the last transaction of each instance ended, by the host's clock, before its turn."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """What hosts said of themselves before the first wave, in a rollback."""
    begun: bool = False
    waves: tuple[tuple[Member, ...], ...] | None = None


_RUN = _Run()


@cache
def count() -> int:
    """How many waves this run can need at most; the same on every host."""
    return len(rollout.waves(_members(), whole_plan().rollout))


def title(what: str, wave: int) -> str:
    """The name of a wave's operation: `what` alone when there is but one wave."""
    return what if count() < 2 else f"{what}: {rollout.wave_name(wave)}"


def note(host: str, change: bool, answered: bool) -> None:
    """Remember whether a host needs a change, before the first wave.

    answered: False while pyinfra only looks for changes (without `-y`): the steps that come before
    the waves are not done yet, and a host that fails in one of them is no member.
    """
    forget(host)
    if change:
        _RUN.changes.add(host)
    if answered:
        _RUN.answered.add(host)
        _RUN.outcomes[host] = Outcome.NOT_REACHED if change else Outcome.UNCHANGED


def forget(host: str) -> None:
    """What a host said before no longer counts."""
    _RUN.answered.discard(host)
    _RUN.changes.discard(host)
    _RUN.outcomes.pop(host, None)
    _RUN.notes.pop(host, None)
    _RUN.answers.pop(host, None)
    _RUN.waves = None


def is_turn(host: str, wave: int, executing: bool) -> bool:
    """True when a host that needs a change belongs to this wave.

    executing: False before anything is done: it is not known yet which other hosts need a change,
    and all are counted.
    """
    if host not in _RUN.changes:
        return False
    waves = _planned() if executing else rollout.waves(_members(), whole_plan().rollout)
    return any(host in member.hosts for member in waves[wave]) if wave < len(waves) else False


def refusal(host: str, wave: int) -> str | None:
    """Why a host must not be changed in this wave although it needs to be, or None."""
    if wave == 0 and host in _RUN.changes:
        member = next(m for m in _members() if host in m.hosts)
        broken = rollout.broken_pair(member, set(member.hosts) - _RUN.answered)
        if broken:
            return _hold(host, broken)
    if not is_turn(host, wave, executing=True):
        return None
    reason = rollout.held_back(_planned(), wave, _RUN.outcomes, whole_plan().rollout)
    return _hold(host, reason) if reason else None


def _hold(host: str, reason: str) -> str:
    _RUN.outcomes[host], _RUN.notes[host] = Outcome.HELD_BACK, reason
    return f"{reason}; {host} stays as it is"


def begin(host: str) -> None:
    """The turn of a host begins; unless it says that it succeeded, it has failed."""
    _RUN.outcomes[host] = Outcome.FAILED


def remember(host: str, state: str | None) -> None:
    """Keep when its instances last changed: what is older is not of this run.

    state: content of the host's state.json.
    """
    try:
        value = json.loads(state or "{}")
    except ValueError:
        value = {}
    entries = value.items() if isinstance(value, dict) else ()
    _RUN.before[host] = {name: last_at(entry) for name, entry in entries}


def saw(host: str, answer: Answer) -> None:
    """Keep what a host said of itself before its turn."""
    _RUN.answers[host] = answer
    _RUN.before[host] = {one.name: one.at for one in answer.instances}


def say_of(host: str, note: str) -> None:
    """What the summary says of a host beside its outcome."""
    _RUN.notes[host] = note


def succeeded(host: str, outcome: Outcome = Outcome.UPDATED) -> None:
    """A host did what its wave asked for."""
    _RUN.outcomes[host] = outcome


@cache
def _members() -> tuple[Member, ...]:
    return rollout.members(whole_plan().hosts, chosen_hosts())


def _planned() -> tuple[tuple[Member, ...], ...]:
    if _RUN.waves is None:
        going = rollout.needing(_members(), _RUN.changes, _RUN.answered)
        _RUN.waves = rollout.waves(going, whole_plan().rollout, of=len(_members()))
    return _RUN.waves


def guard_runs() -> None:
    """Refuse a run whose hosts don't wait for each other; end every deploy with a summary."""
    run_ops: Callable[..., None] = cli.run_ops
    connect_all, disconnect_all = cli.connect_all, cli.disconnect_all

    @wraps(connect_all)
    def in_order(state: State) -> None:
        given = click.get_current_context().params
        if is_run_of("deploy.py") or is_run_of("rollback.py"):
            _refuse_disorder(given["serial"], given["no_wait"], state.config.RETRY)
            _refuse_parted_pairs(state.config.PARALLEL)
        connect_all(state)

    @wraps(run_ops)
    def guarded(state: State, serial: bool = False, no_wait: bool = False) -> None:
        if whole_plan.cache_info().currsize:  # also of a file that includes ours
            _refuse_disorder(serial, no_wait, state.config.RETRY)
            _refuse_parted_pairs(state.config.PARALLEL)
        _RUN.begun = bool(whole_plan.cache_info().currsize)
        try:
            run_ops(state, serial=serial, no_wait=no_wait)
        except PyinfraError:
            # The last host failed: the results are worth printing all the same. Exit status 1.
            if state.active_hosts or not _RUN.begun:
                raise

    @wraps(disconnect_all)
    def summed_up(state: State) -> None:
        # Here, since this comes after the results, and also when a run ends early.
        try:
            if _RUN.begun:
                _sum_up(state)
        finally:
            disconnect_all(state)

    cli.connect_all, cli.run_ops, cli.disconnect_all = in_order, guarded, summed_up
    # pyinfra 3.10 has set its own by now, which ends with status 0.
    signal.signal(signal.SIGINT, _interrupted)


def _refuse_disorder(serial: bool, no_wait: bool, retry: int) -> None:
    option = "--serial" if serial else "--no-wait" if no_wait else None
    if option:
        raise CliError(
            f"{option}: waves need hosts that wait for each other, nothing was done. Run again "
            "without it; how many hosts change at once is `rollout` in group_data/all.py"
        )
    if retry:
        raise CliError(
            "--retry: a canary that fails would be restarted again and again, nothing was "
            "done. Run again without it"
        )


def _refuse_parted_pairs(parallel: int | None) -> None:
    """Both hosts of a pair work at the same moment, or the one waits in vain for the other."""
    chosen = chosen_hosts()
    pairs = any(plan.link for name, plan in whole_plan().hosts.items() if name in chosen)
    if pairs and parallel and parallel < len(chosen):
        raise CliError(
            f"{parallel} hosts at a time are too few: the two Sparks of a pair change together, "
            f"nothing was done. Run again with --parallel {len(chosen)}"
        )


def _interrupted(*_: object) -> None:
    echo(
        "Stopped by you. What was begun on a host goes on there; the same command, run again, "
        "waits for it and continues",
        err=True,
    )
    sys.exit(130)


def read_no_source() -> None:
    """Let pyinfra find line numbers without reading the source around each of them.

    pyinfra 3.10 does for every frame of every operation on every host, and uses none of it: more
    than half of the time that a fleet takes before the first command.
    """
    # From what is there, so that another name in another version ends with an error.
    util.stack = partial(util.stack, 0)  # type: ignore[attr-defined]
    util.getframeinfo = partial(util.getframeinfo, context=0)  # type: ignore[attr-defined]


def _sum_up(state: State) -> None:
    chosen = [host for host in state.inventory if state.is_host_in_limit(host)]
    outcomes = {host.name: _RUN.outcomes.get(host.name, Outcome.DROPPED) for host in chosen}
    known = (Outcome.UNCHANGED, Outcome.UPDATED)
    asked = [h for h in chosen if outcomes[h.name] not in known and h.connected]
    if asked:
        logger.info("--> Asking hosts who serves what...")
    # Not pyinfra's pool, which is still full when somebody stopped the run.
    pool = Pool(state.config.PARALLEL)
    jobs = {host: pool.spawn(ask, host) for host in asked}
    answers = _RUN.answers | {host.name: job.get() for host, job in jobs.items()}
    rows = [
        row
        for host in chosen
        for row in _rows(host.name, outcomes[host.name], answers.get(host.name))
    ]
    logger.info("--> Who serves what now:")
    for line in rollout.summary(rows):
        echo(f"    {line}", err=True)


def _rows(host: str, outcome: Outcome, answer: Answer | None) -> list[Row]:
    note = _RUN.notes.get(host, "")
    if not note and outcome in (Outcome.FAILED, Outcome.DROPPED):
        note = why(host)
    if outcome is Outcome.UPDATED or (outcome is Outcome.UNCHANGED and answer is None):
        planned = whole_plan().hosts[host].instances
        rows = [Row(host, one.name, one.release.id, outcome) for one in planned]
        return rows or [Row(host, "nothing", "-", outcome)]
    if answer is None or answer.problem:
        reason = answer.problem if answer else "not connected"
        unknown = note if reason in (note, "not connected") and note else f"{note}; {reason}"
        return [Row(host, "unknown", None, outcome, unknown.removeprefix("; "))]
    rows = []
    for instance in answer.instances:
        told, reason = outcome, note
        if outcome is Outcome.FAILED:
            before = _RUN.before.get(host)
            # What did not change tells of an earlier run.
            if before is not None and instance.at != before.get(instance.name):
                told = Outcome.ROLLED_BACK if instance.rolled_back else outcome
                reason = instance.reason or note
            if answer.transaction:  # this run was cut off from it, or stopped
                told = Outcome.IN_PROGRESS if answer.is_running else outcome
                reason = answer.transaction
                reason = reason if answer.is_running else f"an activation is {reason}"
        serves = instance.name if instance.serves else f"{instance.name} (does not serve)"
        rows.append(Row(host, serves, instance.release, told, reason))
    return rows or [Row(host, "nothing", "-", outcome, note)]

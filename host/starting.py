"""Stop and start one engine, follow its start, and prove that it serves."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable

import pairing
import probe
import service
from common import HEARTBEAT_S, Refusal, heartbeat, say, settle
from engine_log import first_exception, phase
from instance import Instance
from ready import LATE

MEMORY_TIMEOUT_S = 300
"""Reclaim after a stop is asynchronous: minutes were seen."""
CGROUP_TIMEOUT_S = 60
"""systemd has killed all that is left by then; what stays hangs in the kernel."""
_KILLED, _WHY_S = "9", 6
_UNTOLD = {
    _KILLED: "it was killed (SIGKILL), by a person or for want of memory",
    "203": "systemd could not run its program: the release is damaged",
}
"""What an exit status says when the engine itself said nothing (systemd.exec(5))."""
_NOTHING = "no exception in its journal"
PAIR_S = 300
"""How much longer a start may take for which another host has to stop something first."""
GRACE_S = 5
"""How long a start that was asked for may take to show in the unit's state."""


class NotServingError(Refusal):
    """An engine that does not serve. detail: what state.json keeps of it."""

    def __init__(self, message: str, **detail: object) -> None:
        super().__init__(message)
        self.detail = detail


def serve(instance: Instance, check: Callable[[], None] = lambda: None) -> str:
    """Start the engine unless it runs, follow it, and make it generate; a sentence about that.

    The instance's files must be in place. check: called while it starts; raises Refusal when there
    is no use in waiting. Raises Refusal when it does not serve.
    """
    unit = service.show(instance.unit)
    service.systemctl("enable", "--quiet", instance.unit)
    if unit.active == "active":
        try:
            return _proof(instance)
        except Refusal as refusal:
            say(f"      {refusal}; it is started anew")
            stop(instance)
            unit = service.show(instance.unit)
    begun = time.monotonic()
    if unit.sub.startswith("auto-restart"):
        # Or systemd starts it in the middle of the wait for memory.
        stop(instance)
        unit = service.show(instance.unit)
    if unit.down:
        _start(instance)
    _follow(instance, unit, check)
    try:
        return _proof(instance)
    except Refusal as refusal:
        raise NotServingError(
            f"{instance.name} started, but does not serve: {refusal}",
            exception=str(refusal),
            exit_status="",
            phase="proving",
            elapsed_s=round(time.monotonic() - begun),
            invocation=service.show(instance.unit).invocation,
        ) from None


def _proof(instance: Instance) -> str:
    with heartbeat(f"waiting for a generation of {instance.name}"):
        proof = pairing.prove(instance.name, service.endpoint(instance.start, instance.name))
    pair = pairing.Pair.load(instance.name)
    if not pair or pair.rank == 0:
        # An engine that ran before its unit wanted a watch has none. One that is masked stays so.
        service.systemctl("start", f"sparkwright-watch@{instance.name}.timer", check=False)
    return proof


def _start(instance: Instance) -> None:
    _wait_for_memory(instance)
    settle()
    # The engine takes page cache for used memory in some versions (vllm-project/vllm#35313).
    with contextlib.suppress(OSError), open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")
    service.systemctl("reset-failed", instance.unit, check=False)
    service.systemctl("start", "--no-block", instance.unit)


def waits_for_partner(instance: Instance) -> bool:
    """True for a rank that is before its start, since the other one is not there: it may wait."""
    unit = service.show(instance.unit)
    paired = pairing.Pair.load(instance.name) and not pairing.start_of(instance.name).get("met")
    return bool(paired) and unit.active == "activating"


def stop(instance: Instance) -> None:
    """Stop the engine and wait until no process of its unit is left."""
    unit = service.show(instance.unit)
    if unit.active == "inactive" and not unit.queued:
        return
    if unit.active == "activating":
        # vLLM loses a SIGTERM that comes during its start (seen: 0.32.0), and nothing is served
        # yet that could be lost.
        again = unit.restarts or unit.sub.startswith("auto-restart")
        state = "systemd starts again" if again else "is still starting"
        say(f"      stopping {instance.unit}, which {state}")
        service.systemctl("stop", "--no-block", instance.unit)
        service.systemctl("kill", "--signal=SIGKILL", instance.unit, check=False)
    else:
        say(f"      stopping {instance.unit}; requests that run may finish (idle, normal: 15 s)")
    with heartbeat("stopping"):
        service.systemctl("stop", instance.unit)
        _wait_for_the_end(instance)


def _wait_for_the_end(instance: Instance) -> None:
    """An engine that outlives its server keeps its memory and its port."""
    started = time.monotonic()
    while left := service.left_behind(instance.unit):
        waited = time.monotonic() - started
        if waited > CGROUP_TIMEOUT_S:
            raise Refusal(
                f"{instance.unit} is stopped, but after {waited:.0f} s these are left: "
                f"{'; '.join(left)}; when they can't be killed, reboot the host"
            )
        time.sleep(1)


def _wait_for_memory(instance: Instance) -> None:
    """Wait until the budget is really free; name who holds the memory when it is not."""
    started = time.monotonic()
    while True:
        now = probe.memory()
        need = now["MemTotal"] * float(str(instance.start["memory_fraction"]))
        if now["MemAvailable"] >= need:
            return
        waited = time.monotonic() - started
        shown = f"{now['MemAvailable'] / 1024**3:.1f} of {need / 1024**3:.1f} GiB are free"
        if waited > MEMORY_TIMEOUT_S:
            raise Refusal(
                f"{instance.name} was not started: {shown} after {waited:.0f} s; "
                f"largest: {service.memory_holders()}"
            )
        say(f"{waited:4.0f} s  waiting for memory: {shown} (normal after a stop: up to 180 s)")
        time.sleep(HEARTBEAT_S)


def _follow(instance: Instance, before: service.Unit, check: Callable[[], None]) -> None:
    """Say what a start is doing until the unit is active. Raises Refusal when it fails.

    check: called every second. before: the unit's state before the start was asked for; a start
    that was under way already is followed to its end.
    """
    begun = spoken = time.monotonic()
    # A queued unit shows the invocation of its start before until its turn comes.
    joined = before.active == "activating" and not before.down
    journal: service.Journal | None = None
    now, said, restarts = "waiting for its turn", "", 0
    limit, normal = float(str(instance.start["timeout_s"])), _normal_s(instance)
    limit += PAIR_S if pairing.Pair.load(instance.name) else 0
    say(f"   0 s  starting {instance.unit} ({instance.start['normal']})")
    while True:
        unit = service.show(instance.unit)
        elapsed = time.monotonic() - begun
        if journal is None and unit.invocation and (joined or unit.invocation != before.invocation):
            journal, restarts, now = service.Journal(unit.invocation), unit.restarts, "starting"
        if journal:
            now = phase(journal.new(), _phases(instance), now)
            if unit.active == "active" and unit.invocation == journal.invocation:
                say(f"{elapsed:4.0f} s  ready")
                return
            ended = unit.down or unit.invocation != journal.invocation or unit.restarts > restarts
        else:
            ended = unit.down and elapsed > GRACE_S
        if ended or elapsed > limit:
            if unit.exit_status == _KILLED and pairing.Pair.load(instance.name):
                _ask_why(check)
            raise _failure(instance, journal, unit, now, elapsed)
        if normal is not None and elapsed > normal:
            say(f"{elapsed:4.0f} s  longer than normal; given up after {limit:.0f} s")
            normal = None
        if now != said or time.monotonic() - spoken >= HEARTBEAT_S:
            # For which one, and what is in the way, is in the line itself.
            waits = journal and journal.lines and journal.lines[-1].startswith(f"{now}, ")
            say(f"{elapsed:4.0f} s  {journal.lines[-1] if journal and waits else now}")
            said, spoken = now, time.monotonic()
        check()
        time.sleep(1)


def _ask_why(check: Callable[[], None]) -> None:
    """A rank was ended since its partner is gone: the other host may say why. Raises Refusal."""
    for _ in range(_WHY_S):
        check()
        time.sleep(1)


def _normal_s(instance: Instance) -> int | None:
    """The longest time that its profile calls normal, in seconds; None when that is unknown."""
    told = re.findall(r"(\d+) s\b", str(instance.start["normal"]))
    return int(told[-1]) if told else None


def _phases(instance: Instance) -> list[list[str]]:
    phases = instance.start["phases"]
    assert isinstance(phases, list)
    return phases


def _failure(
    instance: Instance,
    journal: service.Journal | None,
    unit: service.Unit,
    now: str,
    elapsed: float,
) -> NotServingError:
    journal = journal or service.Journal(unit.invocation)
    # Its last lines may have come after the last look, and say how far it was.
    now = phase(journal.new(), _phases(instance), now)
    late = unit.result == "timeout" or not unit.down
    late = late or any(line.startswith(LATE) for line in journal.lines)
    cause = first_exception(journal.lines) or (
        LATE if late else _UNTOLD.get(unit.exit_status, _NOTHING)
    )
    return NotServingError(
        f"{instance.name} did not start: {cause}\n"
        f"      while {now}, after {elapsed:.0f} s; exit status {unit.exit_status}, "
        f"result {unit.result}\n"
        f"      whole log: sudo journalctl -u {instance.unit} {journal.match}",
        exception=cause,
        exit_status=unit.exit_status,
        phase=now,
        elapsed_s=round(elapsed),
        invocation=journal.invocation,
    )

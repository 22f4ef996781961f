"""Put what is staged for instances in service, and prove that they serve.

usage: activate.py check NAME...     state of instances as one line of JSON; changes nothing
       activate.py apply NAME...     switch what differs, start, follow, prove; in this order
       activate.py remove NAME       stop and remove an instance; others are left alone
       activate.py key NAME          make an API key in the staging folder unless there is one

Safe to be killed and run again: what is in place is read from the files and from systemd.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time

import probe
import service
from common import ETC, HEARTBEAT_S, VAR, Refusal, heartbeat, lock, main, say, settle, write
from engine_log import first_exception, phase
from instance import Instance, content

MEMORY_TIMEOUT_S = 300
"""Reclaim after a stop is asynchronous: minutes were seen."""
GRACE_S = 5
"""How long a start that was asked for may take to show in the unit's state."""


def check(names: list[str]) -> None:
    """Print for each instance whether it is enabled, and its proof, or why there is none."""
    print(json.dumps({name: _check(Instance(name)) for name in names}))


def _check(instance: Instance) -> dict[str, object]:
    unit = service.show(instance.unit)
    answer: dict[str, object] = {"enabled": unit.enabled, "proof": None, "missing": None}
    if not instance.in_place() or instance.must_restart(unit):
        answer["missing"] = "what is staged is not what is in service"
    elif unit.active != "active":
        answer["missing"] = f"{instance.unit} is {unit.active}"
    elif instance.remembered().get("status") != "serving":
        # A run was killed before its proof; state.json still says that it is starting.
        answer["missing"] = "it was not proven yet"
    else:
        try:
            answer["proof"] = service.prove(
                instance.unit, service.endpoint(instance.start, instance.name), patient=False
            )
        except Refusal as refusal:
            answer["missing"] = str(refusal)
    return answer


def apply(names: list[str]) -> None:
    """Bring every instance to what is staged for it. Raises Refusal with all that failed."""
    instances = [Instance(name) for name in names]
    failures = []
    with lock("activation", "starting an engine"):
        for instance in instances:
            if not instance.start:
                raise Refusal(f"nothing is staged for {instance.name} in {instance.staged}")
            if not instance.in_place():
                instance.verify()
        # All stops before the first start: an instance that gives up memory or a port comes first.
        for instance in instances:
            unit = service.show(instance.unit)
            if instance.must_restart(unit):
                _stop(instance, unit)
        for instance in instances:
            try:
                say(f"      {_serve(instance)}")
            except (Refusal, OSError) as problem:
                named = "" if isinstance(problem, Refusal) else f"{instance.name}: "
                failures.append(f"{named}{problem}")
    if failures:
        raise Refusal("\n".join(failures))


def _serve(instance: Instance) -> str:
    """Bring one instance to what is staged; its proof. Raises Refusal when it does not serve."""
    unit = service.show(instance.unit)
    if instance.must_restart(unit):
        instance.switch()
        unit = service.show(instance.unit)
    elif not instance.in_place():
        instance.install()
    service.systemctl("enable", "--quiet", instance.unit)
    server = service.endpoint(instance.start, instance.name)
    try:
        if unit.active == "active":
            try:
                return _proof(instance, server)
            except Refusal as refusal:
                say(f"      {refusal}; it is started anew")
                _stop(instance, unit)
                unit = service.show(instance.unit)
        if unit.down:
            _start(instance)
        _follow(instance, unit)
        return _proof(instance, server)
    except Refusal as refusal:
        # Stopped rather than looping.
        _stop(instance, service.show(instance.unit))
        instance.remember(status="failed", reason=str(refusal), at=time.time())
        raise


def _proof(instance: Instance, server: service.Endpoint) -> str:
    """Make the instance generate, and note that it serves."""
    with heartbeat(f"waiting for a generation of {instance.name}"):
        proof = service.prove(instance.unit, server)
    instance.remember(status="serving", reason=None, at=time.time())
    return proof


def _start(instance: Instance) -> None:
    _wait_for_memory(instance)
    settle()
    # The engine takes page cache for used memory in some versions (vllm-project/vllm#35313).
    with contextlib.suppress(OSError), open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")
    service.systemctl("reset-failed", instance.unit, check=False)
    service.systemctl("start", "--no-block", instance.unit)


def _stop(instance: Instance, unit: service.Unit) -> None:
    if unit.active == "inactive" and not unit.queued:
        return
    if unit.active == "activating":
        # vLLM loses a SIGTERM that comes during its start (seen: 0.32.0), and nothing is served
        # yet that could be lost.
        say(f"      stopping {instance.unit}, which is still starting")
        service.systemctl("stop", "--no-block", instance.unit)
        service.systemctl("kill", "--signal=SIGKILL", instance.unit, check=False)
    else:
        say(f"      stopping {instance.unit}; requests that run may finish (idle, normal: 15 s)")
    with heartbeat("stopping"):
        service.systemctl("stop", instance.unit)


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
            raise Refusal(f"{shown} after {waited:.0f} s; largest: {service.memory_holders()}")
        say(f"{waited:4.0f} s  waiting for memory: {shown} (normal after a stop: up to 180 s)")
        time.sleep(HEARTBEAT_S)


def _follow(instance: Instance, before: service.Unit) -> None:
    """Say what a start is doing until the unit is active. Raises Refusal when it fails.

    before: the unit's state before the start was asked for; a start that was under way already is
    followed to its end.
    """
    begun = spoken = time.monotonic()
    # A queued unit shows the invocation of its start before until its turn comes.
    joined = before.active == "activating" and not before.down
    journal: service.Journal | None = None
    now, said, restarts = "waiting for its turn", "", 0
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
        if ended or elapsed > float(str(instance.start["timeout_s"])):
            raise Refusal(_failure(instance, journal, unit, now, elapsed))
        if now != said or time.monotonic() - spoken >= HEARTBEAT_S:
            say(f"{elapsed:4.0f} s  {now}")
            said, spoken = now, time.monotonic()
        time.sleep(1)


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
) -> str:
    journal = journal or service.Journal(unit.invocation)
    # Its last lines may have come after the last look, and say how far it was.
    now = phase(journal.new(), _phases(instance), now)
    late = unit.result == "timeout" or not unit.down
    cause = first_exception(journal.lines) or (
        "it was not ready in time" if late else "no exception in its journal"
    )
    return (
        f"{instance.name} did not start: {cause}\n"
        f"      while {now}, after {elapsed:.0f} s; exit status {unit.exit_status}, "
        f"result {unit.result}\n"
        f"      whole log: sudo journalctl -u {instance.unit} {journal.match}"
    )


def remove(name: str) -> None:
    instance = Instance(name)
    with lock("activation", "starting an engine"):
        # A name that no unit can have has nothing to stop.
        with contextlib.suppress(Refusal):
            _stop(instance, service.show(instance.unit))
        service.systemctl("disable", "--quiet", instance.unit, check=False)
        instance.remove()
        say(f"      {name} is stopped and removed; its weights are kept")


def key(name: str) -> None:
    staged, active = f"{VAR}/staged/{name}/api-key.env", f"{ETC}/{name}/api-key.env"
    if not os.path.exists(staged):
        known = content(active)
        text = known.decode() if known else f"VLLM_API_KEY={secrets.token_urlsafe(32)}\n"
        os.makedirs(os.path.dirname(staged), exist_ok=True)
        write(staged, text, 0o600)


def program() -> None:
    command, *names = sys.argv[1:]
    if command in ("check", "apply"):
        {"check": check, "apply": apply}[command](names)
    else:
        {"remove": remove, "key": key}[command](names[0])


if __name__ == "__main__":
    main(program)

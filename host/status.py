"""What a host serves, in one look: `activate.py status`. Changes nothing."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import probe
import service
import transaction
from common import OPT, VAR, Refusal, read_json
from instance import Instance, boot

LOOK_S = 5
"""How long a generation is waited for; a busy server is proven by its own count then."""


def status() -> dict[str, object]:
    """Boot, memory in bytes, every instance, and the transaction that is under way."""
    names = probe.instances(VAR)
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        instances = dict(zip(names, pool.map(_instance, names), strict=True))
    memory = probe.memory()
    return {
        "boot": boot(),
        "memory": {"available": memory["MemAvailable"], "total": memory["MemTotal"]},
        "instances": instances,
        "transaction": _transaction(),
    }


def _instance(name: str) -> dict[str, object]:
    one = Instance(name)
    before = Instance(name, one.previous)
    unit, memory = service.show(one.unit), one.remembered()
    answer: dict[str, object] = {
        "release": one.serving(),
        "release_gone": _gone(one.serving()),
        "previous_release": _other(before),
        "went_back": bool(before.start) and not before.differs(),
        "differs_from_staged": bool(one.differs()) if one.start else None,
        "since": memory.get("since"),
        "unit": unit.active,
        "restarts": unit.restarts,
        "health": None,
        "problem": None,
        "last": memory.get("last"),
    }
    start = read_json(f"{one.etc}/start.json") or one.start
    if unit.active != "active":
        answer["problem"] = f"{one.unit} is {unit.active}"
    elif not start:
        answer["problem"] = f"{one.etc}/start.json is missing or unreadable: it was not asked"
    else:
        try:
            server = service.endpoint(start, name)
            answer["health"] = service.prove(one.unit, server, patient=False, limit_s=LOOK_S)
        except Refusal as refusal:
            answer["problem"] = str(refusal)
    drift = one.drift()
    if drift and not answer["problem"]:
        answer["problem"] = f"changed by hand: {', '.join(drift)}"
    return answer


def _gone(release: str | None) -> bool:
    """The engine that runs does not need it any more; its next start does."""
    return release is not None and not os.path.exists(f"{OPT}/releases/{release}/.complete")


def _other(before: Instance) -> str | None:
    """The release to go back to; none after a rollback, when it is what serves."""
    return before.release() if before.start and before.differs() else None


def _transaction() -> dict[str, object] | None:
    """running: false when it was cut off, and the next run or the next boot brings it to an end."""
    data = transaction.record()
    if not data:
        return None
    running = service.is_running(transaction.UNIT)
    return {"phase": data.get("phase"), "names": data.get("names"), "running": running}

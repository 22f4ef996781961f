"""What a host serves, in one look: `activate.py status`. Changes nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pairing
import probe
import service
import transaction
from common import VAR, Refusal, read_json
from instance import Instance, boot, is_built

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
    unit, memory, release = service.show(one.unit), one.remembered(), one.serving()
    # What a rollback would bring; when that serves already, one brought it.
    went_back = bool(before.start) and not before.differs()
    answer: dict[str, object] = {
        "release": release,
        # The engine that runs does not need it any more; its next start does.
        "release_gone": release is not None and not is_built(release),
        "previous_release": before.release() if before.start and not went_back else None,
        "went_back": went_back,
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
            answer["health"] = pairing.prove(name, server, patient=False, limit_s=LOOK_S)
        except Refusal as refusal:
            answer["problem"] = str(refusal)
    drift = one.drift()
    if drift and not answer["problem"]:
        answer["problem"] = f"changed by hand: {', '.join(drift)}"
    return answer


def _transaction() -> dict[str, object] | None:
    """running: false when it was cut off, and the next run or the next boot brings it to an end."""
    data = transaction.record()
    if not data:
        return None
    running = service.is_running(transaction.UNIT)
    return {"phase": data.get("phase"), "names": data.get("names"), "running": running}

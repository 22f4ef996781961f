"""Wait until the engine of this unit serves: what makes `active` mean `ready`.

Runs as ExecStartPost, as the engine's user, in the unit's cgroup. systemd ends it when the start
takes too long, but not when the engine dies: that is looked at here. An answer of /health counts
only when a process of this unit gave it: a stranger or an older engine that holds the port would
answer too. A worker of a pair answers nobody: it is ready when its head is, together with it.

Of a pair systemd does not limit the start, since waiting for the other host may take hours: the
limit counts from there, and is SPARKWRIGHT_READY_S.
"""

from __future__ import annotations

import http.client
import os
import sys
import time

import probe
from pairing import Pair, UnreachableError, look_on_any
from service import Endpoint, is_holder

LATE = "it was not ready in time"


def healthy(host: str, port: int) -> bool:
    """True when /health says 200."""
    try:
        return Endpoint(host, port, name="", key=None).ask("/health", timeout=5)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def joined(pair: Pair) -> bool:
    """True when the head is ready, and this start is the one that it was started with."""
    try:
        head = look_on_any(pair)
    except UnreachableError:
        return False
    return head.unit == "active" and head.partner == os.environ["SPARKWRIGHT_START_ID"]


def ready(unit: str) -> bool:
    """True when the engine of this unit can be used."""
    pair = Pair.load(unit.removeprefix("vllm@").removesuffix(".service"))
    if pair and pair.rank:
        return joined(pair)
    host, _, port = os.environ["SPARKWRIGHT_ENDPOINT"].rpartition(":")
    return healthy(host, int(port)) and is_holder(unit, int(port))


def main() -> None:
    unit, begun = probe.unit_of(os.getpid()) or "", time.monotonic()
    limit = float(os.environ.get("SPARKWRIGHT_READY_S", "inf"))
    while os.path.exists(f"/proc/{os.environ['MAINPID']}"):
        if ready(unit):
            return
        if time.monotonic() - begun > limit:
            sys.exit(f"{LATE}: {limit:.0f} s after both ranks were started")
        time.sleep(1)
    sys.exit("the engine ended before it was ready")


if __name__ == "__main__":
    main()

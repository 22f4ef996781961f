"""Wait until the engine of this unit answers /health: what makes `active` mean `ready`.

Runs as ExecStartPost, as the engine's user, in the unit's cgroup. systemd ends it when the start
takes too long, but not when the engine dies: that is looked at here. An answer counts only when a
process of this unit gave it: a stranger or an older engine that holds the port would answer too.
"""

from __future__ import annotations

import http.client
import os
import sys
import time

import probe
from service import Endpoint, is_holder


def healthy(host: str, port: int) -> bool:
    """True when /health says 200."""
    try:
        return Endpoint(host, port, name="", key=None).ask("/health", timeout=5)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def main() -> None:
    host, _, port = os.environ["SPARKWRIGHT_ENDPOINT"].rpartition(":")
    unit = probe.unit_of(os.getpid())
    while os.path.exists(f"/proc/{os.environ['MAINPID']}"):
        if healthy(host, int(port)) and is_holder(unit, int(port)):
            return
        time.sleep(1)
    sys.exit("the engine ended before it was ready")


if __name__ == "__main__":
    main()

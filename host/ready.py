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
import urllib.request

import probe


def healthy(host: str, port: int) -> bool:
    """True when /health says 200."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    if ":" in address:
        address = f"[{address}]"
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def main() -> None:
    host, _, port = os.environ["SPARKWRIGHT_ENDPOINT"].rpartition(":")
    unit = probe.unit_of(os.getpid())
    while os.path.exists(f"/proc/{os.environ['MAINPID']}"):
        if healthy(host, int(port)):
            holders = probe.ports([int(port)])[port]
            if any(holder["unit"] == unit for holder in holders):
                return
        time.sleep(1)
    sys.exit("the engine ended before it was ready")


if __name__ == "__main__":
    main()

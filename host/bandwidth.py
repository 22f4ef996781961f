"""Measure what a rail carries: a link that reports 200 Gb/s and delivers 13 was seen in the field
(NVIDIA/dgx-spark-playbooks, pull request 108)."""

from __future__ import annotations

import re
import shutil
import time
from typing import Any

import rails
from common import Refusal, say
from pairing import Pair, UnreachableError, ask
from rails import Rail, run

TOOL = "ib_write_bw"
_PORT = 18515
_TRIES = 8
# 64 KiB at a time: a test with buffers of 16 GiB froze a Spark (dgx-spark-playbooks, issue 102).
_SIZE = ("-s", "65536", "-n", "20000", "-F", "--report_gbits")
_AVERAGE = re.compile(r"^\s*65536\s+\d+\s+[\d.]+\s+([\d.]+)", re.M)


def _command(rail: Rail, own: str, number: int) -> list[str]:
    index = rails.gid_index(rail.hca, own)
    if index is None:
        raise Refusal(f"rail {number + 1} ({rail.hca}) shows no GID of RoCE v2 for {own}")
    return [TOOL, "-d", rail.hca, "-x", str(index), "-p", str(_PORT + number), *_SIZE]


def serve(rail: Rail, own: str, number: int) -> bool:
    """Let the other host measure this rail, once; False when the tool is missing."""
    if not shutil.which(TOOL):
        return False
    unit = f"sparkwright-bandwidth-{number + 1}.service"
    run("systemctl", "stop", unit)
    # In a unit of its own: the agent sees no device.
    limits = ["--collect", "--quiet", f"--unit={unit}", "--property=RuntimeMaxSec=60"]
    return run("systemd-run", *limits, *_command(rail, own, number)) is not None


def measure(pair: Pair, both: list[Rail], floor: float, busy: bool = False) -> dict[str, Any]:
    """Gb/s from here to the other host on each rail: {"gbps": [...]}, or {"unknown": why}; with
    "again" when the next run may know.

    floor: the least that is right, Gb/s. busy: the rails may carry an engine's traffic as well.
    Raises Refusal when a rail has less than it must, and nothing else explains that.
    """
    if not shutil.which(TOOL):
        return {"unknown": f"{TOOL} is not installed here (apt install perftest)"}
    found: dict[int, float] = {}
    # Each host begins with another rail.
    for number in ((0, 1), (1, 0))[pair.rank]:
        try:
            status, _ = ask(pair, f"/bandwidth/{number}", number, timeout=20)
        except UnreachableError as problem:
            return {"unknown": str(problem), "again": True}
        if status != 200:
            return {"unknown": f"{TOOL} does not start on {pair.peer_host} (apt install perftest)"}
        speed = _client(pair, both[number], number)
        if speed is None:
            return {"unknown": f"{TOOL} gave no figure on rail {number + 1}", "again": True}
        found[number] = speed
        if speed < floor and busy:
            why = f"rail {number + 1} gave {speed:g} Gb/s while the pair serves"
            return {"unknown": f"{why}; below {floor:g}, it is measured anew after the next boot"}
        if speed < floor:
            raise Refusal(
                f"rail {number + 1} ({both[number].device}) delivers {speed:g} Gb/s to "
                f"{pair.peer_host}, below {floor:g} (fabric.min_gbps): cut the power of both "
                "Sparks, wait, and boot them cold; else another cable"
            )
    return {"gbps": [found[0], found[1]]}


def _client(pair: Pair, rail: Rail, number: int) -> float | None:
    say(f"      measuring rail {number + 1} ({rail.device}) to {pair.peer_host}")
    for _ in range(_TRIES):  # the other end may take a moment to listen
        told = run(*_command(rail, pair.own[number], number), pair.peer[number])
        average = _AVERAGE.search(told or "")
        if average:
            return float(average[1])
        time.sleep(1)
    return None


def told(found: dict[str, Any]) -> list[str]:
    """What was measured, for people."""
    if "gbps" in found:
        shown = " and ".join(f"{speed:g}" for speed in found["gbps"])
        return [f"the rails carry {shown} Gb/s"]
    return [f"the bandwidth is unknown: {found.get('unknown')}"]

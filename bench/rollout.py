"""Time and memory of the controller as a fleet grows, with pretended hosts that answer at once.

    .venv/bin/python bench/rollout.py [HOSTS...]        default: 1 10 50 200

What is measured is pyinfra and sparkwright: no network, no work on hosts. Every host needs a change
and gets it, by the default policy (one canary, then a quarter at a time).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.plan.cli import PREAMBLE, TINY  # noqa: E402
from tests.plan.fleet import HOSTS  # noqa: E402

QUIET = {"PYINFRA_PROGRESS": "off", "PYINFRA_FAKE_DELAY": "0", "PYINFRA_FAKE_DELAY_JITTER": "0"}


def measure(hosts: int) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and peak memory in bytes of one deploy to that many hosts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "group_data").mkdir()
        (folder / "group_data/tiny.py").write_text(f"profile = dict({TINY})\n")
        fleet = f"tiny = _fleet(['good'] * {hosts})\n"
        (folder / "sparks.py").write_text(PREAMBLE + HOSTS + fleet)
        command = [ROOT / ".venv/bin/pyinfra", "-y", folder / "sparks.py", "deploy.py"]
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        elapsed = time.monotonic() - started
    if process.returncode:
        raise SystemExit(f"the deploy to {hosts} hosts ended with {process.returncode}")
    return elapsed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    """Print one line for each size of a fleet."""
    print("hosts  seconds  CPU seconds  CPU seconds a host  peak MiB", flush=True)
    for hosts in [int(word) for word in sys.argv[1:]] or [1, 10, 50, 200]:
        elapsed, cpu, peak = measure(hosts)
        print(
            f"{hosts:5}  {elapsed:7.1f}  {cpu:11.1f}  {cpu / hosts:18.3f}  {peak / 1024**2:8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

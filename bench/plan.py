"""How long `sparkwright plan` takes as hosts grow: `.venv/bin/python bench/plan.py`.

Prints the median of five runs for each number of hosts, seconds of wall time, and the time of
importing pyinfra alone, below which it can't get.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"


def median(command: list[str | Path]) -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    alone = median([sys.executable, "-c", "import pyinfra_cli.inventory"])
    print(f"import pyinfra alone  {alone:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        for count in (1, 10, 100, 1000):
            inventory = Path(folder) / f"fleet{count}.py"
            inventory.write_text(f"qwen3_6_27b = [f'spark-{{n}}' for n in range({count})]\n")
            print(f"{count:5} hosts  {median([BIN / 'sparkwright', 'plan', inventory]):.2f} s")


if __name__ == "__main__":
    main()

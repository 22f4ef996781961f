"""What sparkwright changes in pyinfra is still there in the version that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_hooks() -> None:
    file = Path(__file__).with_name("pyinfra_hooks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout

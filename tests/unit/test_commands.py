"""The `sparkwright` commands as people type them, up to the first host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.slow


def typed(*words: str, program: str = "sparkwright", stdin: str = "") -> tuple[int, str]:
    done = subprocess.run(
        [BIN / program, *words], cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def file(tmp_path: Path) -> str:
    """An inventory of two hosts that are nowhere."""
    path = tmp_path / "two.py"
    path.write_text("qwen3_6_27b = ['a.invalid', 'b.invalid']\n")
    return str(path)


@pytest.mark.parametrize(
    "words", [("--limit", "c.invalid", "qwen3_6_27b"), ("qwen3_6_27b", "--limit", "c.invalid")]
)
def test_rollback_in_any_order(file: str, words: tuple[str, ...]) -> None:
    code, said = typed("rollback", file, *words)
    assert code == 1 and "--limit c.invalid: no such host or group of hosts" in said, said


def test_rollback_of_a_fleet_is_refused_before_any_host_is_asked(file: str) -> None:
    code, said = typed("rollback", file)
    assert code == 1 and "the inventory has 2 hosts: name those that are to go back" in said, said
    assert "resolves nowhere" not in said and "Traceback" not in said


def test_rollback_of_no_file() -> None:
    code, said = typed("rollback", "inventory/spark.py", "--limit", "a")
    assert code == 2 and "inventory/spark.py: no such file" in said

"""An empty project with a program that plays uv: it answers from files."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import pytest

from sparkwright import lock

HASH = " \\\n    --hash=sha256:00\n"
# What the stand-in for uv does: refuses what `refuses` names, else answers as uv would.
FAKE = """#!{python} -IS
import pathlib, sys
here = pathlib.Path(__file__).parent
words, wanted = sys.argv[1:], ""
if words == ["--version"]:
    print("uv 0.13.9 (somewhere)"); sys.exit()
wanted = sys.stdin.read()
with open(here / "calls", "a") as calls: calls.write(" ".join(words) + " < " + wanted)
first = wanted.split()[0]
refusal = here / "refuses"
if refusal.exists() and not any(side in first for side in "<>"):
    print(refusal.read_text(), file=sys.stderr); sys.exit(1)
if "pylock.toml" in words:
    version = {{"<": "0.32.0", ">": "0.34.0"}}.get(first[4:5], "0.33.0")
    print('[[packages]]\\nname = "vllm"\\nversion = "%s"' % version)
    print('wheels = [{{ name = "vllm-%s-cp38-abi3-manylinux_2_28_aarch64.whl", ' % version
        + 'url = "http://127.0.0.1:9/x", size = 7, upload-time = {day}T10:00:00Z }}]')
else:
    print((here / "body").read_text(), end="")
"""


def make(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the project in this folder, and `sparkwright lock` work in it."""
    (root / "releases").mkdir()
    (root / "bin").mkdir()
    (root / "bin/body").write_text(f"torch==2.14.0{HASH}vllm==0.33.0{HASH}")
    monkeypatch.setattr(lock, "ROOT", root)
    monkeypatch.setattr(sys, "executable", str(root / "bin/python"))
    uv_of(root)
    return root


def uv_of(project: Path, uploaded: date | None = None, python: str = sys.executable) -> None:
    program = project / "bin/uv"
    program.write_text(FAKE.format(python=python, day=uploaded or date.today()))
    program.chmod(0o755)


def calls(project: Path) -> str:
    return (project / "bin/calls").read_text()

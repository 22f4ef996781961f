"""Runs `sparkwright plan` on inventories and files of groups that a test writes.

Many in one process, since each costs a second alone, and in a process of their own, since pyinfra's
command replaces sockets and threads of the process that imports it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALL = 'release = dict(lock="releases/vllm-0.27.1-aarch64.txt")\n'
TINY = 'profile = dict(model="/srv/models/tiny")\n'

# The plan must ask nobody: a connection or a name that is looked up is an exception here.
_MANY = """
import contextlib, io, json, pathlib, socket, sys, traceback
from operations import plan_command

def refuse(*args, **options):
    raise AssertionError(f"the plan asks the network: {args}")

socket.socket.connect = socket.getaddrinfo = refuse
answers = []
for folder, words in json.load(sys.stdin):
    plan_command.ROOT = pathlib.Path(folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = plan_command.main(words)
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
            status = -1
    answers.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""


@dataclass(frozen=True)
class Case:
    """An inventory, the files of groups that differ from one right profile, further options."""

    inventory: str | bytes
    groups: Mapping[str, str | bytes] = field(default_factory=dict)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    """What came of it. folder: where the files are; status -1: a traceback, in `err`."""

    folder: str
    status: int
    out: str
    err: str


def plan_all(cases: Mapping[str, Case], folder: Path) -> dict[str, Ran]:
    """Write each case into a folder of its own below `folder`, and plan them all."""
    asked = []
    for number, case in enumerate(cases.values()):
        project = folder / str(number)
        (project / "group_data").mkdir(parents=True)
        for name, text in ({"all": ALL, "tiny": TINY} | dict(case.groups)).items():
            _write(project / "group_data" / f"{name}.py", text)
        _write(project / "sparks.py", case.inventory)
        asked.append([str(project), [str(project / "sparks.py"), *case.options]])
    run = subprocess.run(
        [sys.executable, "-c", _MANY],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    answers = zip(cases, asked, json.loads(run.stdout), strict=True)
    return {name: Ran(made[0], *answer) for name, made, answer in answers}


def _write(file: Path, text: str | bytes) -> None:
    file.write_bytes(text.encode() if isinstance(text, str) else text)

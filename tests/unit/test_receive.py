"""Files that arrive on the standard input, and the command that belongs to one of them."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[2] / "host/receive.py"
ME = pwd.getpwuid(os.getuid()).pw_name


def receive(**request: Any) -> subprocess.CompletedProcess[str]:
    whole = {"folders": [], "files": [], "absent": [], "then": []} | request
    return subprocess.run(
        [sys.executable, PROGRAM], input=json.dumps(whole), capture_output=True, text=True
    )


def test_folders_files_and_what_must_not_be(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "there").write_text("before")
    done = receive(
        folders=[[f"{tmp_path}/deep/er", "0750", ME]],
        files=[[f"{tmp_path}/deep/er/key", "0600", ME, "s3cret"],
               [f"{tmp_path}/there", "0644", ME, "äfter\n"]],
        absent=[f"{tmp_path}/old", f"{tmp_path}/none"],
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "deep/er").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "deep/er/key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "deep/er/key").read_text() == "s3cret"
    assert (tmp_path / "there").read_text() == "äfter\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "there"]


def test_the_command_of_a_file_sees_it(tmp_path: Path) -> None:
    file, seen = f"{tmp_path}/conf", f"{tmp_path}/seen"
    done = receive(files=[[file, "0644", ME, "text"]], then=[file, ["cp", file, seen]])
    assert done.returncode == 0
    assert Path(seen).read_text() == Path(file).read_text() == "text"


def test_a_file_whose_command_fails_is_removed_so_that_the_next_run_tries_again(
    tmp_path: Path,
) -> None:
    file, other = f"{tmp_path}/conf", f"{tmp_path}/other"
    files = [[file, "0644", ME, "text"], [other, "0644", ME, "text"]]
    done = receive(files=files, then=[file, ["false"]])
    assert (done.returncode, done.stderr) == (1, "false failed\n")
    assert [p.name for p in tmp_path.iterdir()] == ["other"]

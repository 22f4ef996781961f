"""`sparkwright lock`: what it refuses, what it never replaces, and how it ends when stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sparkwright import lock, lockfile, uv
from sparkwright.plan import ROOT
from tests.unit.fake_uv import HASH, calls

PYTHON = sys.executable
FILE = "releases/vllm-0.33.0-aarch64.txt"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vllm==abc"], "'vllm==abc' is no requirement: write NAME==VERSION"),
        (["vllm=0.33.0"], "'vllm=0.33.0' is no requirement: write NAME==VERSION"),
        (["0.33.0"], "'0.33.0' is a version without a name: write vllm==0.33.0"),
        (["vllm===../x"], "'vllm===../x': write == instead of ==="),
        (["idna", "vllm==1; sys_platform=='win32'"], "vllm: a condition (; sys_platform =="),
        (["vllm==1", "-o", "x" * 300], "xxx: File name too long"),
        (["vllm==1", "-o", "\udcff.txt"], "'\\udcff.txt' is no name of a file here"),
        (["vllm==1", "-o", "x" * 300 + "/y"], "can't go on: File name too long"),
        (["vllm @ https://example.org/v.whl"], "vllm: an address can't be locked here"),
        (["vllm==1", "--platform", "arm64"], "--platform arm64: allowed are aarch64, x86_64, uni"),
        (["vllm==1", "--platform", "aarch64-unknown-linux-gnu"], "that one means glibc 2.28"),
        (["vllm==1", "--python", "2"], "--python 2: write a version such as 3.12"),
        (["vllm==1", "--exclude-newer", "now"], "--exclude-newer now: write a day, 2026-08-15"),
        (["vllm==1", "-o", "nowhere/x.txt"], "-o nowhere/x.txt: there is no folder "),
        (["vllm==1", "-o", "releases"], "releases is a folder, name a file in releases/"),
        (["-o", "releases/x.txt"], "releases/x.txt does not exist: name what to lock"),
        (["vllm==1", "--find-links", "NO_SUCH"], "--find-links NO_SUCH: set this variable to"),
        (["vllm==1", "--find-links", "none"], "--find-links none: no folder none"),
        (["vllm==1", "--override", "o.txt"], "--override o.txt: no such file below "),
    ],
)
def test_mistakes_are_one_clear_message(
    project: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock.main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("sparkwright lock: ") and words in said
    assert not list((project / "releases").iterdir())


@pytest.mark.parametrize("arguments", [[], ["--frobnicate"], ["vllm==1", "--overrid", "x"]])
def test_a_wrong_command_line_shows_how_it_is_used(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        lock.main(arguments)
    assert ended.value.code == 2
    assert "usage: sparkwright lock" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (
            "cause: Because there is no version of vllm==0.33.5 and",
            "; the nearest it has: 0.34.0, 0.32.0\n",
        ),
        ("cause: Because vllm was not found in the package registry", "look at the spelling"),
        ("error: Failed to fetch: https://me:s3cret@host/", "the package index can't be reached"),
        ("error: something new", "uv says:\n    error: something new"),
    ],
)
def test_what_uv_refuses_is_explained(
    project: Path, refusal: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "bin/refuses").write_text(refusal)
    assert lock.main(["vllm==0.33.5"]) == 1
    said = capsys.readouterr().err
    assert words in said and "vllm==0.33.5" in said and "s3cret" not in said
    assert not list((project / "releases").iterdir())


def test_requirements_that_contradict_each_other(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock.main(["vllm==0.33.0"]) == 0
    before = (project / "releases/vllm-0.33.0-aarch64.txt").read_text()
    (project / "bin/refuses").write_text("error: No solution found when resolving dependencies")
    assert lock.main(["vllm==0.33.0", "torch==2.9.1"]) == 1
    said = capsys.readouterr().err
    assert "no lock for vllm==0.33.0 torch==2.9.1: uv says:" in said
    assert "change the one that uv names first" in said
    assert (project / "releases/vllm-0.33.0-aarch64.txt").read_text() == before


def test_without_uv(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "bin/uv").unlink()
    monkeypatch.setenv("PATH", str(project))
    assert lock.main(["vllm==0.33.0"]) == 1
    assert "uv is missing, scripts/setup installs it" in capsys.readouterr().err


def test_a_disk_that_can_not_be_written_keeps_the_old_lock(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock.main(["vllm==0.33.0"]) == 0
    (project / "bin/body").write_text(f"vllm==0.33.0{HASH}")
    before = (project / "releases/vllm-0.33.0-aarch64.txt").read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert lock.main(["vllm==0.33.0"]) == 1
    assert "vllm-0.33.0-aarch64.txt: No space left on device" in capsys.readouterr().err
    files = list((project / "releases").iterdir())
    assert [file.read_text() for file in files] == [before]


def test_stopping_it_writes_nothing_and_leaves_no_uv(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "bin/uv").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo uv 1.0 && exit\n'
        f"echo $$ >{project}/pid\nexec sleep 60\n"
    )

    def interrupt(text: str, seldom: bool = False) -> None:
        if seldom:
            raise KeyboardInterrupt

    monkeypatch.setattr(uv, "_HEARTBEAT_S", 0.3)
    monkeypatch.setattr(uv, "say", interrupt)
    assert lock.main(["vllm==0.33.0"]) == 130
    assert "stopped" in capsys.readouterr().err
    assert not Path(f"/proc/{(project / 'pid').read_text().strip()}").exists()
    assert not list((project / "releases").iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_writes_leaves_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: os.kill(os.getpid(), number))
    before = signal.getsignal(signal.SIGTERM)
    assert lock.main(["vllm==0.33.0"]) == 128 + number
    assert not list((project / "releases").iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


def test_two_at_once_leave_one_whole_lock(tmp_path: Path) -> None:
    texts = [letter * 1_000_000 for letter in "abcd"]
    file = tmp_path / "lock.txt"

    def often(text: str) -> None:
        for _ in range(10):
            lockfile.write(file, text)

    threads = [threading.Thread(target=often, args=[text]) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not file.exists() or file.read_text() in texts
    assert file.read_text() in texts and os.listdir(tmp_path) == ["lock.txt"]
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


@pytest.mark.parametrize("missing", ["torch", "vllm"])
def test_a_lock_without_what_was_asked_for_is_not_written(
    project: Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {"torch", "vllm"} - {missing}
    (project / "bin/body").write_text(f"{kept.pop()}==0.33.0{HASH}")
    assert lock.main(["vllm==0.33.0", "torch"]) == 1
    assert f"uv's answer lacks {missing}, nothing was written" in capsys.readouterr().err
    assert not list((project / "releases").iterdir())


def test_only_locks_are_replaced(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = project / "releases"
    (folder / "notes.txt").write_text("keep me\n")
    (folder / "empty.txt").write_text("")
    (folder / "broken.txt").write_text(
        "# Made by x from: 'vllm==1\n# uv pip compile - --universal\n"
    )
    (folder / "link.txt").symlink_to("notes.txt")
    (folder / "nowhere.txt").symlink_to("none")
    (folder / "loop.txt").symlink_to("loop.txt")
    os.mkfifo(folder / "pipe.txt")
    before = {f.name: f.is_file() and f.read_text() for f in folder.iterdir()}
    for name, words in {
        "notes.txt": "exists and is no lock of this command: name another file",
        "empty.txt": "exists and is no lock of this command: name another file",
        "broken.txt": "has a header that can't be read (No closing quotation): mend its",
        "link.txt": "is a symbolic link, name a file",
        "nowhere.txt": "is a symbolic link, name a file",
        "loop.txt": "is a symbolic link, name a file",
        "pipe.txt": "is a device, pipe or socket, name a file",
        "/dev/null": "is a device, pipe or socket, name a file",
    }.items():
        assert lock.main(["vllm==0.33.0", "-o", str(folder / name)]) == 1
        assert words in capsys.readouterr().err
        assert lock.main(["-o", str(folder / name)]) == 1
        assert words in capsys.readouterr().err
    assert {f.name: f.is_file() and f.read_text() for f in folder.iterdir()} == before
    assert not (project / "bin/calls").exists(), "uv was asked"


def test_other_files_in_releases_are_no_matter(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project / "releases"
    (folder / "vllm-folder.txt").mkdir()
    (folder / "vllm-loop.txt").symlink_to("vllm-loop.txt")
    (folder / "vllm-bytes.txt").write_bytes(b"# Made by \xff\xfe from: \x00\n")
    os.mkfifo(folder / "vllm-pipe.txt")
    for number, (wants, told) in enumerate(
        [("'vllm", ""), ("vllm==abc", ""), ("vllm", "--python-platform odd"), ("''", "")]
    ):
        text = f"# Made by x from: {wants}\n# uv pip compile - {told} --universal\n"
        (folder / f"vllm-{number}.txt").write_text(text)
    assert lock.main(["vllm==0.33.0"]) == 0
    assert "there is no earlier lock to compare it with" in capsys.readouterr().out


def test_names_of_files(project: Path) -> None:
    """The longest that a folder takes, and a name as it is not written in an index."""
    longest = f"releases/{'x' * 251}.txt"
    assert lock.main(["vllm==0.33.0", "-o", longest]) == 0
    assert lock.main(["VLLM==0.33.0"]) == 0
    assert (project / longest).exists() and (project / FILE).exists()
    assert "VLLM" not in calls(project)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("Because vlm was not found in the package registry", "spelling; did you mean 'vllm'?"),
        ("Because there is no version of vlm==0.33.0", "; did you mean 'vllm'?"),
    ],
)
def test_a_name_that_looks_like_the_engines(
    project: Path, refusal: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "bin/refuses").write_text(refusal)
    assert lock.main(["vlm==0.33.0"]) == 1
    assert words in capsys.readouterr().err


def run(project: Path, stdout: str) -> subprocess.CompletedProcess[str]:
    """`sparkwright lock vllm==0.33.0 STDOUT` as a shell runs it."""
    code = (
        "import pathlib, sys\nfrom sparkwright import cli, lock\n"
        f"lock.ROOT = pathlib.Path({str(project)!r})\n"
        f"sys.executable = {str(project / 'bin/python')!r}\n"
        "sys.exit(cli.main(['lock', 'vllm==0.33.0']))"
    )
    command = ["bash", "-c", f'set -o pipefail; "$0" -c "$1" {stdout}', PYTHON, code]
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60)


def test_an_output_that_can_not_be_written_is_no_traceback(project: Path) -> None:
    full = run(project, "> /dev/full")
    assert full.returncode == 1
    assert full.stderr == "sparkwright lock: can't go on: No space left on device\n"
    gone = run(project, "| true")
    assert gone.stderr == "" and gone.returncode in (0, 141)


def test_sigterm_ends_uv_too(project: Path) -> None:
    (project / "bin/uv").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo uv 1.0 && exit\n'
        f"echo $$ >{project}/pid.new; mv {project}/pid.new {project}/pid; exec sleep 60\n"
    )
    code = (
        "import pathlib, sys\nfrom sparkwright import lock\n"
        f"lock.ROOT = pathlib.Path({str(project)!r})\n"
        f"sys.executable = {str(project / 'bin/python')!r}\n"
        "sys.exit(lock.main(['vllm==0.33.0']))"
    )
    process = subprocess.Popen([PYTHON, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (project / "pid").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.communicate(timeout=30)[1] == "sparkwright lock: stopped\n"
    assert process.returncode == 143
    assert not Path(f"/proc/{(project / 'pid').read_text().strip()}").exists()

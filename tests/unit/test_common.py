"""Speaking, locking, long commands and small files of the host programs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import common
import pytest

ROOT = Path(__file__).parents[2]


def test_write_replaces_and_sets_the_mode_whatever_the_umask(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    (tmp_path / "file.new").write_text("left behind by a run that was killed")
    before = os.umask(0o077)
    try:
        common.write(str(file), "new", 0o644)
    finally:
        os.umask(before)
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o644
    common.write(str(file), "key", 0o600)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    texts = {"a" * 200_000, "b" * 200_000}
    common.write(str(file), "a" * 200_000)
    stop, seen = threading.Event(), set()

    def read() -> None:
        while not stop.is_set():
            seen.add(file.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        for text in texts:
            common.write(str(file), text)
    stop.set()
    reader.join()
    assert seen <= texts


def test_an_existing_file_is_not_touched_when_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        common.write(str(tmp_path / "file"), "\udcff")
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "3", '{"a": 1}'])
def test_read_json_gives_an_object(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    assert common.read_json(str(file)) == ({"a": 1} if text == '{"a": 1}' else {})


def test_lock_waits_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "VAR", str(tmp_path))
    monkeypatch.setattr(common, "HEARTBEAT_S", 0.02)
    order, held, release = [], threading.Event(), threading.Event()

    def first() -> None:
        with common.lock("x", "building"):
            held.set()
            release.wait(5)
            order.append("first")

    holder = threading.Thread(target=first)
    holder.start()
    held.wait(5)
    threading.Timer(0.15, release.set).start()
    with common.lock("x", "building"):
        order.append("second")
    holder.join()
    assert order == ["first", "second"]
    said = capsys.readouterr().out.splitlines()
    assert len(said) >= 2
    assert said[0] == "   0 s  waiting: an earlier run is still building on this host"


def test_locks_of_different_names_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "VAR", str(tmp_path))
    with common.lock("x", "one"), common.lock("y", "other"):
        pass
    assert capsys.readouterr().out == ""
    assert (tmp_path / "locks/x").stat().st_mode & 0o777 == 0o600


def test_a_lock_is_free_when_its_holder_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (
        f"import common, time\ncommon.VAR = {str(tmp_path)!r}\n"
        "with common.lock('x', 'building'):\n print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT / "host", stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    monkeypatch.setattr(common, "VAR", str(tmp_path))
    with common.lock("x", "building"):
        assert capsys.readouterr().out == ""


def test_a_lock_outlives_a_killed_holder_while_what_it_started_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo, written = tmp_path / "fifo", tmp_path / "written"
    os.mkfifo(fifo)
    program = (
        f"import common\ncommon.VAR = {str(tmp_path)!r}\n"
        f"with common.lock('x', 'building'):\n"
        f"    common.run_long(['sh', '-c', 'echo up; read x < {fifo}; echo y > {written}'], 'b')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT / "host", stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "      up\n"
        holder.kill()
    monkeypatch.setattr(common, "VAR", str(tmp_path))
    monkeypatch.setattr(common, "HEARTBEAT_S", 0.02)
    said: list[str] = []

    def say(text: str) -> None:
        if not said:
            fifo.write_text("go on\n")
        said.append(text)

    monkeypatch.setattr(common, "say", say)
    with common.lock("x", "building"):
        assert written.read_text() == "y\n", "its child still wrote"
    assert "waiting: an earlier run is still building" in said[0]


def test_a_command_after_a_lock_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "VAR", str(tmp_path))
    with common.lock("x", "building"):
        inside = common.run_long(["ls", "-l", "/proc/self/fd"], "looking")
    outside = common.run_long(["ls", "-l", "/proc/self/fd"], "looking")
    lock = f"{tmp_path}/locks/x"
    assert [line for line in inside if lock in line]
    assert not [line for line in outside if lock in line]
    assert common._HELD == [], "its number may soon be another file's"


def test_run_long_gives_its_lines_back_and_may_keep_them_from_the_screen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["sh", "-c", "echo one; echo; echo two >&2"]
    assert common.run_long(command, "printing", show=False) == ["one", "two"]
    assert capsys.readouterr().out == ""
    assert common.run_long(command, "printing") == ["one", "two"]
    assert capsys.readouterr().out == "      one\n      two\n"


def test_heartbeat_says_that_something_goes_on_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "HEARTBEAT_S", 0.02)
    before = threading.active_count()
    with pytest.raises(ValueError), common.heartbeat("stopping"):
        time.sleep(0.1)
        raise ValueError
    assert threading.active_count() <= before, "its thread has ended"
    said = capsys.readouterr().out.splitlines()
    assert len(said) >= 2 and set(said) == {"   0 s  stopping"}


def test_heartbeat_is_silent_when_it_is_over_soon(capsys: pytest.CaptureFixture[str]) -> None:
    with common.heartbeat("stopping"):
        pass
    assert capsys.readouterr().out == ""


def test_discard_takes_the_stamp_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / ".complete").touch()
    left: list[list[str]] = []
    remove = common.shutil.rmtree

    def killed(path: str, **how: bool) -> None:
        left.append(os.listdir(path))
        remove(path, **how)

    monkeypatch.setattr(common.shutil, "rmtree", killed)
    common.discard(str(folder))
    assert left == [[]] and not folder.exists()
    monkeypatch.undo()
    common.discard(str(folder))


def test_programs_make_what_others_may_read() -> None:
    before = os.umask(0o077)
    try:
        common.main(lambda: None)
        assert os.umask(0o077) == 0o022
    finally:
        os.umask(before)


def test_run_long_shows_lines_and_the_end_of_a_progress_bar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    common.run_long(["printf", "one\\n10%%\\r90%%\\rdone\\n\\n"], "printing")
    assert capsys.readouterr().out == "      one\n      done\n"


def test_run_long_passes_the_environment_and_no_input() -> None:
    common.run_long(
        ["sh", "-c", 'test "$A" = b && test -n "$PATH" && ! read x'], "testing", {"A": "b"}
    )


def test_run_long_says_that_it_lives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(common, "HEARTBEAT_S", 0.5)
    common.run_long(["sleep", "1.1"], "sleeping", grows=str(tmp_path))
    said = capsys.readouterr().out.splitlines()
    assert said and all(" s  sleeping" in line for line in said)


def test_run_long_counts_what_the_disk_got_fuller_by_whoever_wrote(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = iter([9e9, 1.7e9, 10e9])
    monkeypatch.setattr(common, "HEARTBEAT_S", 0.5)
    monkeypatch.setattr(
        common.shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free, 10e9))
    )
    common.run_long(["sleep", "2.5"], "sleeping", grows="/")
    said = [line[8:] for line in capsys.readouterr().out.splitlines()]
    assert said[:2] == ["sleeping; disk used on this machine grew by 7.3 GB", "sleeping"]


def test_run_long_ends_with_the_last_lines_of_a_failure() -> None:
    script = "for i in $(seq 30); do echo line $i; done; echo the reason >&2; exit 3"
    with pytest.raises(common.CommandFailedError) as caught:
        common.run_long(["sh", "-c", script], "building")
    assert "\n" not in str(caught.value), "the lines are on the screen already"
    assert caught.value.output[-1] == "the reason"


def test_a_reader_that_went_away_does_not_end_a_program(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import common\n"
        "for n in range(1000): common.say('x' * 1000)\n"
        "open(sys.argv[2], 'w').write('went on')"
    )
    done = tmp_path / "done"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(ROOT / "host"), str(done)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    assert done.read_text() == "went on"


def test_a_refusal_is_a_message_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        raise common.Refusal("what to do")

    before = os.umask(0o022)
    try:
        with pytest.raises(SystemExit) as caught:
            common.main(program)
    finally:
        os.umask(before)
    assert caught.value.code == 1
    assert capsys.readouterr().out == "what to do\n"

"""`sparkwright lock`: what it writes and says. uv is played by a script."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from sparkwright import lock, uv
from sparkwright.lockfile import Recipe, recipe_of
from tests.unit.fake_uv import HASH, calls, uv_of


def test_a_new_lock(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lock.main(["vllm==0.33.0"]) == 0
    text = (project / "releases/vllm-0.33.0-aarch64.txt").read_text()
    head, told = text.splitlines()[:2]
    assert head == "# Made by sparkwright lock (uv 0.13.9) from: vllm==0.33.0"
    for option in (
        "--generate-hashes --only-binary :all:",
        "--python-version 3.12 --python-platform aarch64-manylinux_2_39",
    ):
        assert option in told and option in calls(project)
    assert "--exclude-newer" not in text and "127.0.0.1" not in text
    said = capsys.readouterr().out
    assert "releases/vllm-0.33.0-aarch64.txt written: 2 packages" in said
    assert "there is no earlier lock to compare it with" in said
    assert "unpacked: unknown" in said, "the index of this test is not there"
    assert 'release = dict(lock="releases/vllm-0.33.0-aarch64.txt")' in said
    assert [f.name for f in (project / "releases").iterdir()] == ["vllm-0.33.0-aarch64.txt"]


def test_the_newest_version_is_pinned(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "bin/body").write_text(f"numpy==2.4.0{HASH}vllm==0.33.0{HASH}")
    assert lock.main(["vllm", "numpy<3"]) == 0
    assert "the newest vllm is 0.33.0" in capsys.readouterr().out
    text = (project / "releases/vllm-0.33.0-aarch64.txt").read_text()
    assert "from: vllm==0.33.0 'numpy<3'\n" in text


def test_an_old_version_gets_the_dependencies_of_its_day(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uploaded = date.today() - timedelta(days=40)
    uv_of(project, uploaded)
    assert lock.main(["vllm==0.33.0"]) == 0
    day = (uploaded + timedelta(days=4)).isoformat()
    file = project / "releases/vllm-0.33.0-aarch64.txt"
    assert f"--exclude-newer {day}\n" in file.read_text()
    assert (
        f"vllm==0.33.0 is of {uploaded}: its dependencies are taken as" in capsys.readouterr().out
    )
    file.unlink()
    assert lock.main(["vllm==0.33.0", "--exclude-newer", "none"]) == 0
    assert "--exclude-newer" not in file.read_text()


def test_an_existing_lock_keeps_its_options_unless_others_are_given(project: Path) -> None:
    arguments = ["vllm==0.33.0", "--exclude-newer", "2026-08-15", "--python", "3.13"]
    assert lock.main(arguments) == 0
    file = project / "releases/vllm-0.33.0-aarch64.txt"
    first = file.read_text()
    file.write_text(first.replace("2.14.0", "2.13.0"))
    assert lock.main(["-o", "releases/vllm-0.33.0-aarch64.txt"]) == 0
    assert file.read_text() == first
    assert lock.main(["vllm==0.33.0", "--exclude-newer", "none", "--platform", "universal"]) == 0
    assert (project / "releases/vllm-0.33.0-universal.txt").exists()
    assert lock.main(["vllm==0.33.0", "--exclude-newer", "none"]) == 0
    recipe = recipe_of(file.read_text())
    assert recipe == Recipe(("vllm==0.33.0",), "3.13", "aarch64-manylinux_2_39")


def test_a_lock_that_would_be_the_same_is_not_written(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its content names the folder on the hosts: another uv alone must not rebuild a fleet."""
    assert lock.main(["vllm==0.33.0"]) == 0
    file = project / "releases/vllm-0.33.0-aarch64.txt"
    older = file.read_text().replace("sparkwright lock (uv 0.13.9)", "releases/lock (uv 0.13.8)")
    file.write_text(older)
    capsys.readouterr()
    assert lock.main(["vllm==0.33.0"]) == 0
    assert file.read_text() == older
    assert "is as it was: 2 packages, no change" in capsys.readouterr().out


def test_changes_are_those_against_the_newest_other_lock_of_the_platform(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version, torch, platform in (
        ("0.9.0", "2.1.0", "aarch64-manylinux_2_39"),
        ("0.32.0", "2.13.0", "aarch64-manylinux_2_39"),
        ("0.32.1", "2.13.1", "x86_64-manylinux_2_39"),
    ):
        recipe = Recipe((f"vllm=={version}",), "3.12", platform)
        body = f"gone==1{HASH}torch=={torch}{HASH}vllm=={version}{HASH}"
        (project / f"releases/vllm-{version}.txt").write_text(recipe.header("1") + body)
    assert lock.main(["vllm==0.33.0"]) == 0
    said = capsys.readouterr().out
    assert "compared with vllm-0.32.0.txt: 0 added, 1 removed, 2 of another version" in said
    assert "  - gone 1\n" in said and "    torch 2.13.0 -> 2.14.0\n" in said


def test_other_hashes_of_the_same_versions_are_said(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock.main(["vllm==0.33.0"]) == 0
    (project / "bin/body").write_text(f"torch==2.14.0{HASH}vllm==0.33.0 \\\n    --hash=sha256:11\n")
    assert lock.main(["vllm==0.33.0"]) == 0
    assert "the same versions, other files or options" in capsys.readouterr().out
    assert "sha256:11" in (project / "releases/vllm-0.33.0-aarch64.txt").read_text()


def test_a_variable_names_a_folder_and_its_place_is_not_written(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels_folder = project / "wheels"
    wheels_folder.mkdir()
    monkeypatch.setenv("LAB_WHEELS", str(wheels_folder))
    (project / "other.txt").write_text("torch==2.13.0\n")
    arguments = ["vllm==0.33.0", "--find-links", "LAB_WHEELS", "--override", "other.txt"]
    assert lock.main(arguments) == 0
    text = (project / "releases/vllm-0.33.0-aarch64.txt").read_text()
    assert "--override other.txt --find-links LAB_WHEELS\n" in text
    assert str(project) not in text
    assert f"--find-links {wheels_folder}" in calls(project)


def test_what_no_header_records_does_not_change_a_lock(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = project / "bin/uv"
    look = 'wanted += "backend=" + str(os.environ.get("UV_TORCH_BACKEND"))'
    text = program.read_text().replace("import pathlib", "import os, pathlib")
    program.write_text(text.replace("sys.stdin.read()\n", f"sys.stdin.read()\n{look}\n"))
    monkeypatch.setenv("UV_TORCH_BACKEND", "auto")
    assert lock.main(["vllm==0.33.0"]) == 0
    assert "backend=None" in calls(project) and "backend=auto" not in calls(project)


def test_it_is_never_silent(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = (
        (project / "bin/uv")
        .read_text()
        .replace("wanted = sys.stdin", "__import__('time').sleep(0.5); wanted = sys.stdin")
    )
    (project / "bin/uv").write_text(slow)
    monkeypatch.setattr(uv, "_HEARTBEAT_S", 0.1)
    assert lock.main(["vllm==0.33.0"]) == 0
    said = capsys.readouterr().out
    assert " s  resolving\n" in said and " s  asking the index\n" in said

"""What host/release.py accepts, builds again and removes. uv and torch are not needed for that."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import common
import pytest
import release as program


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(program, "OPT", str(tmp_path))
    monkeypatch.setattr(program, "RELEASES", str(tmp_path / "releases"))
    for module in (common, program):
        monkeypatch.setattr(module, "VAR", str(tmp_path / "var"))
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases/r1.txt").write_text("vllm==0.27.1 \\\n    --hash=sha256:00\n")
    return tmp_path


def built(home: Path, ninja: bool = True, **says: Any) -> Path:
    """A release whose interpreter answers as told."""
    answer = {"vllm": "0.27.1", "torch": "2.11.0", "cuda": "13.0", "python": "3.12.9"} | says
    folder = home / "releases/r1/bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python").write_text(f"#!/bin/sh\necho noise\necho '{json.dumps(answer)}'\n")
    (folder / "python").chmod(0o755)
    if ninja:
        (folder / "ninja").touch(mode=0o755)
    return folder.parent


REQUEST = {"id": "r1", "python": "3.12", "cuda": "13", "find_links": []}


def ask(path: Path, **request: Any) -> dict[str, str | None]:
    return program._ask(str(path), REQUEST | request)


def test_a_release_that_is_what_was_locked(home: Path) -> None:
    assert ask(built(home))["cuda"] == "13.0"


def test_a_cpu_build_needs_no_cuda_and_no_ninja(home: Path) -> None:
    assert ask(built(home, ninja=False, cuda=None), cuda=None)["cuda"] is None


@pytest.mark.parametrize(
    ("says", "ninja", "reason"),
    [
        ({"vllm": "0.26.0"}, True, "holds vllm 0.26.0, its lock names 0.27.1"),
        ({"vllm": None}, True, "holds vllm None"),
        ({"cuda": "12.8"}, True, "built for CUDA 12.8, this host needs one for CUDA 13"),
        ({"cuda": None}, True, "built for the CPU, this host needs one for CUDA 13"),
        ({}, False, "lacks ninja"),
    ],
)
def test_a_release_that_is_something_else(
    home: Path, says: dict[str, Any], ninja: bool, reason: str
) -> None:
    with pytest.raises(common.Refusal, match=reason):
        ask(built(home, ninja, **says))


def test_an_interpreter_that_fails_says_why(home: Path) -> None:
    path = built(home)
    (path / "bin/python").write_text("#!/bin/sh\necho 'ImportError: libnuma.so.1' >&2; exit 1\n")
    with pytest.raises(common.Refusal, match=r"importing it fails:\n +ImportError: libnuma\.so\.1"):
        ask(path)


def real_python(home: Path, vllm: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release whose interpreter is this one, with a package `vllm` of that source."""
    path, site = built(home), home / "site"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm/__init__.py").write_text(vllm)
    (site / "vllm-0.27.1.dist-info").mkdir()
    (site / "vllm-0.27.1.dist-info/METADATA").write_text("Name: vllm\nVersion: 0.27.1\n")
    (path / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    monkeypatch.setenv("PYTHONPATH", str(site))
    return path


def test_the_engine_itself_is_imported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = real_python(home, "print('noise of an import')", monkeypatch)
    answer = ask(path, cuda=None)
    assert (answer["vllm"], answer["torch"], answer["cuda"]) == ("0.27.1", None, None)


def test_an_engine_that_can_not_be_imported_shows_the_end_of_its_traceback(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "for n in range(40): print('line', n)\nraise ImportError('libcudart.so.13')"
    with pytest.raises(common.Refusal) as caught:
        ask(real_python(home, source, monkeypatch))
    said = str(caught.value).splitlines()
    assert said[0] == "the release can't be used, importing it fails:"
    assert said[-1] == "      ImportError: libcudart.so.13"
    assert len(said) == 16
    assert capsys.readouterr().out == "", "it is said once"


def test_a_python_that_uv_keeps_for_itself_is_not_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(common, "DOWNLOADS", str(home / "cache"))
    monkeypatch.setattr(program, "run_long", lambda c, _, env, **__: ran.append((c, env)))
    program._install(str(home / "releases/r1"), REQUEST | {"find_links": ["/srv/wheels"]})
    assert [env["UV_PYTHON_PREFERENCE"] for _, env in ran] == ["only-system"] * 2
    assert [env["UV_PYTHON_DOWNLOADS"] for _, env in ran] == ["never"] * 2
    sync = ran[1][0]
    assert {"--require-hashes", "--no-build", "--find-links=/srv/wheels"} <= set(sync)


def test_a_complete_release_is_not_touched(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = built(home)
    (path / ".complete").write_text("{}")
    (path / "bin/vllm").touch(0o755)
    monkeypatch.setattr(program, "_install", lambda *_: pytest.fail("it was built again"))
    program.build(dict(REQUEST))
    assert capsys.readouterr().out == ""


def test_a_release_without_its_stamp_is_built_from_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (built(home) / "half").touch()
    monkeypatch.setattr(program, "_install", lambda *_: built(home))
    program.build(dict(REQUEST))
    assert not (home / "releases/r1/half").exists()
    assert json.loads((home / "releases/r1/.complete").read_text())["vllm"] == "0.27.1"
    said = capsys.readouterr().out
    assert "building r1 (normal: " in said
    assert "complete: vllm 0.27.1, torch 2.11.0" in said


def test_a_release_that_is_refused_gets_no_stamp(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_install", lambda *_: built(home, cuda="12.8"))
    with pytest.raises(common.Refusal):
        program.build(dict(REQUEST))
    assert not (home / "releases/r1/.complete").exists()


def test_prune_keeps_what_it_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    releases = home / "releases"
    for name in ("r1", "old", "half"):
        (releases / name).mkdir()
    (releases / "old.txt").touch()
    program.prune(["r1"])
    assert sorted(f.name for f in releases.iterdir()) == ["r1", "r1.txt"]
    assert "removed old" in capsys.readouterr().out

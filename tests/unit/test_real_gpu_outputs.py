"""What a real CUDA 13 GPU's tools and engine print (tests/fixtures/gpu), read by what we ship."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import probe
import pytest
from engine_log import first_exception, phase

from sparkwright import preflight
from sparkwright.engine import PHASES
from sparkwright.plan import RawHost, build_plan

FIXTURES = Path(__file__).parents[1] / "fixtures"
H200 = {
    "architecture": "x86_64",
    "dgx_os": False,
    "gpu": "NVIDIA H200",
    "compute_capability": "9.0",
}
# ls-usr-local-cuda.txt; both links go through /etc/alternatives.
LINKS = {path: "/usr/local/cuda-13.0" for path in ("/usr/local/cuda", "/usr/local/cuda-13")}
NVCC = "/usr/local/cuda/bin/nvcc"


def text(name: str) -> str:
    return (FIXTURES / f"gpu/{name}.txt").read_text()


def run_with(query: tuple[int, str]) -> Callable[..., tuple[int, str]]:
    """probe.run on that machine. query: status and output of `nvidia-smi --query-gpu`."""

    def run(*command: str) -> tuple[int, str]:
        if command[1].startswith("--query-gpu"):
            return query[0], query[1].strip()
        name = {"nvidia-smi": "nvidia-smi-version", NVCC: "nvcc"}[command[0]]
        return 0, text(name).strip()

    return run


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands and the folders of its CUDA, in place of this machine's."""
    path = SimpleNamespace(
        realpath=lambda path: LINKS.get(path, path),
        islink=LINKS.__contains__,
        isdir={*LINKS, *LINKS.values()}.__contains__,
        exists={NVCC}.__contains__,
    )
    there = sorted({*LINKS, *LINKS.values()} - {"/usr/local/cuda"})
    monkeypatch.setattr(probe, "run", run_with((0, text("nvidia-smi-query"))))
    monkeypatch.setattr(probe, "os", SimpleNamespace(path=path))
    monkeypatch.setattr(probe, "glob", SimpleNamespace(glob=lambda _: there))


def failed(platform: dict[str, Any]) -> set[str]:
    """Requirements that are not met when an inventory says that the machine is this platform."""
    data = {"release": {"floating": "vllm==0.27.1"}, "platform": platform}
    profile = {"model": "/srv/models/tiny-qwen3", "gpu_memory_utilization": 0.3}
    plan = build_plan([RawHost("gpu", ("tiny",), data)], {"tiny": {"profile": profile}})["gpu"]
    healthy = json.loads((FIXTURES / "host/probe-healthy.json").read_text())
    seen = {"engines": [], **healthy}
    seen["stamps"] = dict.fromkeys(preflight.request(plan)["stamps"])
    seen["platform"] |= {
        "architecture": "x86_64",
        "dgx_release": None,
        "gpu": probe._gpu(),
        "driver_version_file": text("proc-driver-nvidia-version"),
        "cuda": probe._cuda(),
    }
    findings = preflight.judge(plan, seen, seen["platform"]["time"])
    return {f.requirement for f in findings if f.verdict == preflight.FAIL}


def test_gpu() -> None:
    assert probe._gpu() == {
        "status": 0,
        "message": "",
        "gpus": [{"name": "NVIDIA H200", "compute_cap": "9.0", "driver": "580.159.04"}],
        "userspace": "580.159.04",
        "cuda": "13.0",
    }


def test_a_query_that_nvidia_smi_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "run", run_with((2, text("nvidia-smi-unknown-field"))))
    seen = probe._gpu()
    assert seen["gpus"] == []
    assert seen["message"] == 'Field "no_such_field" is not a valid field to query.'
    assert failed(H200) == {"NVIDIA driver answers", "GPU", "compute capability"}


def test_links_to_the_default_toolkit_are_no_further_toolkits() -> None:
    assert probe._cuda() == {"/usr/local/cuda": "13.0"}


def test_preflight_passes_a_machine_that_is_described() -> None:
    assert failed(H200) == set()


def test_preflight_refuses_it_as_a_spark() -> None:
    assert failed({}) == {"machine", "architecture", "GPU", "compute capability"}


def log(name: str) -> list[str]:
    return (FIXTURES / f"logs/vllm-0.26.0-gpu-{name}.log").read_text().splitlines()


@pytest.mark.parametrize("name", ["unit-cold-start", "engine-killed"])
def test_every_phase_of_a_start_by_the_unit_in_its_order(name: str) -> None:
    order = list(dict.fromkeys(name for _, name in PHASES))
    seen = [phase([line], PHASES, "") for line in log(name)]
    assert list(dict.fromkeys(name for name in seen if name)) == order


def test_what_went_wrong() -> None:
    assert first_exception(log("unit-cold-start")) is None
    found = first_exception(log("engine-killed"))
    assert found is not None
    assert found.startswith("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered")

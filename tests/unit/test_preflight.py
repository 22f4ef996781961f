"""A healthy GB10 passes; each requirement broken alone is the only one that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkwright import preflight
from sparkwright.plan import HostPlan, RawHost, build_plan
from sparkwright.preflight import FAIL, OK, WARN, Finding

HEALTHY = Path(__file__).parents[1] / "fixtures/host/probe-healthy.json"
GROUPS: dict[str, dict[str, Any]] = {
    "tiny": {
        "profile": {
            "model": "/srv/models/tiny-qwen3",
            "gpu_memory_utilization": 0.8,
            "expects": {"weights_gib": 22},
        }
    }
}
Seen = dict[str, Any]


def plan(**profile: Any) -> HostPlan:
    merged = GROUPS["tiny"]["profile"] | profile
    groups = {"tiny": {"profile": {k: v for k, v in merged.items() if v is not None}}}
    data = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
    return build_plan([RawHost("spark-1", ("tiny",), data)], groups)["spark-1"]


def probe() -> Seen:
    seen: Seen = json.loads(HEALTHY.read_text())
    seen["stamps"] = dict.fromkeys(preflight.request(plan())["stamps"])
    return seen


def judge(seen: Seen, wanted: HostPlan | None = None) -> list[Finding]:
    return preflight.judge(wanted or plan(), seen, seen["platform"]["time"] + 2)


def test_request_asks_for_all_that_is_judged() -> None:
    asked = preflight.request(plan())
    assert asked["ports"] == [8000]
    assert asked["models"] == ["/srv/models/tiny-qwen3"]
    assert asked["disk"] == ["/opt/sparkwright/releases", "/var/lib/sparkwright/models"]
    assert set(asked) == set(probe())


def test_healthy_spark_passes() -> None:
    findings = judge(probe())
    assert [f for f in findings if f.verdict != OK] == []
    assert len({f.requirement for f in findings}) == len(findings) >= 16


def at(path: str, value: Any) -> Callable[[Seen], None]:
    """Set one value of a probe; path: keys with a bar between them."""

    def change(seen: Seen) -> None:
        *way, last = path.split("|")
        for key in way:
            seen = seen[key]
        seen[last] = value

    return change


def driver(version: str, kind: str = "Open Kernel Module") -> Callable[[Seen], None]:
    """Both halves of another driver."""

    def change(seen: Seen) -> None:
        text = f"NVRM version: NVIDIA UNIX {kind} for aarch64  {version}  Release Build\n"
        seen["platform"]["driver_version_file"] = text
        seen["platform"]["gpu"]["userspace"] = version

    return change


STRANGER = {"pid": 77, "command": "python3 -m http.server 8000", "unit": "web.service"}

# (requirement, what breaks it, part of what is found, of what is needed, of the fix)
BROKEN: list[tuple[str, Callable[[Seen], None], str, str, str]] = [
    ("machine", at("platform|dgx_release", None), "nothing", "DGX Spark in /etc/dgx-release",
     "dgx_os=False"),
    ("machine", at("platform|dgx_release|DGX_NAME", "DGX Station"), "DGX Station, DGX OS 7.5.0",
     "DGX Spark", "no DGX Spark"),
    ("architecture", at("platform|architecture", "x86_64"), "x86_64", "aarch64", "another proc"),
    ("GPU", at("platform|gpu|gpus", [{"name": "NVIDIA GB100", "compute_cap": "12.1"}]), "NVIDIA "
     "GB100", "NVIDIA GB10", "platform = dict(gpu=..."),
    ("compute capability", at("platform|gpu|gpus", [{"name": "NVIDIA GB10", "compute_cap": "9.0"}]),
     "9.0", "12.1", "see GPU"),
    ("driver branch loaded", driver("590.48.01"), "590.48.01", "580.*", "nvidia-driver-580-open"),
    ("driver matches its libraries", at("platform|gpu|userspace", "580.142"),
     "module 580.159.03, nvidia-smi 580.142", "the same version", "reboot"),
    ("open kernel module", driver("580.142", "x86_64 Kernel Module"), "proprietary", "open",
     "nvidia-driver-580-open"),
    ("CUDA of the driver", at("platform|gpu|cuda", "12.8"), "12.8", "13.0 or newer", "dist-upgr"),
    ("CUDA of the driver", at("platform|gpu|cuda", None), "nothing", "13.0 or newer", "dist-upgr"),
    ("CUDA toolkit", at("platform|cuda", {"/usr/local/cuda": "12.8"}), "12.8",
     "13.x at /usr/local/cuda", "cuda-toolkit-13-0"),
    ("CUDA toolkit", at("platform|cuda", {}), "nothing", "13.x", "cuda-toolkit-13-0"),
    ("CUDA toolkit", at("platform|cuda", {"/usr/local/cuda": None}), "nothing", "13.x",
     "cuda-toolkit-13-0"),
    ("no other CUDA toolkit", at("platform|cuda|/opt/cuda", None), "unknown at /opt/cuda",
     "only CUDA 13", "delete the folder"),
    ("no other CUDA toolkit", at("platform|cuda|/usr/local/cuda-12.8", "12.8"),
     "12.8 at /usr/local/cuda-12.8", "only CUDA 13", "sudo apt purge cuda-toolkit-12-8"),
    ("free memory", at("platform|memory|MemAvailable", 20 * 2**30), "20.0 GiB",
     "98.1 GiB (the profiles')", "gpu_memory_utilization"),
    ("modules for the next kernel",
     at("platform|next_kernel", {"version": "6.17.0-1014-nvidia", "module": False}),
     "6.17.0-1014-nvidia lacks nvidia.ko", "boots next",
     "linux-modules-nvidia-580-open-6.17.0-1014-nvidia"),
    ("clock", at("platform|clock", "no"), "synchronised: no", "synchronised", "set-ntp true"),
    ("clock", at("platform|clock", ""), "synchronised: unknown", "synchronised", "set-ntp true"),
    ("port 8000", at("ports|8000", [STRANGER]),
     "python3 -m http.server 8000 (pid 77, web.service)", "free for tiny", "another port"),
    ("model of tiny", at("models|/srv/models/tiny-qwen3", "missing"),
     "/srv/models/tiny-qwen3: missing", "config.json", "group_data/tiny.py"),
    ("model of tiny", at("models|/srv/models/tiny-qwen3", "no config.json"), "no config.json",
     "a folder with config.json", "copy the model"),
    ("model of tiny",
     at("models|/srv/models/tiny-qwen3", "/srv is closed for others (chmod o+x)"),
     "/srv is closed for others", "a folder with config.json", "on the host"),
]  # fmt: skip


@pytest.mark.parametrize(("requirement", "fault", "found", "needed", "fix"), BROKEN)
def test_one_fault_is_the_only_failure(
    requirement: str, fault: Callable[[Seen], None], found: str, needed: str, fix: str
) -> None:
    seen = probe()
    fault(seen)
    (failed,) = [f for f in judge(seen) if f.verdict != OK]
    assert (failed.requirement, failed.verdict) == (requirement, FAIL)
    assert found in failed.found
    assert needed in failed.needed
    assert fix in failed.fix


def test_less_memory_than_a_spark_has() -> None:
    seen = probe()
    seen["platform"]["memory"] = {"MemTotal": 110 * 2**30, "MemAvailable": 109 * 2**30}
    (failed,) = [f for f in judge(seen) if f.verdict == FAIL]
    assert (failed.requirement, failed.found, failed.needed) == ("memory", "110.0 GiB", "119.6 GiB")


def bad(finding: Finding) -> bool:
    return finding.verdict == FAIL


def test_driver_that_does_not_answer_says_what_nvidia_smi_said() -> None:
    seen = probe()
    message = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    seen["platform"]["gpu"] = {
        "status": 9,
        "message": message,
        "gpus": [],
        "userspace": "580.159.03",
        "cuda": None,
    }
    seen["platform"]["driver_version_file"] = None
    failed = {f.requirement: f for f in judge(seen) if bad(f)}
    assert failed["NVIDIA driver answers"].found == message
    assert failed["driver matches its libraries"].found == "module None, nvidia-smi 580.159.03"
    assert set(failed) <= {
        "NVIDIA driver answers",
        "GPU",
        "compute capability",
        "driver branch loaded",
        "driver matches its libraries",
        "open kernel module",
        "CUDA of the driver",
    }


def test_clock_that_is_off_although_it_says_yes() -> None:
    seen = probe()
    (failed,) = [
        f for f in preflight.judge(plan(), seen, seen["platform"]["time"] - 3600) if bad(f)
    ]
    assert failed.requirement == "clock"
    assert "3600 s from the controller" in failed.found


@pytest.mark.parametrize("engine", ["vllm@tiny.service", "vllm@other.service"])
def test_what_engines_of_ours_hold_comes_back_before_a_start(engine: str) -> None:
    seen = probe()
    seen["platform"]["memory"]["MemAvailable"] = 2**30
    seen["engines"] = [engine]  # it may listen on a port that is no longer wanted
    findings = judge(seen)
    assert not [f for f in findings if f.verdict != OK]
    assert "free memory" not in {f.requirement for f in findings}


def test_memory_that_a_stranger_holds_does_not_come_back() -> None:
    seen = probe()
    seen["platform"]["memory"]["MemAvailable"] = 2**30
    seen["ports"]["8000"] = [{"pid": 9, "command": "vllm serve", "unit": "mine.service"}]
    assert {f.requirement for f in judge(seen) if bad(f)} == {"free memory", "port 8000"}


def test_a_host_that_serves_nothing_needs_no_free_memory() -> None:
    idle = build_plan([RawHost("spark-1", ("all",), {})], {"all": {}})["spark-1"]
    seen = probe() | {"ports": {}, "models": {}, "stamps": {}}
    seen["platform"]["memory"]["MemAvailable"] = 2**30
    assert not [f for f in judge(seen, idle) if f.verdict != OK]


def test_a_port_that_an_engine_of_ours_holds() -> None:
    seen = probe()
    mine = {"pid": 9, "command": "vllm serve", "unit": "vllm@tiny.service"}
    seen["ports"]["8000"] = [mine]
    findings = judge(seen)
    assert not [f for f in findings if f.verdict != OK]
    assert next(f for f in findings if f.requirement == "port 8000").found.startswith("held by a")


def test_no_kernel_in_boot_is_a_warning() -> None:
    seen = probe()
    seen["platform"]["next_kernel"] = {"version": None, "module": None}
    (odd,) = [f for f in judge(seen) if f.verdict != OK]
    assert (odd.requirement, odd.verdict) == ("modules for the next kernel", WARN)


def test_without_a_setting_the_default_budget_must_be_free() -> None:
    findings = {f.requirement: f for f in judge(probe(), plan(gpu_memory_utilization=None))}
    assert findings["free memory"].verdict == OK
    assert findings["free memory"].needed == "104.2 GiB (the profiles')"


def test_a_release_that_is_there_needs_no_room() -> None:
    seen = probe()
    for entry in seen["disk"].values():
        entry["free"] = 10 * 2**30
    (failed,) = [f for f in judge(seen) if bad(f)]
    assert (failed.requirement, failed.found) == ("free disk", "10.0 GiB")
    assert "make room: old releases in /opt/sparkwright/releases" in failed.fix
    seen["stamps"] = dict.fromkeys(seen["stamps"], "{}")
    assert not [f for f in judge(seen) if bad(f)]


def disk_findings(
    releases_gib: float, models_gib: float, same: bool, there_gib: float = 0
) -> list[Finding]:
    wanted = plan(model="org/name", revision="a" * 40)
    seen = probe()
    path = wanted.instances[0].model_path
    seen |= {"models": {path: "missing"}, "sizes": {f"{path}.partial": int(there_gib * 2**30)}}
    releases, models = preflight.request(wanted)["disk"]
    seen["disk"] = {
        releases: {"free": int(releases_gib * 2**30), "device": 1},
        models: {"free": int(models_gib * 2**30), "device": 1 if same else 2},
    }
    return [f for f in judge(seen, wanted) if "disk" in f.requirement]


@pytest.mark.parametrize(
    ("releases_gib", "models_gib", "same", "verdict"),
    [
        (60, 60, True, OK),
        (30, 30, True, FAIL),  # 16 + 22 do not fit on one file system
        (30, 30, False, OK),  # but they do on two
        (10, 900, False, FAIL),
        (900, 10, False, FAIL),
    ],
)
def test_disk_is_judged_by_file_system(
    releases_gib: float, models_gib: float, same: bool, verdict: str
) -> None:
    (finding,) = disk_findings(releases_gib, models_gib, same)
    assert finding.verdict == verdict, finding


def test_what_was_downloaded_needs_no_room() -> None:
    (short,) = disk_findings(900, 10, same=False, there_gib=11)
    assert (short.verdict, short.found, short.needed) == (FAIL, "10.0 GiB", "11.1 GiB")
    (enough,) = disk_findings(900, 10, same=False, there_gib=12.5)
    assert enough.verdict == OK
    # More than was said: the rest is not taken from what the release needs.
    (release,) = disk_findings(15, 15, same=True, there_gib=30)
    assert (release.verdict, release.needed) == (FAIL, "16.2 GiB")


def test_a_model_in_two_profiles_is_fetched_once() -> None:
    hub = GROUPS["tiny"]["profile"] | {"model": "org/name", "revision": "a" * 40}
    groups = {
        "one": {"profile": hub | {"gpu_memory_utilization": 0.4}},
        "two": {"profile": hub | {"gpu_memory_utilization": 0.4, "port": 8001}},
    }
    data = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
    wanted = build_plan([RawHost("spark-1", ("one", "two"), data)], groups)["spark-1"]
    path = wanted.instances[0].model_path
    seen = probe() | {"models": {path: "missing"}, "sizes": {f"{path}.partial": 0}}
    seen["ports"] = {"8000": [], "8001": []}
    (disk,) = [f for f in judge(seen, wanted) if f.requirement == "free disk"]
    assert disk.needed == "38.2 GiB", "16 and 22, and a little for the rest"


@pytest.mark.parametrize(
    ("host", "key", "open_to"),
    [
        ("127.0.0.1", None, None),
        ("::1", None, None),
        ("localhost", None, None),
        ("0.0.0.0", "generate", "0.0.0.0:8000, a key for /v1, none for /invocations"),
        ("0.0.0.0", None, "0.0.0.0:8000, no key"),
        ("192.0.2.7", None, "192.0.2.7:8000, no key"),
        ("spark-1.lan", None, "spark-1.lan:8000, no key"),
    ],
)
def test_a_server_that_all_may_ask_is_a_warning(
    host: str, key: str | None, open_to: str | None
) -> None:
    odd = [f for f in judge(probe(), plan(host=host, api_key=key)) if f.verdict != OK]
    expected = [open_to] if open_to else []
    assert [f.found for f in odd] == expected
    for finding in odd:
        assert (finding.requirement, finding.verdict) == ("who may ask tiny", WARN)
        assert "api_key='generate'" in finding.fix


def test_weights_of_unknown_size_are_a_warning() -> None:
    wanted = plan(model="org/name", revision="a" * 40, expects={})
    seen = probe()
    path = wanted.instances[0].model_path
    seen |= {"models": {path: "missing"}, "sizes": {f"{path}.partial": 0}}
    (odd,) = [f for f in judge(seen, wanted) if f.verdict != OK]
    assert odd.verdict == WARN
    assert "set expects.weights_gib in the profile of tiny" in odd.fix


def test_table_is_aligned_and_fixes_stand_below_what_they_mend() -> None:
    lines = preflight.table(
        "spark-1",
        [
            Finding("short", OK, "found it", "needed", "unused fix"),
            Finding("a longer one", FAIL, "x", "something", "do this"),
        ],
    ).splitlines()
    assert lines == [
        "Preflight of spark-1:",
        "        requirement   found     needed",
        "  ok    short         found it  needed",
        "  FAIL  a longer one  x         something",
        "        fix: do this",
    ]

"""Judge what a probe saw against what a platform and a plan need: one finding a requirement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sparkwright import paths
from sparkwright.plan import HostPlan
from sparkwright.settings import Platform

GIB = 1024**3
CLOCK_TOLERANCE_S = 60
"""Beyond this a certificate can be 'not yet valid'; a slow link explains less."""

OK, WARN, FAIL = "ok", "warning", "FAIL"


@dataclass(frozen=True)
class Finding:
    """One requirement: what was found, what is needed, and how to get there."""

    requirement: str
    verdict: str
    found: str
    needed: str
    fix: str = ""


def request(plan: HostPlan) -> dict[str, Any]:
    """What the probe has to look at for a host."""
    return {
        "platform": {},
        "disk": [paths.RELEASES, paths.MODELS],
        "ports": [i.profile.port for i in plan.instances],
        "models": [i.model_path for i in plan.instances],
        "sizes": [f"{i.model_path}.partial" for i in plan.instances if not i.profile.is_path],
        "engines": {},
        "stamps": [f"{r.path}/.complete" for r in plan.releases],
    }


def judge(plan: HostPlan, seen: dict[str, Any], now: float) -> list[Finding]:
    """Every finding for a host.

    seen: answer of the probe to `request`. now: the controller's time, seconds since the epoch.
    """
    platform, probe = plan.platform, seen["platform"]
    return [
        *_machine(platform, probe),
        *_driver(platform, probe),
        *_cuda(platform, probe),
        *_memory(plan, probe, seen["engines"]),
        _disk(plan, seen),
        _next_kernel(platform, probe),
        _clock(probe, now),
        *_ports(plan, seen["ports"]),
        *_exposed(plan),
        *_models(plan, seen["models"]),
    ]


def table(host: str, findings: Iterable[Finding]) -> str:
    """Findings as aligned text: verdict, requirement, found, needed, and the fix below."""
    rows = [("", "requirement", "found", "needed")]
    rows += [(f.verdict, f.requirement, f.found, f.needed) for f in findings]
    widths = [max(len(row[n]) for row in rows) for n in range(3)]
    fixes = ["", *(f.fix if f.verdict != OK else "" for f in findings)]
    lines = [f"Preflight of {host}:"]
    for row, fix in zip(rows, fixes, strict=True):
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        lines.append("  " + "  ".join([*cells, row[3]]).rstrip())
        if fix:
            lines.append(f"  {' ' * widths[0]}  fix: {fix}")
    return "\n".join(lines)


def _check(requirement: str, good: bool, found: object, needed: str, fix: str) -> Finding:
    shown = "nothing" if found in (None, "") else str(found)
    return Finding(requirement, OK if good else FAIL, shown, needed, fix)


def _machine(platform: Platform, probe: dict[str, Any]) -> Iterable[Finding]:
    if platform.dgx_os:
        release = probe["dgx_release"] or {}
        name = release.get("DGX_NAME")
        version = release.get("DGX_OTA_VERSION") or release.get("DGX_SWBUILD_VERSION")
        yield _check(
            "machine",
            name == "DGX Spark",
            f"{name}, DGX OS {version}" if name else None,
            "DGX Spark in /etc/dgx-release",
            "this host is no DGX Spark: take it out of the inventory, or describe it with "
            "platform = dict(dgx_os=False, ...)",
        )
    yield _check(
        "architecture",
        probe["architecture"] == platform.architecture,
        probe["architecture"],
        platform.architecture,
        "the release's wheels are for another processor: set platform and release for this host",
    )


def _driver(platform: Platform, probe: dict[str, Any]) -> Iterable[Finding]:
    smi = probe["gpu"]
    first = (smi["gpus"] or [{}])[0]
    reboot = "reboot; if that does not help: sudo apt update && sudo apt dist-upgrade && reboot"
    loaded = _loaded_driver(probe["driver_version_file"])
    yield _check(
        "NVIDIA driver answers",
        bool(smi["gpus"]),
        smi["message"] or first.get("driver"),
        "nvidia-smi lists a GPU",
        reboot,
    )
    yield _check(
        "GPU",
        first.get("name") == platform.gpu,
        first.get("name"),
        platform.gpu,
        "describe another GPU with platform = dict(gpu=..., compute_capability=...)",
    )
    yield _check(
        "compute capability",
        first.get("compute_cap") == platform.compute_capability,
        first.get("compute_cap"),
        platform.compute_capability,
        "see GPU",
    )
    branch = (loaded or "").split(".")[0]
    yield _check(
        "driver branch loaded",
        branch == str(platform.driver_branch),
        loaded,
        f"{platform.driver_branch}.*",
        f"install nvidia-driver-{platform.driver_branch}-open from DGX OS's own "
        "sources, then reboot; other branches are not supported on a Spark",
    )
    yield _check(
        "driver matches its libraries",
        loaded is not None and loaded == smi["userspace"],
        f"module {loaded}, nvidia-smi {smi['userspace']}",
        "the same version",
        "an update replaced one of the two: reboot",
    )
    yield _check(
        "open kernel module",
        "Open Kernel Module" in (probe["driver_version_file"] or ""),
        _module_kind(probe["driver_version_file"]),
        "open",
        f"GB10 needs the open modules: install nvidia-driver-{platform.driver_branch}"
        "-open and reboot",
    )


def _loaded_driver(text: str | None) -> str | None:
    """Version in /proc/driver/nvidia/version, None when no module is loaded."""
    words = (text or "").split("\n")[0].split()
    return next((w for w in words if w[0].isdigit() and w.count(".") >= 1), None)


def _module_kind(text: str | None) -> str | None:
    if not text:
        return None
    return "open" if "Open Kernel Module" in text else "proprietary"


def _cuda(platform: Platform, probe: dict[str, Any]) -> Iterable[Finding]:
    need = platform.cuda_major
    toolkits: dict[str, str | None] = dict(probe["cuda"])
    default = toolkits.pop(paths.CUDA_HOME, None)
    yield _check(
        "CUDA of the driver",
        _major(probe["gpu"]["cuda"]) >= need,
        probe["gpu"]["cuda"],
        f"{need}.0 or newer",
        "update the driver with DGX OS: sudo apt dist-upgrade",
    )
    yield _check(
        "CUDA toolkit",
        _major(default) == need,
        default,
        f"{need}.x at {paths.CUDA_HOME}",
        f"sudo apt install cuda-toolkit-{need}-0 and let {paths.CUDA_HOME} point to it; "
        "sm_121 does not work with CUDA 12",
    )
    others = {p: v or "unknown" for p, v in toolkits.items() if _major(v) != need}
    known = [v for path in others if (v := toolkits[path])]
    purge = [f"sudo apt purge cuda-toolkit-{v.replace('.', '-')}" for v in known]
    yield _check(
        "no other CUDA toolkit",
        not others,
        ", ".join(f"{v} at {p}" for p, v in others.items()) or "none",
        f"only CUDA {need}",
        " or ".join([*purge, "delete the folder"]),
    )


def _major(version: str | None) -> int:
    head = (version or "").split(".")[0]
    return int(head) if head.isdigit() else 0


def _memory(plan: HostPlan, probe: dict[str, Any], engines: list[str]) -> Iterable[Finding]:
    total = probe["memory"].get("MemTotal", 0)
    available = probe["memory"].get("MemAvailable", 0)
    yield _check(
        "memory",
        total >= plan.platform.memory_gib * GIB,
        _gib(total),
        f"{plan.platform.memory_gib:g} GiB",
        "less than the plan counts on: firmware or hardware, see `dmesg`; or write what it has, "
        "platform = dict(memory_gib=...), and plan again",
    )
    if engines or not plan.instances:
        # What an engine of ours holds comes back when activation stops it, which then waits until
        # the memory is really there.
        return
    need = sum(i.profile.gpu_memory_utilization for i in plan.instances) * total
    yield _check(
        "free memory",
        available >= need,
        _gib(available),
        f"{_gib(need)} (the profiles')",
        "something else holds the memory: `ps aux --sort=-rss | head`; stop it, or lower "
        "gpu_memory_utilization",
    )


def _managed(holder: dict[str, Any]) -> bool:
    return str(holder["unit"] or "").startswith("vllm@")


def _disk(plan: HostPlan, seen: dict[str, Any]) -> Finding:
    """One figure when releases and weights share a file system, else the tighter one."""
    # Configuration, caches and state need a little even when all else is there.
    needs: dict[str, float] = {paths.RELEASES: 0.1 * GIB, paths.MODELS: 0.1 * GIB}
    for release in plan.releases:
        if seen["stamps"][f"{release.path}/.complete"] is None:
            needs[paths.RELEASES] += release.settings.disk_gib * GIB
    unknown = []
    for path, instance in {i.model_path: i for i in plan.instances}.items():
        if instance.profile.is_path or seen["models"][path] == "ok":
            continue
        size = instance.profile.expects.disk_gib or instance.profile.expects.weights_gib
        if size is None:
            unknown.append(instance.name)
        # What an interrupted download left is there already.
        needs[paths.MODELS] += max(0, (size or 0) * GIB - seen["sizes"][f"{path}.partial"])
    by_device: dict[int, float] = {}
    for path, need in needs.items():
        device = seen["disk"][path]["device"]
        by_device[device] = by_device.get(device, 0) + need
    free = {seen["disk"][path]["device"]: seen["disk"][path]["free"] for path in needs}
    worst = min(by_device, key=lambda device: free[device] - by_device[device])
    finding = _check(
        "free disk",
        free[worst] >= by_device[worst],
        _gib(free[worst]),
        _gib(by_device[worst]),
        f"make room: old releases in {paths.RELEASES}, weights in {paths.MODELS}, "
        f"downloads in {paths.DOWNLOADS}",
    )
    if unknown and finding.verdict == OK:
        return Finding(
            finding.requirement,
            WARN,
            finding.found,
            f"{finding.needed} and weights of unknown size",
            f"set expects.weights_gib in the profile of {', '.join(unknown)}",
        )
    return finding


def _next_kernel(platform: Platform, probe: dict[str, Any]) -> Finding:
    kernel = probe["next_kernel"]
    if kernel["module"] is None:
        return Finding(
            "modules for the next kernel",
            WARN,
            "no kernel in /boot",
            "unknown",
            "can't be told on this host",
        )
    return _check(
        "modules for the next kernel",
        kernel["module"],
        f"{kernel['version']} {'has' if kernel['module'] else 'lacks'} nvidia.ko",
        "nvidia.ko in the kernel that boots next",
        f"sudo apt install linux-modules-nvidia-{platform.driver_branch}-open-{kernel['version']}: "
        "the next reboot would come up without the GPU",
    )


def _clock(probe: dict[str, Any], now: float) -> Finding:
    off = probe["time"] - now
    synchronised = probe["clock"] == "yes"
    found = f"synchronised: {probe['clock'] or 'unknown'}, {round(off)} s from the controller"
    return _check(
        "clock",
        synchronised and abs(off) < CLOCK_TOLERANCE_S,
        found,
        f"synchronised, within {CLOCK_TOLERANCE_S} s",
        "sudo timedatectl set-ntp true; a wrong clock breaks TLS downloads",
    )


def _ports(plan: HostPlan, ports: dict[str, Any]) -> Iterable[Finding]:
    for instance in plan.instances:
        port = instance.profile.port
        strangers = [h for h in ports[str(port)] if not _managed(h)]
        found = ", ".join(f"{h['command']} (pid {h['pid']}, {h['unit']})" for h in strangers)
        mine = "held by a vllm@ instance" if ports[str(port)] else "free"
        yield _check(
            f"port {port}",
            not strangers,
            found or mine,
            f"free for {instance.name}",
            "stop that program, or give the profile another port",
        )


def _exposed(plan: HostPlan) -> Iterable[Finding]:
    """vLLM's key guards /v1; its /invocations generates for anybody (0.27 to 0.33)."""
    for instance in plan.instances:
        profile = instance.profile
        if profile.is_local:
            continue
        yield Finding(
            f"who may ask {instance.name}",
            WARN,
            f"{profile.host}:{profile.port}, "
            + ("a key for /v1, none for /invocations" if profile.api_key else "no key"),
            "only those you trust reach it",
            "keep host='127.0.0.1' and use a tunnel, or let a firewall or a proxy guard the port; "
            "api_key='generate' guards /v1",
        )


def _models(plan: HostPlan, models: dict[str, str]) -> Iterable[Finding]:
    for instance in plan.instances:
        if instance.profile.is_path:
            path = instance.model_path
            yield _check(
                f"model of {instance.name}",
                models[path] == "ok",
                f"{path}: {models[path]}",
                "a folder with config.json",
                f"copy the model to {path} on the host, or correct `model` in "
                f"group_data/{instance.name}.py",
            )


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"

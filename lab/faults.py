"""The faults that a simulated Spark can show. The image holds a copy of this file.

Sources: design notes on what goes wrong on real Sparks (driver and kernel updates that arrive
apart, unified memory that fills up) and the exact words of nvidia-smi 580.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# What NVML and nvidia-smi say on a healthy Spark; `driver` is the userspace, `loaded` the module.
HEALTHY = {
    "status": "ok",
    "name": "NVIDIA GB10",
    "uuid": "GPU-4b1d5a0e-9c1f-4e0b-8d6a-5a7c00000001",
    "compute_cap": "12.1",
    "driver": "580.159.03",
    "loaded": "580.159.03",
    "module": "open",
    "cuda": "13.0",
    "memory_mib": "",  # unified memory: not supported
}


# The devices of the two QSFP ports, by port and rail (NVIDIA/dgx-spark-playbooks,
# nvidia/connect-two-sparks); port 0 is next to the Ethernet port.
FABRIC_DEVICES = (("enp1s0f0np0", "enP2p1s0f0np0"), ("enp1s0f1np1", "enP2p1s0f1np1"))


@dataclass(frozen=True)
class Fault:
    """One fault: what it shows, and what it changes of the GPU's answers.

    ``argument`` names the value that it takes, if any. ``until_reboot``: a reboot cures it.
    """

    summary: str
    gpu: dict[str, str] = field(default_factory=dict)
    argument: str = ""
    until_reboot: bool = False


FAULTS = {
    "clock-off": Fault("The clock is not synchronised."),
    "cuda-12": Fault("The CUDA toolkit is 12.8; there is no 13.0."),
    "cuda-12-beside": Fault("A toolkit 12.8 lies beside the default 13.0."),
    "driver-590": Fault(
        "The driver is of branch 590.",
        {"driver": "590.48.01", "loaded": "590.48.01", "cuda": "13.1"},
    ),
    "driver-mismatch": Fault(
        "The loaded module is older than the userspace: updated, not rebooted.",
        {"status": "mismatch", "loaded": "580.142"},
        until_reboot=True,
    ),
    "driver-not-loaded": Fault(
        "The driver's kernel module is not loaded.", {"status": "not-loaded"}
    ),
    "driver-older": Fault(
        "The driver is older than the other Spark's.",
        {"driver": "580.126.09", "loaded": "580.126.09"},
    ),
    "fabric-cut": Fault(
        "Nothing gets through on either rail; the link stays up.", until_reboot=True
    ),
    "full-disk": Fault("The file system of /opt/sparkwright and /var/lib/sparkwright is full."),
    "low-memory": Fault("Only 4 GiB of memory are available: something else holds it."),
    "next-kernel-bare": Fault("The kernel of the next boot has no NVIDIA modules."),
    "no-gpu": Fault("The driver finds no GPU.", {"status": "no-device"}),
    "no-nvcc": Fault("There is no CUDA toolkit."),
    "not-a-spark": Fault("/etc/dgx-release is missing."),
    "one-subnet": Fault("A file of netplan puts both rails into one subnet."),
    "other-gpu": Fault(
        "The GPU is a GeForce RTX 4090.",
        {"name": "NVIDIA GeForce RTX 4090", "compute_cap": "8.9", "memory_mib": "24564"},
    ),
    "other-port": Fault("The QSFP cable is in port 0, not in port 1."),
    "port-taken": Fault("A server that is not ours holds PORT.", argument="PORT"),
    "proprietary-driver": Fault(
        "The kernel module is the proprietary one, not the open one.", {"module": "proprietary"}
    ),
    "rail-down": Fault("The second rail has no link.", until_reboot=True),
    "rail-mtu": Fault("The second rail loses packets above 1500 bytes.", until_reboot=True),
    "slow-fabric": Fault("The link says 200 Gb/s and delivers 13."),
    "spark-memory": Fault("No fault: /proc/meminfo shows the memory of a real Spark."),
    "sudo-password": Fault("The user's sudo asks for a password."),
}

SPARK_KIB = 127_535_084  # MemTotal of a Spark in 2026; in 2025 it was 125,513,944 kB
SPARK_2025_KIB = 125_513_944


def gpu_state(active: Iterable[str]) -> dict[str, str]:
    """Return what the GPU's stand-ins answer while the faults ``active`` are on."""
    state = dict(HEALTHY)
    for name in sorted(active):
        state |= FAULTS[name].gpu
    return state


def meminfo(active: Iterable[str]) -> str | None:
    """Return the text of /proc/meminfo under the faults ``active``; None: the real one."""
    if "low-memory" in active:
        total, available, swap = SPARK_2025_KIB, 4 << 20, 0
    elif "spark-memory" in active:
        total, available, swap = SPARK_KIB, 121_000_000, 16 << 20
    else:
        return None
    values = {
        "MemTotal": total,
        "MemFree": available // 2,
        "MemAvailable": available,
        "Buffers": 0,
        "Cached": available // 2,
        "SwapCached": 0,
        "Active": 0,
        "Inactive": available // 2,
        "SwapTotal": swap,
        "SwapFree": swap,
        "Shmem": 0,
        "Slab": 0,
        "SReclaimable": 0,
    }
    lines = [f"{name + ':':<15} {value:>8} kB" for name, value in values.items()]
    pages = ["HugePages_Total:       0", "HugePages_Free:        0", "Hugepagesize:       2048 kB"]
    return "\n".join([*lines, *pages]) + "\n"


def proc_version(state: dict[str, str]) -> str:
    """Return the text of /proc/driver/nvidia/version for the GPU ``state``."""
    if state["module"] == "open":
        module = f"Open Kernel Module for aarch64  {state['loaded']}  Release Build  (stand-in)"
    else:
        module = f"aarch64 Kernel Module  {state['loaded']}"
    return (
        f"NVRM version: NVIDIA UNIX {module}  Tue Apr 28 21:14:36 UTC 2026\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04.1) \n"
    )

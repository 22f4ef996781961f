"""The rails of this host as it shows them: devices, HCAs, links, addresses, GIDs.

A QSFP port of a Spark is two network devices with an HCA each; both together are its bandwidth. The
tools of the driver tell which belong together; what they print is read here, and where one is
missing, the kernel's own files.
"""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
from dataclasses import dataclass

from common import Refusal

NET = "/sys/class/net"
_PORT = re.compile(r"np?(\d)$")
"""systemd names a device after its physical port, which a virtual one has not: `…np1`."""
_DEVICE = re.compile(r"^(\S+) port 1 ==> (\S+) \((\w+)\)", re.M)
_GID = re.compile(r"^(\S+)\s+1\s+(\d+)\s+\S+\s+(\d+\.\d+\.\d+\.\d+)\s+v2\b", re.M)


@dataclass(frozen=True)
class Rail:
    """One network device of a port, with its HCA."""

    device: str
    hca: str
    port: int
    up: bool


def run(*command: str) -> str | None:
    """Output of a command; None when it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def devices() -> list[Rail]:
    """All ConnectX devices, by port and name. Raises Refusal when there is none."""
    told = run("ibdev2netdev")
    pairs = [(d, hca) for hca, d, _ in _DEVICE.findall(told)] if told else list(_from_kernel())
    found = [Rail(d, hca, _port(d), _has_link(d)) for d, hca in pairs]
    if not found:
        raise Refusal(
            "no ConnectX device found (ibdev2netdev): is the driver of the NIC loaded? Reboot; a "
            "Spark that lost them after a warm reboot needs its power cut"
        )
    # The one of the first PCI domain is rail 1: enp1s0f1np1 before enP2p1s0f1np1.
    return sorted(found, key=lambda rail: (rail.port, "P" in rail.device, rail.device))


def _from_kernel() -> list[tuple[str, str]]:
    folders = glob.glob("/sys/class/infiniband/*/device/net/*")
    return [(folder.split("/")[-1], folder.split("/")[4]) for folder in folders]


def _port(device: str) -> int:
    number = re.fullmatch(r"p(\d)", _read(f"{NET}/{device}/phys_port_name")) or _PORT.search(device)
    return int(number[1]) if number else 0


def _has_link(device: str) -> bool:
    # A device that is switched off can't be asked for its carrier: that reads as no link.
    return _read(f"{NET}/{device}/carrier") == "1"


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def addresses(device: str) -> list[tuple[str, int]]:
    """IPv4 addresses of a device with their prefix lengths."""
    told = json.loads(run("ip", "-j", "-4", "addr", "show", "dev", device) or "[]")
    found = [entry for one in told for entry in one.get("addr_info", []) if "local" in entry]
    return [(entry["local"], entry["prefixlen"]) for entry in found]


def mtu(device: str) -> int:
    return int(_read(f"{NET}/{device}/mtu") or 0)


def speed(device: str) -> int | None:
    """Mb/s that the link came up with; None when it does not say."""
    found = re.search(r"Speed: (\d+)Mb/s", run("ethtool", device) or "")
    return int(found[1]) if found else None


def driver() -> str:
    """Version of the NVIDIA module that is loaded; "" when none is."""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _read("/proc/driver/nvidia/version"))
    # A service of a simulated Spark has a /proc of its own; nvidia-smi needs the module loaded.
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return found[1] if found else (run(*asked) or "").strip()


def gid_index(hca: str, address: str) -> int | None:
    """Index of the GID that is RoCE v2 over this IPv4 address; None when there is none (yet)."""
    told = run("show_gids")
    if told is not None:
        rows = _GID.findall(told)
        return next((int(i) for name, i, ip in rows if name == hca and ip == address), None)
    folder = f"/sys/class/infiniband/{hca}/ports/1"
    words = [f"{int(part):02x}" for part in address.split(".")]
    wanted = f"0000:0000:0000:0000:0000:ffff:{''.join(words[:2])}:{''.join(words[2:])}"
    for path in glob.glob(f"{folder}/gids/*"):
        number = os.path.basename(path)
        if _read(path) == wanted and _read(f"{folder}/gid_attrs/types/{number}") == "RoCE v2":
            return int(number)
    return None


def environment(fabric: dict[str, object]) -> dict[str, str]:
    """Variables with which NCCL, Gloo, UCX and vLLM use the fabric, from what is here now.

    fabric: content of fabric.json. Raises Refusal while a rail is not ready.
    """
    rails, own = fabric.get("rails"), fabric.get("own")
    if not isinstance(rails, list) or not isinstance(own, list) or len(rails) != len(own):
        raise Refusal("the fabric is not set up: deploy again")
    indexes: set[int] = set()
    for number, (rail, address) in enumerate(zip(rails, own, strict=True), 1):
        device, hca = str(rail["device"]), str(rail["hca"])
        if not _has_link(device):
            raise Refusal(f"rail {number} ({device}) has no link")
        if address not in [there for there, _ in addresses(device)]:
            raise Refusal(f"rail {number} ({device}) has not got its address {address}")
        index = gid_index(hca, str(address))
        if index is None:
            raise Refusal(f"rail {number} ({hca}) shows no GID of RoCE v2 for {address}")
        indexes.add(index)
    first = str(rails[0]["device"])
    sockets = first if fabric.get("sockets") != "management" else management()
    values = {
        # "=": these very names, not all that begin so.
        "NCCL_IB_HCA": "=" + ",".join(str(rail["hca"]) for rail in rails),
        "NCCL_IB_MERGE_NICS": "1" if fabric.get("merge_nics") else "0",
        "NCCL_SOCKET_IFNAME": f"={sockets}",
        "GLOO_SOCKET_IFNAME": sockets,
        "TP_SOCKET_IFNAME": sockets,
        "UCX_NET_DEVICES": first,
        "OMPI_MCA_btl_tcp_if_include": first,
        # Where ranks look for each other: never what the host's name resolves to.
        "VLLM_HOST_IP": str(own[0]),
    }
    return values | _gid_variables(fabric.get("gid_index"), indexes)


def _gid_variables(written: object, indexes: set[int]) -> dict[str, str]:
    """One index can't name two: NCCL then finds them itself, by what they must be (2.21 and newer
    do)."""
    if written is not None:
        return {"NCCL_IB_GID_INDEX": str(written)}
    if len(indexes) == 1:
        return {"NCCL_IB_GID_INDEX": str(indexes.pop())}
    return {"NCCL_IB_ROCE_VERSION_NUM": "2", "NCCL_IB_ADDR_FAMILY": "AF_INET"}


def management() -> str:
    """The device of the default route. Raises Refusal when there is none."""
    routes = json.loads(run("ip", "-j", "-4", "route", "show", "default") or "[]")
    if not routes:
        raise Refusal("sockets='management', but this host has no default route")
    return str(routes[0]["dev"])

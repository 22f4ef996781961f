"""The QSFP cables of a lab: a pair of veth devices for each rail, under a Spark's own names.

Sparks 1 and 2 are joined by one cable, 3 and 4, and so on. Every host has the four devices of a
Spark's two ports; those of a port without a cable have no carrier. What addresses they get is up to
the host, as on a Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from lab.docker import docker
from lab.faults import FABRIC_DEVICES
from lab.record import Host
from lab.shell import as_root, run, say

OTHER_PORT = "other-port"
_ALL = {name for both in FABRIC_DEVICES for name in both}


def cable(both: Sequence[Host], ports: Sequence[int]) -> None:
    """Bring the cable of two Sparks to what it should be. ports: of each, the one that has it.

    What is right stays as it is: a device that is made anew loses its addresses for a moment.
    """
    if all(_is_cabled(host, port) for host, port in zip(both, ports, strict=True)):
        return
    first, second = both
    say(f"Cabling {first.name} port {ports[0]} to {second.name} port {ports[1]}")
    for host in both:
        _remove(host)
    for rail in (0, 1):
        _join(both, [FABRIC_DEVICES[port][rail] for port in ports], rail)
    for host, port in zip(both, ports, strict=True):
        for name in FABRIC_DEVICES[1 - port]:
            _ip(host, "link", "add", name, "type", "veth", "peer", "name", f"no-{name[:12]}")


def _links(host: Host) -> dict[str, str]:
    """The devices of the ports that a host has, and the alias of each."""
    links = json.loads(_ip(host, "-j", "link"))
    return {link["ifname"]: link.get("ifalias", "") for link in links if link["ifname"] in _ALL}


def _is_cabled(host: Host, port: int) -> bool:
    links = _links(host)
    return set(links) == _ALL and all(links[name] == "cable" for name in FABRIC_DEVICES[port])


def _remove(host: Host) -> None:
    for name in _links(host):
        _ip(host, "link", "delete", name)


def _join(hosts: Iterable[Host], names: list[str], rail: int) -> None:
    first, second = hosts
    # Made within the first, with one end in the second: two hosts may use the same names.
    _ip(first, "link", "add", names[0], "type", "veth",
        "peer", "name", names[1], "netns", _process(second))  # fmt: skip
    for host, name, side in ((first, names[0], 0), (second, names[1], 1)):
        address = f"4c:bb:47:00:0{rail}:{side:02x}"
        _ip(host, "link", "set", name, "address", address, "alias", "cable")
        _ip(host, "link", "set", name, "up")


def _process(host: Host) -> str:
    return docker("inspect", "--format={{.State.Pid}}", host.container).strip()


def _ip(host: Host, *words: str) -> str:
    """`ip` of this machine, in the network of a host."""
    return run(as_root(["nsenter", "--net", f"--target={_process(host)}", "ip", *words]))

"""A subnet for a lab that nothing else on this machine uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network

from lab.shell import LabError

FIRST_HOST = 11  # spark-1 is .11: the addresses below are left for gateways and people


def candidates() -> Iterator[IPv4Network]:
    """Yield the /24 subnets that a lab may have, the usual first."""
    for block in ("172.30.0.0/16", "10.213.0.0/16", "192.168.128.0/17"):
        yield from IPv4Network(block).subnets(new_prefix=24)


def routed(routes: str, own_device: str | None = None) -> list[IPv4Network]:
    """Return the networks in the output of ``ip -4 route``, without those of ``own_device``."""
    found = []
    for line in routes.splitlines():
        words = line.split()
        if not words or (own_device and f"dev {own_device}" in line):
            continue
        # "broadcast 10.0.0.255 dev eth0 ...": the type of a route may come before its target.
        target = words[1] if words[0].isalpha() and len(words) > 1 else words[0]
        try:
            found.append(IPv4Network(target, strict=False))
        except ValueError:
            continue  # "default"
    return [network for network in found if network.prefixlen]


def choose(taken: Iterable[IPv4Network]) -> Iterator[IPv4Network]:
    """Yield the candidates that overlap nothing in ``taken``.

    Raises LabError, when the candidates are used up.
    """
    taken = list(taken)
    for candidate in candidates():
        if not any(candidate.overlaps(network) for network in taken):
            yield candidate
    raise LabError(
        "No free subnet for the lab: 172.30.0.0/16, 10.213.0.0/16 and 192.168.128.0/17 are all "
        "in use on this machine (see `ip route` and `docker network ls`)."
    )


def address(subnet: IPv4Network, number: int) -> str:
    """Return the address of Spark ``number`` (from 1) in ``subnet``."""
    return str(subnet[FIRST_HOST + number - 1])

"""The link between the two Sparks of a pair: one QSFP cable, which is two rails.

Each QSFP port of a Spark is two network devices with two HCAs; both together carry its bandwidth
(NVIDIA/dgx-spark-playbooks, nvidia/connect-two-sparks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any, Literal

from pydantic import Field, field_validator

from sparkwright.errors import Problem
from sparkwright.settings import Setting

AGENT_PORT = 29400
"""Where the two hosts tell each other how they are (host/pairing.py)."""
MASTER_PORT = 29501
"""Where rank 0 of a pair's first profile listens for rank 1; of the next one, the next port."""
BANDWIDTH_PORTS = (18515, 18516)
"""Where a rail is measured, while it is (host/bandwidth.py)."""
VARIABLES = (
    *("NCCL_IB_HCA", "NCCL_IB_MERGE_NICS", "NCCL_IB_GID_INDEX", "NCCL_IB_ROCE_VERSION_NUM"),
    *("NCCL_IB_ADDR_FAMILY", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
    *("UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include", "VLLM_HOST_IP"),
)
"""Set at each start of a rank, from what its host shows (host/rails.py)."""
_EQUAL = ("mtu", "sockets", "merge_nics")


class Fabric(Setting):
    """The link of a pair, for one host of it or, in group_data/all.py, for all pairs."""

    addresses: tuple[str, str] | None = Field(
        None,
        description="of this host on the two rails, `('192.168.100.10/24', '192.168.101.10/24')`; "
        "derived when none of the two hosts has them written down",
    )
    port: Literal[0, 1] | None = Field(
        None, description="QSFP port, 0 is next to the Ethernet port; default: the cabled one"
    )
    mtu: int = Field(
        9000, ge=1500, le=9000, description="bytes; 1500 costs a tenth of the bandwidth"
    )
    min_gbps: float = Field(
        80,
        ge=0,
        le=400,
        description="least bandwidth of a rail, Gb/s, where `ib_write_bw` can measure it. A good "
        "one has 92 to 97, one that came up wrong 13",
    )
    gid_index: int | None = Field(
        None,
        ge=0,
        le=255,
        description="of RoCE v2 over IPv4; read on each host when it starts an engine, since it "
        "differs between hosts and reboots",
    )
    sockets: Literal["fabric", "management"] = Field(
        "fabric",
        description="where NCCL and Gloo meet. NVIDIA's own guides differ; on the fabric nobody "
        "else reaches them",
    )
    merge_nics: bool = Field(
        True, description="NCCL uses both rails as one NIC (NCCL_IB_MERGE_NICS)"
    )

    @field_validator("addresses")
    @classmethod
    def _addresses_are_hosts(cls, value: tuple[str, str] | None) -> tuple[str, str] | None:
        for text in value or ():
            wrong = _wrong_address(text)
            if wrong:
                raise ValueError(f"{text!r} {wrong}; write '192.168.100.10/24'")
        return value


def _wrong_address(text: str) -> str:
    try:
        one = IPv4Interface(text)
    except ValueError:
        return "is no IPv4 address with a prefix"
    if "/" not in text or not 8 <= one.network.prefixlen <= 30:
        return "needs a prefix from /8 to /30"
    if one.is_loopback or one.is_multicast or one.is_unspecified or one.is_link_local:
        return "can't be the address of a rail"
    if one.ip in (one.network.network_address, one.network.broadcast_address):
        return f"is no host of {one.network}"
    return ""


@dataclass(frozen=True)
class Link:
    """One host's end of a pair's link.

    own, peer: addresses on the two rails, of this host and of the other (peer_host), with the
    length of each rail's prefix. ports: all that the engines of the pair listen on.
    """

    pair: str
    rank: int
    own: tuple[str, str]
    peer: tuple[str, str]
    prefixes: tuple[int, int]
    peer_host: str
    settings: Fabric
    ports: tuple[int, ...] = (MASTER_PORT,)

    def as_json(self) -> dict[str, Any]:
        """What host/fabric.py is told."""
        settings = self.settings
        return {
            "pair": self.pair,
            "rank": self.rank,
            "own": list(self.own),
            "peer": list(self.peer),
            "prefixes": list(self.prefixes),
            "peer_host": self.peer_host,
            "ports": [AGENT_PORT, *BANDWIDTH_PORTS, *self.ports],
            "port": settings.port,
            "mtu": settings.mtu,
            "min_gbps": settings.min_gbps,
            "gid_index": settings.gid_index,
            "sockets": settings.sockets,
            "merge_nics": settings.merge_nics,
        }


def link_pair(
    pair: str, hosts: tuple[str, str], fabrics: Mapping[str, Fabric], profiles: Iterable[str]
) -> tuple[dict[str, Link], list[Problem]]:
    """Both ends of a pair's link, by host, and what is wrong with it.

    hosts: rank 0 first. fabrics: the settings of each. profiles: those that the pair serves.
    """
    ours = [fabrics[host] for host in hosts]
    problems = list(_contradictions(pair, hosts, ours))
    if problems:
        return {}, problems
    written = [one.addresses or _derived(rank) for rank, one in enumerate(ours)]
    ends = [tuple(IPv4Interface(text) for text in both) for both in written]
    ports = tuple(MASTER_PORT + number for number, _ in enumerate(sorted(profiles)))
    links = {}
    for rank, host in enumerate(hosts):
        own, peer = ends[rank], ends[1 - rank]
        links[host] = Link(
            pair,
            rank,
            (str(own[0].ip), str(own[1].ip)),
            (str(peer[0].ip), str(peer[1].ip)),
            (own[0].network.prefixlen, own[1].network.prefixlen),
            hosts[1 - rank],
            ours[rank],
            ports,
        )
    return links, []


def _derived(rank: int) -> tuple[str, str]:
    """As NVIDIA's guide writes them. Each pair has a cable of its own, so all may have the same."""
    return f"192.168.100.{10 + rank}/24", f"192.168.101.{10 + rank}/24"


def _contradictions(pair: str, hosts: tuple[str, str], ours: list[Fabric]) -> Iterable[Problem]:
    where = f"pair {pair}"
    for field in _EQUAL:
        values = [getattr(one, field) for one in ours]
        if values[0] != values[1]:
            found = f"{values[0]!r} on {hosts[0]}, {values[1]!r} on {hosts[1]}"
            yield Problem(where, f"fabric.{field}", found, "must be the same on both Sparks")
    first, second = (one.addresses for one in ours)
    if first is None or second is None:
        if first != second:
            missing = hosts[0] if first is None else hosts[1]
            fix = f"{missing} has none: write them for both Sparks, or for none"
            yield Problem(where, "fabric.addresses", "", fix)
        return
    ends = [[IPv4Interface(text) for text in both] for both in (first, second)]
    for rail in (0, 1):
        one, other = ends[0][rail], ends[1][rail]
        found = f"{one} on {hosts[0]}, {other} on {hosts[1]}"
        if one.ip == other.ip:
            yield Problem(where, "fabric.addresses", str(one), "both Sparks have it: change one")
        elif one.network != other.network:
            fix = f"rail {rail + 1} must be one subnet on both Sparks"
            yield Problem(where, "fabric.addresses", found, fix)
    if ends[0][0].network.overlaps(ends[0][1].network):
        fix = "each rail needs a subnet of its own, or both rails' traffic takes one of them"
        yield Problem(where, "fabric.addresses", ", ".join(first), fix)

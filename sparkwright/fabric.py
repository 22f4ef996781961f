"""The link between the two Sparks of a pair: two rails over one QSFP cable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """One host's end of the link. own, peer: addresses on the two rails, of this host and of the
    other (peer_host), with the length of each rail's prefix."""

    pair: str
    rank: int
    own: tuple[str, str]
    peer: tuple[str, str]
    prefixes: tuple[int, int]
    peer_host: str

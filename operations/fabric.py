"""The link between the two Sparks of a pair."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pyinfra import host, inventory, logger
from pyinfra import state as pyinfra_state
from pyinfra.api import FunctionCommand, operation

from facts.observe import Fabric
from operations.run import fact, one_host, refuse, shown
from sparkwright import paths
from sparkwright.plan import HostPlan

_LEFT: set[str] = set()
"""Hosts that are in no pair and have a link all the same."""
_PROGRAM = f"{paths.HOST_PROGRAMS}/fabric.py"


@operation()
@one_host
def set_up(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Find the cabled QSFP port, give it addresses, close it to others, prove and measure it.

    + plan: what the host is to serve

    Both hosts of a pair do it at the same time; nothing on a host that is in no pair.
    """
    if plan.link is None:
        return
    wanted = json.dumps(plan.link.as_json())
    if not pyinfra_state.is_executing:  # a dry run: its programs may not be there yet
        yield shown("python3", _PROGRAM, "setup", stdin=wanted)
        return
    other = inventory.get_host(plan.link.peer_host)
    if other not in pyinfra_state.active_hosts:
        yield refuse(
            f"{plan.link.peer_host}, the other Spark of pair {plan.link.pair}, was dropped: "
            f"{host.name} is left as it is"
        )
        return
    found = fact(Fabric, wanted=wanted)
    if found.get("missing") or "missing" not in found:
        yield shown("python3", _PROGRAM, "setup", stdin=wanted)
        return
    for note in found["notes"]:
        logger.debug(f"{host.print_prefix}{note}")


def was_linked(name: str) -> None:
    """Note that a host has a link that nobody wants any more."""
    _LEFT.add(name)


@operation()
@one_host
def take_down() -> Iterator[FunctionCommand]:
    """Remove the link of a host that was one of a pair, when nothing of that serves any more."""
    if host.name in _LEFT:
        yield shown("python3", _PROGRAM, "remove")

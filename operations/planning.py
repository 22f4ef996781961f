"""The plan of the whole inventory, checked once before anything is done on any host."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from pyinfra import host, inventory, state
from pyinfra.api.exceptions import PyinfraError
from pyinfra_cli.exceptions import CliError

from sparkwright.errors import PlanError
from sparkwright.plan import HostPlan, RawHost, build_plan


class InventoryError(CliError, PyinfraError):
    """The inventory holds mistakes; pyinfra prints the message and stops, without a traceback."""


def host_plan() -> HostPlan:
    """The plan of the host at hand. Raises InventoryError with every problem of the inventory."""
    outcome = _plan()
    if isinstance(outcome, str):
        raise InventoryError(outcome)
    return outcome[host.name]


@cache
def _plan() -> dict[str, HostPlan] | str:
    hosts = [
        RawHost(entry.name, tuple(entry.groups), entry.data.dict(), dict(entry.host_data))
        for entry in inventory
        if state.is_host_in_limit(entry)
    ]
    try:
        return build_plan(
            hosts,
            dict(inventory.group_data),
            ignored_groups=_plain_groups(),
            environment=os.environ,
        )
    except PlanError as error:
        return str(error)


def _plain_groups() -> set[str]:
    """Groups that choose no profile: all, the inventory file's own, and those with data."""
    # pyinfra names a group like the inventory file; it is told from a misspelt one by the command.
    plain = {"all"} | {Path(word).stem for word in sys.argv if word.endswith(".py")}
    plain |= {name for name in inventory.groups if name.startswith("@")}
    return plain | {name for name, data in inventory.group_data.items() if data}

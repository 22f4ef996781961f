"""The plan of the whole inventory, checked once before anything is done on any host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path

from pyinfra import host, inventory, logger, state
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State
from pyinfra_cli import cli
from pyinfra_cli.exceptions import CliError

from sparkwright import checks, rollout
from sparkwright.errors import PlanError, nearest, together
from sparkwright.plan import HostPlan, Plan, RawHost, make_plan

PROFILE_KEY = "rollback_profile"
"""Data of a host that names the only profile that is to go back."""


class InventoryError(CliError, PyinfraError):
    """The inventory holds mistakes; pyinfra prints the message and stops, without a traceback."""


def plan_before_connecting() -> None:
    """Let a deploy or a rollback show the inventory's mistakes before it waits for any host."""
    connect_all = cli.connect_all

    @wraps(connect_all)
    def guarded(state: State) -> None:
        if is_run_of("deploy.py"):
            _warn(_sound_plan())
        if is_run_of("rollback.py"):
            check_rollback()
        connect_all(state)

    cli.connect_all = guarded


def is_run_of(file: str) -> bool:
    """Whether this process runs that file of the project."""
    return any(Path(word).name == file for word in sys.argv)


@cache
def check_rollback() -> None:
    """Raises InventoryError when it isn't clear which hosts, or what of them, are to go back."""
    if not isinstance(state.limit_hosts, list) and len(inventory) > 1:
        raise InventoryError(
            f"the inventory has {len(inventory)} hosts: name those that are to go back, "
            "--limit HOST or --limit GROUP; nothing was done"
        )
    _known_plan()
    wanted = next(iter(inventory)).data.get(PROFILE_KEY)
    chosen = [whole_plan().hosts[name] for name in chosen_hosts()]
    served = {instance.name for entry in chosen for instance in entry.instances}
    if wanted is not None and wanted not in served:
        raise InventoryError(
            f"no chosen host serves {wanted!r}, nothing was done; {nearest(str(wanted), served)}"
        )


def _warn(plan: Plan) -> None:
    """Show what the plan warns of on the hosts of this run."""
    for warning in together(rollout.warnings(plan, chosen_hosts())):
        logger.warning(f"warning: {warning}")


def known_plan() -> HostPlan:
    """The plan of the host at hand, as far as going back needs it. Raises InventoryError."""
    check_rollback()
    return whole_plan().hosts[host.name]


def _known_plan() -> None:
    """Raises InventoryError for problems with which it isn't known what is to go back, or in which
    order; others, and those of other hosts, are for the next deploy.
    """
    chosen = chosen_hosts()
    groups = {entry.name: entry.groups for entry in inventory if entry.name in chosen}
    problems = rollout.in_the_way(whole_plan(), groups)
    if problems:
        raise InventoryError(str(PlanError(problems)))


def host_plan() -> HostPlan:
    """The plan of the host at hand. Raises InventoryError with every problem of the inventory."""
    return _sound_plan().hosts[host.name]


def _sound_plan() -> Plan:
    plan = whole_plan()
    if plan.problems:
        raise InventoryError(str(PlanError(plan.problems)))
    return plan


def chosen_hosts() -> set[str]:
    """Names of the hosts that this run is limited to."""
    return {entry.name for entry in inventory if state.is_host_in_limit(entry)}


@cache
def whole_plan() -> Plan:
    """The plan of the whole inventory of this run, with every problem."""
    plan = plan_inventory(inventory, sys.argv)
    halved = checks.halved_pairs(plan, chosen_hosts())
    return replace(plan, problems=(*plan.problems, *halved))


def plan_inventory(whole: Inventory, words: Iterable[str]) -> Plan:
    """The plan of an inventory as pyinfra merged it.

    words: the command, from which the name of the inventory file is known: pyinfra makes a group
    of that name, which must be told from a misspelt one.
    """
    plain = {"all"} | {Path(word).stem for word in words if word.endswith(".py")}
    plain |= {name for name in whole.groups if name.startswith("@")}
    plain |= {name for name, data in whole.group_data.items() if data}
    hosts = [
        RawHost(entry.name, tuple(entry.groups), entry.data.dict(), dict(entry.host_data))
        for entry in whole
    ]
    return make_plan(hosts, dict(whole.group_data), ignored_groups=plain, environment=os.environ)

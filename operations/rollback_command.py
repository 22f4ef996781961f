"""`sparkwright rollback`: hosts go back to their previous release and configuration."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyinfra import host

from operations import rollout
from operations.planning import InventoryError, chosen_hosts, known_plan, whole_plan
from sparkwright.errors import nearest
from sparkwright.plan import ROOT

_KEY = "rollback_profile"


def main(arguments: list[str]) -> int:
    """Become pyinfra with rollback.py: status 0 when all went back and serve; 2 for a mistake."""
    parser = argparse.ArgumentParser(
        prog="sparkwright rollback",
        description="Go back to the previous release and configuration, canary first, each host by "
        "a transaction of its own. Lasts until the next deploy, which brings what the inventory "
        "says: correct that too.",
    )
    parser.add_argument("inventory", metavar="INVENTORY", help="such as inventory/sparks.py")
    parser.add_argument("profile", metavar="PROFILE", nargs="?", help="default: all of a host")
    parser.add_argument(
        "--limit",
        metavar="HOSTS",
        action="append",
        default=[],
        help="a host, a group or a pattern; may be given again. Needed unless there is one host",
    )
    # In any order: the profile stands behind --limit where people think of it last.
    options = parser.parse_intermixed_args(arguments)
    path = Path(options.inventory)
    if not path.is_file():
        print(f"sparkwright rollback: {path}: no such file, nothing was done", file=sys.stderr)
        return 2
    # pyinfra must run in the project's folder: config.py and group_data/ are there.
    command = [str(Path(sys.executable).parent / "pyinfra"), "-y"]
    command.append(str(path.resolve()))
    command.append("rollback.py")
    for limit in options.limit:
        command += ["--limit", limit]
    if options.profile:
        command += ["--data", f"{_KEY}={options.profile}"]
    # In place of this process: a Ctrl-C is for it alone, which ends with a summary.
    os.chdir(ROOT)
    os.execv(command[0], command)


def instances_to_go_back() -> list[str]:
    """The instances of the host at hand that are to go back; notes it as a member of a wave.

    Raises InventoryError for a profile that no chosen host serves.
    """
    plan = known_plan()
    wanted = host.data.get(_KEY)
    names = [i.name for i in plan.instances if wanted in (None, i.name)]
    chosen = [whole_plan().hosts[name] for name in chosen_hosts()]
    served = {instance.name for entry in chosen for instance in entry.instances}
    if wanted is not None and wanted not in served:
        raise InventoryError(
            f"no chosen host serves {wanted!r}; {nearest(str(wanted), served)}. Nothing was done"
        )
    # Here and not in an operation, since nothing has to be asked: known before the first wave.
    rollout.note(host.name, change=bool(names), answered=True)
    return names

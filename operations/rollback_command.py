"""`sparkwright rollback`: hosts go back to their previous release and configuration."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyinfra import host

from operations.planning import PROFILE_KEY, known_plan
from operations.reading import no_inventory
from sparkwright.plan import ROOT


def main(arguments: list[str]) -> int:
    """Become pyinfra with rollback.py: status 0 when all went back and serve; 2 for a mistake."""
    parser = argparse.ArgumentParser(
        prog="sparkwright rollback",
        usage="%(prog)s INVENTORY [--limit HOSTS]... [PROFILE]",
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
    # Intermixed: INVENTORY --limit HOSTS PROFILE.
    options = parser.parse_intermixed_args(arguments)
    path = Path(options.inventory)
    wrong = no_inventory(options.inventory)
    if wrong and not (ROOT / path).is_file():
        print(f"sparkwright rollback: {wrong}", file=sys.stderr)
        return 2
    # pyinfra must run in the project's folder: config.py and group_data/ are there.
    command = [str(Path(sys.executable).parent / "pyinfra"), "-y"]
    command.append(str(path.resolve()))
    command.append("rollback.py")
    for limit in options.limit:
        command += ["--limit", limit]
    if options.profile:
        command += ["--data", f"{PROFILE_KEY}={options.profile}"]
    # In place of this process: a Ctrl-C is for it alone, which ends with a summary.
    os.chdir(ROOT)
    os.execv(command[0], command)


def instances_to_go_back() -> list[str]:
    """The instances of the host at hand that are to go back.

    Raises InventoryError for a profile that no chosen host serves.
    """
    wanted = host.data.get(PROFILE_KEY)
    return [i.name for i in known_plan().instances if wanted in (None, i.name)]

"""`sparkwright plan`: what an inventory means, and all that is wrong in it, without any host."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys

from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.state import State
from pyinfra.context import ctx_state
from pyinfra_cli.exceptions import CliError
from pyinfra_cli.inventory import make_inventory

from operations.planning import plan_inventory
from operations.reading import explain_mistakes, no_inventory
from sparkwright import report
from sparkwright.plan import ROOT


def main(arguments: list[str]) -> int:
    """Print the plan; 0 when it holds no problem, 1 when it does, 2 when it can't be read."""
    parser = argparse.ArgumentParser(
        prog="sparkwright plan",
        description="Show which host would serve what, whether it fits, and every problem of the "
        "inventory. Asks no host and no network.",
    )
    parser.add_argument("inventory", metavar="INVENTORY", help="such as inventory/sparks.py")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(arguments)
    # pyinfra says on its log what it skips of an inventory; that is for its own runs.
    logging.getLogger("pyinfra").setLevel(logging.ERROR)
    explain_mistakes()
    wrong = no_inventory(options.inventory)
    if wrong:
        print(f"sparkwright plan: {wrong}", file=sys.stderr)
        return 2
    try:
        # pyinfra notes in its state which file it reads; what a file prints is no part of a plan.
        with ctx_state.use(State()), contextlib.redirect_stdout(sys.stderr):
            whole = make_inventory(options.inventory, cwd=str(ROOT))
    except CliError as error:  # from explain_mistakes, with file and line
        print(f"sparkwright plan: {error}", file=sys.stderr)
        return 2
    except PyinfraError as error:
        print(f"sparkwright plan: {options.inventory}: {error}", file=sys.stderr)
        return 2
    if not len(whole):
        print(f"sparkwright plan: {options.inventory} names no host", file=sys.stderr)
        return 2
    plan = plan_inventory(whole, [options.inventory])
    print(json.dumps(report.as_json(plan), indent=1) if options.json else report.table(plan))
    return 1 if plan.problems else 0

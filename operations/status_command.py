"""`sparkwright status`: who serves what, asked from all hosts in parallel; changes nothing."""

from __future__ import annotations

import argparse
import json
import logging
import sys

from pyinfra.api import Config
from pyinfra.api.connect import disconnect_all
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State
from pyinfra.context import ctx_state
from pyinfra_cli.exceptions import CliError
from pyinfra_cli.inventory import make_inventory

from operations.connection import explain_failures, limited
from operations.planning import plan_inventory
from operations.reading import explain_mistakes, no_inventory
from operations.status import ask
from sparkwright import status
from sparkwright.plan import ROOT
from sparkwright.status import Answer


def main(arguments: list[str]) -> int:
    """Print who serves what; 0 when all that is planned serves, 1 when not, 2 for a mistake."""
    parser = argparse.ArgumentParser(
        prog="sparkwright status",
        description="Ask every host of an inventory who serves which profile at which release "
        "since when, by a generation. Changes nothing. Status 0: all that is planned serves.",
    )
    parser.add_argument("inventory", metavar="INVENTORY", help="such as inventory/sparks.py")
    parser.add_argument(
        "--limit",
        metavar="HOSTS",
        action="append",
        default=[],
        help="a host, a group or a pattern; may be given again",
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(arguments)
    logging.getLogger("pyinfra").setLevel(logging.CRITICAL)
    explain_mistakes()
    explain_failures()
    state = State()
    try:
        with ctx_state.use(state):
            whole = _inventory(options.inventory)
            chosen = limited(whole, options.limit) if options.limit else list(whole)
            state.init(whole, Config(), initial_limit=chosen)
    except (CliError, PyinfraError) as error:
        print(f"sparkwright status: {error}", file=sys.stderr)
        return 2
    plan = plan_inventory(whole, [options.inventory])
    print(f"asking {len(chosen)} host{'s' * (len(chosen) > 1)}...", file=sys.stderr)
    with ctx_state.use(state):
        answers = _ask_all(state, chosen)
    if options.json:
        print(json.dumps(status.as_json(plan, answers), indent=1))
    else:
        print(status.table(plan, answers))
    if plan.problems:
        told = f"the inventory holds {len(plan.problems)} problems: sparkwright plan"
        print(f"{told} {options.inventory}", file=sys.stderr)
    return 0 if status.all_serve(plan, answers) and not plan.problems else 1


def _inventory(path: str) -> Inventory:
    wrong = no_inventory(path)
    if wrong:
        raise CliError(wrong)
    whole = make_inventory(path, cwd=str(ROOT))
    if not len(whole):
        raise CliError(f"{path} names no host")
    return whole


def _ask_all(state: State, hosts: list[Host]) -> dict[str, Answer]:
    """Answers by host, in inventory order; a host that can't be reached is an answer too."""

    def one(host: Host) -> Answer:
        try:
            host.connect(show_errors=False, raise_exceptions=True)
        except PyinfraError as error:  # connectors other than SSH have errors of their own
            return Answer(" ".join(str(error).split()) or type(error).__name__)
        state.activate_host(host)
        return ask(host)

    jobs = {host.name: state.pool.spawn(one, host) for host in hosts}
    answers = {name: job.get() for name, job in jobs.items()}
    disconnect_all(state)
    return answers

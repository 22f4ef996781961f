"""Run a transaction as a systemd unit of its own, or join the one that runs, and relay its lines.

So a connection that is cut, a laptop that is closed and a controller that is killed change nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import probe
import service
import transaction
from common import VAR, Refusal, say

_PROGRAM = f"{os.path.dirname(os.path.abspath(__file__))}/activate.py"


def run(command: str, names: list[str], gone: Sequence[str] = ()) -> None:
    """Have `apply` or `rollback` done for instances; exits with status 1 when it failed.

    gone: instances that are not wanted any more.

    A transaction that runs already, another controller's or that of a run that was cut, is
    followed to its end; when it tried what is staged now, its end is this one's too.
    """
    words = ["/usr/bin/python3", _PROGRAM, "transact", command, *names]
    words += ["--without", *gone] if gone else []
    while not service.launch(transaction.UNIT, words):
        say("      an activation is under way on this host; this run joins it")
        _relay()
        if command == "apply" and _covers(names, gone):
            break
    else:
        _relay()
    ended = transaction.result()
    if "error" not in ended:
        raise Refusal(
            f"the activation was killed before its end; run the deploy again, which finishes it "
            f"(sudo journalctl -u {transaction.UNIT})"
        )
    if ended["error"]:
        # Its reason was its last line.
        sys.exit(1)


def _covers(names: list[str], gone: Sequence[str]) -> bool:
    """True when the transaction that ended tried what is staged now and to remove what is not
    wanted, and, if it went well, that is what is in service."""
    ended = transaction.result()
    tried = ended.get("tried")
    staged = [transaction.instance_of("apply", name) for name in names]
    asked = [*staged, *map(transaction.nothing_of, gone)]
    if not isinstance(tried, dict) or any(tried.get(s.name) != s.fingerprint() for s in asked):
        return False
    if ended.get("error"):
        return True
    return all(one.in_place() for one in staged) and not {*gone} & {*probe.instances(VAR)}


def _relay() -> None:
    """Say what the unit says until it ends; it may be started again in between."""
    journal: service.Journal | None = None
    while True:
        runs, unit = service.is_running(transaction.UNIT), service.show(transaction.UNIT)
        if not runs:
            # The last lines may still be on their way.
            subprocess.run(["journalctl", "--sync"], capture_output=True)
        if unit.invocation and (journal is None or journal.invocation != unit.invocation):
            journal = service.Journal(unit.invocation)
        for line in journal.new() if journal else ():
            say(line)
        if not runs:
            return
        time.sleep(1)

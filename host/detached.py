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


_LAUNCHES = 3
"""How often a run begins anew because another one staged something else meanwhile."""


def run(command: str, names: list[str], gone: Sequence[str] = ()) -> None:
    """Have `apply` or `rollback` done for instances; exits with status 1 when it failed.

    gone: instances that are not wanted any more.

    A transaction that runs already, another controller's or that of a run that was cut, is
    followed to its end; when it tried what is staged now, its end is this one's too.
    """
    words = ["/usr/bin/python3", _PROGRAM, "transact", command, *names]
    words += ["--without", *gone] if gone else []
    launches = 0
    while True:
        before = transaction.result().get("id")
        own = service.launch(transaction.UNIT, words)
        if not own:
            say("      an activation is under way on this host; this run joins it")
        relayed = _relay()
        ended = transaction.result()
        if own and ended.get("id") == before:
            # It ended before it began, or could not leave a result: this is an older one.
            ended = {}
        if _covers(ended, command, names, gone, own):
            break
        if own and "error" not in ended and not service.is_running(transaction.UNIT):
            raise Refusal(
                "the activation left no result: it was stopped or killed before its end, or the "
                "disk is full; run the same command again, which finishes it (sudo journalctl -u "
                f"{transaction.UNIT})"
            )
        launches += own
        if launches == _LAUNCHES:
            raise Refusal(
                f"{launches} times another run staged something else meanwhile; when it is over, "
                "run the same command again"
            )
    if ended["error"]:
        # Its reason was its last line, if anything of it was seen.
        if not relayed:
            say(str(ended["error"]))
        sys.exit(1)


def _covers(
    ended: dict[str, object], command: str, names: list[str], gone: Sequence[str], own: bool
) -> bool:
    """True when the transaction that ended is an answer to what is asked.

    It is when it tried what is staged now and to remove what is not wanted, and, if it went well,
    that is what is in service; or when it was a rollback of the same. own: it was this run's.
    """
    tried = ended.get("tried")
    if "error" not in ended or not isinstance(tried, dict):
        return False
    if command == "rollback":
        # Its source says nothing: a joined one has left nothing else to go back to.
        return ended.get("command") == command and {*names} <= {*tried}
    staged = [transaction.instance_of("apply", name) for name in names]
    asked = [*staged, *map(transaction.nothing_of, gone)]
    if any(tried.get(one.name) != one.fingerprint(whole=True) for one in asked):
        return False
    if own or ended["error"]:
        return True
    return all(one.in_place() for one in staged) and not {*gone} & {*probe.instances(VAR)}


def _relay() -> bool:
    """Say what the unit says until it ends; it may be started again in between. False when nothing
    of it was seen."""
    journal: service.Journal | None = None
    seen = False
    while True:
        runs, unit = service.is_running(transaction.UNIT), service.show(transaction.UNIT)
        if not runs:
            # The last lines may still be on their way.
            subprocess.run(["journalctl", "--sync"], capture_output=True)
        if unit.invocation and (journal is None or journal.invocation != unit.invocation):
            journal = service.Journal(unit.invocation)
        for line in journal.new() if journal else ():
            say(line)
            seen = True
        if not runs:
            return seen
        time.sleep(1)

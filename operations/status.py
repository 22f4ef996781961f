"""Ask one host who serves what; outside of any operation, and without changing anything."""

from __future__ import annotations

import json
from typing import Any

from gevent import Timeout
from pyinfra.api import QuoteString, StringCommand
from pyinfra.api.host import Host

from sparkwright import paths
from sparkwright.status import Answer, read

TIMEOUT_S = 45
"""A generation of a busy server takes seconds; a host that froze never answers."""

# Without `sudo -n true` first, pyinfra would ask for a password in the middle of the table.
_SCRIPT = f"""program={paths.HOST_PROGRAMS}/activate.py
if ! SUDO true 2>/dev/null; then echo '{{"sudo": false}}'
elif ! test -e $program; then echo '{{}}'
else SUDO timeout {TIMEOUT_S - 5} python3 $program status; fi"""


def ask(host: Host) -> Answer:
    """What a connected host says, by one command. Never raises for what a host does."""
    arguments: dict[str, Any] = {"_sudo": False, "_timeout": TIMEOUT_S}
    script = _SCRIPT.replace("SUDO", "sudo -n")
    if host.data.get("_sudo_password"):
        for name in ("_sudo_password", "_sudo_user", "_use_sudo_login"):
            if host.data.get(name):
                arguments[name] = host.data.get(name)
        arguments["_sudo"], script = True, _SCRIPT.replace("SUDO ", "")
    try:
        # `_timeout` is for what a command says; opening one on a dead connection may take longer.
        with Timeout(TIMEOUT_S + 15):
            done, output = host.run_shell_command(
                StringCommand("sh", "-c", QuoteString(script)), **arguments
            )
    except Timeout:
        return Answer(f"no answer in {TIMEOUT_S + 15} s")
    except Exception as error:
        return Answer(f"the connection broke: {type(error).__name__}: {error}".rstrip(": "))
    try:
        value = json.loads(output.stdout_lines[-1])
    except (ValueError, IndexError):
        value = None
    if not done or not isinstance(value, dict):
        said = " ".join((output.stderr_lines or output.stdout_lines)[-1:])[-200:]
        return Answer(f"its answer can't be read: {said or 'nothing was said'}")
    if value.get("sudo") is False:
        return Answer("sudo asks for a password there: see the preflight of a deploy")
    return read(value)

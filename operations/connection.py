"""Say what to do when no host, or not every host, can be reached; pyinfra only says so much."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from typing import Any

from pyinfra.api.exceptions import ConnectError, NoGroupError, PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.state import State
from pyinfra.connectors.ssh import SSHConnector
from pyinfra_cli import cli
from pyinfra_cli.exceptions import CliError

from operations.reading import no_inventory
from operations.run import failed
from sparkwright.connection import advice
from sparkwright.errors import nearest

KEEPALIVE_S, SILENCE_S = 15, 45
"""How often a quiet connection is tried, and how long nobody may answer."""


def limited(inventory: Inventory, patterns: Iterable[str], option: str = "--limit") -> list[Host]:
    """The hosts that groups, names or patterns mean, in inventory order.

    Raises CliError for one that means none: pyinfra 3.10 only warns, and goes on with the others.
    """
    found: set[Host] = set()
    for pattern in patterns:
        try:
            hosts = list(inventory.get_group(pattern))
        except NoGroupError:
            hosts = [host for host in inventory if fnmatch(host.name, pattern)]
        if not hosts:
            groups = {group for host in inventory for group in host.groups}
            known = groups | {host.name for host in inventory}
            tail = f"give {option} once for each" if "," in pattern else nearest(pattern, known)
            raise CliError(
                f"{option} {pattern}: no such host or group of hosts, nothing was done; {tail}"
            )
        found.update(hosts)
    return [host for host in inventory if host in found]


def refuse_empty_runs() -> None:
    """A misspelt inventory or --limit must not end as a success that did nothing.

    pyinfra 3.10 only warns, and never reads the deploy file then.
    """
    connect_all, make_inventory = cli.connect_all, cli.make_inventory

    @wraps(make_inventory)
    def made(inventory: str, **options: Any) -> Inventory:
        # pyinfra takes also names of hosts and of functions, which have no such form.
        wrong = no_inventory(inventory)
        if wrong and (inventory.endswith(".py") or Path(inventory).is_dir()):
            raise CliError(f"{wrong}, nothing was done")
        return make_inventory(inventory, **options)

    @wraps(connect_all)
    def guarded(state: State) -> None:
        if not any(state.is_host_in_limit(host) for host in state.inventory):
            names = ", ".join(host.name for host in state.inventory)
            raise CliError(
                f"no host to work on, nothing was done: --exclude leaves none of {names}"
                if names
                else "no host to work on, nothing was done: the inventory names no host"
            )
        connect_all(state)

    cli.connect_all, cli.make_inventory = guarded, made
    assert cli._get_inventory_pattern_matches  # another version may have another name for it
    cli._get_inventory_pattern_matches = limited


def explain_failures() -> None:
    """Let every failed SSH connection name the fields that matter and what to do.

    pyinfra 3.10 offers no hook before the deploy file is read, so this wraps its connector. A key
    file that is not there, which ends a run with a traceback, becomes one host's failure too.
    """
    connect = SSHConnector.connect

    @wraps(connect)
    def explained(self: SSHConnector) -> None:
        try:
            connect(self)
        except PyinfraError as error:
            host = self.host
            text = advice(
                str(error),
                address=host.data.get("ssh_hostname") or host.name,
                port=host.data.get("ssh_port") or 22,
                user=host.data.get("ssh_user"),
                key=host.data.get("ssh_key"),
            )
            failed(host.name, str(error))
            raise ConnectError(f"{error}\n        {text}") from None
        _notice_a_silent_end(self)

    SSHConnector.connect = explained  # type: ignore[method-assign]


def _notice_a_silent_end(connector: SSHConnector) -> None:
    """A host that loses power or its cable says no goodbye: without this, a run waits for ever."""
    transport = connector.client.get_transport() if connector.client else None
    if transport is None:
        return
    transport.set_keepalive(KEEPALIVE_S)
    # Linux: the kernel gives a connection up whose packets nobody acknowledged for so long.
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    sock = getattr(transport, "sock", None)
    if option is not None and isinstance(sock, socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, option, SILENCE_S * 1000)


def refuse_unclear_answers() -> None:
    """Without `-y`, what is no consent must not end as a success that did nothing, nor in a
    traceback."""
    confirm = cli._do_confirm

    @wraps(confirm)
    def asked(message: str) -> bool:
        try:
            agreed = confirm(message)
        except EOFError:
            agreed = False
        if not agreed:
            raise CliError("nothing was done: Enter goes on, or run it with -y")
        return True

    cli._do_confirm = asked

"""Say what to do when no host, or not every host, can be reached; pyinfra only says so much."""

from __future__ import annotations

from functools import wraps

from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.api.state import State
from pyinfra.connectors.ssh import SSHConnector
from pyinfra_cli import cli
from pyinfra_cli.exceptions import CliError

from sparkwright.connection import advice


def refuse_empty_runs() -> None:
    """A misspelt inventory or --limit must not end as a success that did nothing.

    pyinfra 3.10 only warns, and never reads the deploy file then.
    """
    connect_all = cli.connect_all

    @wraps(connect_all)
    def guarded(state: State) -> None:
        if not any(state.is_host_in_limit(host) for host in state.inventory):
            names = ", ".join(host.name for host in state.inventory) or "none"
            raise CliError(
                "no host to work on, nothing was done. Hosts of the inventory: "
                f"{names}. Check the path of the inventory and --limit"
            )
        connect_all(state)

    cli.connect_all = guarded


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
            raise ConnectError(f"{error}\n        {text}") from None

    SSHConnector.connect = explained  # type: ignore[method-assign]

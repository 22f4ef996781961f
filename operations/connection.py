"""Say what to do about a host that can't be reached; pyinfra only says that it can't."""

from __future__ import annotations

from functools import wraps

from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.connectors.ssh import SSHConnector

from sparkwright.connection import advice


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

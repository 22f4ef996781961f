"""An SSH server that lets nobody in, and the runner of the scenarios."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import paramiko
import pytest

from tests.plan.cli import Runner


class _Refuses(paramiko.ServerInterface):
    """Lets nobody in."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_FAILED


@pytest.fixture(scope="session")
def ssh_server() -> Iterator[int]:
    """Port of an SSH server on this machine that knows no key."""
    key = paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as server:
        transports = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                transport = paramiko.Transport(connection)
                transport.add_server_key(key)
                transport.start_server(server=_Refuses(), event=threading.Event())
                transports.append(transport)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for transport in transports:
            transport.close()


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, ssh_server: int) -> Iterator[Runner]:
    folder = tmp_path_factory.mktemp("plan")
    paramiko.ECDSAKey.generate().write_private_key_file(str(folder / "id"))
    made = Runner(folder, ssh_server)
    yield made
    made.pool.shutdown(cancel_futures=True)

"""An SSH server that lets nobody in, and the scenarios, which run while other tests do."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from tests.plan.cli import Run, Runner

RUNNER = pytest.StashKey[Runner]()


class _Refuses(paramiko.ServerInterface):
    """Lets nobody in."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_FAILED


@contextmanager
def _ssh_server() -> Iterator[int]:
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


def _in_this_folder(item: pytest.Item) -> bool:
    return item.path.parent == Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These come last: their scenarios take long, and run while the other tests mostly wait."""
    items.sort(key=_in_this_folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    modules = {item.module for item in session.items if _in_this_folder(item)}  # type: ignore[attr-defined]
    if not modules or session.config.option.collectonly:
        return (yield)
    with tempfile.TemporaryDirectory() as folder, _ssh_server() as port:
        paramiko.ECDSAKey.generate().write_private_key_file(f"{folder}/id")
        runner = session.config.stash[RUNNER] = Runner(Path(folder), port)
        for module in modules:
            runner.start(module.SCENARIOS)
        try:
            return (yield)
        finally:
            runner.pool.shutdown(cancel_futures=True)


@pytest.fixture
def ran(request: pytest.FixtureRequest) -> Callable[[str], Run]:
    """What came of a scenario, by its name."""
    return lambda name: request.config.stash[RUNNER].futures[name].result()

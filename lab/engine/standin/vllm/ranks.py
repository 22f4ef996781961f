"""Two engines as one, over one TCP connection: joined at the start as torch's store joins them, and
asked for a step by every token.

As vLLM does (0.27 to 0.33, tensor parallel over two nodes): rank 1 goes on when its head is gone;
the head's /health stays 200 when rank 1 is gone, and only the next request finds out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable


class JoinError(Exception):
    """The other rank did not come in time."""


class Ranks:
    """The connection of this rank to the other one."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.lost = threading.Event()

    @classmethod
    def join(cls, args: argparse.Namespace) -> Ranks | None:
        """Meet the other rank; None when there is but one. Raises JoinError."""
        if (args.nnodes or 1) == 1:
            return None
        limit = float(os.environ.get("STANDIN_JOIN_SECONDS", "300"))
        deadline = time.monotonic() + limit
        where = (args.master_addr or "127.0.0.1", args.master_port or 29501)
        connection = _connect(where, deadline) if args.node_rank else _accept(where[1], deadline)
        if connection is None:
            raise JoinError(
                f"torch.distributed.DistStoreError: Timed out after {limit + 1:.0f} seconds "
                "waiting for clients. 1/2 clients joined."
            )
        return cls(connection)

    def step(self, given_up: Callable[[], bool]) -> bool:
        """Have the other rank do its part; False when it is gone, or nobody waits any more."""
        while not self.lock.acquire(timeout=0.1):
            if given_up():
                return False
        try:
            self.connection.sendall(b"s")
            while not given_up():
                if select.select([self.connection], [], [], 0.1)[0]:
                    if self.connection.recv(1):
                        return True
                    break
            else:
                return False
        except OSError:
            pass
        finally:
            self.lock.release()
        self.lost.set()
        return False

    def answer(self) -> None:
        """Do the other rank's steps for as long as it asks."""
        with contextlib.suppress(OSError):
            while steps := self.connection.recv(64):
                self.connection.sendall(steps)


def _accept(port: int, deadline: float) -> socket.socket | None:
    # On all addresses, as torch's store.
    with socket.create_server(("0.0.0.0", port)) as server:
        server.settimeout(max(0.1, deadline - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            return server.accept()[0]
    return None


def _connect(where: tuple[str, int], deadline: float) -> socket.socket | None:
    while time.monotonic() < deadline:
        try:
            connection = socket.create_connection(where, timeout=5)
        except OSError:
            time.sleep(0.2)
        else:
            connection.settimeout(None)
            return connection
    return None

"""Commands, messages and locks that every part of the lab uses."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LabError(Exception):
    """A problem to be told to the user in words: what was found and what to do about it.

    ``status`` is the exit status: 1 for a failure, 2 when the machine lacks something.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def say(message: str) -> None:
    """Print one line of progress at once, also into a pipe."""
    print(message, flush=True)


def attempt(
    command: list[str], *, text: str | None = None, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` and return its result, whatever its exit status; ``timeout`` in seconds."""
    try:
        return subprocess.run(
            command,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]}: not installed")
    except subprocess.TimeoutExpired:
        message = f"{' '.join(command[:4])}: no answer in {timeout:.0f} s"
        return subprocess.CompletedProcess(command, 124, "", message)


def run(command: list[str], *, text: str | None = None, timeout: float = 600) -> str:
    """Run ``command`` and return what it printed.

    Raises LabError with the command's own last words when it fails.
    """
    result = attempt(command, text=text, timeout=timeout)
    if result.returncode:
        words = (result.stderr.strip() or result.stdout.strip())[-1500:]
        if command[:2] == ["sudo", "-n"] and "password" in words:
            wanted = " ".join(command[2:])[:200]
            raise LabError(
                f"Root is needed for: {wanted}\nbut sudo asks for a password. Run this as root, "
                "or allow this user sudo without a password.",
                status=2,
            )
        raise LabError(f"{' '.join(command)[:300]}\nfailed with {result.returncode}: {words}")
    return result.stdout


def as_root(command: list[str]) -> list[str]:
    """Return ``command``, through sudo unless this is root already."""
    return command if os.geteuid() == 0 else ["sudo", "-n", *command]


@contextmanager
def lock(path: Path, waiting_for: str) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; says so when another process holds it first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for another sparkwright lab command: {waiting_for}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield

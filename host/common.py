"""What the programs on a Spark share: speaking, locking, long commands, small files.

Standard library only: these run with the system's Python, before and beside any venv.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

OPT = "/opt/sparkwright"
ETC = "/etc/sparkwright"
VAR = "/var/lib/sparkwright"
DOWNLOADS = "/var/cache/sparkwright"
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
HEARTBEAT_S = 8
"""Something is said at least this often while a long step runs."""


class Refusal(Exception):
    """A failure with a message for the user; the program ends with status 1."""


class CommandFailedError(Refusal):
    """A long command that failed. output: its lines, which the user has seen already."""

    def __init__(self, message: str, output: list[str]) -> None:
        super().__init__(message)
        self.output = output


_HELD: list[int] = []
"""Locks of this process. Children inherit them: a lock must outlive a program that was killed while
what it started still writes."""


_spoken = time.monotonic()
"""When something was last said; a row of short silent steps must not add up to a long silence."""


def say(text: str) -> None:
    """Print a line at once. A controller that went away does not stop what is being done."""
    global _spoken
    _spoken = time.monotonic()
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def lock(name: str, what: str, wait: bool = True) -> Iterator[None]:
    """Hold `locks/<name>`; while another process holds it, say so and wait, or, when `wait` is not
    set, raise BlockingIOError.

    A run whose controller was killed goes on here, and the next run waits for it. The kernel
    frees the lock when its holder ends, however it ends. what: what the other one is doing.
    """
    os.makedirs(f"{VAR}/locks", exist_ok=True)
    handle = os.open(f"{VAR}/locks/{name}", os.O_RDWR | os.O_CREAT, 0o600)
    started = time.monotonic()
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait:
                    raise
                waited = time.monotonic() - started
                say(f"{waited:4.0f} s  waiting: an earlier run is still {what} on this host")
                time.sleep(HEARTBEAT_S)
        _HELD.append(handle)
        yield
    finally:
        if handle in _HELD:
            _HELD.remove(handle)
        os.close(handle)


def run_long(
    command: Sequence[str],
    what: str,
    env: Mapping[str, str] | None = None,
    grows: str | None = None,
    show: bool = True,
    hide: str | None = None,
) -> list[str]:
    """Run a command that may take minutes, show its lines, and say that it lives; its lines.

    hide: lines that begin so are not shown.
    grows: a folder on whose file system it writes; by how much that is fuller is said as well.
    Raises CommandFailedError when it fails.
    """
    started, before = time.monotonic(), shutil.disk_usage(grows).free if grows else 0
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        pass_fds=_HELD,
    )
    lines: list[str] = []

    def relay() -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for raw in output:
                # Progress bars rewrite their line: only what stands at the end of it counts.
                line = raw.decode(errors="replace").rstrip().rsplit("\r", 1)[-1]
                if line:
                    lines.append(line)
                hidden = hide is not None and line.lstrip().startswith(hide)
                if line and show and not hidden:
                    say(f"      {line}")

    reader = threading.Thread(target=relay, daemon=True)
    reader.start()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        if process.returncode is None and time.monotonic() - _spoken >= HEARTBEAT_S:
            # Others write there too, but to count its own files is a walk through all of them.
            used = (before - shutil.disk_usage(grows).free) / 1e9 if grows else 0
            size = f"; disk used on this machine grew by {used:.1f} GB" if used > 0.05 else ""
            say(f"{time.monotonic() - started:4.0f} s  {what}{size}")
    reader.join(timeout=5)
    if process.returncode:
        raise CommandFailedError(f"{what} failed with status {process.returncode}", lines)
    return lines


@contextlib.contextmanager
def heartbeat(what: str) -> Iterator[None]:
    """Say every few seconds that something which prints nothing goes on."""
    done, started = threading.Event(), time.monotonic()

    def beat() -> None:
        while not done.wait(max(0.01, _spoken + HEARTBEAT_S - time.monotonic())):
            if time.monotonic() - _spoken >= HEARTBEAT_S:
                say(f"{time.monotonic() - started:4.0f} s  {what}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def settle() -> None:
    """Bring what was written to the disk, before a stamp or a name says that it is complete."""
    with heartbeat("writing to disk"):
        os.sync()


def discard(folder: str) -> None:
    """Remove a folder whose completion stamp must not outlive a part of it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}/.complete")
    shutil.rmtree(folder, ignore_errors=True)


def write(path: str, text: str | bytes, mode: int = 0o644) -> None:
    """Write beside and rename: a reader sees the old file or the new one, never a part."""
    beside = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text if isinstance(text, bytes) else text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def read_json(path: str) -> dict[str, object]:
    """A JSON object; empty when the file is missing or is none."""
    try:
        with open(path) as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def download_environment() -> dict[str, str]:
    """Caches in one place, and the system's certificates (company proxies add theirs there)."""
    env = {"UV_CACHE_DIR": f"{DOWNLOADS}/uv", "PIP_CACHE_DIR": f"{DOWNLOADS}/pip"}
    if os.path.exists(CA_BUNDLE):
        for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
            env[name] = CA_BUNDLE
    return env


def main(program: object) -> None:
    """Run `program()`; a Refusal, and a full disk or the like, is printed without a traceback."""
    # Root's umask may be tight, and what is made here is for the engine's account to read.
    os.umask(0o022)
    try:
        assert callable(program)
        program()
    except (Refusal, OSError) as refusal:
        say(str(refusal))
        sys.exit(1)

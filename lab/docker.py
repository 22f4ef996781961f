"""The Docker command line, and a daemon behind it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from lab import record
from lab.shell import LabError, as_root, attempt, run, say

DAEMON_PID = record.STATE / "dockerd.pid"
DAEMON_LOG = record.STATE / "dockerd.log"
SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"  # dockerd, iptables
# A daemon that was killed leaves its pid file, and the next one refuses to start over it.
REMOVE_STALE = """
for file in /run/docker.pid /run/docker/containerd/containerd.pid; do
    [ -e $file ] || continue
    grep -qaE 'dockerd|containerd' /proc/$(cat $file)/cmdline 2>/dev/null || rm -f $file
done
"""


@cache
def _prefix() -> list[str]:
    """Return the command that reaches the daemon; raises LabError when none does."""
    for prefix in (["docker"], as_root(["docker"])):
        if attempt([*prefix, "info"], timeout=20).returncode == 0:
            return prefix
    raise LabError("No Docker daemon answers (`docker info` fails). Start it: sparkwright lab up")


def docker(*arguments: str, text: str | None = None, timeout: float = 600) -> str:
    """Run ``docker arguments...`` and return its output; raises LabError when it fails."""
    return run([*_prefix(), *arguments], text=text, timeout=timeout)


def try_docker(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run ``docker arguments...`` and return its result, also a failed one."""
    return attempt([*_prefix(), *arguments], timeout=timeout)


def inspect(kind: str, labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return Docker's descriptions of all containers or networks of labs that carry ``labels``."""
    command = ["ps", "--all"] if kind == "container" else [kind, "ls"]
    filters = ["--filter=label=sparkwright.lab"]
    filters += [f"--filter=label={key}={value}" for key, value in labels.items()]
    found = docker(*command, "--quiet", "--no-trunc", *filters).split()
    if not found:
        return []
    # One may vanish between the two commands: take the descriptions that there are.
    result = try_docker(kind, "inspect", *found)
    described: list[dict[str, Any]] = json.loads(result.stdout or "[]")
    return described


def answers() -> bool:
    """Return whether a Docker daemon can be used."""
    try:
        _prefix()
    except LabError:
        return False
    return True


def ensure() -> None:
    """Make sure that a Docker daemon answers: use the one there is, else start what is installed.

    Raises LabError (status 2) that names what is missing.
    """
    if answers():
        return
    if os.environ.get("DOCKER_HOST"):
        raise LabError(f"DOCKER_HOST={os.environ['DOCKER_HOST']} does not answer. Unset it.")
    daemon = shutil.which("dockerd", path=SEARCH)
    if daemon is None or shutil.which("docker") is None:
        missing = "docker" if daemon else "dockerd"
        raise LabError(
            f"`{missing}` is not installed. Install it: apt-get install docker.io", status=2
        )
    if "permission denied" in attempt(["docker", "info"], timeout=20).stderr.lower():
        raise LabError(
            "This user may not use Docker. Join the group `docker` (and log in again), allow "
            "sudo without a password, or run this as root.",
            status=2,
        )
    if Path("/run/systemd/system").is_dir():
        say("Starting Docker: systemctl start docker")
        run(as_root(["systemctl", "start", "docker"]))
        log = "see `journalctl -u docker`"
    else:
        _spawn(daemon)
        log = f"the end of {DAEMON_LOG}:\n{_tail(DAEMON_LOG)}"
    for _ in range(60):
        if answers():
            return
        time.sleep(1)
    if DAEMON_LOG.exists():
        log = f"the end of {DAEMON_LOG}:\n{_tail(DAEMON_LOG)}"
    raise LabError(f"Docker was started but does not answer after 60 s; {log}", status=2)


def _spawn(daemon: str) -> None:
    say(f"Starting a Docker daemon (a few seconds; its log: {DAEMON_LOG})")
    run(as_root(["sh", "-c", REMOVE_STALE]))
    record.STATE.mkdir(parents=True, exist_ok=True)
    with DAEMON_LOG.open("w") as log:
        process = subprocess.Popen(
            as_root([daemon]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PATH": SEARCH},
        )
    DAEMON_PID.write_text(f"{process.pid}\n")


def stop_own_daemon() -> None:
    """Stop the daemon, if the lab started it and no container runs any more."""
    if not _is_daemon(DAEMON_PID):
        DAEMON_PID.unlink(missing_ok=True)
        return
    if answers() and (
        docker("ps", "--quiet").strip()
        or docker("ps", "--all", "--quiet", "--filter=label=sparkwright.lab").strip()
    ):
        return
    pid = int(DAEMON_PID.read_text())
    say("Stopping the Docker daemon that the lab had started")
    run(as_root(["kill", f"-{signal.SIGTERM.value}", str(pid)]))
    for _ in range(60):
        if not _is_daemon(DAEMON_PID):
            break
        time.sleep(0.5)
    DAEMON_PID.unlink(missing_ok=True)
    _prefix.cache_clear()


def _is_daemon(pid_file: Path) -> bool:
    """Return whether ``pid_file`` names a Docker daemon that lives."""
    with suppress(OSError, ValueError):
        process = Path("/proc") / pid_file.read_text().strip()
        alive = ") Z " not in (process / "stat").read_text()
        command = (process / "cmdline").read_bytes()
        return alive and b"dockerd" in command
    return False


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-8:])

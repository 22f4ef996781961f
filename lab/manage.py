"""The lab's verbs: up, down, status, reboot, faults."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from typing import Any

from lab import build, docker, fabric, hosts, record
from lab.faults import FAULTS
from lab.record import Host, Record
from lab.shell import LabError, as_root, lock, run, say

HOST_PROGRAM = ("python3", "/usr/local/lib/spark-lab/host.py")


def up(name: str, count: int, cabled: bool = False) -> Record:
    """Bring lab ``name`` to ``count`` running Sparks, whatever an earlier run left behind.

    cabled: with a QSFP cable between each two; a lab that has cables keeps them.

    Raises LabError: the machine lacks something (status 2), or a host does not boot.
    """
    with lock(record.LOCKS / f"{name}.lock", f"lab '{name}' is being changed"):
        with lock(record.LOCKS / "machine", "the lab's image is being made"):
            docker.ensure()
            hosts.sweep()
            for folder in (record.CACHE, record.MODELS, record.WHEELS, record.folder(name)):
                folder.mkdir(parents=True, exist_ok=True)
            image = build.ensure()
            from lab import engine

            engine.build(record.MODELS, record.WHEELS)
        network, subnet = hosts.ensure_network(name)
        folder = record.folder(name)
        before = record.load(name)
        lab = Record(
            name=name,
            network=network,
            subnet=str(subnet),
            image=image,
            key=str(folder / "id_ed25519"),
            known_hosts=str(folder / "known_hosts"),
            architecture=platform.machine(),
            fabric=cabled or bool(before and before.fabric),
        )
        hosts.converge(lab, count)
        say("Waiting until every host has booted (5 to 20 s when it has just started)")
        for host in lab.hosts:
            hosts.wait_until_booted(host)
        hosts.let_in(lab)
        cable(lab)
        _describe(lab)
        record.save(lab)
    return lab


def cable(lab: Record) -> None:
    """Bring the QSFP cables of a lab that has them to what the hosts' faults say.

    A cable whose other end is off is left to who boots that one.
    """
    if not lab.fabric:
        return
    with lock(record.LOCKS / f"{lab.name}.cables", f"the cables of lab '{lab.name}' are changed"):
        for both in zip(lab.hosts[::2], lab.hosts[1::2], strict=False):
            if all(_container_state(host) == "running" for host in both):
                ports = [0 if fabric.OTHER_PORT in faults(host) else 1 for host in both]
                fabric.cable(both, ports)


def _describe(lab: Record) -> None:
    """Fill in what the deploy's data for this lab depends on."""
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    lab.python = hosts.execute(lab.hosts[0], "python3", "-c", version).strip()
    lab.find_links = ["/srv/wheels"]
    links = hosts.find_links()
    if links is not None:
        lab.find_links.append(hosts.FIND_LINKS)
        tag = "cp" + lab.python.replace(".", "")
        wheels = f"torch-2.13.0+cpu-{tag}-*_{lab.architecture}.whl"
        lab.torch = "local" if any(links.glob(wheels)) else "index"
    lock_file = record.WHEELS / "standin.lock.txt"
    lab.standin_lock = str(lock_file) if lock_file.exists() else None


def down(name: str) -> None:
    """Remove lab ``name``: containers, network and record; whatever of it there is."""
    with lock(record.LOCKS / f"{name}.lock", f"lab '{name}' is being changed"):
        if docker.answers():
            found = docker.inspect("container", hosts.labels(name))
            hosts.remove(found)
            for network in docker.inspect("network", hosts.labels(name)):
                docker.docker("network", "rm", network["Id"])
            say(f"Lab '{name}': removed {len(found)} host{'' if len(found) == 1 else 's'}")
        else:
            say(f"Lab '{name}': no Docker daemon answers, so only its record is removed")
        shutil.rmtree(record.folder(name), ignore_errors=True)


def down_all() -> None:
    """Remove every lab of this checkout, the images and all that was kept in ``.lab``."""
    known = set(record.names())
    if docker.answers():
        for container in docker.inspect("container", hosts.labels()):
            known.add(container["Config"]["Labels"]["sparkwright.lab"])
        for network in docker.inspect("network", hosts.labels()):
            known.add(network["Labels"]["sparkwright.lab"])
    for name in sorted(known):
        down(name)
    if docker.answers():
        # The image before its base, and neither while a lab of another checkout uses it.
        refused = False
        for repository in (build.REPOSITORY, build.BASE):
            for image in docker.docker("image", "ls", "--quiet", repository).split():
                refused = refused or docker.try_docker("image", "rm", image).returncode != 0
    docker.stop_own_daemon()
    # The hosts' root wrote into the cache, so a user may not be allowed to remove it.
    run(as_root(["rm", "-rf", str(record.STATE)]))
    say("Removed the lab's images, downloads and folder")


def status(lab: Record) -> list[dict[str, Any]]:
    """Return, for each host, its address, the state of container and systemd, and its faults."""
    rows = []
    for host in lab.hosts:
        container = _container_state(host)
        running = container == "running"
        rows.append(
            {
                "name": host.name,
                "address": host.address,
                "container": container,
                "systemd": hosts.systemd_state(host) if running else "",
                "faults": faults(host) if running else [],
            }
        )
    return rows


def _container_state(host: Host) -> str:
    result = docker.try_docker("container", "inspect", host.container)
    found = json.loads(result.stdout or "[]")
    return found[0]["State"]["Status"] if found else "missing"


def faults(host: Host) -> list[str]:
    """Return the faults that are on in ``host``, each with its value if it has one."""
    return hosts.execute(host, *HOST_PROGRAM, "list").splitlines()


def fault(lab: Record, host: Host, name: str, value: str | None) -> None:
    """Switch fault ``name`` on in ``host``. Raises LabError for a fault that there is not."""
    known = FAULTS.get(name)
    if known is None:
        raise LabError(f"There is no fault '{name}'. See: sparkwright lab fault --list", status=2)
    if bool(known.argument) != (value is not None):
        wants = f"a {known.argument}" if known.argument else "no value"
        raise LabError(f"Fault '{name}' takes {wants}.", status=2)
    if known.argument == "PORT" and not (value or "").isdecimal():
        raise LabError(f"Fault '{name}' takes a port number, not '{value}'.", status=2)
    _running(lab, host)
    hosts.execute(host, *HOST_PROGRAM, "fault", name, *([value] if value else []))
    cable(lab)


def clear(lab: Record, host: Host, name: str | None) -> None:
    """Switch fault ``name``, or all, off in ``host``."""
    if name is not None and name not in FAULTS:
        raise LabError(f"There is no fault '{name}'. See: sparkwright lab fault --list", status=2)
    _running(lab, host)
    hosts.execute(host, *HOST_PROGRAM, "clear", *([name] if name else []))
    cable(lab)


def reboot(lab: Record, host: Host) -> float:
    """Reboot ``host``: systemd stops every unit and starts anew. Returns the seconds it took."""
    _running(lab, host)
    start = time.monotonic()
    # Killed after two minutes, as a person would press the button.
    docker.docker("restart", "--time", "120", host.container)
    # Its network is a new one: the other host's end went with the old.
    cable(lab)
    hosts.wait_until_booted(host)
    return time.monotonic() - start


def _running(lab: Record, host: Host) -> None:
    state = _container_state(host)
    if state != "running":
        raise LabError(
            f"{host.name} of lab '{lab.name}' is {state}. Start it: sparkwright lab up "
            f"--sparks {len(lab.hosts)} --name {lab.name}"
        )


def ssh(lab: Record, host: Host, command: list[str]) -> None:
    """Become an ssh client that is logged in to ``host``, or runs ``command`` there."""
    _running(lab, host)
    words = hosts.ssh_command(lab, host)
    os.execvp(words[0], [*words, *command])

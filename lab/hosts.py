"""The containers of a lab: what should run, what does run, and how one is brought to the other."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from lab import network, record
from lab.docker import docker, inspect, try_docker
from lab.record import Host, Record
from lab.shell import LabError, run, say

FIND_LINKS = "/srv/find-links"
BOOT_SECONDS = 120  # systemd is up after 3 to 10 s on an idle machine with two cores


def labels(name: str | None = None) -> dict[str, str]:
    """Return the labels by which this checkout's containers and networks are known."""
    own = {"sparkwright.root": str(record.ROOT)}
    return own if name is None else {**own, "sparkwright.lab": name}


def find_links() -> Path | None:
    """Return the folder of PIP_FIND_LINKS that holds a CPU build of torch, if there is one."""
    for word in os.environ.get("PIP_FIND_LINKS", "").split():
        folder = Path(word.removeprefix("file://"))
        if any(folder.glob("torch-*+cpu*.whl")):
            return folder
    return None


def ensure_network(name: str) -> tuple[str, IPv4Network]:
    """Return the lab's network and its subnet, made on a subnet that is free when need be."""
    for found in inspect("network", labels(name)):
        subnet = IPv4Network(found["IPAM"]["Config"][0]["Subnet"])
        own = f"br-{found['Id'][:12]}"
        routes = network.routed(run(["ip", "-4", "route", "show", "table", "all"]), own)
        if not any(subnet.overlaps(other) for other in routes):
            return found["Name"], subnet
        say(f"Subnet {subnet} of an earlier run is used by something else now: taking another")
        remove(inspect("container", labels(name)))
        docker("network", "rm", found["Id"])
    taken = network.routed(run(["ip", "-4", "route", "show", "table", "all"]))
    for word in docker("network", "ls", "--quiet", "--no-trunc").split():
        for found in json.loads(try_docker("network", "inspect", word).stdout or "[]"):
            for config in found["IPAM"]["Config"] or []:
                other = network.routed(config.get("Subnet", ""))
                taken.extend(other)
    title = _free_name("network", f"sparkwright-{name}")
    marks = [f"--label={key}={value}" for key, value in labels(name).items()]
    for subnet in network.choose(taken):
        result = try_docker("network", "create", f"--subnet={subnet}", *marks, title)
        if result.returncode == 0:
            return title, subnet
        if "overlap" not in result.stderr:  # else another lab was quicker: take the next
            raise LabError(f"Docker could not make the lab's network: {result.stderr.strip()}")
    raise AssertionError("choose() raises when no subnet is left")


def _free_name(kind: str, name: str) -> str:
    """Return ``name``, or a variant when another checkout that still exists has it in use.

    What a checkout that is gone left under that name is removed.
    """
    result = try_docker(kind, "inspect", name)
    if result.returncode:
        return name
    found = json.loads(result.stdout)[0]
    marks = found.get("Labels") or found.get("Config", {}).get("Labels") or {}
    root = marks.get("sparkwright.root")
    if root and Path(root, ".lab", marks.get("sparkwright.lab", "")).is_dir():
        return f"{name}-{hashlib.sha256(str(record.ROOT).encode()).hexdigest()[:4]}"
    if not root:
        raise LabError(
            f"A {kind} named {name} exists that this project did not make. Remove it "
            f"(docker {kind} rm {name}) or choose another --name."
        )
    say(f"Removing {kind} {name}: its checkout {root} is gone")
    if kind == "network":
        remove(inspect("container", {k: marks[k] for k in ("sparkwright.root", "sparkwright.lab")}))
        docker("network", "rm", name)
    else:
        docker("rm", "--force", "--volumes", name)
    return name


def sweep() -> None:
    """Remove what labs of checkouts that no longer exist have left in Docker."""
    for kind in ("container", "network"):
        for found in inspect(kind, {}):
            marks = found.get("Labels") or found.get("Config", {}).get("Labels") or {}
            root = marks.get("sparkwright.root")
            if root and not Path(root).exists():
                say(f"Removing {kind} {found['Name'].lstrip('/')}: its checkout {root} is gone")
                docker(kind, "rm", *(["--force"] if kind == "container" else []), found["Id"])


def remove(containers: list[dict[str, Any]]) -> None:
    """Remove ``containers``, running or not."""
    for container in containers:
        docker("rm", "--force", "--volumes", container["Id"])


def _mounts() -> dict[str, Path]:
    """Return what is mounted in a host: target (with ``:ro`` where it is) to source."""
    mounts = {
        "/var/cache/sparkwright": record.CACHE,
        "/srv/models:ro": record.MODELS,
        "/srv/wheels:ro": record.WHEELS,
    }
    links = find_links()
    if links is not None:
        mounts[f"{FIND_LINKS}:ro"] = links
    return mounts


def _mounts_are_stale(container: str) -> bool:
    """Return whether a source folder was removed and made again while the container ran."""
    targets = [target.removesuffix(":ro") for target in _mounts()]
    seen = try_docker("exec", container, "stat", "--format=%i", *targets).stdout.split()
    return seen != [str(source.stat().st_ino) for source in _mounts().values()]


def arguments(lab: Record, number: int) -> list[str]:
    """Return the arguments of ``docker run`` for Spark ``number``, all but its container name."""
    address = network.address(IPv4Network(lab.subnet), number)
    return [
        *("--hostname", f"spark-{number}", "--network", lab.network, "--ip", address),
        # What systemd as PID 1 needs, and what a Spark's services may ask for; not --privileged.
        *(f"--cap-add={name}" for name in ("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "IPC_LOCK")),
        *("--cap-add=SYS_NICE", "--security-opt=seccomp=unconfined"),
        *("--security-opt=apparmor=unconfined", "--cgroupns=private"),
        *("--tmpfs=/run:exec,mode=755", "--shm-size=2g", "--env=container=docker"),
        *(f"--volume={source}:{target}" for target, source in _mounts().items()),
        *(f"--label={key}={value}" for key, value in labels(lab.name).items()),
        f"--label=sparkwright.host=spark-{number}",
        lab.image,
    ]


def converge(lab: Record, count: int) -> None:
    """Bring the containers of ``lab`` to ``count`` running Sparks and list them in ``lab.hosts``.

    A container that was made differently from what would be made today is replaced.
    """
    present = {c["Config"]["Labels"]["sparkwright.host"]: c for c in _containers(lab)}
    lab.hosts = []
    for number in range(1, count + 1):
        name = f"spark-{number}"
        wanted = arguments(lab, number)
        spec = hashlib.sha256("\0".join(wanted).encode()).hexdigest()[:12]
        container = _take_over(name, present.pop(name, None), spec)
        if container is None:
            container = _free_name("container", f"sparkwright-{lab.name}-{name}")
            say(f"{name}: creating {container}")
            marks = ["--name", container, f"--label=sparkwright.spec={spec}"]
            docker("run", "--detach", *marks, *wanted)
        address = network.address(IPv4Network(lab.subnet), number)
        lab.hosts.append(Host(name, address, container))
    for name, surplus in present.items():
        say(f"{name}: removing, {count} wanted")
        remove([surplus])


def _take_over(name: str, old: dict[str, Any] | None, spec: str) -> str | None:
    """Return the name of container ``old``, running now; None when it was not usable, or none."""
    if old is None:
        return None
    container: str = old["Name"].lstrip("/")
    status = old["State"]["Status"]
    if old["Config"]["Labels"].get("sparkwright.spec") != spec:
        why = "made from another image, for another subnet or with other folders"
    elif status == "running" and _mounts_are_stale(container):
        say(f"{name}: rebooting, for folders that it has mounted were made anew")
        docker("restart", "--time", "120", container)
        return container
    elif status == "running":
        return container
    else:
        say(f"{name}: booting ({container} was {status})")
        result = try_docker("start", container)
        if result.returncode == 0:
            return container
        why = result.stderr.strip()
    say(f"{name}: replacing {container}: {why}")
    remove([old])
    return None


def _containers(lab: Record) -> list[dict[str, Any]]:
    return inspect("container", labels(lab.name))


def execute(host: Host, *command: str, text: str | None = None) -> str:
    """Run ``command`` as root inside ``host`` and return its output."""
    interactive = ["--interactive"] if text is not None else []
    return docker("exec", *interactive, host.container, *command, text=text)


def systemd_state(host: Host) -> str:
    """Return what ``systemctl is-system-running`` says in ``host``; "" when it can't be asked."""
    return try_docker("exec", host.container, "systemctl", "is-system-running").stdout.strip()


def wait_until_booted(host: Host) -> None:
    """Wait until systemd in ``host`` has started everything and sshd answers.

    Raises LabError, naming what is missing, after BOOT_SECONDS.
    """
    end = time.monotonic() + BOOT_SECONDS
    state = ""
    while time.monotonic() < end:
        state = systemd_state(host)
        if state in ("running", "degraded") and _greets(host):
            break
        time.sleep(0.5)
    else:
        last = try_docker("logs", "--tail", "5", host.container)
        raise LabError(
            f"{host.name} did not boot in {BOOT_SECONDS} s: systemd is '{state or 'silent'}', sshd "
            f"at {host.address}:{host.port} {'answers' if _greets(host) else 'does not answer'}.\n"
            f"{(last.stdout + last.stderr).strip()}\n"
            f"Look: docker exec {host.container} journalctl -b -p warning"
        )
    if state == "degraded":
        failed = execute(host, "systemctl", "--failed", "--plain", "--no-legend", "--no-pager")
        units = ", ".join(line.split()[0] for line in failed.splitlines() if line.strip())
        say(f"{host.name}: systemd is degraded, failed: {units}")


def _greets(host: Host) -> bool:
    try:
        with socket.create_connection((host.address, host.port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def let_in(lab: Record) -> None:
    """Put the lab's key into every host and the hosts' own keys into the known_hosts file."""
    key = Path(lab.key)
    if not key.exists() or not key.with_suffix(".pub").exists():
        key.parent.mkdir(parents=True, exist_ok=True)
        key.unlink(missing_ok=True)
        comment = f"sparkwright-lab-{lab.name}"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)])
    public = key.with_suffix(".pub").read_text()
    known = []
    for host in lab.hosts:
        folder, login = f"/home/{lab.user}/.ssh", lab.user
        execute(host, "install", "-d", "-m", "700", "-o", login, "-g", login, folder)
        put = f"cat > {folder}/authorized_keys && chown {login}: {folder}/authorized_keys"
        execute(host, "sh", "-c", put, text=public)
        lines = execute(host, "sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub").splitlines()
        known += [f"{host.address} {' '.join(line.split()[:2])}\n" for line in lines]
    Path(lab.known_hosts).write_text("".join(known))


def ssh_command(lab: Record, host: Host) -> list[str]:
    """Return the ssh command that logs in to ``host`` with the lab's key, strictly checked."""
    return [
        *("ssh", "-i", lab.key, "-p", str(host.port)),
        *("-o", f"UserKnownHostsFile={lab.known_hosts}", "-o", "StrictHostKeyChecking=yes"),
        *("-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR", f"{lab.user}@{host.address}"),
    ]

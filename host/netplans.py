"""The rails' addresses, as a file of netplan; what other tools left there is kept beside."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence

from common import Refusal, run_long, say, write
from instance import content
from rails import Rail, run

FOLDER = "/etc/netplan"
FILE = f"{FOLDER}/40-sparkwright-fabric.yaml"
_NM, _NETWORKD = "/run/NetworkManager/system-connections", "/run/systemd/network"
KEPT = ".kept-by-sparkwright"
"""Ending of a file that netplan no longer reads."""


def text(rails: Sequence[Rail], own: Sequence[str], prefixes: Sequence[int], mtu: int) -> str:
    """The file for two rails. It names no renderer: networkd or NetworkManager, as the host has."""
    lines = [
        "# Managed by sparkwright: the two rails between the Sparks of a pair.",
        "network:",
        "  version: 2",
        "  ethernets:",
    ]
    for rail, address, prefix in zip(rails, own, prefixes, strict=True):
        lines += [
            f"    {rail.device}:",
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            "      link-local: []",
            f"      mtu: {mtu}",
            f"      addresses: [{address}/{prefix}]",
            # A boot does not wait for the other Spark.
            "      optional: true",
        ]
    return "\n".join(lines) + "\n"


def is_in_place(wanted: str) -> bool:
    return content(FILE) == wanted.encode() and os.stat(FILE).st_mode & 0o777 == 0o600


def foreign(devices: Iterable[str]) -> list[str]:
    """Other files of netplan that say something of these devices."""
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, devices)) + r")\b")
    found = []
    for path in sorted(glob.glob(f"{FOLDER}/*.yaml")):
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            said = [line for line in file if not line.lstrip().startswith("#")]
            if path != FILE and pattern.search("".join(said)):
                found.append(path)
    return found


def refuse_shared(path: str, devices: Iterable[str]) -> None:
    """Raises Refusal when a file is about more than the ports of the fabric: it is not ours to
    move."""
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(f"{root}{FOLDER}")
        with open(path, "rb") as source:
            write(f"{root}{FOLDER}/x.yaml", source.read(), 0o600)
        told = run("netplan", "get", "--root-dir", root, "network") or ""
    # Two levels down: network's kinds of devices, and their names.
    names = re.findall(r"^  ([^\s:]+):", told, re.M)
    # NetworkManager's own files name a connection, and the device below it.
    others = sorted(name for name in {*names} - {*devices} if not name.startswith("NM-"))
    if not told or others:
        what = f"together with {', '.join(others)}" if others else "and can't be read by netplan"
        raise Refusal(
            f"{path} configures a rail of the fabric {what}: take the rail out of that file, or "
            "move the file away, and deploy again"
        )


def put(wanted: str, devices: Sequence[str]) -> Callable[[], None]:
    """Write the file, keep others beside, apply; what undoes all that. Raises Refusal, undone.

    devices: all of the fabric's ports. Nothing but these is touched.
    """
    moved = foreign(devices)
    for path in moved:
        refuse_shared(path, devices)
    before = content(FILE)

    def undo() -> None:
        for path in moved:
            os.rename(path + KEPT, path)
        if before is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(FILE)
        else:
            write(FILE, before, 0o600)
        _apply(devices)

    for path in moved:
        say(f"      {path} is about the same devices: kept as {path}{KEPT}")
        os.rename(path, path + KEPT)
    try:
        write(FILE, wanted, 0o600)
        _apply(devices)
    except Refusal as refusal:
        with contextlib.suppress(Refusal):
            undo()
        raise Refusal(f"{refusal}; the files of netplan are what they were") from None
    return undo


def remove(devices: Sequence[str]) -> None:
    """Take the rails' addresses away."""
    if os.path.exists(FILE):
        os.unlink(FILE)
        _apply(devices)


def _apply(devices: Sequence[str]) -> None:
    """Have these devices, and no others, become what netplan's files say. `netplan apply` would
    reconnect all that NetworkManager has, the way in included."""
    _must("netplan", "generate")
    made = [device for device in devices if glob.glob(f"{_NM}/netplan-{device}*.nmconnection")]
    if made or run("nmcli", "--terse", "--fields", "RUNNING", "general") == "running\n":
        _must("nmcli", "connection", "reload")
    for device in made:
        _must("nmcli", "connection", "up", f"netplan-{device}")
    there = [d for d in devices if os.path.exists(f"{_NETWORKD}/10-netplan-{d}.network")]
    if there:
        _must("systemctl", "start", "systemd-networkd.service")
    if run("systemctl", "is-active", "systemd-networkd.service") is not None:
        _must("networkctl", "reload")
    for device in there:
        _must("networkctl", "reconfigure", device)


def _must(*command: str) -> None:
    try:
        run_long(command, " ".join(command), show=False)
    except FileNotFoundError:
        raise Refusal(f"{command[0]} is not installed") from None
    except Refusal as problem:
        lines = getattr(problem, "output", [])[-2:]
        raise Refusal(" ".join([str(problem), *lines])) from None

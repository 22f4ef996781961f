"""Look at a host and print what is there as one line of JSON; changes nothing.

Runs before anything is installed: standard library only, Python 3.10 or newer. It is sent with the
command itself (facts/observe.py), so that one round trip brings all that a step wants to know.

usage: probe.py '{"platform": {...}, "files": [...], ...}'   (a section that is not asked for is
not looked at)
"""

from __future__ import annotations

import glob
import grp
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import time


def run(*command: str, timeout: float = 20) -> tuple[int, str]:
    """Exit status and output of a command; 127 when it is not there, 124 when it hangs."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return 127, f"{command[0]}: not found"
    except (OSError, subprocess.TimeoutExpired) as error:
        return 124, f"{command[0]}: {error}"
    return done.returncode, done.stdout.decode(errors="replace").strip()


def read(path: str) -> str | None:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return None


def platform(_: object) -> dict[str, object]:
    """Hardware, driver, CUDA, memory, clock: what preflight judges."""
    return {
        "time": time.time(),
        "architecture": os.uname().machine,
        "dgx_release": _assignments(read("/etc/dgx-release")),
        "gpu": _gpu(),
        "driver_version_file": read("/proc/driver/nvidia/version"),
        "cuda": _cuda(),
        "memory": memory(),
        "next_kernel": _next_kernel(),
        "clock": run("timedatectl", "show", "-p", "NTPSynchronized", "--value")[1],
    }


def _assignments(text: str | None) -> dict[str, str] | None:
    """Shell assignments; a later line of the same name wins, as DGX OS appends its updates."""
    if text is None:
        return None
    pairs = re.findall(r'^(\w+)="?(.*?)"?\s*$', text, re.M)
    return {name: value for name, value in pairs if "SERIAL" not in name}


def _gpu() -> dict[str, object]:
    status, listing = run(
        "nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"
    )
    gpus = []
    if status == 0:
        for line in listing.splitlines():
            parts = [part.strip() for part in line.split(",")]
            if len(parts) == 3:
                gpus.append(dict(zip(("name", "compute_cap", "driver"), parts, strict=True)))
    versions = run("nvidia-smi", "--version")[1]
    return {
        "status": status,
        "message": "" if status == 0 else listing[:300],
        "gpus": gpus,
        "userspace": _field(versions, r"NVIDIA-SMI version\s*:\s*(\S+)"),
        "cuda": _field(versions, r"CUDA Version\s*:\s*(\S+)"),
    }


def _field(text: str, pattern: str) -> str | None:
    match = re.search(pattern, text)
    return match.group(1) if match else None


def _cuda() -> dict[str, object]:
    """Release of the default toolkit, and of every other one that lies beside it."""
    found = {}
    default = os.path.realpath("/usr/local/cuda")
    others = [p for p in sorted(glob.glob("/usr/local/cuda-*")) if not os.path.islink(p)]
    others = [path for path in others if path != default]
    # Ubuntu's own package nvidia-cuda-toolkit (12.0) puts its nvcc into /usr/bin.
    if not os.path.realpath("/usr/bin/nvcc").startswith("/usr/local/"):
        others.append("/usr")
    for path in ["/usr/local/cuda", *others]:
        nvcc = f"{path}/bin/nvcc"
        if os.path.exists(nvcc):
            status, text = run(nvcc, "--version")
            found[path] = _field(text, r"release (\d+\.\d+)") if status == 0 else None
        elif os.path.isdir(path) and path != "/usr":
            found[path] = _field(path, r"cuda-(\d+(\.\d+)?)$")
    return found


def memory() -> dict[str, int]:
    """Bytes, from /proc/meminfo: NVML does not know a Spark's memory."""
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", read("/proc/meminfo") or "", re.M)
    wanted = ("MemTotal", "MemAvailable")
    return {name: int(value) * 1024 for name, value in pairs if name in wanted}


def _next_kernel() -> dict[str, object]:
    """The kernel that the next boot takes, and whether it has an NVIDIA module."""
    link = os.path.realpath("/boot/vmlinuz")
    names = [link] if os.path.exists(link) else glob.glob("/boot/vmlinuz-*")
    versions = [os.path.basename(name).removeprefix("vmlinuz-") for name in names]
    if not versions:
        return {"version": None, "module": None}
    version = max(versions, key=lambda v: [int(n) for n in re.findall(r"\d+", v)])
    for _, _, files in os.walk(f"/lib/modules/{version}"):
        if any(re.fullmatch(r"nvidia\.ko(\.\w+)?", name) for name in files):
            return {"version": version, "module": True}
    return {"version": version, "module": False}


def disk(wanted: list[str]) -> dict[str, object]:
    """Free bytes of the file systems that hold (or will hold) the paths."""
    result = {}
    for path in wanted:
        there = path
        while not os.path.isdir(there):
            there = os.path.dirname(there)
        result[path] = {"free": shutil.disk_usage(there).free, "device": os.stat(there).st_dev}
    return result


def ports(wanted: list[int]) -> dict[str, list[dict[str, object]]]:
    """Who listens on TCP ports: `[{pid, command, unit}]`, empty when nobody does."""
    inodes: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (read(table) or "").splitlines()[1:]:
            columns = line.split()
            port = int(columns[1].rsplit(":", 1)[1], 16)
            if columns[3] == "0A" and port in wanted:
                inodes[columns[9]] = port
    result: dict[str, list[dict[str, object]]] = {str(port): [] for port in wanted}
    if inodes:
        for port, pid in _owners(inodes):
            command = (read(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
            entry = {"pid": pid, "command": command[:120], "unit": unit_of(pid)}
            result[str(port)].append(entry)
    for port in set(inodes.values()):
        if not result[str(port)]:
            result[str(port)].append({"pid": None, "command": "unknown", "unit": None})
    return result


def _owners(inodes: dict[str, int]) -> list[tuple[int, int]]:
    found = set()
    for folder in glob.glob("/proc/[0-9]*/fd"):
        try:
            with os.scandir(folder) as entries:
                links = [os.readlink(entry.path) for entry in entries]
        except OSError:
            continue
        for link in links:
            if link.startswith("socket:[") and link[8:-1] in inodes:
                found.add((inodes[link[8:-1]], int(folder.split("/")[2])))
    return sorted(found)


def unit_of(pid: int) -> str | None:
    return _field(read(f"/proc/{pid}/cgroup") or "", r"/([^/\n]+\.service)")


def models(wanted: list[str]) -> dict[str, object]:
    """For each model folder `ok`, or why the engine's account could not serve it."""
    return {path: _model(path) for path in wanted}


def _model(path: str) -> str:
    if not os.path.isdir(path):
        return "missing"
    config = f"{path}/config.json"
    if not os.path.isfile(config):
        return "no config.json"
    folder = os.path.realpath(path)
    if not os.stat(config).st_mode & 0o004:
        return f"{config} is not readable for others"
    while folder != "/":
        if not os.stat(folder).st_mode & 0o001:
            return f"{folder} is closed for others (chmod o+x)"
        folder = os.path.dirname(folder)
    return "ok"


def sizes(wanted: list[str]) -> dict[str, int]:
    """Bytes that folders take on disk; 0 when missing."""
    total = dict.fromkeys(wanted, 0)
    for path in wanted:
        for folder, _, names in os.walk(path):
            for name in names:
                try:
                    total[path] += os.lstat(f"{folder}/{name}").st_blocks * 512
                except OSError:
                    continue
    return total


def engines(_: object) -> list[str]:
    """Units of engine instances that run, start or stop: they hold memory, listening or not."""
    states = "--state=active,activating,deactivating,reloading"
    status, text = run("systemctl", "list-units", "--plain", "--no-legend", states, "vllm@*")
    return [line.split()[0] for line in text.splitlines()] if status == 0 else []


def instances(var: str) -> list[str]:
    """Names of engine instances that sparkwright made, whole or in parts, wherever it shows."""
    names = {os.path.basename(path) for path in glob.glob("/opt/sparkwright/active/*")}
    names |= {os.path.basename(path) for path in glob.glob(f"{var}/staged/*")}
    units = {os.path.basename(path) for path in glob.glob("/etc/systemd/system/vllm@?*.service.d")}
    units |= {os.path.basename(path) for path in glob.glob("/etc/systemd/system/*/vllm@?*.service")}
    units |= set(engines(None))
    names |= {re.sub(r"^vllm@|\.service(\.d)?$", "", unit) for unit in units}
    return sorted(name for name in names if not name.endswith(".new"))


def files(wanted: list[str]) -> dict[str, object]:
    """SHA-256, mode and owner of files; for a folder its mode and owner; null when missing."""
    return {path: _file(path) for path in wanted}


def _file(path: str) -> dict[str, object] | None:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    try:
        owner = pwd.getpwuid(info.st_uid).pw_name
        group = grp.getgrgid(info.st_gid).gr_name
    except KeyError:
        owner = group = "?"
    entry: dict[str, object] = {
        "mode": f"{info.st_mode & 0o7777:04o}",
        "owner": owner,
        "group": group,
    }
    if os.path.islink(path):
        entry["link"] = os.readlink(path)
    elif os.path.isfile(path):
        with open(path, "rb") as file:
            entry["sha256"] = hashlib.sha256(file.read()).hexdigest()
    return entry


def packages(wanted: list[str]) -> list[str]:
    """Those of the Debian packages that are not installed."""
    _, text = run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted)
    there = {line.split()[0] for line in text.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in there]


def user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def stamps(wanted: list[str]) -> dict[str, object]:
    """Content of small stamp files; null when missing."""
    return {path: read(path) for path in wanted}


def listing(wanted: list[str]) -> dict[str, list[str]]:
    """Names in folders, those of folders with a slash behind; empty when a folder is missing."""
    result: dict[str, list[str]] = {}
    for path in wanted:
        entries = list(os.scandir(path)) if os.path.isdir(path) else []
        result[path] = sorted(e.name + "/" * e.is_dir(follow_symlinks=False) for e in entries)
    return result


def links(pattern: str) -> dict[str, object]:
    """Symbolic links that fit a pattern, with what they point to."""
    return {path: os.readlink(path) for path in glob.glob(pattern) if os.path.islink(path)}


SECTIONS = {
    section.__name__: section
    for section in (
        platform,
        disk,
        ports,
        models,
        sizes,
        engines,
        instances,
        files,
        packages,
        user,
        stamps,
        listing,
        links,
    )
}


def main() -> None:
    request = json.loads(sys.argv[1])
    print(json.dumps({name: SECTIONS[name](wanted) for name, wanted in request.items()}))


if __name__ == "__main__":
    main()

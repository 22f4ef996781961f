"""What every Spark gets before it serves anything: packages, account, folders, guard, tools."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from pyinfra import host
from pyinfra.api import FunctionCommand, operation

from operations import fabric, files
from operations.run import observed, one_host, shown
from sparkwright import paths, render
from sparkwright.plan import HostPlan
from sparkwright.render import ManagedFile

# (path, mode, owner). Staged configuration may hold keys; locks and state are root's alone.
_FOLDERS = (
    (paths.OPT, "0755", "root"),
    (paths.HOST_PROGRAMS, "0755", "root"),
    (paths.RELEASES, "0755", "root"),
    (paths.ACTIVE, "0755", "root"),
    (paths.ETC, "0755", "root"),
    (paths.VAR, "0755", "root"),
    (paths.LOCKS, "0700", "root"),
    (paths.STAGED, "0700", "root"),
    (paths.MODELS, "0755", "root"),
    (paths.CACHES, "0755", "root"),
    (paths.DOWNLOADS, "0755", "root"),
)

_RESTART_GUARD = ("systemctl", "restart", "earlyoom")

# unattended-upgrades may hold apt's lock: wait for it rather than fail. A host that went down in
# the middle of an installation has half-configured packages.
_APT = """
set -e
export DEBIAN_FRONTEND=noninteractive
log=/var/log/sparkwright-apt.log
echo '   0 s  installing MISSING (normal: 10 to 90 s)'
(while sleep 10 >/dev/null 2>&1; do echo '      still installing packages'; done) &
trap "kill $!" EXIT
dpkg --configure -a >$log 2>&1 || true
apt-get -qq -o DPkg::Lock::Timeout=300 update
apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends MISSING >>$log 2>&1 ||
    { tail -n 20 $log; exit 1; }
"""


@operation()
@one_host
def packages(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Install the Debian packages that building and guarding need; only what is missing.

    + plan: what the host is to serve; a release's Python decides which headers are needed

    Headers and compilers: the engine compiles kernels at its first start.
    """
    wanted = {"python3-venv", "gcc", "g++", "earlyoom"}
    for release in plan.releases:
        wanted |= {f"python{release.settings.python}-dev", f"python{release.settings.python}-venv"}
        wanted |= set(release.settings.packages)
    if plan.link:
        wanted |= {"nftables", "netplan.io", "ethtool", "iputils-ping"}
    missing = observed(packages=sorted(wanted))["packages"]
    if missing:
        yield shown("sh", "-c", _APT.replace("MISSING", " ".join(missing)))


@operation()
@one_host
def account_and_folders() -> Iterator[FunctionCommand]:
    """Make the account that engines run as, and the folders of docs/architecture.md."""
    if not observed(user=paths.USER)["user"]:
        yield shown(
            "useradd",
            "--system",
            "--user-group",
            "--home-dir",
            paths.VAR,
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            paths.USER,
        )
    folders = [ManagedFile(path, "", mode, owner) for path, mode, owner in _FOLDERS]
    _, wrong, _ = files.differing([], folders)
    yield from files.send([], wrong)


@operation()
@one_host
def host_files(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Install the programs that run on a Spark, the early OOM guard's settings, release locks.

    + plan: what the host is to serve
    """
    link = [] if plan.link else [f"{paths.ETC}/fabric.json"]
    wanted = [*render.base_files(), *render.release_files(plan)]
    wrong, _, left = files.differing(wanted, absent=link)
    guard = "/etc/default/earlyoom"
    changed = any(file.path == guard for file in wrong)
    yield from files.send(wrong, then=(guard, _RESTART_GUARD) if changed else None)
    if left:
        fabric.was_linked(host.name)


@operation()
@one_host
def tools() -> Iterator[FunctionCommand]:
    """Install uv and hf, hash-locked, into their own venv."""
    listed = next(f for f in render.base_files() if f.path.endswith("/tools.txt"))
    stamp = f"{paths.TOOLS}/.complete"
    there = observed(stamps=[stamp])["stamps"].get(stamp) or ""
    if there.strip() != hashlib.sha256(listed.content.encode()).hexdigest():
        yield shown("python3", f"{paths.HOST_PROGRAMS}/tools.py")

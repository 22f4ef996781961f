"""One engine instance as files: what is to be, what is in place, and putting one for the other."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time

import service
from common import ETC, OPT, VAR, Refusal, read_json, write

STATE = f"{VAR}/state.json"
UNITS = "/etc/systemd/system"
ENGINE_USER = "vllm"
LOG_LINES = 300
KEY = "api-key.env"
"""Nobody but root reads it, wherever it is copied to."""
RELOADED = "instance.conf"
"""Time-outs and order: systemd takes them over without a restart of the engine."""


class Instance:
    """One instance's folders, and what state.json remembers of it.

    source: folder of what is to be in service, in the form of a staging folder (which it is when
    nothing is said).
    """

    def __init__(self, name: str, source: str | None = None) -> None:
        self.name = name
        self.unit = f"vllm@{name}.service"
        self.source = source or f"{VAR}/staged/{name}"
        self.previous = f"{VAR}/previous/{name}"
        self.served = f"{VAR}/served/{name}"
        self.failures = f"{VAR}/failures/{name}"
        self.etc = f"{ETC}/{name}"
        self.link = f"{OPT}/active/{name}"
        self.cache = f"{VAR}/cache/{name}"
        self.drop_ins = f"{UNITS}/{self.unit}.d"
        self.start = read_json(f"{self.source}/start.json")
        # File of the source and where it goes.
        self.targets = {
            "serve.yaml": f"{self.etc}/serve.yaml",
            "env": f"{self.etc}/env",
            KEY: f"{self.etc}/{KEY}",
            "pair.json": f"{self.etc}/pair.json",
            "vllm@.service": f"{UNITS}/vllm@.service",
            RELOADED: f"{self.drop_ins}/instance.conf",
        }

    def release(self) -> str:
        return (content(f"{self.source}/release") or b"").decode(errors="replace").strip()

    def has_release(self) -> bool:
        """False when the release was deleted, or not built yet."""
        return is_built(self.release())

    def serving(self) -> str | None:
        """The release that the link names; None when there is no link."""
        try:
            return os.path.basename(os.readlink(self.link))
        except OSError:
            return None

    def keep_log(self, which: str, invocation: object) -> None:
        """The last lines of a start, where no rotation of the journal takes them."""
        if not self.name or not invocation:
            return
        journal = service.Journal(str(invocation))
        journal.new()
        os.makedirs(self.failures, mode=0o700, exist_ok=True)
        text = "\n".join([f"# {journal.match}", *journal.lines[-LOG_LINES:]]) + "\n"
        write(f"{self.failures}/{which}.log", text, 0o600)

    def drift(self) -> list[str]:
        """Files and links that somebody changed since they were put in service."""
        memory = self.remembered()
        known = memory.get("files")
        known = known if isinstance(known, dict) else {}
        edited = [t for n, t in self.targets.items() if n in known and known[n] != _digest(t)]
        moved = memory.get("release") and memory["release"] != self.serving()
        return [*edited, *([self.link] if moved else [])]

    def keep(self, folder: str) -> bool:
        """Copy what is in service into a folder of a source's form; False when nothing is."""
        release = self.serving() or self.remembered().get("release")
        if not release or not os.path.exists(f"{self.etc}/serve.yaml"):
            return False
        _private(folder)
        start = f"{self.etc}/start.json"
        if not os.path.exists(start):
            start = f"{VAR}/staged/{self.name}/start.json"
        for name, target in {**self.targets, "start.json": start}.items():
            if os.path.exists(target):
                _copy(target, f"{folder}/{name}")
        write(f"{folder}/release", f"{release}\n")
        return True

    def copy_to(self, folder: str) -> None:
        """Copy the source, so that a transaction isn't changed by who stages anew meanwhile."""
        _private(folder)
        for name in [*self.targets, "start.json", "release"]:
            if os.path.exists(f"{self.source}/{name}"):
                _copy(f"{self.source}/{name}", f"{folder}/{name}")

    def fingerprint(self, whole: bool = False) -> str:
        """Of everything that an engine is started with. whole: and of how it is followed, and of
        its time-outs and order: a longer time-out is worth another try."""
        digest = hashlib.sha256(self.release().encode())
        for name in [*self.targets, *(["start.json"] if whole else [])]:
            if whole or name != RELOADED:
                text = essence(content(f"{self.source}/{name}"))
                digest.update(f"\n{name} {-1 if text is None else len(text)}\n".encode())
                digest.update(text or b"")
        return digest.hexdigest()

    def in_place(self) -> bool:
        """The files in service are the source's, to the letter and the mode, the link points
        right, and the cache folder is the engine's."""
        same = all(
            _wanted(f"{self.source}/{name}") == _seal(target)
            for name, target in self.targets.items()
        )
        return same and self._link_is_right() and self._cache_is_right()

    def _cache_is_right(self) -> bool:
        try:
            return os.stat(self.cache).st_uid == pwd.getpwnam(ENGINE_USER).pw_uid
        except (OSError, KeyError):
            return False

    def must_restart(self, unit: service.Unit) -> bool:
        """True when the running (or stopped) engine was not started with what the source holds."""
        if self.differs():
            return True
        # A transaction that was cut off has its own record. So state.json may be lost: it only
        # tells of somebody who started the engine while files were switched.
        memory = self.remembered()
        switched = memory.get("switched_us")
        if memory.get("boot") != boot() or not isinstance(switched, int | float):
            return False
        return bool(unit.main_pid and unit.started_us < switched)

    def differs(self) -> list[str]:
        """Files and links in service with which an engine would start otherwise than the source
        says."""
        edited = [
            target
            for name, target in self.targets.items()
            if name != RELOADED
            and essence(content(f"{self.source}/{name}")) != essence(content(target))
        ]
        return [*edited, *([] if self._link_is_right() else [self.link])]

    def _link_is_right(self) -> bool:
        try:
            return os.readlink(self.link) == f"{OPT}/releases/{self.release()}"
        except OSError:
            return False

    def verify(self) -> None:
        """Let systemd read the staged unit before anything is stopped or installed for it."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/{self.unit}"
            text = (content(f"{self.source}/vllm@.service") or b"").decode()
            # Its program is put in place only with the switch.
            write(path, re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", text))
            os.mkdir(f"{path}.d")
            shutil.copy(f"{self.source}/{RELOADED}", f"{path}.d")
            # Without --recursive-errors a misspelt directive is a remark, not a failure.
            command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Refusal(f"systemd does not accept the staged unit: {done.stderr.strip()}")

    def install(self) -> None:
        """Put the source's files in place, each by rename."""
        self._place()
        service.systemctl("daemon-reload")
        self.remember(**self.seen())

    def _place(self) -> None:
        os.makedirs(self.etc, mode=0o755, exist_ok=True)
        os.makedirs(self.drop_ins, exist_ok=True)
        os.makedirs(self.cache, exist_ok=True)
        if not self._cache_is_right():
            chown = ["chown", "-R", f"{ENGINE_USER}:", self.cache]
            done = subprocess.run(chown, capture_output=True, text=True)
            if done.returncode:
                raise Refusal(
                    f"{self.cache} can't be given to the engine's account: {done.stderr.strip()}"
                )
        for name, target in self.targets.items():
            if not os.path.exists(f"{self.source}/{name}"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(target)
            elif _wanted(f"{self.source}/{name}") != _seal(target):
                _copy(f"{self.source}/{name}", target)
        start = content(f"{self.source}/start.json")
        if start is not None and start != content(f"{self.etc}/start.json"):
            _copy(f"{self.source}/start.json", f"{self.etc}/start.json")

    def seen(self) -> dict[str, object]:
        """What drift is judged by: the files as they are now."""
        return {"files": {name: _digest(target) for name, target in self.targets.items()}}

    def switch(self) -> None:
        """Put the source's files and release in place; the engine must be stopped."""
        self._place()
        os.makedirs(f"{OPT}/active", exist_ok=True)
        beside = f"{self.link}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        if os.path.isdir(self.link) and not os.path.islink(self.link):
            shutil.rmtree(self.link)
        os.symlink(f"{OPT}/releases/{self.release()}", beside)
        os.replace(beside, self.link)
        service.systemctl("daemon-reload")
        # Last: on a full disk everything is in place all the same.
        self.remember(
            **self.seen(),
            boot=boot(),
            switched_us=time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6,
            release=self.release(),
            since=time.time(),
            status="starting",
        )

    def withdraw(self) -> None:
        """Take a stopped instance out of service; what is staged, kept and cached stays.

        The drop-in goes last: while that is there, the next run tries again.
        """
        service.systemctl("disable", "--quiet", self.unit, check=False)
        # A switch that was killed may have left the one beside it.
        for link in (self.link, f"{self.link}.new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
        shutil.rmtree(self.etc, ignore_errors=True)
        service.systemctl("reset-failed", self.unit, check=False)
        shutil.rmtree(self.drop_ins, ignore_errors=True)
        if not glob.glob(f"{UNITS}/vllm@?*.service.d"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.targets["vllm@.service"])
        service.systemctl("daemon-reload")

    def remove(self) -> None:
        """Remove everything of a stopped instance but the weights."""
        pending = f"{VAR}/transaction/{self.name}"
        staged = f"{VAR}/staged/{self.name}"
        for folder in (self.cache, staged, self.previous, self.served, self.failures):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(pending, ignore_errors=True)
        self.forget()
        self.withdraw()

    def forget(self) -> None:
        state = read_json(STATE)
        state.pop(self.name, None)
        write(STATE, json.dumps(state, indent=1) + "\n", 0o600)

    def remembered(self) -> dict[str, object]:
        entry = read_json(STATE).get(self.name)
        return entry if isinstance(entry, dict) else {}

    def remember(self, **values: object) -> None:
        state = read_json(STATE)
        state[self.name] = {**self.remembered(), **values}
        write(STATE, json.dumps(state, indent=1) + "\n", 0o600)


def is_built(release: str) -> bool:
    """True when a release is whole: its stamp is the last thing that its build writes."""
    return os.path.exists(f"{OPT}/releases/{release}/.complete")


def content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _private(folder: str) -> None:
    """Make a folder that only root looks into, as the one above it."""
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o700)
    os.chmod(os.path.dirname(folder), 0o700)


def _mode(path: str) -> int:
    """The mode that a file is copied with."""
    return 0o600 if os.path.basename(path) == KEY else os.stat(path).st_mode & 0o777


def _copy(source: str, target: str) -> None:
    try:
        write(target, content(source) or b"", _mode(source))
    except OSError:
        # On a full disk going back must work all the same: a second name takes no space.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{target}.new")
        os.chmod(source, _mode(source))
        os.link(source, f"{target}.new")
        os.replace(f"{target}.new", target)


def _digest(path: str) -> str | None:
    text = content(path)
    return None if text is None else hashlib.sha256(text).hexdigest()


def _seal(path: str) -> tuple[bytes | None, int, int]:
    """What must be equal of a staged file and the one in place: content, mode, owner."""
    try:
        info = os.stat(path)
    except OSError:
        return None, 0, 0
    return content(path), info.st_mode & 0o777, info.st_uid


def _wanted(source: str) -> tuple[bytes | None, int, int]:
    """The seal that a copy of a file has."""
    text, mode, owner = _seal(source)
    return text, mode if text is None else _mode(source), owner


def essence(text: bytes | None) -> bytes | None:
    """A configuration file without comments and empty lines: what an engine is started with."""
    if text is None:
        return None
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(b"#")]
    return b"\n".join(lines)


def boot() -> str:
    """Identifies this boot: monotonic times of another one say nothing."""
    return (content("/proc/sys/kernel/random/boot_id") or b"").decode().strip()

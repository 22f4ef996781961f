"""One engine instance as files: what is staged, what is in place, and putting one for the other."""

from __future__ import annotations

import contextlib
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
RELOADED = "instance.conf"
"""Time-outs and order: systemd takes them over without a restart of the engine."""


class Instance:
    """One instance's folders, and what state.json remembers of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unit = f"vllm@{name}.service"
        self.staged = f"{VAR}/staged/{name}"
        self.etc = f"{ETC}/{name}"
        self.link = f"{OPT}/active/{name}"
        self.cache = f"{VAR}/cache/{name}"
        self.drop_ins = f"{UNITS}/{self.unit}.d"
        self.start = read_json(f"{self.staged}/start.json")
        # Staged file and where it goes.
        self.targets = {
            "serve.yaml": f"{self.etc}/serve.yaml",
            "env": f"{self.etc}/env",
            "api-key.env": f"{self.etc}/api-key.env",
            "vllm@.service": f"{UNITS}/vllm@.service",
            RELOADED: f"{self.drop_ins}/instance.conf",
        }

    def release(self) -> str:
        return (content(f"{self.staged}/release") or b"").decode().strip()

    def fingerprint(self) -> str:
        """Of everything that an engine is started with."""
        digest = hashlib.sha256(self.release().encode())
        for name in self.targets:
            if name != RELOADED:
                text = essence(content(f"{self.staged}/{name}"))
                digest.update(f"\n{name} {-1 if text is None else len(text)}\n".encode())
                digest.update(text or b"")
        return digest.hexdigest()

    def in_place(self) -> bool:
        """The files in service are the staged ones, to the letter and the mode, the link points
        right, and the cache folder is the engine's."""
        same = all(
            _seal(f"{self.staged}/{name}") == _seal(target) for name, target in self.targets.items()
        )
        return same and self._link_is_right() and self._cache_is_right()

    def _cache_is_right(self) -> bool:
        try:
            return os.stat(self.cache).st_uid == pwd.getpwnam(ENGINE_USER).pw_uid
        except (OSError, KeyError):
            return False

    def must_restart(self, unit: service.Unit) -> bool:
        """True when the running (or stopped) engine was not started with what is staged."""
        same = all(
            essence(content(f"{self.staged}/{name}")) == essence(content(target))
            for name, target in self.targets.items()
            if name != RELOADED
        )
        memory = self.remembered()
        if not same or not self._link_is_right():
            return True
        if memory.get("fingerprint") != self.fingerprint():
            return True
        same_boot = memory.get("boot") == _boot()
        started_before = unit.started_us < float(str(memory.get("switched_us", 0)))
        return bool(unit.main_pid and same_boot and started_before)

    def _link_is_right(self) -> bool:
        try:
            return os.readlink(self.link) == f"{OPT}/releases/{self.release()}"
        except OSError:
            return False

    def verify(self) -> None:
        """Let systemd read the staged unit before anything is stopped or installed for it."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/{self.unit}"
            text = (content(f"{self.staged}/vllm@.service") or b"").decode()
            # Its program is put in place only with the switch.
            write(path, re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", text))
            os.mkdir(f"{path}.d")
            shutil.copy(f"{self.staged}/{RELOADED}", f"{path}.d")
            # Without --recursive-errors a misspelt directive is a remark, not a failure.
            command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Refusal(f"systemd does not accept the staged unit: {done.stderr.strip()}")

    def install(self) -> None:
        """Put the staged files in place, each by rename."""
        os.makedirs(self.etc, mode=0o755, exist_ok=True)
        os.makedirs(self.drop_ins, exist_ok=True)
        os.makedirs(self.cache, exist_ok=True)
        if not self._cache_is_right():
            subprocess.run(["chown", "-R", f"{ENGINE_USER}:", self.cache], check=True)
        for name, target in self.targets.items():
            text = content(f"{self.staged}/{name}")
            if text is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(target)
            elif _seal(f"{self.staged}/{name}") != _seal(target):
                mode = os.stat(f"{self.staged}/{name}").st_mode & 0o777
                write(target, text.decode(), mode)
        service.systemctl("daemon-reload")

    def switch(self) -> None:
        """Put the staged files and the release in place; the engine must be stopped."""
        self.install()
        os.makedirs(f"{OPT}/active", exist_ok=True)
        beside = f"{self.link}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        if os.path.isdir(self.link) and not os.path.islink(self.link):
            shutil.rmtree(self.link)
        os.symlink(f"{OPT}/releases/{self.release()}", beside)
        os.replace(beside, self.link)
        previous = self.remembered().get("release")
        changed = previous != self.release()
        self.remember(
            fingerprint=self.fingerprint(),
            boot=_boot(),
            switched_us=time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6,
            release=self.release(),
            status="starting",
            **({"previous_release": previous} if changed and previous else {}),
        )

    def remove(self) -> None:
        """Remove everything of a stopped instance but the weights.

        The drop-in goes last: while that is there, the next run tries again.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.link)
        for folder in (self.cache, self.staged, self.etc):
            shutil.rmtree(folder, ignore_errors=True)
        state = read_json(STATE)
        state.pop(self.name, None)
        write(STATE, json.dumps(state, indent=1) + "\n", 0o600)
        service.systemctl("reset-failed", self.unit, check=False)
        shutil.rmtree(self.drop_ins, ignore_errors=True)
        service.systemctl("daemon-reload")

    def remembered(self) -> dict[str, object]:
        entry = read_json(STATE).get(self.name)
        return entry if isinstance(entry, dict) else {}

    def remember(self, **values: object) -> None:
        state = read_json(STATE)
        state[self.name] = {**self.remembered(), **values}
        write(STATE, json.dumps(state, indent=1) + "\n", 0o600)


def content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _seal(path: str) -> tuple[bytes | None, int, int]:
    """What must be equal of a staged file and the one in place: content, mode, owner."""
    try:
        info = os.stat(path)
    except OSError:
        return None, 0, 0
    return content(path), info.st_mode, info.st_uid


def essence(text: bytes | None) -> bytes | None:
    """A configuration file without comments and empty lines: what an engine is started with."""
    if text is None:
        return None
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(b"#")]
    return b"\n".join(lines)


def _boot() -> str:
    return (content("/proc/sys/kernel/random/boot_id") or b"").decode().strip()

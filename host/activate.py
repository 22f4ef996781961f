"""Put what is staged for an instance in service, and prove that it serves.

usage: activate.py check NAME...     state of instances as one line of JSON; changes nothing
       activate.py apply NAME        switch when something differs, start, follow, prove
       activate.py remove NAME       stop and remove an instance; others are left alone
       activate.py key NAME          make an API key in the staging folder unless there is one

Safe to be killed and run again: what is in place is read from the files and from systemd.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time

import service
from common import ETC, OPT, VAR, Refusal, lock, main, read_json, say, write
from engine_log import first_exception, phase

STATE = f"{VAR}/state.json"
UNITS = "/etc/systemd/system"
SPEAK_EVERY_S = 10
MEMORY_TIMEOUT_S = 300
"""Reclaim after a stop is asynchronous: minutes were seen (F57)."""


class Instance:
    """One instance's folders and what state.json remembers of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unit = f"vllm@{name}.service"
        self.staged = f"{VAR}/staged/{name}"
        self.etc = f"{ETC}/{name}"
        self.link = f"{OPT}/active/{name}"
        self.start = read_json(f"{self.staged}/start.json")

    def targets(self) -> dict[str, str]:
        """Staged file and where it goes."""
        return {
            "serve.yaml": f"{self.etc}/serve.yaml",
            "env": f"{self.etc}/env",
            "api-key.env": f"{self.etc}/api-key.env",
            "vllm@.service": f"{UNITS}/vllm@.service",
            "instance.conf": f"{UNITS}/{self.unit}.d/instance.conf",
        }

    def release(self) -> str:
        return (_content(f"{self.staged}/release") or b"").decode().strip()

    def fingerprint(self) -> str:
        """Of everything that a running engine was started with."""
        digest = hashlib.sha256()
        for name in ("release", *self.targets()):
            content = _content(f"{self.staged}/{name}")
            digest.update(f"{name} {-1 if content is None else len(content)}\n".encode())
            digest.update(content or b"")
        return digest.hexdigest()

    def in_place(self) -> bool:
        """The files in service are the staged ones, and the release link points right."""
        same = all(
            _content(f"{self.staged}/{name}") == _content(target)
            for name, target in self.targets().items()
        )
        return same and _target(self.link) == f"{OPT}/releases/{self.release()}"

    def remembered(self) -> dict[str, object]:
        entry = read_json(STATE).get(self.name)
        return entry if isinstance(entry, dict) else {}

    def remember(self, **values: object) -> None:
        state = read_json(STATE)
        state[self.name] = {**self.remembered(), **values}
        write(STATE, json.dumps(state, indent=1) + "\n", 0o600)

    def must_switch(self, unit: service.Unit) -> bool:
        """True when the running (or stopped) engine is not what is staged."""
        memory = self.remembered()
        if not self.in_place() or memory.get("fingerprint") != self.fingerprint():
            return True
        same_boot = memory.get("boot") == _boot()
        started_before = unit.started_us < float(str(memory.get("switched_us", 0)))
        return bool(unit.main_pid and same_boot and started_before)


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _target(link: str) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _boot() -> str:
    return (_content("/proc/sys/kernel/random/boot_id") or b"").decode().strip()


def check(names: list[str]) -> None:
    """Print for each instance: must_switch, active, enabled, and the proof or what is missing."""
    print(json.dumps({name: _check(Instance(name)) for name in names}))


def _check(instance: Instance) -> dict[str, object]:
    unit = service.show(instance.unit)
    answer: dict[str, object] = {
        "must_switch": instance.must_switch(unit),
        "active": unit.active,
        "enabled": unit.enabled,
        "proof": None,
        "missing": None,
    }
    if unit.active == "active" and not answer["must_switch"]:
        try:
            server = service.endpoint(instance.start, instance.name)
            answer["proof"] = service.prove(instance.unit, server)
        except Refusal as refusal:
            answer["missing"] = str(refusal)
    return answer


def apply(name: str) -> None:
    instance = Instance(name)
    if not instance.start:
        raise Refusal(f"nothing is staged for {name} in {instance.staged}")
    with lock("activation", "starting an engine"):
        unit = service.show(instance.unit)
        if instance.must_switch(unit):
            _verify(instance)
            _stop(instance, unit)
            _switch(instance)
            unit = service.show(instance.unit)
        elif unit.active == "active" and _check(instance)["missing"]:
            say("      it is active but does not serve, it is started anew")
            _stop(instance, unit)
            unit = service.show(instance.unit)
        service.systemctl("enable", "--quiet", instance.unit)
        try:
            if unit.down:
                _wait_for_memory(instance)
                _drop_page_cache()
                service.systemctl("reset-failed", instance.unit, check=False)
                service.systemctl("start", "--no-block", instance.unit)
            _follow(instance)
            proof = service.prove(instance.unit, service.endpoint(instance.start, name))
        except Refusal as refusal:
            _stop(instance, service.show(instance.unit))
            instance.remember(status="failed", reason=str(refusal), at=time.time())
            raise
        instance.remember(status="serving", reason=None, at=time.time())
        say(f"      {proof}")


def _verify(instance: Instance) -> None:
    """Let systemd read the staged unit before anything is stopped or installed for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{instance.unit}"
        text = (_content(f"{instance.staged}/vllm@.service") or b"").decode()
        # Its program is put in place only with the switch.
        write(path, re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", text))
        os.mkdir(f"{path}.d")
        shutil.copy(f"{instance.staged}/instance.conf", f"{path}.d")
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True
        )
    if done.returncode:
        raise Refusal(f"systemd does not accept the staged unit: {done.stderr.strip()}")


def _stop(instance: Instance, unit: service.Unit) -> None:
    if unit.active == "inactive":
        return
    if unit.active == "activating":
        # vLLM loses a SIGTERM that comes during its start (seen: 0.32.0), and nothing is served
        # yet that could be lost.
        say("      stopping the engine, which is still starting")
        service.systemctl("stop", "--no-block", instance.unit)
        service.systemctl("kill", "--signal=SIGKILL", instance.unit, check=False)
    else:
        say("      stopping the engine; requests that run may finish")
    service.systemctl("stop", instance.unit)


def _switch(instance: Instance) -> None:
    """Put the staged files in place, each by rename."""
    os.makedirs(instance.etc, mode=0o755, exist_ok=True)
    os.makedirs(f"{UNITS}/{instance.unit}.d", exist_ok=True)
    cache = f"{VAR}/cache/{instance.name}"
    os.makedirs(cache, exist_ok=True)
    shutil.chown(cache, "vllm", "vllm")
    for name, target in instance.targets().items():
        content = _content(f"{instance.staged}/{name}")
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
        else:
            mode = os.stat(f"{instance.staged}/{name}").st_mode & 0o777
            write(target, content.decode(), mode)
    os.makedirs(f"{OPT}/active", exist_ok=True)
    beside = f"{instance.link}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    os.symlink(f"{OPT}/releases/{instance.release()}", beside)
    os.replace(beside, instance.link)
    service.systemctl("daemon-reload")
    previous = instance.remembered().get("release")
    changed = previous != instance.release()
    instance.remember(
        fingerprint=instance.fingerprint(),
        boot=_boot(),
        switched_us=time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6,
        release=instance.release(),
        status="starting",
        **({"previous_release": previous} if changed and previous else {}),
    )


def _wait_for_memory(instance: Instance) -> None:
    """Wait until the budget is really free; name who holds the memory when it is not."""
    memory = instance.start["memory"]
    assert isinstance(memory, dict)
    if not memory["fraction"]:
        return
    started = time.monotonic()
    while True:
        now = service.probe.memory()
        need = now["MemTotal"] * memory["fraction"]
        if now["MemAvailable"] >= need:
            return
        waited = time.monotonic() - started
        shown = f"{now['MemAvailable'] / 1024**3:.1f} of {need / 1024**3:.1f} GiB are free"
        if waited > MEMORY_TIMEOUT_S:
            raise Refusal(f"{shown} after {waited:.0f} s; largest: {service.memory_holders()}")
        say(f"{waited:4.0f} s  waiting for memory: {shown} (normal after a stop: up to 180 s)")
        time.sleep(SPEAK_EVERY_S)


def _drop_page_cache() -> None:
    """The engine takes page cache for used memory in some versions (F13)."""
    os.sync()
    with contextlib.suppress(OSError), open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def _follow(instance: Instance) -> None:
    """Say what the start is doing until the unit is active. Raises Refusal when it fails."""
    begun = time.monotonic()
    first = service.show(instance.unit)
    journal = service.Journal(first.invocation)
    now, said, spoken = "starting Python", "", begun
    normal, timeout = instance.start["normal"], float(str(instance.start["timeout_s"]))
    phases = instance.start["phases"]
    assert isinstance(phases, list)
    say(f"   0 s  starting {instance.unit} ({normal})")
    while True:
        unit = service.show(instance.unit)
        if not first.invocation:
            first, journal = unit, service.Journal(unit.invocation)
        elapsed = time.monotonic() - begun
        now = phase(journal.new(), phases, now)
        if unit.active == "active" and unit.invocation == first.invocation:
            say(f"{elapsed:4.0f} s  ready")
            return
        if unit.down or unit.invocation != first.invocation or unit.restarts > first.restarts:
            raise Refusal(_failure(instance, journal, unit, now, elapsed))
        if elapsed > timeout:
            raise Refusal(_failure(instance, journal, unit, now, elapsed))
        if now != said or time.monotonic() - spoken >= SPEAK_EVERY_S:
            say(f"{elapsed:4.0f} s  {now}")
            said, spoken = now, time.monotonic()
        time.sleep(1)


def _failure(
    instance: Instance, journal: service.Journal, unit: service.Unit, now: str, elapsed: float
) -> str:
    journal.new()
    cause = first_exception(journal.lines)
    return (
        f"{instance.name} did not start: {cause or 'no exception in its journal'}\n"
        f"      while {now}, after {elapsed:.0f} s; exit status {unit.exit_status}, "
        f"result {unit.result}\n"
        f"      whole log: sudo journalctl -u {instance.unit} {journal.match}"
    )


def remove(name: str) -> None:
    instance = Instance(name)
    with lock("activation", "starting an engine"):
        _stop(instance, service.show(instance.unit))
        service.systemctl("disable", "--quiet", instance.unit, check=False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(instance.link)
        folders = (
            instance.etc,
            instance.staged,
            f"{UNITS}/{instance.unit}.d",
            f"{VAR}/cache/{name}",
        )
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        state = read_json(STATE)
        state.pop(name, None)
        write(STATE, json.dumps(state, indent=1) + "\n", 0o600)
        service.systemctl("daemon-reload")
        service.systemctl("reset-failed", instance.unit, check=False)
        say(f"      {name} is stopped and removed; its weights are kept")


def key(name: str) -> None:
    staged, active = f"{VAR}/staged/{name}/api-key.env", f"{ETC}/{name}/api-key.env"
    if not os.path.exists(staged):
        known = _content(active)
        text = known.decode() if known else f"VLLM_API_KEY={secrets.token_urlsafe(32)}\n"
        os.makedirs(os.path.dirname(staged), exist_ok=True)
        write(staged, text, 0o600)


def program() -> None:
    os.umask(0o022)
    command, *names = sys.argv[1:]
    if command == "check":
        check(names)
    else:
        {"apply": apply, "remove": remove, "key": key}[command](names[0])


if __name__ == "__main__":
    main(program)

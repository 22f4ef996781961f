"""A systemd in memory, a clock that only tests move, and instances staged in a folder."""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import activate
import common
import detached
import instance
import pair
import pair_agent
import pairing
import probe
import pytest
import service
import starting
import status
import transaction
import undoing
from common import Refusal
from instance import Instance

from sparkwright import render
from sparkwright.plan import RawHost, build_plan

GIB = 1024**3
STOPPED = service.Unit("inactive", "dead", 0, "", 0, "", 0, False, "success", False)
RUNNING = {"active": "active", "sub": "running", "main_pid": 7}
STARTING = {"active": "activating", "sub": "start-post", "main_pid": 7}
QUEUED = {"queued": True}
FAILED = {"active": "failed", "sub": "failed", "main_pid": 0, "exit_status": "1"}

# What a start looks like: seconds after it was asked for, what changes, what the journal says.
Start = list[tuple[float, dict[str, Any], list[str]]]
GOOD: Start = [(0, QUEUED, []), (1, STARTING, ["Loading safetensors"]), (9, RUNNING, [])]


@dataclass
class Systemd:
    """Units, their starts, and everything that systemctl was asked to do.

    starts: for each unit how its next starts go, `GOOD` when nothing is said.
    proofs: for each unit what its next generations give, one that works when nothing is said.
    """

    now: float = 0
    units: dict[str, service.Unit] = field(default_factory=dict)
    starts: dict[str, list[Start]] = field(default_factory=dict)
    proofs: dict[str, list[str | Refusal]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    journals: dict[str, list[str]] = field(default_factory=dict)
    under_way: dict[str, tuple[float, Start]] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    """Fraction of the memory that each unit's engine holds while it runs."""
    invocations: int = 0
    left: list[str] = field(default_factory=list)
    """Processes that a stopped unit leaves."""

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        self.asked.append(" ".join(a for a in arguments if not a.startswith("--")))
        verb, unit = arguments[0], arguments[-1]
        if verb == "start" and unit.endswith(".service"):
            # systemctl refuses nothing here; a failure shows in the unit's state.
            self.begin(unit, (self.starts.get(unit) or [GOOD]).pop(0))
        elif verb == "stop":
            self.under_way.pop(unit, None)
            self.units[unit] = replace(
                self.state(unit), active="inactive", sub="dead", main_pid=0, queued=False
            )
        elif verb in ("enable", "disable"):
            self.units[unit] = replace(self.state(unit), enabled=verb == "enable")
        return ""

    def begin(self, unit: str, start: Start) -> None:
        """Let a start take its course from now on."""
        self.under_way[unit] = (self.now, list(start))
        self.advance(0)

    def state(self, unit: str) -> service.Unit:
        return self.units.get(unit, STOPPED)

    def show(self, unit: str) -> service.Unit:
        return self.state(unit)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for unit, (asked, steps) in self.under_way.items():
            while steps and self.now - asked >= steps[0][0]:
                _, changes, lines = steps.pop(0)
                self._step(unit, changes, lines)

    def _step(self, unit: str, changes: dict[str, Any], lines: list[str]) -> None:
        before = self.state(unit)
        after = replace(before, **{"queued": False, **changes})
        begins = before.active in ("inactive", "failed") or before.sub.startswith("auto-restart")
        if begins and not after.queued:
            self.invocations += 1
            started = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
            after = replace(after, invocation=f"i{self.invocations}", started_us=started)
        self.units[unit] = after
        self.journals.setdefault(after.invocation, []).extend(lines)

    def memory(self) -> dict[str, int]:
        running = [u for u, s in self.units.items() if s.active in ("active", "activating")]
        free = 1 - sum(self.held.get(unit, 0) for unit in running)
        return {"MemTotal": 100 * GIB, "MemAvailable": int(free * 100 * GIB)}

    def prove(
        self,
        unit: str,
        server: service.Endpoint,
        patient: bool = True,
        limit_s: float | None = None,
    ) -> str:
        assert self.state(unit).active == "active"
        outcome = (self.proofs.get(unit) or [f"{server.name} generated 8 tokens"]).pop(0)
        if isinstance(outcome, Refusal):
            raise outcome
        return outcome

    def journal(self, invocation: str) -> Any:
        """Stands in for service.Journal."""
        made = SimpleNamespace(invocation=invocation, match=f"ID={invocation}", lines=[])

        def new() -> list[str]:
            fresh = self.journals.get(invocation, [])[len(made.lines) :]
            made.lines += fresh
            return fresh

        made.new = new
        return made

    def changes(self) -> list[str]:
        """What was asked since the last call, without what is asked every time."""
        always = ("enable", "reset-failed", "start sparkwright-watch@")
        seen = [asked for asked in self.asked if not asked.startswith(always)]
        self.asked.clear()
        return seen


class Spark:
    """A host's folders below a temporary one, with its systemd."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.systemd = root, Systemd()
        self.etc, self.opt, self.var = root / "etc", root / "opt", root / "var"
        self.units = root / "units"
        programs = (activate, common, detached, instance, pairing, service, status, transaction)
        for module in (*programs, pair, pair_agent, undoing):
            for name, folder in {"ETC": self.etc, "OPT": self.opt, "VAR": self.var}.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, str(folder))
        monkeypatch.setattr(pairing, "RUN", str(root / "run"))
        monkeypatch.setattr(pair, "RUN", str(root / "run"))
        monkeypatch.setattr(instance, "STATE", str(self.var / "state.json"))
        monkeypatch.setattr(instance, "UNITS", str(self.units))
        monkeypatch.setattr(instance, "ENGINE_USER", pwd.getpwuid(os.getuid()).pw_name)
        self.verified: list[str] = []
        self.stopping_host = False
        self.masked: list[str] = []
        monkeypatch.setattr(service, "is_masked", lambda unit: unit in self.masked)
        monkeypatch.setattr(service, "left_behind", lambda _: self.systemd.left)
        monkeypatch.setattr(service, "shutting_down", lambda: self.stopping_host)
        monkeypatch.setattr(transaction.signal, "signal", lambda *_: None)
        self.verify = Instance.verify
        monkeypatch.setattr(Instance, "verify", lambda one: self.verified.append(one.name))
        for name in ("systemctl", "show", "prove"):
            monkeypatch.setattr(service, name, getattr(self.systemd, name))
        monkeypatch.setattr(service, "Journal", self.systemd.journal)
        monkeypatch.setattr(service, "memory_holders", lambda: "80.0 GiB pid 9 other")
        monkeypatch.setattr(probe, "memory", self.systemd.memory)
        monkeypatch.setattr(probe, "instances", lambda _: self.instances())
        clock = SimpleNamespace(
            monotonic=lambda: self.systemd.now, sleep=self.systemd.advance, time=time.time
        )
        monkeypatch.setattr(starting, "time", clock)
        monkeypatch.setattr(transaction.os, "sync", lambda: None)
        dropped = self.root / "drop_caches"
        monkeypatch.setattr(starting, "open", lambda *_: dropped.open("w"), raising=False)

    def stage(self, **profiles: dict[str, Any]) -> None:
        """Stage what the deploy would, in the order of the names."""
        data = {
            name: {
                "profile": {
                    "model": "/m",
                    "port": 8000 + n,
                    "gpu_memory_utilization": 0.3,
                    "ready_timeout_s": 60,
                    **profile,
                }
            }
            for n, (name, profile) in enumerate(profiles.items())
        }
        release = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
        plan = build_plan([RawHost("h", tuple(profiles), release)], data)["h"]
        for one in plan.instances:
            self.build(one.release.id)
            folder = self.var / "staged" / one.name
            folder.mkdir(parents=True, exist_ok=True)
            for file in render.instance_files(one):
                there = folder / Path(file.path).name
                there.write_text(file.content)
                there.chmod(int(file.mode, 8))
            self.systemd.held[f"vllm@{one.name}.service"] = one.profile.gpu_memory_utilization

    def instances(self) -> list[str]:
        """Stands in for probe.instances, which looks into folders of the machine."""
        found = [*(self.var / "staged").glob("*"), *(self.opt / "active").glob("*")]
        drop_ins = [path.name[5:-10] for path in self.units.glob("vllm@?*.service.d")]
        return sorted({*(path.name for path in found), *drop_ins})

    def build(self, release: str) -> None:
        """A release that is whole."""
        (self.opt / "releases" / release).mkdir(parents=True, exist_ok=True)
        (self.opt / "releases" / release / ".complete").touch()

    def staged(self, name: str, file: str) -> Path:
        return self.var / "staged" / name / file

    def serve(self, **profiles: dict[str, Any]) -> None:
        """Stage and apply; what was asked of systemd is forgotten."""
        self.stage(**profiles)
        transaction.run(list(profiles))
        self.systemd.asked.clear()

    def state(self, name: str) -> service.Unit:
        return self.systemd.state(f"vllm@{name}.service")

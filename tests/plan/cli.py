"""Run the real command line against pretended hosts: `pyinfra -y INVENTORY deploy.py`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Begins every inventory: hosts that answer the probe, each in its own way.
PREAMBLE = """
import json
import time
from pathlib import Path

from sparkwright import paths
from sparkwright.plan import RawHost, build_plan
from sparkwright.preflight import request

_release = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
_groups = {"tiny": {"profile": {"model": "/srv/models/tiny-qwen3"}}}
_plan = build_plan([RawHost("h", ("tiny",), _release)], _groups)["h"]


def _probe(**platform):
    "The answer of a healthy Spark that has nothing installed yet."
    seen = json.loads(Path("tests/fixtures/host/probe-healthy.json").read_text())
    seen["platform"] |= {"time": time.time(), **platform}
    seen["stamps"] = dict.fromkeys(request(_plan)["stamps"])
    listing = {paths.RELEASES: []}
    seen |= {"packages": [], "user": True, "files": {}, "instances": []}
    return seen | {"listing": listing, "links": {}}


def _fake(name, answer, **data):
    text = answer if isinstance(answer, str) or "success" in answer else json.dumps(answer)
    return (f"@fake/{name}", {"fake_responses": {"zlib": text}, **data})


def _healthy(name):
    return _fake(name, _probe())


def _cuda_12(name):
    return _fake(name, _probe(cuda={"/usr/local/cuda": "12.8"}))
"""
TINY = 'model="/srv/models/tiny-qwen3"'


@dataclass(frozen=True)
class Run:
    """Exit status, output, and peak memory in bytes of a run."""

    status: int
    output: str
    peak: int

    def commands(self, host: str) -> list[str]:
        """What a pretended host was given to run; needs --debug."""
        prefix = f"[fake] simulating command on @fake/{host}: "
        return [part.split("\n")[0] for part in self.output.split(prefix)[1:]]

    def lines(self, host: str) -> list[str]:
        """What is said about one host."""
        return re.findall(rf"^ *\[{re.escape(host)}\] +(.*)$", self.output, re.M)


@dataclass(frozen=True)
class Scenario:
    """An inventory and how it is deployed.

    hosts: Python that fills groups. profile: fields of the group `tiny`, as Python. stdin: what is
    typed. interrupt: a text in the output at which Ctrl-C is pressed.
    """

    hosts: str
    profile: str = TINY
    options: tuple[str, ...] = ("-y",)
    env: tuple[tuple[str, str], ...] = ()
    deploy: str = "deploy.py"
    stdin: str = ""
    interrupt: str = ""


class Runner:
    """Runs scenarios in the background, two at a time, each once."""

    def __init__(self, folder: Path, ssh_port: int) -> None:
        self.folder = folder
        self.ssh_port = ssh_port
        self.pool = ThreadPoolExecutor(2)
        self.futures: dict[str, Future[Run]] = {}

    def start(self, scenarios: dict[str, Scenario]) -> None:
        for name, scenario in scenarios.items():
            self.futures[name] = self.pool.submit(self._run, name, scenario)

    def _run(self, name: str, scenario: Scenario) -> Run:
        folder = self.folder / name
        (folder / "data").mkdir(parents=True)
        (folder / "data/tiny.py").write_text(f"profile = dict({scenario.profile})\n")
        inventory = folder / "sparks.py"
        here = f"_port, _folder = {self.ssh_port}, {str(self.folder)!r}\n"
        inventory.write_text(PREAMBLE + here + scenario.hosts)
        (folder / "stdin").write_text(scenario.stdin)
        output = folder / "output"
        with (folder / "stdin").open() as typed, output.open("w") as said:
            process = subprocess.Popen(
                [
                    ROOT / ".venv/bin/pyinfra",
                    *scenario.options,
                    "--group-data",
                    folder / "data",
                    inventory,
                    scenario.deploy,
                ],
                cwd=ROOT,
                env={
                    **os.environ,
                    **dict(scenario.env),
                    "PYINFRA_PROGRESS": "off",
                    "PYINFRA_FAKE_DELAY": "0",
                    "PYINFRA_FAKE_DELAY_JITTER": "0",
                    "PYTHONPATH": str(ROOT),
                },
                stdin=typed,
                stdout=said,
                stderr=said,
            )
        peak = _follow(process, output, scenario.interrupt)
        return Run(process.returncode, output.read_text(), peak)


def _follow(process: subprocess.Popen[bytes], output: Path, interrupt: str) -> int:
    """Wait for the end; the peak memory of this process alone, in bytes."""
    peak, late = 0, time.monotonic() + 300
    while process.poll() is None:
        with contextlib.suppress(OSError):
            # Not by Path: test_plan_command.py counts what that reads meanwhile.
            with open(f"/proc/{process.pid}/status") as file:
                status = file.read()
            peak = max([peak, *(int(n) * 1024 for n in re.findall(r"VmHWM:\s+(\d+) kB", status))])
        if interrupt and _is_in(output, interrupt):
            process.send_signal(signal.SIGINT)
            interrupt = ""
        if time.monotonic() > late:
            process.kill()
        time.sleep(0.1)
    return peak


def _is_in(file: Path, text: str) -> bool:
    with open(file) as opened:
        return text in opened.read()

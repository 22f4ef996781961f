"""Deploy to the test lab and read the truth from its hosts: systemctl, curl, stat, the journal.

Nothing here uses the code under test to look at a host.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
LAB = "test"


def sparkwright(*arguments: str, timeout: float = 900) -> str:
    """Run the `sparkwright` command; its output. Fails the test when it fails."""
    done = subprocess.run(
        [BIN / "sparkwright", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass
class Spark:
    """One host of the test lab."""

    name: str
    container: str
    data: dict[str, Any]
    standin: list[dict[str, Any]]

    def sh(self, script: str, check: bool = True, timeout: float = 300) -> str:
        """Output of a shell script run as root inside the host, not over SSH."""
        done = subprocess.run(
            ["docker", "exec", "-i", self.container, "sh", "-c", script],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
        assert not check or done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def unit(self, name: str, prop: str) -> str:
        return self.sh(f"systemctl show -p {prop} --value vllm@{name}")

    def ask(self, path: str, body: object = None, port: int = 8000, key: str = "") -> Any:
        """JSON (or text) that the host's own curl gets from its endpoint."""
        curl = ["curl", "-sS", "-m", "60", f"http://127.0.0.1:{port}{path}"]
        if body is not None:
            curl += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        if key:
            curl += ["-H", f"Authorization: Bearer {key}"]
        text = self.sh(shlex.join(curl))
        try:
            return json.loads(text)
        except ValueError:
            return text

    def complete(self, model: str, port: int = 8000, key: str = "", tokens: int = 8) -> int:
        """Tokens that a chat completion returned."""
        messages = [{"role": "user", "content": "hello"}]
        body = {"model": model, "messages": messages, "max_tokens": tokens, "ignore_eos": True}
        answer = self.ask("/v1/chat/completions", body, port, key)
        return int(answer["usage"]["completion_tokens"])

    def wait_until(self, script: str, timeout: float = 180, every: float = 1) -> float:
        """Seconds until a shell condition holds. Fails the test when it does not."""
        started = time.monotonic()
        while time.monotonic() - started < timeout:
            if self.sh(f"{script} >/dev/null 2>&1 && echo yes || true", check=False) == "yes":
                return time.monotonic() - started
            time.sleep(every)
        raise AssertionError(f"after {timeout} s still not: {script}")

    def ssh_commands(self) -> int:
        """Commands that sshd was asked for since the host was made, by its own log."""
        log = self.sh("journalctl -q -o cat -t sshd -t sshd-session")
        return len(re.findall(r"^Starting session: (?:command|subsystem)", log, re.M))

    def wipe(self, keep_tools: bool = True) -> None:
        """Bring the host back to how it was before any deploy, but for Debian packages."""
        keep = "" if not keep_tools else "! -name tools ! -name tools.txt"
        self.sh(
            "systemctl list-units -q --plain --no-legend --all 'vllm@*' | cut -d' ' -f1 | "
            "xargs -r systemctl kill --signal=SIGKILL 2>/dev/null; "
            "systemctl list-units -q --plain --no-legend --all 'vllm@*' | cut -d' ' -f1 | "
            "xargs -r systemctl stop; pkill -f 'python3 [/]opt/sparkwright/host'; sleep 0.2; "
            f"test -d /opt/sparkwright && find /opt/sparkwright -mindepth 1 -maxdepth 1 {keep} "
            "-exec rm -rf {} +; rm -rf /etc/sparkwright /var/lib/sparkwright "
            "/etc/systemd/system/vllm@* /etc/systemd/system/multi-user.target.wants/vllm@* "
            "/etc/default/earlyoom; "
            "systemctl stop sparkwright-pair sparkwright-fabric; "
            "nft delete table inet sparkwright_fabric; rm -f /etc/systemd/system/sparkwright-* "
            "/etc/systemd/system/*.wants/sparkwright-*; rm -rf /run/sparkwright; "
            'test -z "$(ls /etc/netplan)" || { rm -f /etc/netplan/*; netplan apply; }; '
            "systemctl daemon-reload; systemctl reset-failed; userdel vllm 2>/dev/null; true"
        )

    def snapshot(self) -> str:
        """Everything a deploy leaves on the host, without what differs between equal runs."""
        return self.sh(
            "find /opt/sparkwright/host /opt/sparkwright/active /etc/sparkwright "
            "/var/lib/sparkwright /etc/systemd/system /etc/default/earlyoom /etc/netplan "
            r"\( -path '*/cache/*' -o -name __pycache__ -o -name state.json -o -path '*/locks/*' \)"
            " -prune -o -printf '%M %u %g %p %l\n' | sort; "
            "find /etc/sparkwright /var/lib/sparkwright/staged /etc/systemd/system/vllm@* -type f "
            "! -name api-key.env | sort | xargs sha256sum; "
            "ls -A /opt/sparkwright /opt/sparkwright/releases; cat /opt/sparkwright/releases/*/.c*;"
            "grep -hE 'release|status' /var/lib/sparkwright/state.json; "
            "for u in $(ls /etc/sparkwright); do systemctl is-active vllm@$u; "
            "systemctl is-enabled vllm@$u; done; find / -xdev -name '*.new' -o -name '*.partial'"
        )


@dataclass
class Run:
    """One run of pyinfra, with what it printed and what its JSON says."""

    code: int
    output: str
    silence: float
    """The longest time between two lines, seconds."""
    results: dict[str, Any] = field(repr=False)

    def names(self, outcome: str) -> set[str]:
        """Operations with at least one host of this outcome: success, error or no_change."""
        operations = self.results.get("results", {}).get("operations", [])
        return {entry["name"] for entry in operations if entry[outcome]}


def pyinfra(*arguments: str, env: dict[str, str] | None = None, timeout: float = 900) -> Run:
    # With -y pyinfra skips the detection of changes, which --dry is for.
    yes = () if "--dry" in arguments else ("-y",)
    with tempfile.TemporaryFile("w+") as stdout:
        process = subprocess.Popen(
            [BIN / "pyinfra", *yes, "--json", *arguments, "deploy.py"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SPARKWRIGHT_LAB": LAB, "PYINFRA_PROGRESS": "off", **(env or {})},
        )
        guard = threading.Timer(timeout, process.kill)
        guard.start()
        assert process.stderr is not None
        lines, silence, spoken = [], 0.0, time.monotonic()
        for line in process.stderr:
            lines.append(line)
            silence, spoken = max(silence, time.monotonic() - spoken), time.monotonic()
        code = process.wait()
        process.stderr.close()
        guard.cancel()
        stdout.seek(0)
        printed = stdout.read()
    try:
        results = json.loads(printed)
    except ValueError:
        results = {}
    return Run(code, "".join(lines) + printed, silence, results)


STANDIN = {
    "model": "/srv/models/tiny-qwen3",
    "served_names": ["tiny"],
    "max_model_len": 1024,
    "gpu_memory_utilization": 0.02,
    "ready_timeout_s": 30,
    "shutdown_timeout_s": 2,
}


def inventory(
    folder: Path,
    sparks: list[Spark],
    profiles: dict[str, dict[str, Any]] | None = None,
    release: int = 0,
    **data: Any,
) -> Path:
    """Write an inventory, and profile files beside it; every host serves every profile.

    release: which of the stand-in's releases.
    """
    profiles = {"standin": STANDIN} if profiles is None else profiles
    (folder / "group_data").mkdir(parents=True, exist_ok=True)
    for old in (folder / "group_data").glob("*.py"):
        old.unlink()
    for name, profile in profiles.items():
        (folder / "group_data" / f"{name}.py").write_text(f"profile = {profile!r}\n")
    hosts = [
        (spark.name, {**spark.data, "release": spark.standin[release], **data}) for spark in sparks
    ]
    lines = [f"{name} = {hosts!r}" for name in profiles] or [f"idle = {hosts!r}"]
    file = folder / "sparks.py"
    file.write_text("\n".join(lines) + "\n")
    return file

"""One engine instance as systemd and its port show it: state, log, and the proof that it serves."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass

import probe
from common import ETC, Refusal

ANSWER_TIMEOUT_S = 10
GENERATION_TIMEOUT_S = 300
"""The first request may still compile a kernel; a warm one takes well under a second."""
BUSY_AFTER_S, BUSY_LOOK_S = 30, 5
"""When an engine in service is asked: how long, and how long its own count is watched then."""


def systemctl(*arguments: str, check: bool = True) -> str:
    """Run systemctl; raises Refusal with what it said when it fails and `check` is set."""
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True)
    if check and done.returncode:
        raise Refusal(f"systemctl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class Unit:
    """State of a unit at one moment. started_us: start of the main process, monotonic clock."""

    active: str
    sub: str
    main_pid: int
    invocation: str
    restarts: int
    exit_status: str
    started_us: int
    enabled: bool
    result: str
    queued: bool

    @property
    def down(self) -> bool:
        """Neither running nor about to be: no start is queued behind another unit."""
        if self.sub.startswith("auto-restart"):
            return True
        return self.active in ("inactive", "failed") and not self.queued


def show(unit: str) -> Unit:
    text = systemctl(
        "show",
        unit,
        "-p",
        "ActiveState,SubState,MainPID,InvocationID,NRestarts,ExecMainStatus,"
        "ExecMainStartTimestampMonotonic,UnitFileState,Result,Job",
    )
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return Unit(
        active=values.get("ActiveState", "inactive"),
        sub=values.get("SubState", "dead"),
        main_pid=int(values.get("MainPID") or 0),
        invocation=values.get("InvocationID", ""),
        restarts=int(values.get("NRestarts") or 0),
        exit_status=values.get("ExecMainStatus", ""),
        started_us=int(values.get("ExecMainStartTimestampMonotonic") or 0),
        enabled=values.get("UnitFileState") == "enabled",
        result=values.get("Result", ""),
        queued=values.get("Job", "0") not in ("", "0"),
    )


def is_masked(unit: str) -> bool:
    """True when somebody took the unit away from systemd: it can neither be started nor enabled."""
    return systemctl("is-enabled", unit, check=False).startswith("masked")


class Journal:
    """Lines that one start of a unit wrote, new ones at each call."""

    def __init__(self, invocation: str) -> None:
        self.invocation = invocation
        self.match = f"_SYSTEMD_INVOCATION_ID={invocation}"
        self.cursor: str | None = None
        self.lines: list[str] = []

    def new(self) -> list[str]:
        after = [f"--after-cursor={self.cursor}"] if self.cursor else []
        done = subprocess.run(
            [
                "journalctl",
                "--quiet",
                "--no-pager",
                "--all",
                "-o",
                "cat",
                "--show-cursor",
                *after,
                self.match,
            ],
            capture_output=True,
            text=True,
            errors="replace",
        )
        lines = done.stdout.splitlines()
        if lines and lines[-1].startswith("-- cursor: "):
            self.cursor = lines.pop().removeprefix("-- cursor: ")
        self.lines += lines
        return lines


@dataclass(frozen=True)
class Endpoint:
    """Where an instance answers. name: a model name that it serves."""

    host: str
    port: int
    name: str
    key: str | None

    @property
    def address(self) -> str:
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def ask(self, path: str, body: object = None, timeout: float = 10) -> tuple[int, object]:
        """Status and JSON (or text) of one request. Raises OSError or HTTPException."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            payload = None if body is None else json.dumps(body)
            connection.request("POST" if payload else "GET", path, payload, headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text


def endpoint(start: dict[str, object], name: str) -> Endpoint:
    """Endpoint of an instance from its start.json, with the key that is in service."""
    where = start["endpoint"]
    assert isinstance(where, dict)
    return Endpoint(where["host"], where["port"], where["name"], api_key(f"{ETC}/{name}"))


def api_key(folder: str) -> str | None:
    try:
        with open(f"{folder}/api-key.env") as file:
            text = file.read()
    except OSError:
        return None
    return text.strip().partition("=")[2].strip('"') or None


def is_holder(unit: str | None, port: int) -> bool:
    """True when processes of the unit listen on the port, and nobody else does."""
    holders = probe.ports([port])[str(port)]
    return bool(holders) and all(holder["unit"] == unit for holder in holders)


def prove(unit: str, server: Endpoint, patient: bool = True, limit_s: float | None = None) -> str:
    """Make the instance generate, and return a sentence that says what came.

    A health check is no proof: the answer must come from a process of this unit, under the served
    name, and hold tokens. A server that is busy proves itself by the tokens that it generates for
    others. patient: after a start, when the first request may still compile a kernel. limit_s: how
    long a generation is waited for, when neither fits.
    Raises Refusal with what is missing.
    """
    if not is_holder(unit, server.port):
        holders = probe.ports([server.port])[str(server.port)]
        who = ", ".join(f"{h['command']} (pid {h['pid']}, {h['unit']})" for h in holders)
        raise Refusal(f"port {server.port} is held by {who or 'nobody'}, not by {unit}")
    status, _ = _asked(server, "/health")
    if status != 200:
        raise Refusal(f"/health says {status}")
    status, models = _asked(server, "/v1/models")
    served = _names(models)
    if status != 200 or server.name not in served:
        raise Refusal(f"/v1/models says {status}, serves {served}, not {server.name!r}")
    limit = limit_s or (GENERATION_TIMEOUT_S if patient else BUSY_AFTER_S)
    try:
        status, answer = server.ask("/v1/chat/completions", _request(server.name), limit)
    except TimeoutError:
        others = _generated_for_others(server)
        if others:
            return f"{server.name} is busy: {others} tokens for others in {BUSY_LOOK_S} s"
        raise Refusal(
            f"the server is healthy, but a generation gave nothing in {limit} s"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise Refusal(f"the server does not answer: {error!r}") from None
    tokens = _tokens(answer) if status == 200 else 0
    if not tokens:
        shown = json.dumps(answer)[:300]
        raise Refusal(f"a generation returned no token: status {status}, {shown}")
    return f"{server.name} generated {tokens} tokens on {server.address}:{server.port}"


def _asked(server: Endpoint, path: str) -> tuple[int, object]:
    """Endpoint.ask, with a Refusal that says what did not answer."""
    try:
        return server.ask(path, timeout=ANSWER_TIMEOUT_S)
    except TimeoutError:
        raise Refusal(
            f"the server does not answer: {path} gave nothing in {ANSWER_TIMEOUT_S} s"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise Refusal(f"the server does not answer: {error!r}") from None


def _generated_for_others(server: Endpoint) -> int:
    """Tokens that the server generates while it is looked at, by its own count."""
    counts = []
    for pause in (0, BUSY_LOOK_S):
        time.sleep(pause)
        _, text = _asked(server, "/metrics")
        found = re.findall(r"(?m)^vllm:generation_tokens_total\S* ([\d.e+]+)$", str(text))
        counts.append(sum(float(number) for number in found))
    return int(counts[1] - counts[0])


def _request(name: str) -> dict[str, object]:
    # ignore_eos: a tiny or odd model may end at once, and an empty answer proves nothing.
    messages = [{"role": "user", "content": "Say hello."}]
    return {"model": name, "messages": messages, "max_tokens": 16, "ignore_eos": True}


def _names(models: object) -> list[str]:
    data = models.get("data") if isinstance(models, dict) else None
    return [str(entry.get("id")) for entry in data or [] if isinstance(entry, dict)]


def _tokens(answer: object) -> int:
    """Generated tokens, counted by the server; none when no choice holds any text."""
    if not isinstance(answer, dict) or not answer.get("choices"):
        return 0
    first = answer["choices"][0] if isinstance(answer["choices"], list) else {}
    message = (first.get("message") if isinstance(first, dict) else None) or {}
    text = (message.get("content") or "") + (
        message.get("reasoning") or message.get("reasoning_content") or ""
    )
    usage = answer.get("usage") or {}
    return int(usage.get("completion_tokens") or 0) if text else 0


def left_behind(unit: str) -> list[str]:
    """Processes of a unit that are still there: `pid 7 VLLM::EngineCore`.

    After a `kill -9` of the API server an engine was seen to hold 104 GB (docs/recovery.md).
    """
    left = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and probe.unit_of(int(entry.name)) == unit:
            command = (probe.read(f"/proc/{entry.name}/cmdline") or "").replace("\0", " ").strip()
            left.append(f"pid {entry.name} {command[:60]}".strip())
    return left


def launch(unit: str, command: list[str]) -> bool:
    """Start a command as a unit of its own, which no connection ends; False when that runs already.

    Killed, it is started again, a few times: it finds what it was doing in its record.
    """
    if is_running(unit):
        return False
    settings = ("Restart=on-abnormal", "StartLimitBurst=3", "StartLimitIntervalSec=1h")
    # SIGTERM is for the program alone, which puts everything back before it ends: as long as the
    # start of what was before takes. At a shutdown it ends at once.
    settings += ("KillMode=mixed", "TimeoutStopSec=infinity", "SyslogIdentifier=sparkwright")
    done = subprocess.run(
        ["systemd-run", "--quiet", "--collect", f"--unit={unit}"]
        + [f"--property={setting}" for setting in settings]
        + command,
        capture_output=True,
        text=True,
    )
    if done.returncode and not is_running(unit):
        raise Refusal(f"systemd-run: {done.stderr.strip()}")
    return not done.returncode


def is_running(unit: str) -> bool:
    state = show(unit)
    return state.queued or state.active not in ("inactive", "failed")


def shutting_down() -> bool:
    return systemctl("is-system-running", check=False).strip() == "stopping"


def memory_holders(limit: int = 5) -> str:
    """The processes with the largest resident memory, for a message."""
    sizes = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            text = probe.read(f"/proc/{entry.name}/statm")
            command = (probe.read(f"/proc/{entry.name}/cmdline") or "").replace("\0", " ").strip()
            if text and command:
                pages = int(text.split()[1])
                sizes.append((pages * os.sysconf("SC_PAGE_SIZE") / 1024**3, entry.name, command))
    largest = sorted(sizes, reverse=True)[:limit]
    return "; ".join(f"{gib:.1f} GiB pid {pid} {command[:60]}" for gib, pid, command in largest)

"""Look once whether an engine in service still generates; restart it when it no longer does.

usage: watch.py NAME

Run every minute by sparkwright-watch@NAME.timer. systemd sees an engine that ends; this sees one
that runs and is of no use: nobody answers, or a generation gives nothing. Does nothing while the
unit starts or stops, while a transaction runs, and to an instance that was stopped or that failed
one. What it remembers is below /run and lost at boot on purpose; times are of CLOCK_BOOTTIME.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import service
from common import ETC, VAR, Refusal, main, read_json, say, write
from instance import Instance

RUN = "/run/sparkwright"
_NOTICE, _WARNING = "<5>", "<4>"
"""Priorities, as the journal reads them at the head of a line."""


def setting(name: str, default: int) -> int:
    """A number from `SPARKWRIGHT_WATCH_<name>`, which a drop-in of the unit may set."""
    variable = f"SPARKWRIGHT_WATCH_{name}"
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or not int(text):
        sys.exit(
            f"{variable}={text}: must be a whole number above 0; see systemctl cat of this unit"
        )
    return int(text)


FAILURES = setting("FAILURES", 3)
"""Looks in a row that must fail."""
TIMEOUT_S = setting("TIMEOUT_S", 30)
"""How long a generation of 16 tokens may take before the server's own count is looked at."""
SETTLE_S = setting("SETTLE_S", 300)
"""Not looked at so soon after a start: first requests may still compile kernels."""
PAUSE_S, LONGEST_PAUSE_S = setting("PAUSE_S", 60), setting("LONGEST_PAUSE_S", 3600)
"""Between two restarts, twice as long each time. Forgotten when it was well for the longest."""
LIMIT, WINDOW_S = setting("LIMIT", 5), setting("WINDOW_S", 6 * 3600)
"""Restarts within a time; then it only reports."""


@dataclass
class Memory:
    """What one look leaves to the next. bad_at, restarts: when, seconds of CLOCK_BOOTTIME."""

    invocation: str = ""
    failures: int = 0
    figures: str = ""
    bad_at: float = 0.0
    restarts: list[float] = field(default_factory=list)
    gave_up: bool = False
    said: str = ""

    @classmethod
    def load(cls, path: str) -> Memory:
        try:
            return cls(**read_json(path))
        except TypeError:
            return cls()


@dataclass(frozen=True)
class Seen:
    """One look. good: None when it can't be told, and a restart would change nothing."""

    good: bool | None
    text: str
    figures: str = ""


def look(name: str, unit: str) -> Seen:
    """Make the instance generate. A server that is busy shows it by its own figures."""
    where = _endpoint(name)
    if where is None:
        return Seen(None, f"{ETC}/{name}/env does not say where it answers: deploy it again")
    service.BUSY_AFTER_S = TIMEOUT_S
    service.ANSWER_TIMEOUT_S = min(service.ANSWER_TIMEOUT_S, TIMEOUT_S)
    try:
        return Seen(True, service.prove(unit, _named(unit, where), patient=False))
    except Refusal as refusal:
        # Refused by the server: a wrong key, no chat template. Such an engine is well.
        if re.search(r"\b(says|status) 4\d\d\b", str(refusal)):
            return Seen(None, str(refusal))
        # An answer without a token is one that counted, perhaps: only who waits is told by figures.
        waited = "gave nothing" in str(refusal)
        return Seen(False, str(refusal), _figures(where) if waited else "")


def _endpoint(name: str) -> service.Endpoint | None:
    """Where the instance in service answers: not what is staged, which may be another port."""
    with contextlib.suppress(OSError), open(f"{ETC}/{name}/env") as file:
        for line in file:
            key, _, value = line.strip().partition("=")
            if key == "SPARKWRIGHT_ENDPOINT":
                host, _, port = "".join(shlex.split(value)).rpartition(":")
                return service.Endpoint(host, int(port), "", service.api_key(f"{ETC}/{name}"))
    return None


def _named(unit: str, server: service.Endpoint) -> service.Endpoint:
    """The endpoint with a name that the server says it serves; none when it says nothing.

    Strangers on the port are not asked: they would get the key.
    """
    models: object = None
    if service.is_holder(unit, server.port):
        try:
            _, models = server.ask("/v1/models", timeout=service.ANSWER_TIMEOUT_S)
        except TimeoutError:
            shown = f"/v1/models gave nothing in {service.ANSWER_TIMEOUT_S} s"
            raise Refusal(f"the server does not answer: {shown}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Refusal(f"the server does not answer: {error!r}") from None
    data = models.get("data") if isinstance(models, dict) else None
    name = str(data[0].get("id")) if data else ""
    return service.Endpoint(server.host, server.port, name, server.key)


def _figures(server: service.Endpoint) -> str:
    """What moves when the engine works, also when it only reads a long prompt; empty: unknown."""
    try:
        _, text = server.ask("/metrics", timeout=5)
    except (OSError, http.client.HTTPException):
        return ""
    wanted = r"^vllm:(?:generation_tokens_total|prompt_tokens_total|kv_cache_usage_perc)\b.*"
    return "\n".join(re.findall(wanted, str(text), re.M))


def judge(memory: Memory, seen: Seen, now: float) -> tuple[str, bool]:
    """What to say ("": nothing) and whether to restart, by what was seen; keeps the memory.

    now: seconds of CLOCK_BOOTTIME.
    """
    memory.restarts = [at for at in memory.restarts if now - at < WINDOW_S]
    if seen.good is None:
        return f"it can't be told whether it generates: {seen.text}", False
    if seen.good:
        was_bad = memory.failures or memory.gave_up
        # Not at once: an engine that is well for minutes only would be restarted for ever.
        if now - memory.bad_at >= LONGEST_PAUSE_S:
            memory.restarts = []
        memory.failures, memory.figures, memory.gave_up = 0, "", False
        return f"it serves again: {seen.text}" if was_bad else "", False
    moved = seen.figures and memory.figures and seen.figures != memory.figures
    memory.figures, memory.bad_at = seen.figures, now
    memory.failures = 0 if moved else memory.failures + 1
    if moved:
        return "", False
    if memory.failures < FAILURES:
        return f"look {memory.failures} of {FAILURES} that fails: {seen.text}", False
    return _act(memory, seen.text, now)


def _act(memory: Memory, reason: str, now: float) -> tuple[str, bool]:
    done = len(memory.restarts)
    if done >= LIMIT:
        memory.gave_up = True
        return (
            f"given up: {done} restarts in {_span(WINDOW_S)} did not help; it is left running, "
            f"without restarts until the oldest is {_span(WINDOW_S)} ago or it was well for "
            f"{_span(LONGEST_PAUSE_S)}: {reason}"
        ), False
    if done and now - memory.restarts[-1] < _pause(done):
        return f"{reason}; the next restart is {_span(_pause(done))} after the last one", False
    return (
        f"restarting it, {memory.failures} looks in a row failed: {reason}; this is restart "
        f"{done + 1} of at most {LIMIT} in {_span(WINDOW_S)}, another one not before "
        f"{_span(_pause(done + 1))}"
    ), True


def _pause(restarts: int) -> float:
    """Seconds after the last of some restarts before another one."""
    return float(min(PAUSE_S * 2 ** (restarts - 1), LONGEST_PAUSE_S))


def _span(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextlib.contextmanager
def _no_transaction() -> Iterator[bool]:
    """True while no transaction runs; none begins to change anything before this ends."""
    try:
        handle = os.open(f"{VAR}/locks/activation", os.O_RDONLY)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


def _is_in_service(name: str, unit: service.Unit) -> bool:
    """Running, not being stopped, and not left behind by a transaction that did not finish well."""
    status = Instance(name).remembered().get("status")
    return unit.active == "active" and not unit.queued and status not in ("failed", "starting")


def _active_for(unit: str) -> float:
    text = service.systemctl("show", unit, "-p", "ActiveEnterTimestampMonotonic", "--value")
    return time.clock_gettime(time.CLOCK_MONOTONIC) - int(text.strip() or 0) / 1e6


def _starting() -> str:
    """Another engine that is starting; concurrent starts race on the shared memory."""
    listed = service.systemctl(
        "list-units", "--plain", "--no-legend", "--state=activating", "vllm@*"
    )
    return listed.split()[0] if listed.split() else ""


def _restart(name: str, before: service.Unit, memory: Memory, now: float, line: str) -> None:
    """Restart the unit unless something else became of it since the look began."""
    unit = f"vllm@{name}.service"
    with _no_transaction() as free:
        current = service.show(unit)
        same = current.invocation == before.invocation and _is_in_service(name, current)
        if not free or not same:
            return
        other = _starting()
        if other:
            say(f"{_WARNING}it has to be restarted, but {other} is starting: at the next look")
            return
        say(f"{_WARNING}{line}")
        memory.restarts.append(now)
        # The limit is the one here: systemd's own would leave it stopped.
        service.systemctl("reset-failed", unit, check=False)
        # try-restart never starts what somebody just stopped. One that systemd refuses counts too:
        # the next waits for its pause.
        try:
            service.systemctl("try-restart", "--no-block", "--job-mode=fail", unit)
        except Refusal as refusal:
            say(f"{_WARNING}it could not be restarted: {refusal}")


def watch(name: str) -> None:
    unit_name, path = f"vllm@{name}.service", f"{RUN}/watch-{name}.json"
    unit = service.show(unit_name)
    with _no_transaction() as free:
        pass
    if not free or not _is_in_service(name, unit) or _active_for(unit_name) < SETTLE_S:
        return
    memory = Memory.load(path)
    if memory.invocation != unit.invocation:
        memory.invocation, memory.failures, memory.figures = unit.invocation, 0, ""
    seen = look(name, unit_name)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    line, restart = judge(memory, seen, now)
    if restart:
        _restart(name, unit, memory, now, line)
    elif line and line != memory.said:
        # The same once, not once a minute.
        say(f"{_NOTICE if seen.good else _WARNING}{line}")
    memory.said = line
    write(path, json.dumps(asdict(memory)) + "\n", 0o600)


def program() -> None:
    (name,) = sys.argv[1:]
    watch(name)


if __name__ == "__main__":
    main(program)

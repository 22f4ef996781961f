"""The watch: what it takes for a failure, when it restarts, and what it leaves alone."""

from __future__ import annotations

import fcntl
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import instance
import pytest
import service
import watch
from common import Refusal
from watch import Memory, Seen

BAD = Seen(False, "/health says 503")
GOOD = Seen(True, "tiny generated 16 tokens")
UNIT = "vllm@tiny.service"
RUNNING = service.Unit("active", "running", 7, "i1", 0, "", 1, True, "success", False)
FOREVER = 10 * watch.WINDOW_S


class Clock:
    """Looks once a minute; what each said and when it restarted, in minutes."""

    def __init__(self) -> None:
        self.memory, self.minute = Memory(), 0
        self.said: list[str] = []
        self.restarts: list[int] = []

    def see(self, seen: Seen, times: int = 1) -> Clock:
        for _ in range(times):
            self.minute += 1
            line, restart = watch.judge(self.memory, seen, self.minute * 60.0)
            if line:
                self.said.append(line)
            if restart:
                self.restarts.append(self.minute)
                self.memory.restarts.append(self.minute * 60.0)
                self.memory.failures = 0
        return self


def test_a_server_that_is_well_is_not_spoken_of() -> None:
    clock = Clock().see(GOOD, 1000)
    assert clock.said == [] and clock.restarts == []


def test_only_failures_in_a_row_count() -> None:
    clock = Clock()
    for _ in range(20):
        clock.see(BAD, watch.FAILURES - 1).see(GOOD)
    assert clock.restarts == []
    assert clock.said[:2] == [
        "look 1 of 3 that fails: /health says 503",
        "look 2 of 3 that fails: /health says 503",
    ]
    clock.see(BAD, watch.FAILURES)
    assert len(clock.restarts) == 1


def test_restarts_come_at_longer_and_longer_distances_until_it_gives_up() -> None:
    clock = Clock().see(BAD, 200)
    distances = [b - a for a, b in zip(clock.restarts, clock.restarts[1:], strict=False)]
    # Never sooner than three looks; the pauses are 1, 2, 4 and 8 minutes.
    assert distances == [3, 3, 4, 8]
    assert clock.said[-1].startswith("given up: 5 restarts in 6 h did not help")
    clock.see(BAD, 100)
    assert len(clock.restarts) == watch.LIMIT


def test_after_it_gave_up_only_a_lasting_recovery_makes_it_begin_anew() -> None:
    clock = Clock().see(BAD, 30)
    assert clock.said[-1].startswith("given up")
    clock.see(GOOD)
    assert clock.said[-1] == "it serves again: tiny generated 16 tokens"
    clock.see(BAD, 3)
    assert clock.said[-1].startswith("given up")
    clock.see(GOOD, 60).see(BAD, 3)
    assert "restart 1 of at most 5 in 6 h" in clock.said[-1]


def test_good_looks_between_failures_do_not_shorten_the_pauses() -> None:
    clock = Clock()
    for _ in range(70):
        clock.see(BAD, watch.FAILURES).see(GOOD, 2)
    assert len(clock.restarts) == watch.LIMIT


def test_after_an_hour_in_which_it_was_well_the_pauses_are_short_again() -> None:
    clock = Clock().see(BAD, 20).see(GOOD, 62).see(BAD, 3)
    assert "restart 1 of at most 5" in clock.said[-1]


def test_the_longest_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LIMIT", 100)
    monkeypatch.setattr(watch, "WINDOW_S", FOREVER)
    clock = Clock().see(BAD, 700)
    distances = [b - a for a, b in zip(clock.restarts, clock.restarts[1:], strict=False)]
    assert distances == [3, 3, 4, 8, 16, 32, *[60] * 10]


def test_figures_that_move_are_work() -> None:
    clock = Clock()
    for number in range(50):
        clock.see(Seen(False, "a generation gave nothing in 30 s", f"tokens {number}"))
    assert clock.restarts == []
    clock.see(Seen(False, "a generation gave nothing in 30 s", "tokens 49"), 3)
    assert len(clock.restarts) == 1


def test_without_figures_a_failure_is_a_failure() -> None:
    clock = Clock().see(Seen(False, "x", "tokens 1")).see(BAD).see(Seen(False, "x", "tokens 2"))
    assert len(clock.restarts) == 1


def test_what_can_not_be_told_changes_nothing() -> None:
    clock = Clock().see(BAD, 2).see(Seen(None, "/v1/models says 401"), 50)
    assert clock.restarts == []
    assert clock.said[-1] == "it can't be told whether it generates: /v1/models says 401"


# One look, against what `service` finds.


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


class Host:
    """An instance in service, systemd and server as told."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.unit, self.starting, self.active_since = RUNNING, "", 0.0
        self.outcome: str | Refusal = "tiny generated 16 tokens"
        self.figures = "vllm:generation_tokens_total{} 1.0\nvllm:num_requests_running 3.0\n"
        self.asked: list[str] = []
        self.proven: list[service.Endpoint] = []
        for folder in ("etc/tiny", "run", "var/locks"):
            (root / folder).mkdir(parents=True)
        (root / "etc/tiny/env").write_text('HOME="/x"\nSPARKWRIGHT_ENDPOINT="::1:8001"\n')
        (root / "etc/tiny/api-key.env").write_text("VLLM_API_KEY=s3cret\n")
        (root / "var/locks/activation").touch()
        self.remember(status="serving")
        monkeypatch.setattr(watch, "ETC", str(root / "etc"))
        monkeypatch.setattr(watch, "RUN", str(root / "run"))
        monkeypatch.setattr(watch, "VAR", str(root / "var"))
        monkeypatch.setattr(instance, "STATE", str(root / "var/state.json"))
        monkeypatch.setattr(service, "BUSY_AFTER_S", 0)
        monkeypatch.setattr(service, "ANSWER_TIMEOUT_S", 10)
        monkeypatch.setattr(service, "show", lambda _: self.unit)
        monkeypatch.setattr(service, "systemctl", self.systemctl)
        monkeypatch.setattr(service, "is_holder", lambda *_: True)
        monkeypatch.setattr(service, "prove", self.prove)
        monkeypatch.setattr(service.Endpoint, "ask", self.ask)

    def remember(self, **values: Any) -> None:
        (self.root / "var/state.json").write_text(json.dumps({"tiny": values}))

    def systemctl(self, *arguments: str, check: bool = True) -> str:
        if arguments[0] == "show":
            return f"{int(self.active_since * 1e6)}\n"
        if arguments[0] == "list-units":
            return self.starting
        self.asked.append(" ".join(a for a in arguments if not a.startswith("--")))
        return ""

    def prove(self, unit: str, server: service.Endpoint, patient: bool) -> str:
        assert unit == UNIT and not patient
        self.proven.append(server)
        if isinstance(self.outcome, Refusal):
            raise self.outcome
        return self.outcome

    def ask(self, path: str, body: object = None, timeout: float = 10) -> tuple[int, object]:
        return 200, self.figures if path == "/metrics" else {"data": [{"id": "tiny"}]}

    def look(self, times: int = 1) -> list[str]:
        """What systemd was asked to do."""
        self.asked.clear()
        for _ in range(times):
            watch.watch("tiny")
        return self.asked


RESTARTED = [f"reset-failed {UNIT}", f"try-restart {UNIT}"]
HANGS = Refusal("the server is healthy, but a generation gave nothing in 30 s")


def test_the_endpoint_in_service_is_asked_with_its_key(host: Host) -> None:
    assert host.look() == []
    assert host.proven == [service.Endpoint("::1", 8001, "tiny", "s3cret")]
    assert "s3cret" not in (host.root / "run/watch-tiny.json").read_text()


def test_three_failures_restart_it(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.outcome = HANGS
    assert host.look(2) == []
    assert host.look() == RESTARTED
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.startswith("<4>") for line in lines)
    assert lines[2] == (
        "<4>restarting it, 3 looks in a row failed: the server is healthy, but a generation gave "
        "nothing in 30 s; this is restart 1 of at most 5 in 6 h, another one not before 1 min"
    )
    # The engine that came of it is counted anew.
    host.unit = replace(RUNNING, invocation="i2")
    assert host.look(2) == []


def test_a_restart_that_systemd_refuses_is_not_forgotten(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    systemctl = service.systemctl

    def refuses(*words: str, check: bool = True) -> str:
        if words[0] == "try-restart":
            raise Refusal("systemctl try-restart: Transaction is destructive")
        return systemctl(*words, check=check)

    monkeypatch.setattr(service, "systemctl", refuses)
    host.outcome = HANGS
    host.look(3)
    assert "could not be restarted: systemctl try-restart: Tr" in capsys.readouterr().out
    kept = json.loads((host.root / "run/watch-tiny.json").read_text())
    assert kept["failures"] == 3 and len(kept["restarts"]) == 1


def test_the_same_is_said_once(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.outcome = Refusal("/v1/models says 401, serves [], not 'tiny'")
    assert host.look(5) == []
    assert capsys.readouterr().out == (
        "<4>it can't be told whether it generates: /v1/models says 401, serves [], not 'tiny'\n"
    )


def test_an_empty_answer_is_no_sign_of_work(host: Host) -> None:
    host.outcome = Refusal("a generation returned no token: status 200, {}")
    for number in range(3):
        host.figures = f"vllm:generation_tokens_total{{}} {number}.0\n"
        asked = host.look()
    assert asked == RESTARTED


@pytest.mark.parametrize("moves", ["generation_tokens_total", "kv_cache_usage_perc"])
def test_a_server_that_works_for_others_is_left_alone(host: Host, moves: str) -> None:
    host.outcome = HANGS
    for number in range(10):
        host.figures = f'vllm:{moves}{{engine="0"}} 0.{number}\n'
        assert host.look() == []


def test_more_requests_are_no_work(host: Host) -> None:
    host.outcome = HANGS
    for number in range(3):
        host.figures = f"vllm:generation_tokens_total 5.0\nvllm:num_requests_waiting {number}.0\n"
        asked = host.look()
    assert asked == RESTARTED


@pytest.mark.parametrize(
    "unit",
    [
        replace(RUNNING, active="activating", sub="start-post"),
        replace(RUNNING, active="activating", sub="auto-restart"),
        replace(RUNNING, active="deactivating"),
        replace(RUNNING, active="inactive", main_pid=0),
        replace(RUNNING, active="failed", main_pid=0),
        replace(RUNNING, queued=True),
    ],
    ids=lambda unit: f"{unit.active} {unit.queued}",
)
def test_a_unit_that_does_not_run_is_not_looked_at(host: Host, unit: service.Unit) -> None:
    host.outcome, host.unit = HANGS, unit
    assert host.look(10) == []
    assert host.proven == []


@pytest.mark.parametrize("status", ["failed", "starting"])
def test_what_a_transaction_left_behind_is_not_looked_at(host: Host, status: str) -> None:
    host.outcome = HANGS
    host.remember(status=status)
    assert host.look(10) == [] and host.proven == []


def test_a_state_that_is_lost_does_not_end_the_watch(host: Host) -> None:
    (host.root / "var/state.json").write_text("")
    host.outcome = HANGS
    assert host.look(3) == RESTARTED


def test_nothing_is_done_during_a_transaction(host: Host) -> None:
    host.outcome = HANGS
    with (host.root / "var/locks/activation").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert host.look(10) == [] and host.proven == []
    assert host.look(3) == RESTARTED


def test_a_host_without_a_lock_yet(host: Host) -> None:
    (host.root / "var/locks/activation").unlink()
    host.outcome = HANGS
    assert host.look(3) == RESTARTED


def test_a_fresh_start_may_still_compile(host: Host) -> None:
    host.outcome = HANGS
    host.active_since = time.clock_gettime(time.CLOCK_MONOTONIC) - watch.SETTLE_S + 5
    assert host.look(10) == [] and host.proven == []


def test_what_was_stopped_or_restarted_during_the_look_is_left_alone(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.outcome = HANGS
    host.look(2)
    for changed in (replace(RUNNING, active="inactive"), replace(RUNNING, invocation="i2")):
        seen = iter([RUNNING, changed])
        monkeypatch.setattr(service, "show", lambda _, seen=seen: next(seen))
        assert host.look() == []


def test_one_engine_starts_at_a_time(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.outcome, host.starting = HANGS, "vllm@other.service loaded activating start-post vLLM\n"
    assert host.look(4) == []
    assert "but vllm@other.service is starting" in capsys.readouterr().out
    host.starting = ""
    assert host.look() == RESTARTED


def test_an_instance_without_its_files(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    (host.root / "etc/tiny/env").unlink()
    assert host.look(10) == []
    assert "env does not say where it answers: deploy it again" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", '{"unknown": 1}', "[]"])
def test_a_memory_that_can_not_be_read_is_an_empty_one(host: Host, text: str) -> None:
    (host.root / "run/watch-tiny.json").write_text(text)
    host.outcome = HANGS
    assert host.look(3) == RESTARTED


def test_a_stranger_on_the_port_gets_no_key(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "is_holder", lambda *_: False)
    monkeypatch.setattr(service.Endpoint, "ask", lambda *_, **__: pytest.fail("it was asked"))
    host.outcome = Refusal("port 8001 is held by nc (pid 9, None), not by vllm@tiny.service")
    assert host.look(3) == RESTARTED


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "/v1/models gave nothing in 10 s"),
        (ConnectionRefusedError("no"), "the server does not answer: ConnectionRefusedError('no')"),
    ],
)
def test_a_server_that_does_not_answer(
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    said: str,
) -> None:
    def ask(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(service.Endpoint, "ask", ask)
    assert host.look(3) == RESTARTED
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "0", ""])
def test_a_setting_that_is_no_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SPARKWRIGHT_WATCH_LIMIT", text)
    with pytest.raises(SystemExit, match=f"WATCH_LIMIT={text}: must be a whole number above 0"):
        watch.setting("LIMIT", 5)

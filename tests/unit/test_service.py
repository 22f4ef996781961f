"""The proof that an instance serves, against servers that do not, and small readers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import probe
import pytest
import service
from common import Refusal

UNIT = "vllm@tiny.service"
CHAT = "/v1/chat/completions"
HEALTHY: dict[str, tuple[int, Any]] = {
    "/health": (200, ""),
    "/v1/models": (200, {"data": [{"id": "tiny"}]}),
    "/metrics": (200, 'vllm:generation_tokens_total{model_name="tiny"} 7.0\n'),
    CHAT: (
        200,
        {
            "choices": [{"message": {"role": "assistant", "content": "Hello"}}],
            "usage": {"completion_tokens": 8},
        },
    ),
}
HANGS = (0, "")


@contextmanager
def serving(
    answers: dict[str, tuple[int, Any]], key: str | None = None, host: str = "127.0.0.1"
) -> Iterator[tuple[service.Endpoint, list[Any]]]:
    """A server with these answers, its endpoint, and the generations it was asked for."""
    asked: list[Any] = []
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[self.path]
            if callable(body):
                body = body()
            if key and self.path != "/health" and self.headers["Authorization"] != f"Bearer {key}":
                status, body = 401, {"error": "Unauthorized"}
            if status == 0:
                over.wait(5)
                return
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield service.Endpoint(host, server.server_address[1], "tiny", key), asked
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def this_process_is_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "unit_of", lambda pid: UNIT if pid == os.getpid() else "other")


def refusal(answers: dict[str, tuple[int, Any]], **how: Any) -> str:
    with serving(HEALTHY | answers, **how) as (endpoint, _), pytest.raises(Refusal) as caught:
        service.prove(UNIT, endpoint)
    return str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_generation_proves_it(host: str) -> None:
    with serving(HEALTHY, host=host) as (endpoint, asked):
        said = service.prove(UNIT, endpoint)
    assert said == f"tiny generated 8 tokens on 127.0.0.1:{endpoint.port}"
    (request,) = asked
    assert request["model"] == "tiny"
    assert 0 < request["max_tokens"] <= 16


def test_the_key_is_sent() -> None:
    with serving(HEALTHY, key="s3cret") as (endpoint, _):
        assert "8 tokens" in service.prove(UNIT, endpoint)


def test_a_wrong_key_is_told_without_the_key() -> None:
    with serving(HEALTHY, key="s3cret") as (endpoint, _), pytest.raises(Refusal) as caught:
        service.prove(UNIT, service.Endpoint(endpoint.host, endpoint.port, "tiny", "wr0ng"))
    assert "/v1/models says 401" in str(caught.value)
    assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"/health": (503, "")}, "/health says 503"),
        ({"/v1/models": (200, {"data": [{"id": "x"}]})}, "serves ['x'], not 'tiny'"),
        ({"/v1/models": (200, {"data": []})}, "serves [], not 'tiny'"),
        ({"/v1/models": (200, "<html>")}, "serves [], not 'tiny'"),
        ({"/v1/models": (401, {"error": "Unauthorized"})}, "/v1/models says 401"),
        ({CHAT: (401, {"error": "Unauthorized"})}, "no token: status 401"),
        ({CHAT: (500, {"error": {"message": "EngineDeadError"}})}, "500, {\"error\": {\"message\""),
        ({CHAT: (200, {"choices": [], "usage": {"completion_tokens": 8}})}, "no token: status 200"),
        (
            {CHAT: (200, {"choices": [{"message": {"content": ""}}],
                          "usage": {"completion_tokens": 8}})},
            "no token: status 200",
        ),
        ({CHAT: (200, {"choices": [{"message": {"content": "Hi"}}]})}, "no token: status 200"),
        ({CHAT: (200, "not JSON")}, 'no token: status 200, "not JSON"'),
    ],
)  # fmt: skip
def test_a_server_that_does_not_serve(answers: dict[str, tuple[int, Any]], reason: str) -> None:
    assert reason in refusal(answers)


def test_a_generation_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BUSY_LOOK_S", 0)
    monkeypatch.setattr(service, "GENERATION_TIMEOUT_S", 0.1)
    said = refusal({CHAT: HANGS})
    assert said == "the server is healthy, but a generation gave nothing in 0.1 s"


def growing(*counts: str) -> Callable[[], str]:
    """Metrics that say another count at each look."""
    left = iter(counts)
    return lambda: (
        "# TYPE vllm:generation_tokens_total counter\n"
        f'vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {next(left)}\n'
        'vllm:generation_tokens_total{engine="1",model_name="tiny"} 5.0\n'
        'vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1e+09\n'
    )


@pytest.mark.parametrize(
    ("patient", "limit"), [(True, "GENERATION_TIMEOUT_S"), (False, "BUSY_AFTER_S")]
)
def test_a_busy_server_proves_itself_by_what_it_generates_for_others(
    patient: bool, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BUSY_LOOK_S", 0)
    monkeypatch.setattr(service, limit, 0.1)
    answers = {CHAT: HANGS, "/metrics": (200, growing("1.0e+06", "1.000123e+06"))}
    with serving(HEALTHY | answers) as (endpoint, _):
        said = service.prove(UNIT, endpoint, patient=patient)
    assert said == "tiny is busy: 123 tokens for others in 0 s"


def test_a_server_that_generates_for_nobody_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BUSY_LOOK_S", 0)
    monkeypatch.setattr(service, "GENERATION_TIMEOUT_S", 0.1)
    answers = {CHAT: HANGS, "/metrics": (200, growing("1.0e+06", "1.0e+06"))}
    assert refusal(answers).endswith("a generation gave nothing in 0.1 s")
    assert refusal({CHAT: HANGS, "/metrics": (404, "")}).endswith("gave nothing in 0.1 s")


def test_who_holds_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert service.is_holder(UNIT, port)
        assert not service.is_holder("vllm@other.service", port)
        other = {"pid": 1, "command": "nc", "unit": "web.service"}
        mine = probe.ports([port])[str(port)]
        monkeypatch.setattr(probe, "ports", lambda _: {str(port): [*mine, other]})
        assert not service.is_holder(UNIT, port), "two may listen with SO_REUSEPORT"
    monkeypatch.setattr(probe, "ports", lambda _: {str(port): []})
    assert not service.is_holder(UNIT, port)


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_a_server_that_hangs_before(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ANSWER_TIMEOUT_S", 0.1)
    assert refusal({path: HANGS}) == f"the server does not answer: {path} gave nothing in 0.1 s"


def test_a_port_that_nobody_holds() -> None:
    with serving(HEALTHY) as (endpoint, _):
        pass
    with pytest.raises(Refusal, match=rf"port {endpoint.port} is held by nobody, not by {UNIT}"):
        service.prove(UNIT, endpoint)


def test_a_port_that_a_stranger_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "unit_of", lambda pid: "web.service")
    said = refusal({})
    assert f"(pid {os.getpid()}, web.service), not by {UNIT}" in said


def test_a_server_that_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_at_once() -> None:
            connection, _ = server.accept()
            connection.close()

        thread = threading.Thread(target=close_at_once)
        thread.start()
        endpoint = service.Endpoint("127.0.0.1", server.getsockname()[1], "tiny", None)
        with pytest.raises(Refusal, match="the server does not answer: "):
            service.prove(UNIT, endpoint)
        thread.join()


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (HEALTHY[CHAT][1], 8),
        ({"choices": [{"message": {"reasoning": "hm"}}], "usage": {"completion_tokens": 3}}, 3),
        (
            {
                "choices": [{"message": {"content": None, "reasoning_content": "hm"}}],
                "usage": {"completion_tokens": 2},
            },
            2,
        ),
        ({"choices": [{"message": None}], "usage": {"completion_tokens": 2}}, 0),
        ({"choices": [{"message": {"content": "x"}}], "usage": None}, 0),
        ({}, 0),
        ([], 0),
        ("text", 0),
        (None, 0),
    ],
)
def test_tokens(answer: object, tokens: int) -> None:
    assert service._tokens(answer) == tokens


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("VLLM_API_KEY=abc=def\n", "abc=def"),
        ('VLLM_API_KEY="abc"\n', "abc"),
        ("VLLM_API_KEY=\n", None),
        ("", None),
    ],
)
def test_api_key(tmp_path: Path, text: str, key: str | None) -> None:
    (tmp_path / "api-key.env").write_text(text)
    assert service.api_key(str(tmp_path)) == key


def test_no_api_key(tmp_path: Path) -> None:
    assert service.api_key(str(tmp_path)) is None


def unit(**values: Any) -> service.Unit:
    base = {
        "active": "active",
        "sub": "running",
        "main_pid": 7,
        "invocation": "i",
        "restarts": 0,
        "exit_status": "0",
        "started_us": 1,
        "enabled": True,
        "result": "success",
        "queued": False,
    }
    return service.Unit(**(base | values))


@pytest.mark.parametrize(
    ("state", "down"),
    [
        ({}, False),
        ({"active": "activating", "sub": "start-post"}, False),
        ({"active": "deactivating", "sub": "stop-sigterm"}, False),
        ({"active": "inactive", "sub": "dead"}, True),
        ({"active": "failed", "sub": "failed"}, True),
        ({"active": "activating", "sub": "auto-restart"}, True),
        ({"active": "activating", "sub": "auto-restart-queued"}, True),
        # Its start waits for another unit's.
        ({"active": "inactive", "sub": "dead", "queued": True}, False),
        ({"active": "failed", "sub": "failed", "queued": True}, False),
        # Between two starts of a loop systemd holds a job for it too.
        ({"active": "activating", "sub": "auto-restart", "queued": True}, True),
    ],
)
def test_down(state: dict[str, str], down: bool) -> None:
    assert unit(**state).down is down


def test_show_reads_what_systemctl_says(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "Result=exit-code\nNRestarts=2\nExecMainStatus=1\nMainPID=0\nUnitFileState=enabled\n"
        "ExecMainStartTimestampMonotonic=99\nInvocationID=ab\nActiveState=activating\n"
        "SubState=auto-restart\nJob=1234\n"
    )
    monkeypatch.setattr(service, "systemctl", lambda *_: text)
    seen = service.show(UNIT)
    assert (seen.restarts, seen.main_pid, seen.started_us, seen.enabled) == (2, 0, 99, True)
    assert seen.queued
    monkeypatch.setattr(service, "systemctl", lambda *_: text.replace("Job=1234", "Job=0"))
    assert not service.show(UNIT).queued
    monkeypatch.setattr(service, "systemctl", lambda *_: "")
    assert service.show(UNIT).active == "inactive"


def test_who_holds_the_memory() -> None:
    said = service.memory_holders(2)
    assert said.count(" GiB pid ") == 2


def test_processes_that_a_unit_left() -> None:
    left = service.left_behind(UNIT)
    assert len(left) == 1 and left[0].startswith(f"pid {os.getpid()} ")
    assert service.left_behind("vllm@other.service") == []


def ran(monkeypatch: pytest.MonkeyPatch, status: int, *states: str) -> list[list[str]]:
    """What is run; the unit is in one state after the other at each look."""
    commands: list[list[str]] = []
    looks = iter(states)

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return subprocess.CompletedProcess(command, status, "", "already loaded\n")

    monkeypatch.setattr(service.subprocess, "run", run)
    monkeypatch.setattr(service, "show", lambda _: unit(active=next(looks)))
    return commands


def test_a_unit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = ran(monkeypatch, 0, "inactive")
    assert service.launch("x.service", ["true", "a b"])
    (command,) = commands
    assert command[0] == "systemd-run" and command[-2:] == ["true", "a b"]
    assert {"--collect", "--unit=x.service", "--property=Restart=on-abnormal"} <= set(command)


def test_a_unit_that_runs_is_not_launched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = ran(monkeypatch, 0, "active")
    assert not service.launch("x.service", ["true"])
    assert commands == []


def test_two_that_launch_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, 1, "inactive", "activating")
    assert not service.launch("x.service", ["true"])
    ran(monkeypatch, 1, "inactive", "failed")
    with pytest.raises(Refusal, match="systemd-run: already loaded"):
        service.launch("x.service", ["true"])


@pytest.mark.parametrize(
    ("said", "ends"), [("stopping\n", True), ("running\n", False), ("", False)]
)
def test_a_host_that_shuts_down(monkeypatch: pytest.MonkeyPatch, said: str, ends: bool) -> None:
    monkeypatch.setattr(service, "systemctl", lambda *_, check: said)
    assert service.shutting_down() is ends


def test_how_long_a_generation_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BUSY_LOOK_S", 0)
    answers = {CHAT: HANGS, "/metrics": (404, "")}
    with serving(HEALTHY | answers) as (endpoint, _), pytest.raises(Refusal, match=r"in 0\.2 s"):
        service.prove(UNIT, endpoint, limit_s=0.2)

"""The stand-in engine starts, answers, refuses and ends as vLLM does, or as badly as told."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.engine import build, standin_wheel

# Some 50 processes, started one after the other.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


class Engine:
    """A stand-in that runs: its process, address and log."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self.process, self.port, self.log = process, port, log

    def ask(
        self, path: str, body: Any = None, key: str | None = None, timeout: float = 5
    ) -> tuple[int, str]:
        """Return status and body of GET ``path``, or of POST when there is a ``body``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            data = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def chat(self, **more: Any) -> dict[str, Any]:
        """Return the parsed answer to a chat request of three tokens."""
        status, body = self.ask("/v1/chat/completions", _request(**more))
        assert status == 200
        parsed: dict[str, Any] = json.loads(body)
        return parsed

    def wait_until_healthy(self) -> None:
        """Fail when it is not after 10 s."""
        _wait(lambda: self._health() == 200, "health")

    def _health(self) -> int | None:
        try:
            return self.ask("/health")[0]
        except OSError:
            return None

    def child(self, title: str) -> int:
        """Return the pid of the process with this title in this engine's tree."""
        listing = subprocess.check_output(["ps", "-eo", "pid=,ppid=,args="], text=True)
        rows = [line.split(None, 2) for line in listing.splitlines()]
        tree = {self.process.pid}
        for pid, parent, args in sorted(rows, key=lambda row: int(row[0])):
            if int(parent) in tree:
                tree.add(int(pid))
                if args == title:
                    return int(pid)
        raise AssertionError(f"no {title} below {self.process.pid}")


def _request(**more: Any) -> dict[str, Any]:
    hello = [{"role": "user", "content": "hello"}]
    return {"model": "tiny", "messages": hello, "max_tokens": 3, **more}


def _wait(condition: Callable[[], bool], what: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel as an installer would; return the command ``vllm``."""
    folder = tmp_path_factory.mktemp("standin")
    wheel = folder / "standin.whl"
    wheel.write_bytes(standin_wheel("0.0.1+standin"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "vllm = vllm.cli:main" in archive.read(entry).decode()
    build(folder, folder)
    command = folder / "vllm"
    command.write_text(f"#!{sys.executable}\nfrom vllm.cli import main\nmain()\n")
    command.chmod(0o755)
    return command


@pytest.fixture
def start(installed: Path, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Start stand-ins on free ports: options by argument, environment by keyword."""
    started: list[subprocess.Popen[str]] = []

    def begin(*options: str, port: int | None = None, wait: bool = True, **env: str) -> Engine:
        port = port or _free_port()
        log = tmp_path / f"{len(started)}.log"
        config = tmp_path / "serve.yaml"
        model = installed.parent / "tiny-qwen3"
        config.write_text(
            f"model: {model}\nhost: '127.0.0.1'\nserved-model-name:\n- tiny\n- other\n"
            "load-format: dummy\nenforce-eager: true\nmax-model-len: 1k\nenable-lora: false\n"
            'compilation-config: {"mode": 0}\n'
        )
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(installed), "serve", "--config", str(config), "--port", str(port), *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(installed.parent / "site"),
                    "STANDIN_START_SECONDS": "0",
                    **env,
                },
            )
        started.append(process)
        engine = Engine(process, port, log)
        if wait:
            engine.wait_until_healthy()
        return engine

    yield begin
    for process in started:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def test_endpoints_answer_in_vllms_shapes(start: Callable[..., Engine]) -> None:
    engine = start()
    assert engine.ask("/health") == (200, "")
    assert engine.ask("/ping") == (200, "")
    assert engine.ask("/ping", {}) == (200, "")
    assert engine.ask("/load") == (200, '{"server_load":0}')
    assert engine.ask("/version") == (200, '{"version":"0.0.1+standin"}')
    assert engine.ask("/nope") == (404, '{"detail":"Not Found"}')
    assert engine.ask("/v1/completions") == (405, '{"detail":"Method Not Allowed"}')
    models = json.loads(engine.ask("/v1/models")[1])["data"]
    assert [(card["id"], card["max_model_len"]) for card in models] == [
        ("tiny", 1000),
        ("other", 1000),
    ]
    answer = engine.chat()
    assert answer["choices"][0]["message"]["content"] == "These words come "
    # The real tokenizer counts 24 for this prompt as well.
    assert answer["usage"] == {"prompt_tokens": 24, "total_tokens": 27, "completion_tokens": 3}
    status, text = engine.ask("/v1/completions", {"model": "other", "prompt": "hello"})
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 16)
    assert (
        'vllm:generation_tokens_total{engine="0",model_name="tiny"} 19.0'
        in (engine.ask("/metrics")[1])
    )


def test_refusals_are_vllms(start: Callable[..., Engine]) -> None:
    engine = start()
    assert engine.ask("/v1/chat/completions", _request(model="nope")) == (
        404,
        '{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny, other.",'
        '"type":"NotFoundError","param":"model","code":404}}',
    )
    assert engine.ask("/v1/chat/completions", _request(messages="x"))[0] == 400
    status, body = engine.ask("/v1/chat/completions", _request(max_tokens=5000))
    assert (status, json.loads(body)["error"]["param"]) == (400, "max_tokens")


def test_stream_ends_with_usage(start: Callable[..., Engine]) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    _, body = start().ask("/v1/chat/completions", _request(**more))
    events = [line.removeprefix("data: ") for line in body.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] == 3
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-2]]
    assert "".join(delta["content"] for delta in deltas) == "These words come "


@pytest.mark.parametrize(
    "options, env", [(["--api-key", "a", "b"], {}), ([], {"VLLM_API_KEY": "b"})]
)
def test_key_guards_v1_alone(
    start: Callable[..., Engine], options: list[str], env: dict[str, str]
) -> None:
    engine = start(*options, **env)
    assert engine.ask("/v1/models") == (401, '{"error":"Unauthorized"}')
    assert engine.ask("/v1/nope", key="wrong") == (401, '{"error":"Unauthorized"}')
    assert engine.ask("/v1/models", key="b")[0] == 200
    assert engine.ask("/health")[0] == engine.ask("/metrics")[0] == 200


def test_connections_are_refused_until_ready_and_processes_carry_vllms_titles(
    start: Callable[..., Engine],
) -> None:
    engine = start(STANDIN_START_SECONDS="1.5", wait=False)
    _wait(lambda: "Starting to load model" in engine.log.read_text(), "load")
    with pytest.raises(ConnectionRefusedError):
        engine.ask("/health")
    engine.wait_until_healthy()
    assert engine.child("VLLM::EngineCore") < engine.child("VLLM::Worker")


def test_start_says_what_the_real_one_says(start: Callable[..., Engine]) -> None:
    real = (ROOT / "tests/fixtures/logs/vllm-0.32.0-cpu-start.log").read_text()
    engine = start()
    _wait(lambda: "startup complete" in engine.log.read_text(), "closing line")
    # Sources and the first words of the text are the same; values differ.
    heads = re.findall(r"\((\w+) pid=\d+\) (\w+) \S+ \S+ (\[\S+\] \S+)", engine.log.read_text())
    assert len(heads) > 20
    assert set(heads) <= set(re.findall(r"\((\w+) pid=\d+\) (\w+) \S+ \S+ (\[\S+\] \S+)", real))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_stop_is_quick_and_clean(start: Callable[..., Engine], number: int) -> None:
    engine = start()
    engine.process.send_signal(number)
    assert engine.process.wait(3) == 0
    assert engine.log.read_text().rstrip().splitlines()[-1].startswith("INFO:     Finished server")


def test_dead_worker_takes_the_engine_along_and_status_is_0(start: Callable[..., Engine]) -> None:
    engine = start()
    os.kill(engine.child("VLLM::Worker"), signal.SIGKILL)
    _wait(lambda: engine.ask("/health")[0] == 503, "503")
    assert engine.ask("/v1/chat/completions", _request())[0] == 500
    assert engine.process.wait(8) == 0
    assert "EngineDeadError" in engine.log.read_text()


def _in_flight(engine: Engine) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)
    connection.request("POST", "/v1/chat/completions", json.dumps(_request(max_tokens=8)))
    _wait(
        lambda: 'requests_running{engine="0",model_name="tiny"} 1' in engine.ask("/metrics")[1],
        "it",
    )
    return connection


def test_stop_during_a_request_drains_when_it_may(start: Callable[..., Engine]) -> None:
    engine = start("--shutdown-timeout", "5", STANDIN_TOKEN_SECONDS="0.1")
    connection = _in_flight(engine)
    engine.process.terminate()
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["usage"]["completion_tokens"]) == (200, 8)
    connection.close()
    assert engine.process.wait(3) == 0


def test_signal_to_the_whole_unit_loses_the_request(start: Callable[..., Engine]) -> None:
    engine = start("--shutdown-timeout", "5", STANDIN_TOKEN_SECONDS="0.3")
    connection = _in_flight(engine)
    children = [engine.child("VLLM::EngineCore"), engine.child("VLLM::Worker")]
    for pid in (engine.process.pid, *children):
        os.kill(pid, signal.SIGTERM)
    response = connection.getresponse()
    assert (response.status, b"EngineCore encountered" in response.read()) == (500, True)
    connection.close()
    assert engine.process.wait(8) == 0


def test_stop_during_a_request_hangs_without_a_timeout(start: Callable[..., Engine]) -> None:
    engine = start(STANDIN_TOKEN_SECONDS="0.1")
    connection = _in_flight(engine)
    engine.process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        engine.process.wait(1.5)
    connection.close()
    assert engine.process.wait(3) == 0


@pytest.mark.parametrize(
    "options, status, message",
    [
        (["--no-such-flag", "3"], 2, "vllm: error: unrecognized arguments: --no-such-flag\n"),
        (["--kv-cache-dtype", "nope"], 2, "argument --kv-cache-dtype: invalid choice: 'nope'"),
        (["--quantization", "nvfp4"], 1, "Unknown quantization method: nvfp4. Must be one of"),
        (["--max-model-len", "4096"], 1, "User-specified max_model_len (4096) is greater than"),
        (["--model", "/nowhere"], 1, "Repo id must be in the form"),
    ],
)
def test_bad_options_end_as_in_vllm(
    start: Callable[..., Engine], options: list[str], status: int, message: str
) -> None:
    engine = start(*options, wait=False)
    assert engine.process.wait(5) == status
    assert message in engine.log.read_text()


def test_port_in_use(start: Callable[..., Engine]) -> None:
    first = start()
    second = start(port=first.port, wait=False)
    assert second.process.wait(5) == 1
    assert "OSError: [Errno 98] Address already in use" in second.log.read_text()


@pytest.mark.parametrize("phase", ["config", "load", "kv"])
def test_told_to_die(start: Callable[..., Engine], phase: str) -> None:
    engine = start(wait=False, STANDIN_DIE_AT=phase, STANDIN_EXIT_CODE="7")
    assert engine.process.wait(5) == 7
    log = engine.log.read_text()
    assert f"RuntimeError: stand-in told to die in phase {phase}" in log
    assert ("Engine core initialization failed." in log) == (phase != "config")


def test_told_to_hang_at_start_it_does_not_obey_sigterm(start: Callable[..., Engine]) -> None:
    engine = start(wait=False, STANDIN_HANG_AT="warmup")
    _wait(lambda: "Warming up done." in engine.log.read_text(), "warm-up")
    engine.process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        engine.process.wait(0.5)
    assert "Starting vLLM server" not in engine.log.read_text()


@pytest.mark.parametrize(
    "mode, text, tokens", [("empty", "", 1), ("none", "", 0), ("garbage", "!!!", 3)]
)
def test_told_to_generate_badly(
    start: Callable[..., Engine], mode: str, text: str, tokens: int
) -> None:
    answer = start(STANDIN_GENERATE=mode).chat()
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["completion_tokens"] == tokens


def test_told_to_generate_nothing_or_to_ignore_the_key(start: Callable[..., Engine]) -> None:
    engine = start(STANDIN_GENERATE="hang", VLLM_API_KEY="k", STANDIN_IGNORE_API_KEY="1")
    assert engine.ask("/v1/models")[0] == 200
    with pytest.raises(TimeoutError):
        engine.ask("/v1/chat/completions", _request(), timeout=0.5)
    assert engine.ask("/health")[0] == 200


def ranks(start: Callable[..., Engine], **env: str) -> list[Engine]:
    """Both ranks of a pair, not yet healthy."""
    port = str(_free_port())
    shared = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    alone = [["--node-rank", "0"], ["--node-rank", "1", "--headless"]]
    return [start(*shared, *own, wait=False, **env) for own in alone]


def test_two_ranks_notice_each_other_as_little_as_vllm_does(start: Callable[..., Engine]) -> None:
    head, worker = ranks(start)
    head.wait_until_healthy()
    assert head.chat()["usage"]["completion_tokens"] == 3
    with pytest.raises(OSError):
        worker.ask("/health")  # it serves nobody
    worker.process.kill()
    worker.process.wait()
    assert head.ask("/health")[0] == 200, "vLLM's head says so without its worker"
    assert head.ask("/v1/chat/completions", _request())[0] == 500
    assert head.process.wait(10) == 0


def test_a_worker_outlives_its_head(start: Callable[..., Engine]) -> None:
    head, worker = ranks(start)
    head.wait_until_healthy()
    head.process.terminate()
    assert head.process.wait(10) == 0
    time.sleep(0.5)
    assert worker.process.poll() is None
    worker.process.terminate()
    assert worker.process.wait(10) == 0


def test_a_rank_whose_partner_does_not_come(start: Callable[..., Engine]) -> None:
    options = ["--nnodes", "2", "--node-rank", "0", "--master-port", str(_free_port())]
    head = start(*options, wait=False, STANDIN_JOIN_SECONDS="1")
    assert head.process.wait(10) == 1
    assert "DistStoreError: Timed out after 2 seconds" in head.log.read_text()


def test_a_worker_that_is_stopped_hangs_the_head(start: Callable[..., Engine]) -> None:
    head, worker = ranks(start)
    head.wait_until_healthy()
    worker.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        head.ask("/v1/chat/completions", _request(), timeout=1)
    worker.process.send_signal(signal.SIGCONT)
    assert head.chat()["usage"]["completion_tokens"] == 3

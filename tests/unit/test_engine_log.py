"""Real logs (tests/fixtures/logs): the phases of a start, and what went wrong first."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_log import first_exception, phase

from sparkwright.engine import PHASES

LOGS = Path(__file__).parents[1] / "fixtures/logs"


def lines(name: str) -> list[str]:
    return (LOGS / f"vllm-{name}.log").read_text().splitlines()


# (log, beginning of the first exception: what a user has to read)
FAILED = [
    (
        "0.26.0-gpu-ninja-not-on-path",
        "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
    ),
    (
        "0.32.0-cpu-bad-quantization",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig "
        "Value error, Unknown quantization method: nvfp4. Must be one of ['awq', ",
    ),
    ("0.32.0-cpu-engine-killed", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore enc"),
    ("0.32.0-cpu-memory-too-small", "ValueError: Available memory on node 0 (7.78/9.21 GiB)"),
    ("0.32.0-cpu-no-such-model", "huggingface_hub.errors.HFValidationError: Repo id must be"),
    ("0.32.0-cpu-port-in-use", "OSError: [Errno 98] Address already in use"),
    ("0.32.0-cpu-two-node-head-worker-killed", "RuntimeError: [/__w/pytorch/pytorch/third_party"),
    ("0.32.0-cpu-two-node-worker", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"),
    ("0.32.0-cpu-unknown-option", "vllm: error: unrecognized arguments: --no-such-flag"),
]


@pytest.mark.parametrize(("log", "expected"), FAILED)
def test_first_exception(log: str, expected: str) -> None:
    found = first_exception(lines(log))
    assert found is not None
    assert found.startswith(expected)
    assert "\n" not in found


@pytest.mark.parametrize(
    "log", ["0.26.0-gpu-cold-start", "0.26.0-gpu-warm-start", "0.32.0-cpu-start"]
)
def test_no_exception_in_a_healthy_start(log: str) -> None:
    assert first_exception(lines(log)) is None


def phases_of(log: list[str]) -> list[str]:
    seen = ["starting Python"]
    for line in log:
        now = phase([line], PHASES, seen[-1])
        if now != seen[-1]:
            seen.append(now)
    return seen[1:]


GPU_START = [
    "reading the model's configuration",
    "starting the engine",
    "loading weights",
    "compiling kernels (torch.compile)",
    "preparing the KV cache",
    "tuning kernels (FlashInfer autotune)",
    "warming up kernels",
    "warming up attention",
    "capturing CUDA graphs",
    "finishing (JIT of the remaining kernels)",
    "starting the API server",
    "serving",
]


@pytest.mark.parametrize("log", ["0.26.0-gpu-cold-start", "0.26.0-gpu-warm-start"])
def test_phases_of_a_start_on_a_gpu(log: str) -> None:
    assert phases_of(lines(log)) == GPU_START


def test_phases_of_a_start_on_a_cpu() -> None:
    assert phases_of(lines("0.32.0-cpu-start")) == [
        name for name in GPU_START if name in GPU_START[:5] or name in GPU_START[-2:]
    ]


@pytest.mark.parametrize(
    ("log", "last"),
    [
        ("0.26.0-gpu-ninja-not-on-path", "warming up kernels"),
        ("0.32.0-cpu-bad-quantization", "reading the model's configuration"),
        ("0.32.0-cpu-memory-too-small", "starting the engine"),
        ("0.32.0-cpu-port-in-use", "reading the model's configuration"),
    ],
)
def test_phase_in_which_a_start_failed(log: str, last: str) -> None:
    assert phases_of(lines(log))[-1] == last


def test_phases_come_in_their_order() -> None:
    names = list(dict.fromkeys(name for _, name in PHASES))
    for log in ("0.26.0-gpu-cold-start", "0.32.0-cpu-start", "0.26.0-gpu-ninja-not-on-path"):
        found = [names.index(name) for name in phases_of(lines(log))]
        assert found == sorted(found)


def test_the_phase_stays_when_nothing_new_is_said() -> None:
    assert phase([], PHASES, "loading weights") == "loading weights"
    assert phase(["something else"], PHASES, "loading weights") == "loading weights"


def test_empty_log() -> None:
    assert first_exception([]) is None
    assert first_exception(["", "   "]) is None


def test_argparse_error_below_its_usage() -> None:
    log = ["usage: vllm serve [-h]", "vllm serve: error: argument --port: invalid int value: 'x'"]
    assert first_exception(log) == log[1]


def test_chained_exceptions_name_the_first() -> None:
    log = """Traceback (most recent call last):
  File "a.py", line 1, in f
    open("x")
FileNotFoundError: [Errno 2] No such file or directory: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in f
    raise RuntimeError("later")
RuntimeError: later"""
    assert first_exception(log.splitlines()) == (
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'"
    )


def test_lines_of_two_processes_mixed() -> None:
    log = """(EngineCore pid=2) Traceback (most recent call last):
(APIServer pid=1) INFO 11-30 17:48:58 [launcher.py:1] waiting
(EngineCore pid=2)   File "a.py", line 1, in f
(APIServer pid=1) Traceback (most recent call last):
(EngineCore pid=2) ValueError: the cause
(APIServer pid=1) RuntimeError: the engine died"""
    assert first_exception(log.splitlines()) == "ValueError: the cause"


def test_torn_traceback_gives_the_next_one() -> None:
    log = """Traceback (most recent call last):
  File "a.py", line 1, in f
INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable
(EngineCore pid=2) Traceback (most recent call last):
(EngineCore pid=2)   File "a.py", line 1, in f
(EngineCore pid=2) MemoryError"""
    assert first_exception(log.splitlines()) == "MemoryError"
    assert first_exception(log.splitlines()[:2]) is None


@pytest.mark.parametrize("count", [1, 40, 80, 120, 160, 200])
def test_a_log_that_ends_anywhere_is_read(count: int) -> None:
    log = lines("0.26.0-gpu-ninja-not-on-path")[:count]
    log[-1] = log[-1][: len(log[-1]) // 2]
    assert first_exception(log) in (
        None,
        "EngineCore failed to start.",
        "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
    )


def test_an_exception_that_was_survived_is_all_there_is() -> None:
    log = lines("0.32.0-cpu-memory-too-small")[:40]
    assert "Traceback" in "".join(log)
    assert first_exception(log) is None


def test_first_line_logged_as_an_error_when_there_is_no_traceback() -> None:
    log = ["(A pid=1) INFO 11-30 17:48:58 [x.py:1] fine", "(A pid=1) ERROR 11-30 17:48:59 [x.py:2]"
           " went wrong"]  # fmt: skip
    assert first_exception(log) == "went wrong"

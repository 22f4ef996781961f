"""The process tree of ``vllm serve``: start by phases, watch over the engine, shutdown."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from vllm import PHASES, logs
from vllm.api import Server, State
from vllm.ranks import JoinError, Ranks

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_DEFAULT_PORT = 8000
# vLLM notices a dead engine at once and leaves after 4.6 to 4.8 s, with status 0.
_LEAVE_AFTER_ENGINE_DEATH = 4.6  # seconds
_HEADLESS_LEAVES_AFTER = 3  # seconds, measured as well
# What ModelConfig refuses, though the parser takes any word.
_QUANTIZATIONS = """
awq auto_awq fp8 fbgemm_fp8 fp_quant modelopt modelopt_fp4 modelopt_mxfp8 modelopt_mixed auto_gptq
gptq gptq_marlin awq_marlin humming compressed-tensors experts_int8 quark moe_wna16 torchao inc
mxfp4 gpt_oss_mxfp4 deepseek_v4_fp8 online fp8_per_tensor fp8_per_block fp8_per_channel
int8_per_channel_weight_only nvfp4_per_token mxfp8
"""


def serve(args: argparse.Namespace) -> int:
    """Run a server until it is told to stop or its engine dies; return the exit status."""
    # As vLLM 0.32.0 does: a SIGTERM during the start is lost, only SIGKILL ends it. The engine
    # inherits that, and later ends when this process says so or when its worker is gone.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    model = args.model_tag or args.model or "Qwen/Qwen3-0.6B"
    host, port = args.host or "0.0.0.0", args.port or _DEFAULT_PORT
    try:
        listener = None if args.headless else _bind(host, port)
        context = _context(args, model)
    except OSError as problem:
        logs.server_traceback(f"{type(problem).__name__}: {problem}")
        return 1
    except ValueError as problem:
        logs.config_traceback(str(problem))
        return 1
    given = {key: value for key, value in vars(args).items() if value is not None}
    given.pop("subcommand")
    keys = given.get("api_key") or [key for key in [os.environ.get("VLLM_API_KEY")] if key]
    given.update({"api_key": ["***"]} if "api_key" in given else {})
    fields: dict[str, object] = {
        **{"model": model, "arguments": given, "context": context, "host": host, "port": port},
        **{"concurrency": 2_097_152 / context, "took": _pause() * (len(PHASES) - 1)},
    }
    time.sleep(_pause())
    _phase("config", "APIServer", fields, logs.server_traceback)
    try:
        ranks = Ranks.join(args)
    except (JoinError, OSError) as problem:
        logs.server_traceback(str(problem))
        return 1
    engine, ready = _spawn_engine(fields)
    if not ready:
        logs.server_traceback(logs.INIT_FAILED)
        return int(os.environ.get("STANDIN_EXIT_CODE", "1"))
    if listener is None:
        return _headless(ranks, engine)
    logs.start_lines("ready", "APIServer", fields)
    state = State(names=args.served_model_name or [model], root=model, context=context, keys=keys)
    state.ranks = ranks
    quiet = set((args.disable_access_log_for_endpoints or "").split(","))
    server = Server(listener, state, None if args.disable_uvicorn_access_log else quiet)
    return _serve_until_told(server, state, engine, args.shutdown_timeout or 0)


def _headless(ranks: Ranks | None, engine: int) -> int:
    """Rank 1: no server; ends when it is told, or a while after its engine died."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    died = threading.Event()

    def watch() -> None:
        os.waitpid(engine, 0)
        died.set()
        told.set()

    threading.Thread(target=watch, daemon=True).start()
    if ranks:
        threading.Thread(target=ranks.answer, daemon=True).start()
    told.wait()
    if died.is_set():
        time.sleep(_HEADLESS_LEAVES_AFTER)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGKILL)
    return 0


def _bind(host: str, port: int) -> socket.socket:
    """Take the port before the engine starts; connections are refused until it listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def _context(args: argparse.Namespace, model: str) -> int:
    """Return the context length in tokens; raise ValueError for what ModelConfig refuses."""
    config: dict[str, Any] = {}
    if model.startswith("/"):
        path = Path(model) / "config.json"
        if not path.is_file():
            raise ValueError(
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
                f"'{model}'. Use `repo_type` argument if needed."
            )
        config = json.loads(path.read_text())
    known = _QUANTIZATIONS.split()
    if args.quantization not in (None, *known):
        raise ValueError(
            f"Unknown quantization method: {args.quantization}. Must be one of {known}."
        )
    longest = int(config.get("max_position_embeddings", 2048))
    asked = longest if args.max_model_len in (None, "auto", "-1") else _human(args.max_model_len)
    if asked > longest:
        raise ValueError(
            f"User-specified max_model_len ({asked}) is greater than the derived max_model_len "
            f"(max_position_embeddings={longest} or model_max_length=None in model's config.json)."
        )
    return asked


def _human(text: str) -> int:
    unit = {"k": 1000, "K": 1024, "m": 10**6, "M": 2**20}.get(text[-1], 1)
    return int(float(text.rstrip("kKmM")) * unit)


def _pause() -> float:
    return float(os.environ.get("STANDIN_START_SECONDS", "0.5")) / len(PHASES)


def _phase(name: str, process: str, fields: dict[str, object], fail: Any) -> None:
    """End one phase of a start, or the start in it, as the environment says."""
    logs.start_lines(name, process, fields)
    if os.environ.get("STANDIN_HANG_AT") == name:
        while True:
            signal.pause()
    if os.environ.get("STANDIN_DIE_AT") == name:
        fail(f"RuntimeError: stand-in told to die in phase {name}")
        sys.stdout.flush()
        os._exit(int(os.environ.get("STANDIN_EXIT_CODE", "1")))


def _spawn_engine(fields: dict[str, object]) -> tuple[int, bool]:
    """Fork the engine; return its pid and whether it came up."""
    reader, writer = os.pipe()
    engine = os.fork()
    if engine == 0:
        os.close(reader)
        _engine(fields, writer)
    os.close(writer)
    ready = bool(os.read(reader, 1))
    if not ready:
        os.waitpid(engine, 0)
    return engine, ready


def _engine(fields: dict[str, object], writer: int) -> NoReturn:
    _become("VLLM::EngineCore")
    worker_did, did = os.pipe()
    worker = os.fork()
    if worker == 0:
        _become("VLLM::Worker")
        os.close(writer)
        for phase in PHASES[1:]:
            time.sleep(_pause())
            logs.start_lines(phase, "Worker", fields)
            os.write(did, b"1")
        # A SIGTERM to the whole unit takes the worker, and with it requests in flight: measured.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()
    for phase in PHASES[1:]:
        os.read(worker_did, 1)  # an engine that dies in a phase does so after its worker's lines
        _phase(phase, "EngineCore", fields, logs.engine_traceback)
    os.write(writer, b"1")
    os.waitpid(worker, 0)  # an engine does not outlive its worker
    logs.log("EngineCore", "ERROR", "multiproc_executor.py:306", "Worker proc VllmWorker-0 died")
    os._exit(1)


def _become(title: str) -> None:
    """Take the process title ``title``, and end when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, title.encode(), 0, 0, 0)
    # ps shows the memory in which the kernel put argv: fields 48 and 49 of stat.
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(numbers[45]), int(numbers[46])
    ctypes.memmove(start, title.encode().ljust(end - start, b"\0"), end - start)


def _serve_until_told(server: Server, state: State, engine: int, grace: int) -> int:
    """Serve; on SIGTERM or SIGINT shut down, granting requests in flight ``grace`` seconds."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    ends: list[Callable[[], object]] = [lambda: os.waitpid(engine, 0)]
    if state.ranks:
        ends.append(state.ranks.lost.wait)
    for end in ends:
        threading.Thread(target=_watch, args=(end, state, told), daemon=True).start()
    server.start()
    told.wait()
    if state.dead:
        time.sleep(_LEAVE_AFTER_ENGINE_DEATH)
        logs.stopped()
        return 0
    mode = "drain" if grace else "abort"
    logs.log("APIServer", "INFO", "launcher.py:254", "[shutdown] API server: shutdown triggered")
    logs.log(
        *("APIServer", "INFO", "launcher.py:270"),
        f"[shutdown] API server: stopping engine client mode={mode} timeout={grace}s",
    )
    deadline = time.monotonic() + grace
    while state.running and time.monotonic() < deadline:
        time.sleep(0.02)
    state.stopping, state.aborted = True, grace == 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(engine, signal.SIGKILL)
    while state.aborted and state.running:
        time.sleep(0.02)  # as vLLM does: without an engine, for as long as the client waits
    logs.log(
        *("APIServer", "INFO", "launcher.py:304"),
        "[shutdown] API server: shutting down FastAPI HTTP server",
    )
    logs.stopped()
    return 0


def _watch(end: Callable[[], object], state: State, told: threading.Event) -> None:
    """end: returns when the engine, or the other rank, is gone."""
    end()
    if not state.stopping:
        state.dead = True
        logs.engine_died()
        told.set()

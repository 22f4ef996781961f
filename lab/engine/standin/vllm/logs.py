"""The lines that vLLM 0.32.0 writes on the CPU, by phase, and its tracebacks."""

from __future__ import annotations

import os
import sys
import time

from vllm import __version__

# (process, level, source, text) at each phase's end; {} fields are filled by start_lines.
_LINES = {
    "config": """
APIServer INFO api_utils.py:347        █     █     █▄   ▄█
APIServer INFO api_utils.py:347  ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}
APIServer INFO api_utils.py:347   █▄█▀ █     █     █     █  model   {model}
APIServer INFO api_utils.py:347    ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀
APIServer INFO api_utils.py:286 non-default args: {arguments}
APIServer INFO model.py:733 Resolved architecture: Qwen3ForCausalLM
APIServer INFO model.py:2152 Using max model len {context}
APIServer INFO scheduler.py:307 Chunked prefill is enabled with max_num_batched_tokens=1024.
APIServer WARNING cpu.py:224 Triton is not installed. triton-cpu is expected on x86 CPUs.
""",
    "engine": """
EngineCore INFO core.py:133 Initializing a V1 LLM engine (v{version}) with config: \
model='{model}', speculative_config=None, tokenizer='{model}', max_seq_len={context}
EngineCore INFO multiproc_executor.py:153 DP group leader: node_rank=0, node_rank_within_dp=0, \
master_addr=127.0.0.1, mq_connect_ip=127.0.0.1 (local), world_size=1, local_world_size=1
Worker INFO parallel_state.py:1906 world_size=1 rank=0 local_rank=0 \
distributed_init_method=file:///tmp/vllm_dist backend=gloo
""",
    "load": """
Worker INFO cpu_model_runner.py:68 Starting to load model {model}...
Worker INFO base_loader.py:82 Initializing model took 0.266799 seconds
EngineCore INFO utils.py:347 Using LBHNC KV cache layout.
""",
    "warmup": """
Worker INFO cpu_model_runner.py:87 Warming up model for the compilation...
Worker INFO monitor.py:91 [backbone] Initial profiling/warmup run took 0.08 s
Worker INFO cpu_model_runner.py:91 Warming up done.
""",
    "kv": """
Worker INFO cpu_worker.py:260 Explicitly set (1.0/9.34) GiB for KV cache on node 0.
EngineCore INFO kv_cache_utils.py:2327 CPU KV cache size: 2,097,152 tokens, \
Maximum concurrency for {context} tokens per request: {concurrency:.2f}x
EngineCore INFO core.py:402 init engine (profile, create kv cache, warmup model) took {took:.2f} s
""",
    "ready": """
APIServer INFO entry.py:136 Supported tasks: ['generate']
APIServer INFO entry.py:140 Starting vLLM server on http://{host}:{port}
APIServer INFO launcher.py:186 Available routes are:
APIServer INFO launcher.py:195 Route: /load, Methods: GET
APIServer INFO launcher.py:195 Route: /version, Methods: GET
APIServer INFO launcher.py:195 Route: /health, Methods: GET
APIServer INFO launcher.py:195 Route: /metrics, Methods: GET
APIServer INFO launcher.py:195 Route: /v1/models, Methods: GET
APIServer INFO launcher.py:195 Route: /ping, Methods: GET
APIServer INFO launcher.py:195 Route: /ping, Methods: POST
APIServer INFO launcher.py:195 Route: /v1/chat/completions, Methods: POST
APIServer INFO launcher.py:195 Route: /v1/completions, Methods: POST
""",
}

_ENGINE_CAUSE = """\
Traceback (most recent call last):
  File "{package}/v1/engine/core.py", line 1482, in run_engine_core
    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)
  File "{package}/v1/engine/core.py", line 1194, in __init__
    super().__init__(
{error}"""

_SERVER_CAUSE = """\
Traceback (most recent call last):
  File "{prefix}/bin/vllm", line 10, in <module>
    sys.exit(main())
  File "{package}/entrypoints/cli/main.py", line 120, in main
    args.dispatch_function(args)
  File "{package}/entrypoints/cli/serve.py", line 156, in cmd
    uvloop.run(run_server(args))
{error}"""

INIT_FAILED = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def log(process: str, level: str, source: str, text: str) -> None:
    """Write one line as vLLM's logger does, to stdout."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    plain(f"({process} pid={os.getpid()}) {level} {stamp} [{source}] {text}")


def plain(text: str) -> None:
    """Write a line as it is: uvicorn's and tracebacks carry no stamp."""
    # In one write, so that lines of three processes don't mix.
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def start_lines(phase: str, process: str, fields: dict[str, object]) -> None:
    """Write what ``process`` says in ``phase`` of a start."""
    for line in _LINES[phase].strip("\n").splitlines():
        who, level, source, text = line.split(" ", 3)
        if who == process:
            log(process, level, source, text.format(version=__version__, **fields))


def engine_traceback(error: str) -> None:
    """Write the engine process's way of failing: logged, then raised."""
    lines = _fill(_ENGINE_CAUSE, error)
    log("EngineCore", "ERROR", "core.py:1510", "EngineCore failed to start.")
    for line in lines:
        log("EngineCore", "ERROR", "core.py:1510", line)
    for line in ["Process EngineCore:", *lines]:
        plain(line)


def server_traceback(error: str) -> None:
    """Write the API server's way of failing: a bare traceback."""
    for line in _fill(_SERVER_CAUSE, error):
        plain(line)


def config_traceback(reason: str) -> None:
    """Write how a configuration that the engine refuses ends: a validation error."""
    server_traceback(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        f"  Value error, {reason}"
    )


def engine_died() -> None:
    """Write what the API server says of an engine that died."""
    log(
        *("APIServer", "WARNING", "core_client.py:817"),
        "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
    )
    for line in ("AsyncLLM output_handler failed.", "Traceback (most recent call last):"):
        log("APIServer", "ERROR", "async_llm.py:906", line)
    error = f"vllm.v1.engine.exceptions.EngineDeadError: {DEAD}"
    log("APIServer", "ERROR", "async_llm.py:906", error)


def stopped() -> None:
    """Write the end of every shutdown, which is uvicorn's."""
    for line in ("Shutting down", "Waiting for application shutdown."):
        plain(f"INFO:     {line}")
    plain("INFO:     Application shutdown complete.")
    plain(f"INFO:     Finished server process [{os.getpid()}]")


def _fill(text: str, error: str) -> list[str]:
    package = os.path.dirname(__file__)
    return text.format(package=package, prefix=sys.prefix, error=error).splitlines()

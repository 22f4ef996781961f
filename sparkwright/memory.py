"""Will it fit: weights, runtime and KV cache of each engine, and what is left for the OS.

On a Spark the GPU's memory is the host's: too much does not end in an out-of-memory error, the
host freezes until its power is cut (NVIDIA/open-gpu-kernel-modules#1358). So the plan computes it
before anything is started. docs/memory.md compares with what was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkwright.kvcache import Shape, kv_bytes_per_token, shape, value_bytes
from sparkwright.kvpool import Capacity, Use, capacity, sequence_state_bytes

__all__ = [
    "Engine",
    "Estimate",
    "Finding",
    "Use",
    "estimate",
    "find_config",
    "host_verdict",
    "shape",
]

GIB = 1024**3
RUNTIME_GIB = 5.5
"""What an engine needs of its budget beside weights and KV cache: activations, CUDA graphs, CUDA
context. On a GB10 5.4 GiB (0.72 x 121.69 - 73.97 of weights - 8.22 of cache) and 5.5 (0.65, -0.39)
in eugr/spark-vllm-docker#388; 5.4 to 6.7 with what is outside the budget (llamastash/llamastash#80,
#81). Activations grow with max_num_batched_tokens: 1.39 GiB at 2048, 5.30 at 8224 for
DeepSeek-V4-Flash (MiaAI-Lab/DeepSeek-v4-Flash-One-DGX-Spark#4)."""
HOST_GIB = 2.0
"""What the processes of an engine take outside its budget, on GB10 (llamastash/llamastash#84)."""
DEFAULT_UTILIZATION = 0.92
"""vLLM's own `gpu_memory_utilization`, 0.27 to 0.33 (`config/cache.py`)."""
MAX_UTILIZATION = 0.90
"""More of a Spark is refused: 0.92 can't be met at a start (vllm-project/recipes#632), and guides
for Spark end at 0.85 to 0.90."""
FREEZE_GIB = 8.0
"""Less for the OS is refused on a Spark: a host with about 7 GiB left froze
(vllm-project/vllm#46307); NVCheckup plans with 8."""
NEAR_GIB = 5.0
"""Closer to the reserve is a warning."""
SPARK_GIB = 64
"""Hosts with less are no Sparks: their own reserve is all that is checked."""
_ABOUT = "gpu_memory_utilization"


@dataclass(frozen=True)
class Finding:
    level: Literal["error", "warning"]
    about: str
    """Field of the profile that it is about."""
    message: str


@dataclass(frozen=True)
class Estimate:
    """Memory of one engine on one Spark, GiB. None: unknown, and `unknown` says why."""

    weights_gib: float | None
    runtime_gib: float
    budget_gib: float | None
    """What the engine takes for weights, runtime and cache together."""
    kv_gib: float | None
    kv_bytes_per_token: int | None
    state_bytes_per_sequence: int | None
    kv_tokens: int | None
    """As vLLM's log says it: full-length sequences times max_model_len."""
    sequences: float | None
    """Full-length sequences at once; vLLM's "Maximum concurrency"."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Engine:
    """One engine on a host, for `host_verdict`."""

    name: str
    utilization: float
    """Fraction of the memory that its start asks to be free, also with a fixed KV cache."""
    budget_gib: float | None = None
    """What it really takes when the KV cache has a fixed size; None: its fraction."""
    accept_freeze_risk: str | None = None


def estimate(
    model: Shape,
    use: Use | None,
    memory_gib: float,
    *,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    weights_gib: float | None = None,
    runtime_gib: float = RUNTIME_GIB,
    max_num_seqs: int | None = None,
) -> Estimate:
    """Compute what one engine does with its share of a host's memory.

    use: None when max_model_len is unknown. memory_gib: total of the host. weights_gib: of one
    rank, once loaded. Without gpu_memory_utilization vLLM's own default counts. Problems are in
    `findings`, and what can't be told in `unknown`.
    """
    unknown: dict[str, str] = {}
    findings: list[Finding] = []
    if weights_gib is None:
        unknown["weights_gib"] = "the profile has no expects.weights_gib"
    kv_gib, budget = _cache_gib(
        memory_gib, gpu_memory_utilization, kv_cache_memory_bytes, weights_gib, runtime_gib
    )
    if kv_gib is None:
        unknown["kv_gib"] = "it is what the weights leave, and their size is unknown"
    elif kv_gib <= 0:
        findings.append(_weights_too_big(budget or 0, weights_gib or 0, runtime_gib))
    per_token = state = None
    held: Capacity | None = None
    reason = _why_unknown(model, use)
    if use and not reason:
        per_token = kv_bytes_per_token(model, use.kv_cache_dtype, use.tensor_parallel_size)
        state = sequence_state_bytes(model, use)
        if kv_gib is not None and kv_gib > 0:
            held = capacity(model, use, int(kv_gib * GIB))
            findings += _capacity_findings(held, use, max_num_seqs)
    elif reason:
        unknown["kv_bytes_per_token"] = reason
    if held is None:
        unknown["kv_tokens"] = reason or unknown.get("kv_gib") or "no memory is left for a cache"
    return Estimate(
        weights_gib,
        runtime_gib,
        budget,
        kv_gib,
        per_token,
        state,
        held.tokens if held else None,
        held.sequences if held else None,
        unknown,
        tuple(findings),
    )


def _cache_gib(
    memory: float,
    utilization: float | None,
    fixed_bytes: int | None,
    weights: float | None,
    runtime: float,
) -> tuple[float | None, float | None]:
    """The KV cache and all that the engine takes, GiB."""
    if fixed_bytes is not None:
        cache = fixed_bytes / GIB
        return cache, None if weights is None else weights + runtime + cache
    budget = memory * (DEFAULT_UTILIZATION if utilization is None else utilization)
    return None if weights is None else budget - weights - runtime, budget


def _why_unknown(model: Shape, use: Use | None) -> str:
    if model.unknown:
        return model.unknown
    if use is None:
        return "the profile has no max_model_len"
    if use.mtp and not model.draft_layers:
        return "the config does not say how many layers multi-token prediction has"
    if value_bytes(model, use.kv_cache_dtype) is None:
        return f"bytes of a value of kv_cache_dtype {use.kv_cache_dtype!r} are not known here"
    return ""


def _weights_too_big(budget: float, weights: float, runtime: float) -> Finding:
    return Finding(
        "error",
        "gpu_memory_utilization",
        f"weights {weights:.1f} GiB and runtime {runtime:.1f} GiB do not fit into the budget of "
        f"{budget:.1f} GiB: raise it, choose a smaller quantization, or use more Sparks",
    )


def _capacity_findings(
    held: Capacity | None, use: Use, max_num_seqs: int | None
) -> Iterable[Finding]:
    if held is None:
        return
    if held.longest < use.max_model_len:
        yield Finding(
            "error",
            "max_model_len",
            f"no room for even one sequence of {use.max_model_len:,} tokens: at most "
            f"{held.longest:,} fit; lower max_model_len, raise the budget or use kv_cache_dtype "
            "fp8",
        )
    elif max_num_seqs and held.sequences < 1.5 and max_num_seqs > 1:
        yield Finding(
            "warning",
            "max_num_seqs",
            f"the cache holds {held.sequences:.1f} sequences of {use.max_model_len:,} tokens, "
            f"max_num_seqs lets {max_num_seqs} in: long ones wait for each other",
        )


def host_verdict(
    engines: Iterable[Engine], memory_gib: float, os_reserve_gib: float
) -> list[Finding]:
    """Check all engines of one host, in the order of their start; empty when all is well.

    Errors: the OS keeps less than its reserve, and on a Spark less than FREEZE_GIB, or engines take
    more than MAX_UTILIZATION: warnings when a profile says why in accept_freeze_risk. A start
    that asks for more than the engines before it leave. A warning within NEAR_GIB of the reserve.
    """
    engines = list(engines)
    spark = memory_gib >= SPARK_GIB
    outside = HOST_GIB if spark else 0.0
    shares = [memory_gib * e.utilization if e.budget_gib is None else e.budget_gib for e in engines]
    findings: list[Finding] = []
    free = memory_gib
    for engine, share in zip(engines, shares, strict=True):
        findings += _start(engine, engine.utilization * memory_gib, free)
        free -= share + outside
    said = ", ".join(f"{e.name} {share:.1f} GiB" for e, share in zip(engines, shares, strict=True))
    if outside:
        said += f", {outside:g} GiB outside the budget of each"
    said = f"{said}, of {memory_gib:g} GiB: {_floor(free):.1f} GiB are left for the OS"
    if free < 0:
        return [Finding("error", _ABOUT, f"{said}; it does not fit at all")]
    accepted = next((e.accept_freeze_risk for e in engines if e.accept_freeze_risk), None)
    risks = list(_risks(said, free, sum(shares) / memory_gib, os_reserve_gib, spark))
    for risk in risks:
        if accepted:
            findings.append(Finding("warning", _ABOUT, f"{risk} (accepted: {accepted})"))
        else:
            why = '; or say why it must be in accept_freeze_risk="..."'
            findings.append(Finding("error", _ABOUT, risk + why))
    if not risks and free < os_reserve_gib + NEAR_GIB:
        near = f"within {NEAR_GIB:g} GiB of the reserve of {os_reserve_gib:g}"
        findings.append(Finding("warning", _ABOUT, f"{said}, {near}"))
    return findings


def _floor(gib: float) -> float:
    """To one place, never up: 8.0 must not be said of what is less than 8."""
    return math.floor(gib * 10) / 10


def _start(engine: Engine, asks: float, free: float) -> Iterable[Finding]:
    """vLLM compares fraction x total with what is free, a fixed KV cache or not."""
    if asks > free:
        yield Finding(
            "error",
            _ABOUT,
            f"the start of {engine.name} asks for {asks:.1f} GiB to be free, "
            f"{engine.utilization:g} of the memory, also with kv_cache_memory_bytes; "
            f"{max(free, 0):.1f} are",
        )


def _risks(
    said: str, left: float, total: float, os_reserve_gib: float, spark: bool
) -> Iterable[str]:
    floor = max(os_reserve_gib, FREEZE_GIB) if spark else os_reserve_gib
    if left < floor:
        yield f"{said}, {floor:g} must be; lower the budgets"
    elif spark and total > MAX_UTILIZATION + 1e-9:
        yield (
            f"{total:.2f} of the memory in all, {MAX_UTILIZATION:.2f} is the most: a Spark that "
            "runs out of memory freezes until its power is cut"
        )


def find_config(
    model: str, revision: str | None, environ: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """`config.json` of a model when this machine has it; no network, None otherwise.

    model: Hugging Face id, looked for in the cache that HF_HUB_CACHE or HF_HOME names (default
    ~/.cache/huggingface), or the path of a folder. A file that is no JSON counts as absent.
    """
    if model.startswith("/"):
        file = Path(model) / "config.json"
    else:
        home = environ.get("HF_HOME") or f"{environ.get('HOME', '')}/.cache/huggingface"
        hub = Path(environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
        folder = f"models--{model.replace('/', '--')}"
        file = hub / folder / "snapshots" / (revision or "") / "config.json"
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None

"""Will it fit: weights, runtime and KV cache of each engine, and what is left for the OS.

On a Spark the GPU's memory is the host's: too much does not end in an out-of-memory error, the
host freezes until its power is cut (NVIDIA/open-gpu-kernel-modules#1358). So the plan computes it
before anything is started. docs/memory.md compares with what was measured.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkwright.kvcache import Shape, kv_bytes_per_token, value_bytes
from sparkwright.kvpool import Capacity, Use, capacity

GIB = 1024**3
RUNTIME_GIB = 5.5
"""What an engine needs of its budget beside weights and KV cache: activations, CUDA graphs, CUDA
context. On a GB10 5.4 GiB (0.72 x 121.69 - 73.97 of weights - 8.22 of cache) and 5.5 (0.65, -0.39)
in eugr/spark-vllm-docker#388; 5.4 to 6.7 with what is outside the budget (llamastash/llamastash#80,
#81). Activations grow with max_num_batched_tokens: 1.39 GiB at 2048, 5.30 at 8224 for
DeepSeek-V4-Flash (MiaAI-Lab/DeepSeek-v4-Flash-One-DGX-Spark#4)."""
HOST_GIB = 2.0
"""What the processes of an engine take outside its budget, on GB10 (llamastash/llamastash#84)."""
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
NO_WEIGHTS = "the profile has no expects.weights_gib"
_MOST_BYTES = 2**60  # does not fit anyway
_ABOUT = "gpu_memory_utilization"


@dataclass(frozen=True)
class Verdict:
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
    kv_tokens: int | None
    """As vLLM's log says it: full-length sequences times max_model_len."""
    sequences: float | None
    """Full-length sequences at once; vLLM's "Maximum concurrency"."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Verdict, ...] = ()


@dataclass(frozen=True)
class Engine:
    """One engine on a host, for `host_verdict`."""

    name: str
    utilization: float
    """Fraction of the memory that its start asks to be free, also with a fixed KV cache."""
    budget_gib: float | None = None
    """What it really takes when the KV cache has a fixed size; None: its fraction."""
    accept_freeze_risk: str | None = None
    pinned_gib: float = 0.0
    """Memory of the host that options of its own take, outside the budget."""


def of_engine(
    model: Shape,
    use: Use | None,
    memory_gib: float,
    *,
    gpu_memory_utilization: float,
    kv_cache_memory_bytes: int | None = None,
    weights_gib: float | None = None,
    no_weights: str = NO_WEIGHTS,
    runtime_gib: float = RUNTIME_GIB,
    max_num_seqs: int | None = None,
) -> Estimate:
    """Compute what one engine does with its share of a host's memory.

    use: None when max_model_len is unknown. memory_gib: total of the host. weights_gib: of one
    rank, once loaded; no_weights: why they are unknown. Problems are in `findings`, and what can't
    be told in `unknown`: a cause has the same words wherever it shows.
    """
    beside = None if weights_gib is None else weights_gib + runtime_gib
    share = memory_gib * gpu_memory_utilization
    kv_gib, budget = _cache_gib(share, kv_cache_memory_bytes, beside)
    sizes = {"weights_gib": weights_gib, "kv_gib": kv_gib, "budget_gib": budget}
    unknown = {name: no_weights for name, size in sizes.items() if size is None}
    reason = _why_unknown(model, use)
    per_token, held = None, None
    findings: list[Verdict] = []
    if kv_gib is not None and kv_gib <= 0:
        findings.append(_weights_too_big(share, weights_gib or 0, runtime_gib))
    if reason:
        unknown["kv_bytes_per_token"] = reason
    elif use:
        per_token = kv_bytes_per_token(model, use.kv_cache_dtype, use.tensor_parallel_size)
        if kv_gib is not None and kv_gib > 0:
            held = capacity(model, use, int(kv_gib * GIB))
            findings += _capacity_verdicts(held, use, max_num_seqs)
    if held is None:
        why = reason or unknown.get("kv_gib") or "no memory is left for a cache"
        unknown |= {"kv_tokens": why, "sequences": why}
    tokens, sequences = (held.tokens, held.sequences) if held else (None, None)
    return Estimate(
        weights_gib, runtime_gib, budget, kv_gib, per_token, tokens, sequences, unknown,
        tuple(findings),
    )  # fmt: skip


def _cache_gib(
    share: float, fixed_bytes: int | None, beside: float | None
) -> tuple[float | None, float | None]:
    """The KV cache and all that the engine takes, GiB. beside: weights and runtime."""
    if fixed_bytes is None:
        return None if beside is None else share - beside, share
    cache = min(fixed_bytes, _MOST_BYTES) / GIB
    return cache, None if beside is None else beside + cache


def _why_unknown(model: Shape, use: Use | None) -> str:
    if model.unknown:
        return model.unknown
    if use is None:
        return "the profile has no max_model_len"
    if use.mtp and not model.draft_layers:
        return "the config does not say how many layers multi-token prediction has"
    if value_bytes(model, use.kv_cache_dtype) is None:
        return f"bytes of a value of kv_cache_dtype {use.kv_cache_dtype!r} are not known here"
    return use.wrong(model)


def _weights_too_big(budget: float, weights: float, runtime: float) -> Verdict:
    return Verdict(
        "error",
        "gpu_memory_utilization",
        f"weights {weights:.1f} GiB and runtime {runtime:.1f} GiB do not fit into the budget of "
        f"{budget:.1f} GiB: raise it, choose a smaller quantization, or use more Sparks",
    )


def _capacity_verdicts(
    held: Capacity | None, use: Use, max_num_seqs: int | None
) -> Iterable[Verdict]:
    if held is None:
        return
    if held.longest < use.max_model_len:
        yield Verdict(
            "error",
            "max_model_len",
            f"no room for even one sequence of {use.max_model_len:,} tokens: at most "
            f"{held.longest:,} fit; lower max_model_len, raise the budget or use kv_cache_dtype "
            "fp8",
        )
    elif max_num_seqs and held.sequences < 1.5 and max_num_seqs > 1:
        yield Verdict(
            "warning",
            "max_num_seqs",
            f"the cache holds {held.sequences:.1f} sequences of {use.max_model_len:,} tokens, "
            f"max_num_seqs lets {max_num_seqs} in: long ones wait for each other",
        )


def host_verdict(
    engines: Iterable[Engine], memory_gib: float, os_reserve_gib: float
) -> list[Verdict]:
    """Check all engines of one host, in the order of their start; empty when all is well.

    Errors: the OS keeps less than its reserve, and on a Spark less than FREEZE_GIB; on a Spark
    also when engines take more than MAX_UTILIZATION, or one's start asks for more. These are
    warnings when every engine says why in accept_freeze_risk: a host that freezes takes all of
    them along, so one profile can't accept it for the others. Always errors: it does not fit at
    all; a fixed cache whose start asks for more than the engines before it and the OS leave. A
    warning within NEAR_GIB of the reserve.
    """
    engines = list(engines)
    spark = memory_gib >= SPARK_GIB
    outside = HOST_GIB if spark else 0.0
    shares = [memory_gib * e.utilization if e.budget_gib is None else e.budget_gib for e in engines]
    verdicts: list[Verdict] = []
    free = memory_gib
    for engine, share in zip(engines, shares, strict=True):
        verdicts += _start(engine, memory_gib, free - os_reserve_gib)
        free -= share + outside + engine.pinned_gib
    said = ", ".join(f"{e.name} {share:.1f} GiB" for e, share in zip(engines, shares, strict=True))
    if outside:
        said += f", {outside:g} GiB outside the budget of each"
    if pinned := sum(engine.pinned_gib for engine in engines):
        said += f", {pinned:g} GiB by options (offloading, caches)"
    said = f"{said}, of {memory_gib:g} GiB: {_floor(free):.1f} GiB are left for the OS"
    if free < 0:
        return [Verdict("error", _ABOUT, f"{said}; it does not fit at all")]
    floor = max(os_reserve_gib, FREEZE_GIB) if spark else os_reserve_gib
    risk = ""
    if free < floor:
        risk = f"{said}, {floor:g} must be; lower the budgets"
    elif spark and not verdicts:
        risk = _too_much(engines, sum(shares) / memory_gib)
    if risk:
        verdicts.append(_accepted(risk, engines))
    elif free < os_reserve_gib + NEAR_GIB:
        near = f"within {NEAR_GIB:g} GiB of the reserve of {os_reserve_gib:g}"
        verdicts.append(Verdict("warning", _ABOUT, f"{said}, {near}"))
    return verdicts


def _floor(gib: float) -> float:
    """To one place, never up: 8.0 must not be said of what is less than 8."""
    return math.floor(gib * 10) / 10


def _start(engine: Engine, memory_gib: float, free: float) -> Iterable[Verdict]:
    """vLLM compares fraction x total with what is free, a fixed KV cache or not.

    Without one it is what the engine takes, and the sum of all tells the same.
    """
    asks = engine.utilization * memory_gib
    if engine.budget_gib is not None and asks > free:
        yield Verdict(
            "error",
            _ABOUT,
            f"the start of {engine.name} asks for {asks:.1f} GiB to be free, "
            f"{engine.utilization:g} of the memory, also with kv_cache_memory_bytes; "
            f"{max(_floor(free), 0):.1f} are; lower it: the cache stays as large",
        )


def _too_much(engines: list[Engine], total: float) -> str:
    """What is above MAX_UTILIZATION; empty when nothing is."""
    most = MAX_UTILIZATION + 1e-9
    why = f"{MAX_UTILIZATION:.2f} is the most: a Spark that runs out of memory freezes until its "
    why += "power is cut"
    if total > most:
        return f"{total:.2f} of the memory in all, {why}"
    asking = [f"{e.name} {e.utilization:g}" for e in engines if e.utilization > most]
    return f"{', '.join(asking)} of the memory at the start, {why}" if asking else ""


def _accepted(risk: str, engines: list[Engine]) -> Verdict:
    """An error, or a warning when every engine accepts the risk."""
    silent = ", ".join(e.name for e in engines if not e.accept_freeze_risk)
    if silent:
        why = f'; or say why it must be in accept_freeze_risk="..." of {silent}'
        return Verdict("error", _ABOUT, risk + why)
    said = "; ".join(f"by {e.name}: {e.accept_freeze_risk}" for e in engines)
    return Verdict("warning", _ABOUT, f"{risk} (accepted {said})")


def find_config(
    model: str, revision: str | None, environ: Mapping[str, str]
) -> Mapping[str, Any] | None:
    """`config.json` of a model when this machine has it; no network, None otherwise.

    As in vLLM (`transformers_utils/config.py`), hf_quant_config.json beside it, which older
    checkpoints of ModelOpt have, is the quantization_config of a config.json without one.

    model: Hugging Face id, looked for in the cache that HF_HUB_CACHE or HF_HOME names (default
    ~/.cache/huggingface), or the path of a folder. A file that is no JSON counts as absent.
    """
    if model.startswith("/"):
        file = Path(model) / "config.json"
    else:
        home = environ.get("HF_HOME") or f"{environ.get('HOME', '')}/.cache/huggingface"
        hub = Path(os.path.expanduser(environ.get("HF_HUB_CACHE") or f"{home}/hub"))
        folder = f"models--{model.replace('/', '--')}"
        file = hub / folder / "snapshots" / (revision or "") / "config.json"
    config = _read(file)
    if config is None or config.get("quantization_config") is not None:
        return config
    quantization = _read(file.with_name("hf_quant_config.json"))
    return config if quantization is None else config | {"quantization_config": quantization}


def _read(file: Path) -> dict[str, Any] | None:
    """What a JSON file holds, None when it is no dict."""
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None

"""Whether what a host is to serve fits into its memory: the plan's side of memory.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from sparkwright import memory
from sparkwright.contradictions import switch
from sparkwright.errors import Problem
from sparkwright.kvcache import BATCHED_TOKENS, BATCHES, BLOCK_TOKENS, Shape, float_bytes, shape
from sparkwright.kvpool import Use, keeps_every_state, state_copies
from sparkwright.memory import Engine, Estimate
from sparkwright.settings import ModelProfile

if TYPE_CHECKING:
    from sparkwright.plan import HostPlan, Instance

# Options that change what the cache holds in ways that kvcache.py and kvpool.py do not compute.
_NOT_COMPUTED = (
    *("decode-context-parallel-size", "disable-hybrid-kv-cache-manager", "disable-sliding-window"),
    *("hf-overrides", "kv-cache-dtype-skip-layers", "kv-sharing-fast-prefill"),
    *("kv-transfer-config", "mamba-block-size", "mamba-cache-dtype", "num-gpu-blocks-override"),
)


# Options that take memory of the host in GiB, which on a Spark is the GPU's too.
_PINNED = ("kv-offloading-size", "cpu-offload-gb", "mm-processor-cache-gb", "swap-space")
_MEASURED_BATCH = 8224
"""Largest max_num_batched_tokens with a measured runtime (memory.RUNTIME_GIB)."""


def _pinned_gib(profile: ModelProfile) -> float:
    taken = (profile.extra_args.get(name) for name in _PINNED)
    return sum(float(t) for t in taken if isinstance(t, int | float) and t > 0)


def estimate(instance: Instance, memory_gib: float) -> Estimate:
    """Memory of one instance on a host with `memory_gib` GiB, as far as it can be told."""
    profile = instance.profile
    version = instance.release.engine_version
    numbers = Version(version).release if version else (999,)  # of a floating one, the newest rules
    draft = _draft_model(profile) or _placed_by_ray(profile)
    weights = None if draft else profile.expects.weights_gib
    model = Shape(unknown=draft) if draft else _model(profile, instance.config, numbers)
    return memory.of_engine(
        model,
        _use(profile, model, numbers),
        memory_gib,
        gpu_memory_utilization=profile.gpu_memory_utilization,
        kv_cache_memory_bytes=profile.kv_cache_memory_bytes,
        weights_gib=weights / profile.tensor_parallel_size if weights else None,
        no_weights=draft or memory.NO_WEIGHTS,
        runtime_gib=profile.runtime_gib or memory.RUNTIME_GIB,
        max_num_seqs=profile.max_num_seqs,
    )


def check(plan: HostPlan) -> tuple[list[Problem], list[Problem]]:
    """Problems and warnings about the memory of one host."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    where = f"host {plan.name}"

    def note(level: str, name: str, field: str, text: str) -> None:
        kept = problems if level == "error" else warnings
        kept.append(Problem(where, f"{name}.{field}" if name else field, "", text))

    engines = []
    for instance, found in zip(plan.instances, plan.estimates, strict=True):
        profile = instance.profile
        fixed = found.budget_gib if profile.kv_cache_memory_bytes else None
        if profile.kv_cache_memory_bytes and fixed is None:  # weights unknown: at the least
            fixed = (found.kv_gib or 0) + found.runtime_gib
        risk = profile.accept_freeze_risk
        pinned = _pinned_gib(profile)
        engines.append(Engine(instance.name, profile.gpu_memory_utilization, fixed, risk, pinned))
        batch = profile.max_num_batched_tokens or 0
        if batch > _MEASURED_BATCH and profile.runtime_gib is None:
            text = f"{batch} tokens a step take more runtime than the {memory.RUNTIME_GIB} GiB "
            text += f"that are counted (measured up to {_MEASURED_BATCH}): set runtime_gib"
            note("warning", instance.name, "max_num_batched_tokens", text)
        for verdict in found.findings:
            note(verdict.level, instance.name, verdict.about, verdict.message)
        full = any(verdict.level == "error" for verdict in found.findings)
        for reason in () if full else dict.fromkeys(found.unknown.values()):
            note("warning", instance.name, "memory", f"can't be told: {reason}")
    platform = plan.platform
    for verdict in memory.host_verdict(engines, platform.memory_gib, platform.os_reserve_gib):
        note(verdict.level, "", verdict.about, verdict.message)
    return problems, warnings


def _placed_by_ray(profile: ModelProfile) -> str:
    """Why nothing is known on a Ray cluster; empty without one."""
    return "Ray decides which parts of the model this Spark holds" if profile.ray else ""


def _draft_model(profile: ModelProfile) -> str:
    """Why nothing is known with a second model; empty without one."""
    draft = (profile.speculative_config or {}).get("model")
    if draft in (None, profile.model):
        return ""
    return "weights and cache of the draft model (speculative_config) are not computed here"


def _model(
    profile: ModelProfile, config: Mapping[str, Any] | None, version: tuple[int, ...]
) -> Shape:
    """What the model keeps, with what options of the profile change of it."""
    if not config:
        why = "the model's config.json is not on this machine, and the profile has no config=dict()"
        return Shape(unknown=why)
    extra = profile.extra_args
    for name in _NOT_COMPUTED:
        value = extra.get(name)
        if value is True or value not in (None, False, "", "auto", 1, [], {}):
            why = f"what extra_args[{name!r}] does to the cache is not computed here"
            return Shape(unknown=why)
    if extra.get("dtype") in ("float", "float32"):
        return Shape(unknown="a model in float32 (extra_args['dtype']) is not computed here")
    model = shape(config)
    if model.unknown:
        return model
    dtype = profile.kv_cache_dtype or "auto"
    quantized = profile.quantization or re.search(r"fp[48]|modelopt", profile.model, re.I)
    if dtype == "auto" and quantized and config.get("quantization_config") is None:
        why = "kv_cache_dtype is what the quantized checkpoint asks for, and config has no "
        return Shape(unknown=f"{why}quantization_config: write one of the two")
    return _with_states(profile, model, version)


def _with_states(profile: ModelProfile, model: Shape, version: tuple[int, ...]) -> Shape:
    if model.state is None:
        return model
    extra = profile.extra_args
    caching, mode = switch(profile, "enable-prefix-caching"), extra.get("mamba-cache-mode")
    if keeps_every_state(model.state, version, caching, mode):
        why = "vLLM before 0.32 keeps a Mamba state for every block when it caches prefixes, which"
        return Shape(unknown=f"{why} is not computed here: set mamba-cache-mode to align")
    name = extra.get("mamba-ssm-cache-dtype") or "auto"
    if name == "auto":
        return model
    size = float_bytes(name)
    if size is None:
        return Shape(unknown=f"mamba-ssm-cache-dtype {name!r} is not known here")
    return replace(model, state=replace(model.state, value_bytes=size))


def _use(profile: ModelProfile, model: Shape, version: tuple[int, ...]) -> Use | None:
    if profile.max_model_len is None:
        return None
    mtp = str((profile.speculative_config or {}).get("method")).endswith("mtp")
    return Use(
        profile.max_model_len,
        profile.kv_cache_dtype,
        profile.tensor_parallel_size,
        _batched_tokens(profile, profile.max_model_len),
        state_copies(version, switch(profile, "enable-prefix-caching")),
        _speculative_tokens(profile, model.draft_layers if mtp else 0),
        mtp,
        _block_tokens(profile.extra_args.get("block-size")),
        # Some kinds of speculation switch it off as well: then a window is counted too large.
        1 if switch(profile, "async-scheduling") is False else BATCHES,
    )


def _block_tokens(option: Any) -> Any:
    """A number, or what `Use.wrong` then tells of."""
    if isinstance(option, str) and re.fullmatch("[0-9]{1,9}", option):
        return int(option)
    return BLOCK_TOKENS if option is None else option


def _batched_tokens(profile: ModelProfile, max_model_len: int) -> int:
    """As `engine/arg_utils.py` sets the default."""
    if profile.max_num_batched_tokens:
        return profile.max_num_batched_tokens
    twice = profile.extra_args.get("performance-mode") == "throughput"
    tokens = BATCHED_TOKENS * (2 if twice else 1)
    whole = switch(profile, "enable-chunked-prefill") is False
    return max(tokens, max_model_len) if whole else tokens


def _speculative_tokens(profile: ModelProfile, default: int) -> int:
    """Tokens guessed in a step (`config/speculative.py`); wrong ones are a contradiction."""
    speculation = profile.speculative_config or {}
    guessed = speculation.get("num_speculative_tokens")
    if guessed is None and speculation.get("method") == "suffix":
        guessed = speculation.get("suffix_decoding_max_tree_depth", 24)
    return guessed if isinstance(guessed, int) else default

"""Whether what a host is to serve fits into its memory: the plan's side of memory.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from sparkwright import memory
from sparkwright.errors import Problem
from sparkwright.kvcache import Shape
from sparkwright.kvpool import Use, state_copies
from sparkwright.memory import Engine, Estimate

if TYPE_CHECKING:
    from sparkwright.plan import HostPlan, Instance


def estimate(instance: Instance, memory_gib: float) -> Estimate:
    """Memory of one instance on a host with `memory_gib` GiB, as far as it can be told."""
    profile = instance.profile
    weights = profile.expects.weights_gib
    return memory.estimate(
        memory.shape(instance.config) if instance.config else _NO_CONFIG,
        _use(instance),
        memory_gib,
        gpu_memory_utilization=profile.gpu_memory_utilization,
        kv_cache_memory_bytes=profile.kv_cache_memory_bytes,
        weights_gib=weights / profile.tensor_parallel_size if weights else None,
        runtime_gib=profile.runtime_gib or memory.RUNTIME_GIB,
        max_num_seqs=profile.max_num_seqs,
    )


_NO_CONFIG = Shape(
    unknown="the model's config.json is not on this machine, and the profile has no config=dict()"
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
        engines.append(Engine(instance.name, profile.gpu_memory_utilization, fixed, risk))
        for finding in found.findings:
            note(finding.level, instance.name, finding.about, finding.message)
        full = any(finding.level == "error" for finding in found.findings)
        for reason in () if full else dict.fromkeys(found.unknown.values()):
            note("warning", instance.name, "memory", f"can't be told: {reason}")
    platform = plan.platform
    for finding in memory.host_verdict(engines, platform.memory_gib, platform.os_reserve_gib):
        note(finding.level, "", finding.about, finding.message)
    return problems, warnings


def _use(instance: Instance) -> Use | None:
    profile = instance.profile
    if profile.max_model_len is None:
        return None
    speculation = profile.speculative_config or {}
    guessed = speculation.get("num_speculative_tokens")
    caching = profile.extra_args.get("enable-prefix-caching")
    version = instance.release.engine_version
    numbers = Version(version).release if version else (999,)  # of a floating one, the newest rules
    return Use(
        profile.max_model_len,
        profile.kv_cache_dtype,
        profile.tensor_parallel_size,
        profile.max_num_batched_tokens,
        state_copies(numbers, caching if isinstance(caching, bool) else None),
        guessed if isinstance(guessed, int) else 0,  # anything else is a contradiction
        speculation.get("method") == "mtp",
    )

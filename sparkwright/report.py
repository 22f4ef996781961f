"""The plan of an inventory as a table for people, and as JSON for machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sparkwright.errors import together
from sparkwright.memory import Estimate
from sparkwright.plan import HostPlan, Instance, Plan

_BAR = 24
_HEAD = (
    "HOST",
    "RANK",
    "PROFILE",
    "RELEASE",
    "PORT",
    "MEMORY",
    "KV TOKENS",
    "SEQUENCES",
    "WARNINGS",
)


def table(plan: Plan) -> str:
    """One line an instance, then warnings, then problems."""
    count = len(plan.hosts)
    warned = Counter(warning.where for warning in plan.warnings)
    rows = [_HEAD, *(row for host in plan.hosts.values() for row in _rows(host, warned))]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(rows) > 1:
        lines.append("")
        lines.append(
            "MEMORY in GiB: # weights, = KV cache, + runtime of the engine, . the rest, ? unknown"
        )
    for title, entries in (("warning", plan.warnings), ("problem", plan.problems)):
        told = together(entries)
        if told:
            lines += ["", f"{len(told)} {title}{'s' if len(told) > 1 else ''}:"]
            lines += [f"  {entry}" for entry in told]
    if not plan.problems:
        lines += ["", f"No problem found in {count} host{'s' if count != 1 else ''}."]
    return "\n".join(lines)


def as_json(plan: Plan) -> dict[str, Any]:
    """The same for machines: `hosts`, `warnings`, `problems`; sizes in bytes or GiB as named."""
    return {
        "hosts": [
            {
                "host": host.name,
                "architecture": host.platform.architecture,
                "memory_gib": host.platform.memory_gib,
                "instances": [
                    _instance(instance, found)
                    for instance, found in zip(host.instances, host.estimates, strict=True)
                ],
            }
            for host in plan.hosts.values()
        ],
        "warnings": [asdict(entry) for entry in together(plan.warnings)],
        "problems": [asdict(entry) for entry in together(plan.problems)],
    }


def _rows(host: HostPlan, warned: Mapping[str, int]) -> Iterable[tuple[str, ...]]:
    """warned: the number of warnings at each place that has any."""
    if not host.instances:
        yield (host.name, "-", "serves nothing", "-", "-", "-", "-", "-", "-")
    for instance, found in zip(host.instances, host.estimates, strict=True):
        tokens, sequences = found.kv_tokens, found.sequences
        length = instance.profile.max_model_len
        yield (
            host.name,
            f"{instance.rank} of {instance.pair.name}" if instance.pair else "-",
            instance.name,
            _release(instance),
            str(instance.profile.port),
            _memory(found, host.platform.memory_gib),
            "unknown" if tokens is None else _about(tokens),
            "unknown" if sequences is None or length is None else f"{sequences:.1f} x {length:,}",
            str(sum(warned.get(place, 0) for place in _places(host, instance)) or "-"),
        )


def _places(host: HostPlan, instance: Instance) -> tuple[str, ...]:
    """Where a warning is that concerns an instance."""
    release = f"release {instance.release.id}"
    return f"host {host.name}", f"group_data/{instance.name}.py", release


def _about(tokens: int) -> str:
    """Three digits: what is computed is not more exact than that."""
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if tokens >= size:
            return (
                f"{tokens / size:.3g}{letter}"
                if tokens < 100 * size
                else f"{tokens // size}{letter}"
            )
    return str(tokens)


def _memory(found: Estimate, total_gib: float) -> str:
    """A bar of the host's memory, and GiB in numbers: `[####=====+....] 96 of 120`."""
    if found.budget_gib is None:
        return f"[{'?' * _BAR}] unknown of {total_gib:.0f}"
    parts = [(found.budget_gib, "?")]
    if found.weights_gib is not None and found.kv_gib is not None:
        cache = max(found.kv_gib, 0)
        parts = [(found.weights_gib, "#"), (cache, "="), (found.runtime_gib, "+")]
    bar, done = "", 0.0
    for size, sign in parts:
        done += size
        bar += sign * (min(_BAR, round(done / total_gib * _BAR)) - len(bar))
    return f"[{bar.ljust(_BAR, '.')}] {found.budget_gib:.0f} of {total_gib:.0f}"


def _release(instance: Instance) -> str:
    version = instance.release.engine_version
    return f"vLLM {version}" if version else instance.release.id


def _instance(instance: Instance, found: Estimate) -> dict[str, Any]:
    return {
        "profile": instance.name,
        "model": instance.profile.model,
        "revision": instance.profile.revision,
        "rank": instance.rank if instance.pair else None,
        "pair": instance.pair.name if instance.pair else None,
        "release": instance.release.id,
        "reproducible": instance.release.reproducible,
        "engine_version": instance.release.engine_version,
        "port": instance.profile.port,
        "quantization": instance.quantization,
        "memory": {
            "weights_gib": found.weights_gib,
            "runtime_gib": found.runtime_gib,
            "kv_gib": found.kv_gib,
            "budget_gib": found.budget_gib,
            "kv_bytes_per_token": found.kv_bytes_per_token,
            "kv_tokens": found.kv_tokens,
            "full_length_sequences": found.sequences,
            "unknown": dict(found.unknown),
        },
    }

"""The plan of an inventory as a table for people, and as JSON for machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from sparkwright.errors import together
from sparkwright.plan import HostPlan, Instance, Plan

_BAR = 24
_HEAD = ("HOST", "RANK", "PROFILE", "RELEASE", "PORT", "MEMORY", "KV TOKENS", "FULL LENGTH")


def table(plan: Plan) -> str:
    """One line an instance, then warnings, then problems."""
    rows = [_HEAD, *(row for host in plan.hosts.values() for row in _rows(host))]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    if len(rows) > 1:
        lines.append("")
        lines.append("MEMORY of one Spark: # weights, = KV cache, + runtime, ? not known in parts")
    for title, entries in (("warning", plan.warnings), ("problem", plan.problems)):
        told = together(entries)
        if told:
            lines += ["", f"{len(told)} {title}{'s' if len(told) > 1 else ''}:"]
            lines += [f"  {entry}" for entry in told]
    if not plan.problems:
        lines += ["", f"No problem found in {len(plan.hosts)} hosts."]
    return "\n".join(lines)


def as_json(plan: Plan) -> dict[str, Any]:
    """The same for machines: `hosts`, `warnings`, `problems`; sizes in bytes or GiB as named."""
    return {
        "hosts": [
            {
                "host": host.name,
                "architecture": host.platform.architecture,
                "memory_gib": host.platform.memory_gib,
                "instances": [_instance(host, instance) for instance in host.instances],
            }
            for host in plan.hosts.values()
        ],
        "warnings": [asdict(entry) for entry in together(plan.warnings)],
        "problems": [asdict(entry) for entry in together(plan.problems)],
    }


def _rows(host: HostPlan) -> Iterable[tuple[str, ...]]:
    if not host.instances:
        yield (host.name, "-", "serves nothing", "-", "-", "-", "-", "-")
    for instance in host.instances:
        yield (
            host.name,
            f"{instance.rank} of {instance.pair.name}" if instance.pair else "-",
            instance.name,
            _release(instance),
            str(instance.profile.port),
            "",
            "",
            "",
        )


def _release(instance: Instance) -> str:
    version = instance.release.engine_version
    return f"vLLM {version}" if version else instance.release.id


def _instance(host: HostPlan, instance: Instance) -> dict[str, Any]:
    return {
        "profile": instance.name,
        "model": instance.profile.model,
        "revision": instance.profile.revision,
        "rank": instance.rank,
        "pair": instance.pair.name if instance.pair else None,
        "release": instance.release.id,
        "engine_version": instance.release.engine_version,
        "port": instance.profile.port,
    }

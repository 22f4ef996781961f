"""The tables of docs/memory.md: what is computed beside what vLLM said. Run it to print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkwright.kvcache import Shape, shape
from sparkwright.kvpool import Use, capacity

CONFIGS = Path(__file__).resolve().parent.parent / "fixtures" / "configs"
GIB = 1024**3


def config(name: str) -> Shape:
    return shape(json.loads((CONFIGS / f"{name}.json").read_text()))


def plans() -> list[dict[str, Any]]:
    return json.loads((CONFIGS / "vllm-plans.json").read_text())  # type: ignore[no-any-return]


def measured() -> list[dict[str, Any]]:
    return json.loads((CONFIGS / "measured.json").read_text())  # type: ignore[no-any-return]


def plan_use(plan: dict[str, Any]) -> Use:
    return Use(
        plan["max_model_len"],
        plan["kv_cache_dtype"],
        max_num_batched_tokens=plan["in_flight"],
        batches=1,
        block_tokens=plan["block_tokens"],
        state_copies=plan["state_copies"],
        speculative_tokens=plan["mtp"],
        mtp=plan["mtp"] > 0,
    )


def difference(ours: float, theirs: float) -> str:
    percent = f"{100 * (ours / theirs - 1):+.2f}"
    return "0" if ours == theirs else f"{percent} %"


def plan_table() -> str:
    lines = [
        "| model | vLLM | GiB | context | type | states | vLLM's tokens | computed | off by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for plan in plans():
        model = config(plan["config"])
        ours = capacity(model, plan_use(plan), plan["pool_bytes"])
        assert ours
        mtp = f", MTP {plan['mtp']}" if plan["mtp"] else ""
        layout = "" if plan["layout"] == "LBNHC" else f", layout {plan['layout']}"
        lines.append(
            f"| {plan['config']}{mtp}{layout} | {plan['vllm']} | {plan['pool_bytes'] / GIB:g} "
            f"| {plan['max_model_len']:,} | {plan['kv_cache_dtype']} "
            f"| {plan['state_copies'] if model.state else '-'} | {plan['tokens']:,} "
            f"| {ours.tokens:,} | {difference(ours.tokens, plan['tokens'])} |"
        )
    return "\n".join(lines)


def measured_table() -> str:
    lines = [
        "| what | cache GiB | tokens said | computed | off by | source |",
        "|---|---|---|---|---|---|",
    ]
    for row in measured():
        ours = capacity(config(row["config"]), Use(**row["use"]), int(row["pool_gib"] * GIB))
        assert ours
        got, said = (
            (ours.tokens, row["tokens"]) if "tokens" in row else (ours.longest, row["longest"])
        )
        lines.append(
            f"| {row['what']} | {row['pool_gib']:g} | {said:,} | {got:,} "
            f"| {difference(got, said)} | {row['source']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(measured_table())
    print()
    print(plan_table())

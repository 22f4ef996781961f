"""The tables of docs/memory.md, what is computed beside what vLLM said, and models for tests.

`python -m tests.unit.memory_table` rewrites them, each between `<!-- memory: NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.kvcache import Shape, shape
from sparkwright.kvpool import Use, capacity
from sparkwright.memory import GIB, RUNTIME_GIB, of_engine

TESTS = Path(__file__).resolve().parent.parent
CONFIGS = TESTS / "fixtures" / "configs"
DOC = TESTS.parent / "docs" / "memory.md"
PLAIN: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
HF_QUANT = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
}


def _fixture(name: str) -> list[dict[str, Any]]:
    return json.loads((CONFIGS / name).read_text())  # type: ignore[no-any-return]


def config(name: str) -> Shape:
    return shape(json.loads((CONFIGS / f"{name}.json").read_text()))


def plans() -> list[dict[str, Any]]:
    return _fixture("vllm-plans.json")


def measured() -> list[dict[str, Any]]:
    return _fixture("measured.json")


def plan_model(plan: dict[str, Any]) -> Shape:
    model = config(plan["config"])
    if model.state and "state_value_bytes" in plan:
        return replace(model, state=replace(model.state, value_bytes=plan["state_value_bytes"]))
    return model


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
        model = plan_model(plan)
        ours = capacity(model, plan_use(plan), plan["pool_bytes"])
        assert ours
        mtp = f", MTP {plan['mtp']}" if plan["mtp"] else ""
        what = f", {plan['what']}" if "what" in plan else ""
        layout = "" if plan["layout"] == "LBNHC" else f", layout {plan['layout']}"
        lines.append(
            f"| {plan['config']}{mtp}{what}{layout} | {plan['vllm']} "
            f"| {plan['pool_bytes'] / GIB:g} "
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


def budget_table() -> str:
    """Caches computed from a budget, as the plan does it."""
    lines = ["| what | said | computed | had the weights not counted |", "|---|---|---|---|"]
    for row in _fixture("budgets.json"):
        cells = []
        for weights in (row["weights_gib"], 0.0):
            told = of_engine(
                config(row["config"]),
                Use(**row["use"]),
                row["memory_gib"],
                gpu_memory_utilization=row["utilization"],
                weights_gib=weights,
                runtime_gib=RUNTIME_GIB,
            )
            assert told.kv_gib and told.kv_tokens and told.sequences
            length = row["use"]["max_model_len"]
            cells.append(
                f"{told.kv_gib:.1f} GiB: {told.kv_tokens / 1e6:.2f}M tokens, "
                f"{told.sequences:.1f} sequences of {length:,}"
            )
        lines.append(f"| {row['what']} | {row['said']} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {"measured": measured_table, "budgets": budget_table, "planner": plan_table}


def rewritten(text: str) -> str:
    return re.sub(
        r"(<!-- memory: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}",
        text,
        flags=re.S,
    )


if __name__ == "__main__":
    DOC.write_text(rewritten(DOC.read_text()))

"""Budgets of engines, what the OS keeps, the config at hand; odd values of all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.kvcache import Shape, shape
from sparkwright.kvpool import Use, capacity
from sparkwright.memory import (
    GIB,
    RUNTIME_GIB,
    Engine,
    Estimate,
    find_config,
    host_verdict,
    of_engine,
)
from tests.unit.memory_table import CONFIGS, DOC, HF_QUANT, PLAIN, TABLES, config, rewritten


def estimate(model: Shape, use: Use | None, memory: float = 120, **more: Any) -> Estimate:
    return of_engine(model, use, memory, **{"gpu_memory_utilization": 0.92, **more})


def test_the_documents_tables_are_these() -> None:
    text = DOC.read_text()
    assert rewritten(text) == text, "run: python -m tests.unit.memory_table"
    assert all(f"<!-- memory: {name} -->\n| " in text for name in TABLES)


def test_a_type_of_value_that_is_not_known_is_said() -> None:
    told = estimate(shape(PLAIN), Use(1024, "turboquant_k8v4"), 120, weights_gib=10)
    assert told.kv_tokens is None and told.kv_gib is not None
    assert "turboquant_k8v4" in told.unknown["kv_tokens"]


def test_an_engine_that_fits() -> None:
    told = estimate(
        config("qwen3.6-27b-nvfp4"),
        Use(65536, "fp8", state_copies=1),
        121.7,
        weights_gib=21.34,
        gpu_memory_utilization=0.85,
    )
    assert told.budget_gib == pytest.approx(103.445)
    assert told.kv_gib == pytest.approx(103.445 - 21.34 - RUNTIME_GIB)
    assert told.kv_tokens and 2_250_000 < told.kv_tokens < 2_400_000
    assert told.sequences and 34 < told.sequences < 37
    assert not told.findings and not told.unknown


def test_without_the_size_of_the_weights_nothing_is_made_up() -> None:
    told = estimate(shape(PLAIN), Use(1024), 120, gpu_memory_utilization=0.5)
    assert told.budget_gib == 60
    assert told.kv_gib is None and told.kv_tokens is None and told.sequences is None
    assert set(told.unknown) == {"weights_gib", "kv_gib", "kv_tokens", "sequences"}
    assert set(told.unknown.values()) == {"the profile has no expects.weights_gib"}
    assert told.kv_bytes_per_token


def test_without_a_context_length_the_cache_is_still_told() -> None:
    told = estimate(shape(PLAIN), None, 120, weights_gib=10)
    assert told.kv_gib and told.unknown["kv_tokens"] == "the profile has no max_model_len"


def test_a_fixed_cache_needs_no_weights_for_its_tokens() -> None:
    told = estimate(shape(PLAIN), Use(1024), 120, kv_cache_memory_bytes=GIB)
    assert told.kv_gib == 1 and told.budget_gib is None
    assert told.kv_tokens == GIB // (8 * 2 * 4 * 128 * 2)
    told = estimate(shape(PLAIN), Use(1024), 120, kv_cache_memory_bytes=GIB, weights_gib=10)
    assert told.budget_gib == 11 + RUNTIME_GIB


def test_weights_that_do_not_fit() -> None:
    told = estimate(config("llama-3.1-405b"), Use(64), 121.7, weights_gib=200)
    (finding,) = told.findings
    assert finding.level == "error" and finding.about == "gpu_memory_utilization"
    assert "weights 200.0 GiB and runtime 5.5 GiB do not fit" in finding.message
    assert told.kv_tokens is None


def test_no_room_for_one_sequence_says_what_fits() -> None:
    told = estimate(
        config("llama-3.3-70b"), Use(131072), 121.7, weights_gib=40, kv_cache_memory_bytes=GIB * 10
    )
    (finding,) = told.findings
    assert finding.level == "error" and finding.about == "max_model_len"
    assert "131,072 tokens: at most 32,752 fit" in finding.message  # 40,960 bytes x 8 a token


def test_room_for_one_long_sequence_only_is_a_warning() -> None:
    cache = int(1.2 * 131072 * 80 * 4096)
    told = estimate(
        config("llama-3.3-70b"), Use(131072), 121.7, kv_cache_memory_bytes=cache, max_num_seqs=8
    )
    (finding,) = told.findings
    assert finding.level == "warning" and "holds 1.2 sequences" in finding.message


def test_mtp_of_a_model_whose_layers_are_not_told() -> None:
    told = estimate(shape(PLAIN), Use(1024, mtp=True), 120, weights_gib=1)
    assert told.kv_tokens is None and "multi-token prediction" in told.unknown["kv_tokens"]


def levels(engines: list[Engine], memory: float = 121.7, reserve: float = 8) -> list[str]:
    return [verdict.level for verdict in host_verdict(engines, memory, reserve)]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.85], []),
        ([0.89], ["warning"]),
        ([0.90], ["warning"]),
        ([0.92], ["error"]),
        ([0.91], ["error"]),
        ([0.4, 0.45], []),
        ([0.4, 0.5], ["warning"]),
        ([0.44, 0.46, 0.0], ["error"]),
        ([0.6, 0.6], ["error"]),
    ],
)
def test_what_the_os_keeps(shares: list[float], expected: list[str]) -> None:
    assert levels([Engine(f"e{i}", share) for i, share in enumerate(shares)]) == expected


@pytest.mark.parametrize(
    ("shares", "memory", "reserve", "expected"),
    [
        ([0.5], 16, 8, ["warning"]),
        ([0.51], 16, 8, ["error"]),
        ([0.1], 8, 2, []),
        ([0.9], 8, 2, ["error"]),
        ([0.95], 50, 0, ["warning"]),
        ([0.85], 115, 20, ["error"]),
    ],
)
def test_each_host_against_its_own_reserve(
    shares: list[float], memory: float, reserve: float, expected: list[str]
) -> None:
    assert levels([Engine("e", share) for share in shares], memory, reserve) == expected


def test_a_verdict_shows_its_sum() -> None:
    (verdict,) = host_verdict([Engine("a", 0.4), Engine("b", 0.5)], 120, 10)
    assert verdict.message == (
        "a 48.0 GiB, b 60.0 GiB, 2 GiB outside the budget of each, of 120 GiB: 8.0 GiB are left "
        "for the OS, 10 must be; lower the budgets; or say why it must be in "
        'accept_freeze_risk="..." of a, b'
    )


def test_a_risk_that_is_accepted_is_a_warning_with_the_reason() -> None:
    (verdict,) = host_verdict([Engine("a", 0.91, accept_freeze_risk="watchdog")], 121.7, 8)
    assert verdict.level == "warning"
    assert verdict.message.endswith("(accepted by a: watchdog)")
    assert levels([Engine("a", 1.0, accept_freeze_risk="watchdog")]) == ["error"]


def test_a_risk_is_accepted_by_every_engine_or_not() -> None:
    small = Engine("small", 0.01, accept_freeze_risk="a toy")
    (verdict,) = host_verdict([small, Engine("big", 0.9)], 121.7, 8)
    assert verdict.level == "error"
    assert verdict.message.endswith('in accept_freeze_risk="..." of big')
    big = Engine("big", 0.9, accept_freeze_risk="watchdog")
    (verdict,) = host_verdict([small, big], 121.7, 8)
    assert verdict.level == "warning"
    assert verdict.message.endswith("(accepted by small: a toy; by big: watchdog)")


def test_a_fixed_cache_counts_with_what_it_takes() -> None:
    assert levels([Engine("a", 0.5, budget_gib=60), Engine("b", 0.3, budget_gib=30)]) == []


def test_a_start_asks_for_its_fraction_to_be_free_with_a_fixed_cache_too() -> None:
    (verdict,) = host_verdict([Engine("a", 0.5, 60), Engine("b", 0.45, 30)], 121.7, 8)
    assert verdict.level == "error"
    assert "the start of b asks for 54.8 GiB to be free" in verdict.message
    # 121.7 less 60, 2 of the processes and the reserve.
    assert verdict.message.endswith("51.7 are; lower it: the cache stays as large")
    assert levels([Engine("a", 0.5, 60), Engine("b", 0.42, 30)]) == []


def test_much_is_refused_with_a_small_fixed_cache_too() -> None:
    (verdict,) = host_verdict([Engine("a", 0.98, 20)], 121.7, 8)
    assert verdict.level == "error" and "the start of a asks" in verdict.message
    (verdict,) = host_verdict([Engine("a", 0.91, 20)], 121.7, 8)
    assert verdict.level == "error"
    assert verdict.message.startswith("a 0.91 of the memory at the start, 0.90 is the most")
    assert levels([Engine("a", 0.91, 20, "watchdog")]) == ["warning"]
    assert levels([Engine("a", 0.90, 20)]) == []


def test_no_engine_no_finding() -> None:
    assert levels([]) == []


def test_config_is_found_in_the_cache_of_the_controller(tmp_path: Path) -> None:
    commit = "c" * 40
    folder = tmp_path / "hub" / "models--org--name" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(PLAIN))
    for environ in ({"HF_HOME": str(tmp_path)}, {"HF_HUB_CACHE": str(tmp_path / "hub")}):
        assert find_config("org/name", commit, environ) == PLAIN
        assert find_config("org/name", "d" * 40, environ) is None
        assert find_config("org/name", None, environ) is None
    default = tmp_path / ".cache" / "huggingface"
    default.mkdir(parents=True)
    (tmp_path / "hub").rename(default / "hub")
    assert find_config("org/name", commit, {"HOME": str(tmp_path)}) == PLAIN


def test_config_of_a_path(tmp_path: Path) -> None:
    assert find_config(str(tmp_path), None, {}) is None
    (tmp_path / "config.json").write_text("{")
    assert find_config(str(tmp_path), None, {}) is None
    (tmp_path / "config.json").write_text("[1]")
    assert find_config(str(tmp_path), None, {}) is None
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    found = find_config(str(tmp_path), None, {})
    assert found and shape(found) == Shape(shape(PLAIN).attention)


def test_the_quantization_of_older_modelopt_checkpoints_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps(HF_QUANT))
    assert find_config(str(tmp_path), None, {}) == PLAIN | {"quantization_config": HF_QUANT}
    own = PLAIN | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    assert find_config(str(tmp_path), None, {}) == own
    beside.write_text("[")
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    assert find_config(str(tmp_path), None, {}) == PLAIN


ODD: list[Any] = [
    *(None, True, -1, 0, 1, 7, 10**6, 10**30, 10**400, 0.5, -2.0, float("inf"), float("nan")),
    *("", "8", "bfloat16", [], [1], ["full_attention"] * 3, {}, {"a": 1}, b"x"),
]


@pytest.mark.parametrize("name", sorted(f.stem for f in CONFIGS.glob("*-*b*.json")))
def test_odd_values_in_a_config_are_never_a_traceback(name: str) -> None:
    whole = json.loads((CONFIGS / f"{name}.json").read_text())
    text = whole.get("text_config", whole)
    for key in text:
        for odd in ODD:
            changed = text | {key: odd}
            read = shape(whole | {"text_config": changed} if "text_config" in whole else changed)
            told = estimate(read, Use(4096, tensor_parallel_size=2), weights_gib=10)
            assert bool(read.unknown) or read.attention
            if told.kv_tokens is None:
                assert told.unknown["kv_tokens"] or told.findings
            else:
                assert told.kv_tokens > 0 or told.findings


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_values_of_a_profile_are_never_a_traceback(odd: Any) -> None:
    assert shape(odd).unknown
    for model in (config("gpt-oss-120b"), config("nemotron-3-super-120b-nvfp4")):
        for field in Use.__dataclass_fields__:
            use = Use(**{"max_model_len": 4096, field: odd})
            told = estimate(model, use, weights_gib=10, kv_cache_memory_bytes=GIB * 50)
            assert told.kv_tokens is None or told.kv_tokens > 0 or told.findings
            assert told.kv_tokens is not None or told.unknown["kv_tokens"]


@pytest.mark.parametrize("size", [-(10**30), -1, 0, 1, 10**30, 10**400])
def test_odd_sizes_are_never_a_traceback(size: int) -> None:
    for model in (config("gpt-oss-120b"), config("nemotron-3-super-120b-nvfp4")):
        held = capacity(model, Use(4096), size)
        assert held and held.tokens >= 0 and 0 <= held.longest <= 4096
        told = estimate(model, Use(4096), weights_gib=10, kv_cache_memory_bytes=size)
        assert told.kv_tokens or told.findings
        told = estimate(model, Use(4096), weights_gib=float(min(size, 10**30)))
        assert told.kv_tokens or told.findings

"""The KV cache from config.json as vLLM counts it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkwright.kvcache import kv_bytes_per_token, shape
from sparkwright.kvpool import Use, capacity, keeps_every_state, state_copies
from sparkwright.memory import GIB
from tests.unit.memory_table import (
    CONFIGS,
    HF_QUANT,
    PLAIN,
    config,
    measured,
    plan_model,
    plan_use,
    plans,
)


@pytest.mark.parametrize("plan", plans(), ids=lambda p: f"{p['config']}-{p['vllm']}")
def test_vllms_own_planner_says_the_same(plan: dict[str, Any]) -> None:
    ours = capacity(plan_model(plan), plan_use(plan), plan["pool_bytes"])
    assert ours
    if plan["layout"] != "LBNHC":  # another way to pack layers of two sizes, not computed
        assert 1 < ours.tokens / plan["tokens"] < 1.13
        return
    assert ours.tokens == plan["tokens"]
    assert ours.sequences == pytest.approx(plan["sequences"], abs=1e-4)


@pytest.mark.parametrize("row", measured(), ids=lambda r: r["what"])
def test_what_was_measured(row: dict[str, Any]) -> None:
    ours = capacity(config(row["config"]), Use(**row["use"]), int(row["pool_gib"] * GIB))
    assert ours
    if "longest" in row:
        assert ours.longest == pytest.approx(row["longest"], rel=0.001)
    else:
        exact = row["source"].endswith(".log")
        assert ours.tokens == pytest.approx(row["tokens"], rel=0.001 if exact else 0.06)


@pytest.mark.parametrize(
    ("name", "dtype", "tp", "expected"),
    [
        ("qwen3.6-27b-nvfp4", "fp8", 1, 16 * 2 * 4 * 256),
        ("qwen3.6-27b-nvfp4", "nvfp4", 1, 16 * 4 * 2 * (128 + 16)),
        ("qwen3.6-35b-a3b-nvfp4", "fp8", 1, 10 * 2 * 2 * 256),
        ("qwen3.5-122b-a10b-nvfp4", None, 2, 12 * 2 * 1 * 256 * 2),
        ("nemotron-3-super-120b-nvfp4", "fp8", 1, 8 * 2 * 2 * 128),
        ("gpt-oss-120b", "auto", 1, 18 * 2 * 8 * 64 * 2),
        ("gemma-4-26b-a4b", "bfloat16", 1, 5 * 2 * 2 * 512 * 2),
        ("llama-3.3-70b", "fp8", 1, 80 * 2 * 8 * 128),
        ("llama-3.1-405b", "bfloat16", 2, 126 * 2 * 4 * 128 * 2),
        ("qwen3-235b-a22b", "fp8", 2, 94 * 2 * 2 * 128),
        # A head is not split: with eight ranks each keeps one of the four.
        ("qwen3-235b-a22b", "fp8", 8, 94 * 2 * 1 * 128),
        # The latent of MLA is on every rank in full.
        ("deepseek-v3", "bfloat16", 2, 61 * 576 * 2),
    ],
)
def test_bytes_a_token(name: str, dtype: str | None, tp: int, expected: int) -> None:
    assert kv_bytes_per_token(config(name), dtype, tp) == expected


def test_without_kv_heads_it_is_multi_head_attention() -> None:
    text = {k: v for k, v in PLAIN.items() if k not in ("num_key_value_heads", "head_dim")}
    assert kv_bytes_per_token(shape(text)) == 8 * 2 * 16 * 64 * 2


FLOAT8 = {"num_bits": 8, "type": "float", "dynamic": False}


@pytest.mark.parametrize(
    ("quantization", "values"),
    [
        ({"quant_method": "modelopt", "kv_cache_scheme": FLOAT8}, 1),
        ({"quant_method": "modelopt_fp4", "kv_cache_quant_algo": "FP8"}, 1),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, 9 / 16),
        (HF_QUANT, 1),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": FLOAT8}, 1),
        # What vLLM does not know it takes as the model's own type.
        ({"quant_method": "modelopt", "kv_cache_scheme": FLOAT8 | {"dynamic": True}}, 2),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, 2),
        ({"quant_method": "modelopt"}, 2),
        ({"quant_method": "compressed-tensors"}, 2),
        ({"quant_method": "fp8", "kv_cache_scheme": FLOAT8}, 2),
        ({"quant_method": ["modelopt"], "producer": "modelopt"}, 2),
        ("modelopt", 2),
    ],
)
def test_auto_is_what_a_checkpoint_asks_for(quantization: Any, values: float) -> None:
    read = shape(PLAIN | {"quantization_config": quantization})
    assert kv_bytes_per_token(read) == 8 * 2 * 4 * 128 * values


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba_of_tomorrow"}, "model_type 'mamba_of_tomorrow' is not one"),
        ({"model_type": None}, "no model_type"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"num_hidden_layers": "8"}, "num_hidden_layers is '8', not a count"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not a count"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, not a count"),
        ({"num_hidden_layers": 10**5000}, "num_hidden_layers is far too large, not a count"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0, not a count"),
        ({"num_key_value_heads": -4}, "num_key_value_heads is -4, not a count"),
        ({"head_dim": None, "hidden_size": 8}, "hidden_size 8 is below num_attention_heads 16"),
        ({"num_key_value_heads": True}, "num_key_value_heads is True, not a count"),
        ({"num_attention_heads": [16, 8]}, "num_attention_heads is [16, 8], not a count"),
        ({"torch_dtype": "complex64"}, "dtype 'complex64' is not known"),
        ({"torch_dtype": ["bfloat16"]}, "dtype ['bfloat16'] is not known"),
        ({"model_type": ["qwen3"]}, "model_type ['qwen3'] is not one"),
        ({"model_type": "qwen3_next", "layer_types": [["x"]]}, "kind ['x'] is not known"),
        ({"index_topk": 2048}, "sparse attention"),
        ({"sliding_window": 4096}, "layer_types is missing"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "use_sliding_window"),
        ({"sliding_window": 4096, "layer_types": ["chunked"] * 8}, "kind 'chunked'"),
        ({"sliding_window": 4096, "layer_types": ["full_attention"]}, "1 kinds of layers for 8"),
        ({"text_config": "no dict"}, "text_config is str"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_said(change: dict[str, Any], said: str) -> None:
    read = shape(PLAIN | change)
    assert said in read.unknown
    assert kv_bytes_per_token(read) is None
    assert capacity(read, Use(1024), GIB) is None


def test_states_without_attention_are_unknown() -> None:
    nano = json.loads((CONFIGS / "nemotron-3-nano-30b-nvfp4.json").read_text())
    only = nano | {"hybrid_override_pattern": "M" * nano["num_hidden_layers"]}
    assert "without attention" in shape(only).unknown
    none = nano | {"hybrid_override_pattern": "*" * nano["num_hidden_layers"]}
    assert shape(none).state is None and kv_bytes_per_token(shape(none)) == 52 * 2 * 2 * 128 * 2


def test_deepseek_v3_2_is_unknown() -> None:
    assert config("deepseek-v3.2").unknown


@pytest.mark.parametrize(
    ("version", "caching", "expected"),
    [
        ((0, 27, 1), False, 1),
        ((0, 27, 1), None, 1),
        ((0, 27, 1), True, 2),
        ((0, 33, 0), None, 3),
        ((0, 33, 0), False, 1),
    ],
)
def test_copies_of_a_state(version: tuple[int, ...], caching: bool | None, expected: int) -> None:
    assert state_copies(version, caching) == expected


@pytest.mark.parametrize(
    ("version", "caching", "mode", "expected"),
    [
        ((0, 27, 1), True, None, True),
        ((0, 27, 1), True, "none", True),
        ((0, 27, 1), True, "all", True),
        ((0, 27, 1), True, "align", False),
        ((0, 27, 1), None, "all", False),
        ((0, 32, 0), True, None, False),
    ],
)
def test_a_state_for_every_block(
    version: tuple[int, ...], caching: bool | None, mode: str | None, expected: bool
) -> None:
    mamba = config("nemotron-3-nano-30b-nvfp4").state
    gated = config("qwen3.6-27b-nvfp4").state
    assert mamba and keeps_every_state(mamba, version, caching, mode) is expected
    assert gated and not keeps_every_state(gated, version, caching, mode)


def test_speculation_costs_states_and_the_layers_that_draft() -> None:
    model = config("qwen3.6-27b-nvfp4")
    plain = capacity(model, Use(65536, "fp8"), 40 * GIB)
    mtp = capacity(model, Use(65536, "fp8", mtp=True, speculative_tokens=3), 40 * GIB)
    assert plain and mtp and mtp.tokens < plain.tokens


def test_a_window_is_bounded() -> None:
    model = config("gpt-oss-120b")
    short, long = (capacity(model, Use(n), 8 * GIB) for n in (2048, 131072))
    assert short and long
    # Full attention alone would be 18 x 2,048 bytes a token.
    assert 0.9 < long.tokens / (8 * GIB / (18 * 2048)) < 1
    assert short.tokens < 0.6 * long.tokens

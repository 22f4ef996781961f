"""Memory in the plan: which numbers of profiles and hosts are used, and how findings are said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkwright.plan import Plan, RawHost, make_plan
from tests.unit.memory_table import CONFIGS

RELEASE = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 8192,
}
KNOWN = {"expects": {"weights_gib": 40}, "config": LLAMA, "max_model_len": 4096}


def plan(*profiles: dict[str, Any], hosts: int = 1, **data: Any) -> Plan:
    """Hosts that all serve these profiles: p0 on port 8000, p1 on 8001, ..."""
    groups = {
        f"p{n}": {"profile": {"model": "/m", "port": 8000 + n, **profile}}
        for n, profile in enumerate(profiles)
    }
    raw = [RawHost(f"spark-{n}", tuple(groups), RELEASE | data) for n in range(1, hosts + 1)]
    return make_plan(raw, groups)


def share(fraction: float, **more: Any) -> dict[str, Any]:
    return {"gpu_memory_utilization": fraction, **KNOWN, **more}


def test_a_verdict_is_a_problem_of_the_host() -> None:
    (problem,) = plan(share(0.85), platform={"os_reserve_gib": 20}).problems
    assert (problem.where, problem.field) == ("host spark-1", "gpu_memory_utilization")
    assert "20 must be" in problem.fix and "accept_freeze_risk" in problem.fix
    (problem,) = plan(share(0.98, kv_cache_memory_bytes="8GiB")).problems
    assert "the start of p0 asks" in problem.fix


def test_a_risk_that_is_accepted_is_a_warning_with_the_reason() -> None:
    made = plan(share(0.91, accept_freeze_risk="a lab of mine"))
    assert made.problems == ()
    assert [w for w in made.warnings if "(accepted by p0: a lab of mine)" in w.fix]


def test_near_the_reserve_is_a_warning() -> None:
    (warning,) = plan(share(0.9)).warnings
    assert (warning.where, warning.field) == ("host spark-1", "gpu_memory_utilization")
    assert plan(share(0.85)).warnings == ()


def test_a_finding_names_its_profile() -> None:
    small = {"port": 8000, "gpu_memory_utilization": 0.2}
    (problem,) = plan(small, share(0.3)).problems
    assert problem.field == "p1.gpu_memory_utilization"
    assert "weights 40.0 GiB" in problem.fix


def test_what_is_not_known_is_said_and_no_figure_made_up() -> None:
    made = plan({})
    assert made.problems == ()
    assert {w.field for w in made.warnings} == {"p0.memory"}
    assert all(w.fix.startswith("can't be told: ") for w in made.warnings)
    (found,) = made.hosts["spark-1"].estimates
    assert found.kv_tokens is found.sequences is found.kv_bytes_per_token is None


def test_numbers_come_from_the_profile() -> None:
    (found,) = plan(share(0.85, runtime_gib=7.0)).hosts["spark-1"].estimates
    assert (found.weights_gib, found.runtime_gib) == (40, 7)
    # Two values of 2 bytes for each of 8 heads of 128 in 80 layers.
    assert found.kv_bytes_per_token == 2 * 2 * 8 * 128 * 80
    assert found.kv_gib is not None and found.budget_gib is not None
    assert found.kv_gib == pytest.approx(found.budget_gib - 47)


def test_a_fixed_cache_is_the_size_of_the_cache() -> None:
    made = plan(share(0.85, kv_cache_memory_bytes="10GiB"))
    (found,) = made.hosts["spark-1"].estimates
    assert found.kv_gib == 10
    assert found.budget_gib == pytest.approx(40 + found.runtime_gib + 10)


def test_a_pair_halves_weights_and_cache() -> None:
    made = plan(share(0.85, tensor_parallel_size=2), hosts=2, pair="p")
    assert made.problems == ()
    for host in made.hosts.values():
        (found,) = host.estimates
        assert found.weights_gib == 20
        assert found.kv_bytes_per_token == 2 * 2 * 8 * 128 * 80 // 2


def test_the_memory_is_the_hosts_own() -> None:
    (on_spark,) = plan(share(0.85)).hosts["spark-1"].estimates
    (on_less,) = plan(share(0.85), platform={"memory_gib": 100}).hosts["spark-1"].estimates
    assert on_less.budget_gib == pytest.approx(85)
    assert (on_spark.budget_gib or 0) > 85


def reason(**more: Any) -> str:
    """Why the cache of a profile is unknown; empty when it is known."""
    made = plan(share(0.85, **more))
    (found,) = made.hosts["spark-1"].estimates
    reasons = {warning.fix for warning in made.warnings}
    assert bool(reasons) is (found.kv_tokens is None) and len(reasons) <= 1
    return "".join(reasons).removeprefix("can't be told: ")


def tokens(**more: Any) -> int:
    (found,) = plan(share(0.85, **more)).hosts["spark-1"].estimates
    assert found.kv_tokens
    return found.kv_tokens


def test_a_cause_is_said_once() -> None:
    (warning,) = plan(share(0.85, expects={})).warnings
    assert warning.fix == "can't be told: the profile has no expects.weights_gib"


def test_a_draft_model_is_not_counted_and_that_is_said() -> None:
    draft = {"model": "/srv/models/draft", "num_speculative_tokens": 3}
    assert "draft model (speculative_config)" in reason(speculative_config=draft)
    assert "draft model" in reason(speculative_config=draft, kv_cache_memory_bytes="20GiB")
    assert "draft model" in reason(speculative_config=draft | {"method": "eagle3"})


HYBRID = json.loads((CONFIGS / "nemotron-3-nano-30b-nvfp4.json").read_text())
GATED = json.loads((CONFIGS / "qwen3.6-35b-a3b-nvfp4.json").read_text())
GPT = json.loads((CONFIGS / "gpt-oss-120b.json").read_text())
NEWER = {"release": {"lock": "releases/vllm-0.33.0-aarch64.txt"}}


@pytest.mark.parametrize("method", ["mtp", "qwen3_5_mtp", "deepseek_mtp"])
def test_every_mtp_is_multi_token_prediction(method: str) -> None:
    speculation = {"method": method, "num_speculative_tokens": 1}
    assert tokens(config=GATED, speculative_config=speculation) < tokens(config=GATED)
    assert "multi-token prediction" in reason(speculative_config=speculation)


def test_mtp_guesses_as_many_tokens_as_it_has_layers() -> None:
    counted = tokens(config=GATED, speculative_config={"method": "mtp"})
    one = {"method": "mtp", "num_speculative_tokens": 1}
    assert counted == tokens(config=GATED, speculative_config=one)


def test_nemotron_with_prefix_caching_in_an_old_vllm() -> None:
    caching = {"enable-prefix-caching": True}
    assert "mamba-cache-mode to align" in reason(config=HYBRID, extra_args=caching)
    assert reason(config=HYBRID, extra_args=caching | {"mamba-cache-mode": "align"}) == ""
    assert reason(config=HYBRID, extra_args={"no-enable-prefix-caching": True}) == ""


def test_prefix_caching_is_read_in_both_spellings() -> None:
    def newer(**extra: bool) -> int:
        names = {name.replace("_", "-"): value for name, value in extra.items()}
        made = plan(share(0.85, config=GATED, extra_args=names), **NEWER)
        return made.hosts["spark-1"].estimates[0].kv_tokens or 0

    assert newer() == newer(enable_prefix_caching=True) < newer(no_enable_prefix_caching=True)
    assert newer(enable_prefix_caching=False) == newer(no_enable_prefix_caching=True)


@pytest.mark.parametrize(
    ("model", "extra", "more"),
    [
        (GPT, {"no-async-scheduling": True}, True),
        (GPT, {"async-scheduling": False}, True),
        (GPT, {"async-scheduling": True}, None),
        (GPT, {"block-size": 1024}, False),
        (GPT, {"block-size": "16"}, None),
        (GPT, {"performance-mode": "throughput"}, False),
        (GPT, {"no-enable-chunked-prefill": True}, False),
        (HYBRID, {"mamba-ssm-cache-dtype": "bfloat16"}, True),
        (HYBRID, {"mamba-ssm-cache-dtype": "auto"}, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_decide(model: dict[str, Any], extra: Any, more: bool | None) -> None:
    model = {"config": model, "max_model_len": 32768}
    plain, changed = tokens(**model), tokens(**model, extra_args=extra)
    assert (changed > plain, changed == plain) == (more is True, more is None)


@pytest.mark.parametrize(
    ("model", "extra"),
    [
        (LLAMA, {"num-gpu-blocks-override": 4000}),
        (LLAMA, {"disable-hybrid-kv-cache-manager": True}),
        (LLAMA, {"kv-cache-dtype-skip-layers": ["sliding_window"]}),
        (LLAMA, {"dtype": "float32"}),
        (LLAMA, {"block-size": "large"}),
        (HYBRID, {"mamba-cache-dtype": "float32"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_are_not_computed(model: dict[str, Any], extra: dict[str, Any]) -> None:
    assert next(iter(extra)) in reason(config=model, extra_args=extra)


def test_auto_of_a_quantized_checkpoint() -> None:
    def bytes_a_token(**more: Any) -> int | None:
        (found,) = plan(share(0.85, **more)).hosts["spark-1"].estimates
        return found.kv_bytes_per_token

    plain = 2 * 2 * 8 * 128 * 80
    named = "/srv/models/Llama-NVFP4"
    assert "no quantization_config: write one of the two" in reason(model=named)
    assert bytes_a_token(model=named, kv_cache_dtype="fp8") == plain // 2
    asks = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    told = LLAMA | {"quantization_config": asks}
    assert bytes_a_token(model=named, config=told) == plain // 2
    assert bytes_a_token(model="/srv/models/Llama") == plain

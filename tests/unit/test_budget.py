"""Memory in the plan: which numbers of profiles and hosts are used, and how findings are said."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.plan import Plan, RawHost, make_plan

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


@pytest.mark.parametrize(
    ("shares", "platform"),
    [
        ([0.9], {}),
        ([0.5, 0.35], {}),
        ([0.2, 0.2, 0.4], {}),
        ([0.5], {"memory_gib": 16, "os_reserve_gib": 8}),
        ([0.1], {"memory_gib": 8, "os_reserve_gib": 2}),
    ],
)
def test_budgets_that_fit(shares: list[float], platform: dict[str, Any]) -> None:
    profiles = [{"gpu_memory_utilization": fraction} for fraction in shares]
    assert plan(*profiles, platform=platform).problems == ()


@pytest.mark.parametrize(
    ("shares", "platform", "said"),
    [
        ([0.91], {}, "0.90 is the most"),
        ([0.5, 0.4], {}, "8 must be"),
        ([0.85], {"os_reserve_gib": 20}, "20 must be"),
        ([0.51], {"memory_gib": 16, "os_reserve_gib": 8}, "7.8 GiB are left for the OS, 8 must be"),
        ([0.1], {"memory_gib": 8, "os_reserve_gib": 9}, "9 must be"),
    ],
)
def test_budgets_that_do_not(shares: list[float], platform: dict[str, Any], said: str) -> None:
    profiles = [{"gpu_memory_utilization": fraction} for fraction in shares]
    (problem,) = plan(*profiles, platform=platform).problems
    assert (problem.where, problem.field) == ("host spark-1", "gpu_memory_utilization")
    assert said in problem.fix
    assert "accept_freeze_risk" in problem.fix


def test_what_does_not_fit_at_all_is_never_accepted() -> None:
    profiles = share(0.6, accept_freeze_risk="a lab of mine"), share(0.6)
    told = [problem.fix for problem in plan(*profiles).problems]
    assert [fix for fix in told if "it does not fit at all" in fix]


def test_a_risk_that_is_accepted_is_a_warning_with_the_reason() -> None:
    made = plan(share(0.91, accept_freeze_risk="a lab of mine"))
    assert made.problems == ()
    assert [w for w in made.warnings if "(accepted: a lab of mine)" in w.fix]


def test_near_the_reserve_is_a_warning() -> None:
    (warning,) = plan(share(0.9)).warnings
    assert (warning.where, warning.field) == ("host spark-1", "gpu_memory_utilization")
    assert "within 5 GiB of the reserve of 8" in warning.fix
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

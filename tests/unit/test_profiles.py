"""The profiles that people run: each loads, fits a Spark, and says only what its vLLM knows.

A profile of your own must load; the rest is asked of the shipped ones.
"""

from __future__ import annotations

import ast
import itertools
import runpy
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from sparkwright import engine, flags, kvcache
from sparkwright.contradictions import contradictions
from sparkwright.plan import Plan, RawHost, make_plan
from sparkwright.settings import ModelProfile

FOLDER = Path(__file__).parents[2] / "group_data"

# Shipped: file and what its model is called.
MODELS = {
    "gemma4_26b": "Gemma-4-26B-A4B-NVFP4",
    "gpt_oss_120b": "gpt-oss-120b",
    "llama3_1_405b": "Meta-Llama-3.1-405B-Instruct-GPTQ-INT4",
    "llama3_3_70b": "Llama-3.3-70B-Instruct-NVFP4",
    "nemotron3_super": "NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "qwen3_235b": "Qwen3-235B-A22B-NVFP4",
    "qwen3_30b_online_fp8": "Qwen3-30B-A3B-Instruct-2507",
    "qwen3_5_122b": "Qwen3.5-122B-A10B-NVFP4",
    "qwen3_5_35b": "Qwen3.5-35B-A3B-NVFP4",
    "qwen3_6_27b": "Qwen3.6-27B-NVFP4",
    "qwen3_6_35b": "Qwen3.6-35B-A3B-NVFP4",
    "tiny_qwen3": "tiny-qwen3",
}
REAL = sorted(set(MODELS) - {"tiny_qwen3"})


def names(file: Path) -> dict[str, Any]:
    return runpy.run_path(str(file))


def load(name: str) -> ModelProfile:
    return ModelProfile.model_validate(names(FOLDER / f"{name}.py")["profile"])


def planned(name: str, version: str) -> Plan:
    """The plan of one Spark, or a pair, that serves a profile."""
    data = {"release": {"lock": f"releases/vllm-{version}-aarch64.txt"}}
    hosts = ["spark-1"]
    if load(name).tensor_parallel_size == 2:
        hosts, data = ["spark-1", "spark-2"], {**data, "pair": "left"}
    raw = [RawHost(host, ("all", name), data) for host in hosts]
    return make_plan(raw, {name: {"profile": names(FOLDER / f"{name}.py")["profile"]}})


def versions_for(profile: ModelProfile) -> list[str]:
    """The supported vLLM versions that may serve a profile."""
    allowed = SpecifierSet(profile.engine or "")
    return [version for version in flags.versions() if version in allowed]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_every_profile_that_is_there_loads(file: Path) -> None:
    if "profile" in (found := names(file)):
        assert ModelProfile.model_validate(found["profile"])


def test_shipped_files_are_profiles_of_the_models_that_they_are_named_after() -> None:
    assert {name: load(name).model.rsplit("/", 1)[1] for name in MODELS} == MODELS


def test_the_page_names_every_shipped_profile() -> None:
    page = (FOLDER.parent / "docs/profiles.md").read_text()
    assert not [name for name in MODELS if f"\n| `{name}` | " not in page]


def test_the_page_says_for_every_family_which_lines_of_config_json_are_needed() -> None:
    page = (FOLDER.parent / "docs/profiles.md").read_text()
    assert not [kind for kind in kvcache.KNOWN if f"`{kind}`" not in page]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_file_holds_nothing_else(name: str) -> None:
    """pyinfra makes host data of every name in it; the first line is what people choose by."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    _docstring, profile = tree.body
    assert ast.unparse(profile).startswith("profile = dict(")
    sparks = "two Sparks" if load(name).tensor_parallel_size == 2 else "one Spark"
    assert sparks in (ast.get_docstring(tree) or "") or name == "tiny_qwen3"


@pytest.mark.parametrize("name", sorted(MODELS))
def test_nothing_contradicts(name: str) -> None:
    profile = load(name)
    assert not [str(problem) for problem in contradictions(name, profile, profile.config)]


@pytest.mark.parametrize("version", ["0.27.1", "0.33.0"])
@pytest.mark.parametrize("name", REAL)
def test_plan_knows_all_of_it_and_it_fits(name: str, version: str) -> None:
    profile = load(name)
    if version not in versions_for(profile):
        pytest.skip(f"needs vLLM {profile.engine}")
    plan = planned(name, version)
    assert not [str(problem) for problem in plan.problems]
    said = [str(warning) for warning in plan.warnings]
    # It leaves the OS 10 GiB, 8 is the least.
    assert bool(said) == (name == "llama3_1_405b"), said
    for host in plan.hosts.values():
        (found,) = host.estimates
        assert not found.unknown
        assert found.sequences and found.sequences >= 1
    assert profile.accept_freeze_risk is None


@pytest.mark.parametrize("name", REAL)
def test_nothing_that_decides_memory_is_left_to_the_engine(name: str) -> None:
    """The excerpts say nothing of quantization, from which `auto` follows; 256 sequences are many
    for a Spark; and more than 8,192 tokens a step need more than the usual runtime."""
    profile = load(name)
    assert profile.kv_cache_dtype and profile.kv_cache_dtype != "auto"
    assert profile.max_num_seqs and profile.max_num_seqs <= 12
    assert (profile.max_num_batched_tokens or 0) <= 8192 or profile.runtime_gib
    assert profile.expects.weights_gib


def test_models_that_fit_beside_each_other_have_ports_of_their_own() -> None:
    single = [load(name) for name in REAL if load(name).tensor_parallel_size == 1]
    shared = [
        (a, b)
        for a, b in itertools.combinations(single, 2)
        if a.gpu_memory_utilization + b.gpu_memory_utilization <= 0.90
    ]
    assert not [(a.model, b.model) for a, b in shared if a.port == b.port]


def test_only_a_checkpoint_without_a_known_commit_is_a_path_and_says_how_to_fetch_it() -> None:
    paths = [name for name in REAL if load(name).is_path]
    assert paths == ["llama3_3_70b"]
    text = (FOLDER / "llama3_3_70b.py").read_text()
    assert "hf download nvidia/Llama-3.3-70B-Instruct-NVFP4 --revision COMMIT" in text
    assert load("llama3_3_70b").model in text.partition("--local-dir")[2]


def test_what_was_asked_for() -> None:
    assert [name for name in MODELS if load(name).tensor_parallel_size == 2] == [
        "llama3_1_405b",
        "qwen3_235b",
    ]
    assert [name for name in MODELS if load(name).online_quantization] == ["qwen3_30b_online_fp8"]
    measured = load("qwen3_6_27b")
    assert (measured.kv_cache_dtype, measured.max_model_len) == ("fp8", 65536)
    gemma = load("gemma4_26b")
    assert gemma.attention_backend == "TRITON_ATTN"
    # Its BF16 sibling froze a host at 0.70.
    assert gemma.gpu_memory_utilization < 0.7
    assert "0.27.1" not in versions_for(load("gemma4_26b"))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_options_are_those_of_every_release_that_may_serve_it(name: str) -> None:
    profile = load(name)
    versions = versions_for(profile)
    assert versions
    for version in versions:
        catalog = flags.catalog(version)
        assert catalog
        options = engine.serve_options(profile, "/srv/models/some")
        assert not catalog.check(options), version
        assert not catalog.check_environment(profile.env), version
        if profile.online_quantization:
            assert catalog.quantization.online_for(profile.online_quantization), version

"""What a profile becomes on vLLM's command line and in its environment."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright import engine
from sparkwright.settings import ModelProfile

ROOT = Path(__file__).parents[2]
PROFILES = {
    file.stem: data["profile"]
    for file in sorted((ROOT / "group_data").glob("*.py"))
    if "profile" in (data := runpy.run_path(str(file)))
}
# Long options of `vllm serve` that every release from 0.26 to 0.33 has.
KNOWN = {
    "model",
    "served-model-name",
    "host",
    "port",
    "kv-cache-dtype",
    "max-model-len",
    "gpu-memory-utilization",
    "kv-cache-memory-bytes",
    "max-num-seqs",
    "max-num-batched-tokens",
    "load-format",
    "attention-backend",
    "moe-backend",
    "linear-backend",
    "reasoning-parser",
    "tool-call-parser",
    "speculative-config",
    "quantization",
    "tensor-parallel-size",
    "enforce-eager",
    "enable-auto-tool-choice",
    "shutdown-timeout",
}


def options(**changes: Any) -> dict[str, Any]:
    profile = ModelProfile.model_validate({"model": "/m/tiny", **changes})
    wanted = engine.quantization(profile, None, "0.27.1").option
    return engine.serve_options(profile, "/m/tiny", wanted)


def quantized(
    version: str | None = "0.27.1", config: dict[str, Any] | None = None, **changes: Any
) -> engine.Quantization:
    profile = ModelProfile.model_validate({"model": "/m/tiny", **changes})
    return engine.quantization(profile, config, version)


@pytest.mark.parametrize("name", PROFILES)
def test_shipped_profile(name: str) -> None:
    profile = ModelProfile.model_validate(PROFILES[name])
    made = engine.serve_options(profile, "/models/x")
    assert made["model"] == "/models/x"
    assert made["served-model-name"] == list(profile.names)
    assert set(made) - set(profile.extra_args) <= KNOWN
    assert "nvfp4" not in made.values()
    assert yaml.safe_load(engine.serve_yaml(made)) == made


def test_least_profile() -> None:
    assert options() == {
        "model": "/m/tiny",
        "served-model-name": ["tiny"],
        "host": "127.0.0.1",
        "port": 8000,
        "gpu-memory-utilization": 0.85,
        "shutdown-timeout": 60,
    }


@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("host", "0.0.0.0", "host"),
        ("port", 8001, "port"),
        ("kv_cache_dtype", "fp8", "kv-cache-dtype"),
        ("max_model_len", 4096, "max-model-len"),
        ("gpu_memory_utilization", 0.4, "gpu-memory-utilization"),
        ("kv_cache_memory_bytes", 2**30, "kv-cache-memory-bytes"),
        ("max_num_seqs", 4, "max-num-seqs"),
        ("max_num_batched_tokens", 8192, "max-num-batched-tokens"),
        ("load_format", "dummy", "load-format"),
        ("attention_backend", "FLASHINFER", "attention-backend"),
        ("moe_backend", "marlin", "moe-backend"),
        ("linear_backend", "x", "linear-backend"),
        ("reasoning_parser", "qwen3", "reasoning-parser"),
        ("tool_call_parser", "qwen3_xml", "tool-call-parser"),
        ("speculative_config", {"method": "mtp", "n": [1, {"a": None}]}, "speculative-config"),
        ("quantization", "fp8", "quantization"),
        ("tensor_parallel_size", 2, "tensor-parallel-size"),
        ("enforce_eager", True, "enforce-eager"),
        ("shutdown_timeout_s", 5, "shutdown-timeout"),
    ],
)
def test_field_and_its_option(field: str, value: object, option: str) -> None:
    made = options(**{field: value})
    assert made[option] == value
    assert set(made) - set(options()) <= {option, "enable-auto-tool-choice"}


READY = {"transformers_version": "5", "quantization_config": {"quant_method": "modelopt"}}
BF16 = {"transformers_version": "5"}


def test_nvfp4_is_what_people_say_and_no_option() -> None:
    assert options(quantization="nvfp4") == options()


@pytest.mark.parametrize(
    ("found", "option"),
    [
        (quantized(), None),
        (quantized(quantization="nvfp4", config=READY), None),
        (quantized(quantization="nvfp4", model="/m/Qwen3-NVFP4"), None),
        (quantized(quantization="modelopt_fp4"), "modelopt_fp4"),
        (quantized(online_quantization="fp8"), "fp8_per_tensor"),
        (quantized(online_quantization="fp8", config=BF16), "fp8_per_tensor"),
        (quantized(online_quantization="mxfp8", version="0.33.0"), "mxfp8"),
        (quantized(online_quantization="fp8", version="0.99"), "fp8"),
        (quantized(online_quantization="fp8", version=None), "fp8"),
    ],
    ids=str,
)
def test_quantization_as_the_release_wants_it(
    found: engine.Quantization, option: str | None
) -> None:
    assert found == engine.Quantization(option)


def test_nvfp4_without_a_sign_of_it_is_taken_at_its_word_with_a_warning() -> None:
    found = quantized(quantization="nvfp4")
    assert (found.option, found.problem) == (None, "")
    assert "is it BF16, online_quantization=" in found.warning


@pytest.mark.parametrize(
    ("found", "field", "said"),
    [
        (quantized(quantization="nvfp4", config=BF16), "quantization", "vLLM 0.27.1 can't"),
        (quantized(online_quantization="nvfp4"), "online_quantization", "it can: "),
        (quantized(online_quantization="fp8", config=READY), "online_quantization", "already"),
    ],
    ids=str,
)
def test_quantization_that_the_release_can_not_do(
    found: engine.Quantization, field: str, said: str
) -> None:
    assert (found.option, found.field) == (None, field)
    assert said in found.problem


def test_an_engine_that_is_not_known_is_not_checked_and_that_is_said() -> None:
    profile = ModelProfile.model_validate({"model": "/m/tiny", "extra_args": {"xyzzy": 1}})
    for version in (None, "0.99"):
        problems, (warning,) = engine.check("f.py", profile, engine.Quantization(), version)
        assert problems == []
        assert warning.fix.startswith("options are not checked: ")
    assert engine.check("f.py", profile, engine.Quantization(), "0.27.1")[0]


def test_tool_parser_switches_automatic_choice_on() -> None:
    assert options(tool_call_parser="hermes")["enable-auto-tool-choice"] is True
    assert "enable-auto-tool-choice" not in options()


def test_extra_args_are_passed_on() -> None:
    made = options(extra_args={"seed": 7, "enable-prefix-caching": True})
    assert (made["seed"], made["enable-prefix-caching"]) == (7, True)


@pytest.mark.parametrize("name", ["no", "1e3", "a: b", "#x", "ü", "'", '"', "0x10", "2026-01-01"])
def test_yaml_keeps_every_name_a_string(name: str) -> None:
    profile = ModelProfile.model_validate({"model": "/m/tiny", "served_names": [name]})
    read = yaml.safe_load(engine.serve_yaml(engine.serve_options(profile, "/m/tiny")))
    assert read["served-model-name"] == [name]


def test_environment_keeps_every_cache_below_the_instances_folder() -> None:
    profile = ModelProfile.model_validate({"model": "/m/tiny", "ready_timeout_s": 900})
    made = engine.environment(profile, "tiny")
    folders = {k: v for k, v in made.items() if re.search("CACHE|HOME|CONFIG|WORKSPACE", k)}
    del folders["CUDA_HOME"]
    assert set(folders.values()) and all(
        value == "/var/lib/sparkwright/cache/tiny"
        or value.startswith("/var/lib/sparkwright/cache/tiny/")
        for value in folders.values()
    )
    assert made["VLLM_ENGINE_READY_TIMEOUT_S"] == "900"
    assert made["HF_HUB_OFFLINE"] == "1"
    assert made["TRITON_PTXAS_PATH"] == "/usr/local/cuda/bin/ptxas"


def test_the_profiles_environment_wins() -> None:
    profile = ModelProfile.model_validate({"model": "/m", "env": {"HF_HUB_OFFLINE": "0", "A": "b"}})
    made = engine.environment(profile, "m")
    assert (made["HF_HUB_OFFLINE"], made["A"]) == ("0", "b")


@pytest.mark.parametrize(
    ("expects", "said"),
    [
        ({"warm_start_s": 50, "cold_start_s": 120}, "normal: 50 s, up to 120 s when"),
        ({"warm_start_s": 50}, "normal: about 50 s"),
        ({"cold_start_s": 120}, "normal: about 120 s"),
        ({}, "normal for this profile: unknown"),
    ],
)
def test_normal_start(expects: dict[str, int], said: str) -> None:
    profile = ModelProfile.model_validate({"model": "/m", "expects": expects})
    assert engine.normal_start(profile).startswith(said)

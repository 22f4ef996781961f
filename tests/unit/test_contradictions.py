"""What can't be true together in one profile, and what can."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.contradictions import contradictions
from sparkwright.settings import ModelProfile

CONFIG = {"max_position_embeddings": 4096, "num_attention_heads": 8}


def said(config: dict[str, Any] | None = None, **fields: Any) -> list[str]:
    profile = ModelProfile.model_validate({"model": "/m", **fields})
    return [str(problem) for problem in contradictions("f.py", profile, config)]


def speculation(**config: Any) -> list[str]:
    return said(speculative_config=config)


FINE: dict[str, list[str]] = {
    "least": said(),
    "tools": said(tool_call_parser="hermes"),
    "tools said twice": said(
        tool_call_parser="hermes", extra_args={"enable-auto-tool-choice": True}
    ),
    "no tools": said(extra_args={"enable-auto-tool-choice": False}),
    "no tools, other spelling": said(extra_args={"no-enable-auto-tool-choice": True}),
    "two names": said(served_names=["a", "b"]),
    "quantized": said(quantization="nvfp4"),
    "online": said(online_quantization="fp8"),
    "one of each": said(extra_args={"data-parallel-size": 1, "pipeline-parallel-size": 1}),
    "layers split by Ray": said(ray="10.0.0.1:6379", extra_args={"pipeline-parallel-size": 2}),
    "mtp": speculation(method="mtp", num_speculative_tokens=2),
    "mtp by default": speculation(method="mtp"),
    "suffix": speculation(method="suffix"),
    "ngram": speculation(method="ngram", num_speculative_tokens=3, prompt_lookup_max=4),
    "draft": speculation(model="/srv/models/draft", num_speculative_tokens=1),
    "draft with a slash": speculation(model="/srv/models/draft/", num_speculative_tokens=1),
    "eagle": speculation(method="eagle3", model="/srv/models/e", num_speculative_tokens=3),
    "batch": said(max_num_seqs=8, max_num_batched_tokens=8),
    "chunks": said(max_model_len=8192, max_num_batched_tokens=4096),
    "whole prompts": said(
        max_model_len=4096,
        max_num_batched_tokens=4096,
        extra_args={"enable-chunked-prefill": False},
    ),
    "starts": said(expects={"cold_start_s": 20, "warm_start_s": 20}, ready_timeout_s=30),
    "cold only": said(expects={"cold_start_s": 30}, ready_timeout_s=30),
    "no config": said(max_model_len=10**7),
    "as long as the model": said(CONFIG, max_model_len=4096),
    "empty config": said({}, max_model_len=4096, tensor_parallel_size=2),
    "text_config": said({"text_config": CONFIG}, max_model_len=4096),
    "null in the config": said({"max_position_embeddings": None}, max_model_len=4096),
    "stretched": said(CONFIG, max_model_len=8192, extra_args={"hf-overrides": {"a": 1}}),
    "allowed": said(CONFIG, max_model_len=8192, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
    "even heads": said(CONFIG, tensor_parallel_size=2),
    "odd heads on one": said({"num_attention_heads": 9}),
}


@pytest.mark.parametrize("name", FINE)
def test_no_contradiction(name: str) -> None:
    assert FINE[name] == []


WRONG: list[tuple[list[str], str]] = [
    (
        said(extra_args={"enable-auto-tool-choice": True}),
        "extra_args.enable-auto-tool-choice = True: needs a parser: set tool_call_parser, which "
        "switches tool choice on by itself",
    ),
    (
        said(tool_call_parser="hermes", extra_args={"enable-auto-tool-choice": False}),
        "extra_args.enable-auto-tool-choice = False: tool_call_parser switches it on: take one of "
        "the two out",
    ),
    (said(reasoning_parser=""), "reasoning_parser = '': is empty: write a name, or take the line"),
    (said(served_names=["a", "a"]), "served_names = ('a', 'a'): a name is there twice: write it"),
    (
        said(quantization="fp8", online_quantization="fp8"),
        "online_quantization = 'fp8': the checkpoint is quantized already, or it is quantized "
        "while loading: keep one",
    ),
    (
        said(extra_args={"data-parallel-size": 2}),
        "extra_args.data-parallel-size = 2: a Spark has one GPU: use tensor_parallel_size=2 and a "
        "pair of Sparks",
    ),
    (
        said(extra_args={"spec-method": "mtp"}),
        "extra_args.spec-method: is 'method' of the field speculative_config",
    ),
    (speculation(), "speculative_config = {}: name a method, such as method='mtp', or a draft"),
    (speculation(method=3), "speculative_config.method = 3: write the name of a method, such as"),
    (
        speculation(method="eagle", num_speculative_tokens=1),
        "speculative_config.model: eagle needs a second model: add model='/srv/models/...'",
    ),
    (
        speculation(model="org/draft", num_speculative_tokens=1),
        "speculative_config.model = 'org/draft': a draft model is not downloaded: put it on the "
        "host and write its folder, '/srv/models/...'",
    ),
    (
        speculation(method="ngram"),
        "speculative_config.num_speculative_tokens: is required: tokens guessed in a step, 1 to 8",
    ),
    (
        speculation(method="ngram", num_speculative_tokens=0),
        "speculative_config.num_speculative_tokens = 0: write a whole number, 1 or more",
    ),
    (
        said(max_num_seqs=9, max_num_batched_tokens=8),
        "max_num_batched_tokens = 8: must not be below max_num_seqs (9): a step takes a token of",
    ),
    (
        said(
            max_model_len=4097,
            max_num_batched_tokens=4096,
            extra_args={"no-enable-chunked-prefill": True},
        ),
        "max_num_batched_tokens = 4096: without chunked prefill a prompt of max_model_len (4097) "
        "must fit into a step",
    ),
    (
        said(expects={"cold_start_s": 19, "warm_start_s": 20}),
        "expects.cold_start_s = 19: a warm start (20 s) can't take longer",
    ),
    (
        said(expects={"warm_start_s": 31}, ready_timeout_s=30),
        "ready_timeout_s = 30: is below the start that is expected (31 s): every start would be",
    ),
    (
        said({"text_config": CONFIG}, max_model_len=4097),
        "max_model_len = 4097: the model was made for 4096 (max_position_embeddings): vLLM refuses",
    ),
    (
        said({"num_attention_heads": 9}, tensor_parallel_size=2),
        "tensor_parallel_size = 2: the model's 9 attention heads can't be split evenly",
    ),
    (said({"text_config": []}), "config.text_config = []: write it as config.json has it"),
    (
        said({"max_position_embeddings": "4K"}),
        "config.max_position_embeddings = '4K': write the whole number of config.json",
    ),
    (said({"num_attention_heads": True}), "config.num_attention_heads = True: write the whole"),
]


@pytest.mark.parametrize(("problems", "expected"), WRONG)
def test_contradiction(problems: list[str], expected: str) -> None:
    (problem,) = problems
    assert problem.startswith(f"f.py: {expected}")


def test_every_contradiction_of_a_profile_at_once() -> None:
    fields = {"served_names": ["a", "a"], "max_num_seqs": 9, "max_num_batched_tokens": 8}
    assert len(said(**fields, speculative_config={"method": "eagle"})) == 4

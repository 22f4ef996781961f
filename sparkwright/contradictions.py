"""What in one profile can't be true together; vLLM would say so minutes into a start, or never."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.errors import Problem, shown
from sparkwright.fabric import VARIABLES
from sparkwright.kvcache import BATCHED_TOKENS, KEYS
from sparkwright.settings import HIDDEN_FOLDERS, ModelProfile

# Methods of speculative decoding that need a second model (vllm/config/speculative.py); the others
# use heads of the model itself (mtp) or no model at all (ngram, suffix).
_NEED_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash")
# Options that are parts of --speculative-config under names of their own.
_SPECULATIVE = {
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
}
# One GPU in a Spark, and two Sparks at most: these split a model in other ways.
_SPLITTERS = (
    *("pipeline-parallel-size", "prefill-context-parallel-size", "decode-context-parallel-size"),
)


# Keys of real files that are nearly one of kvcache.KEYS, and mean something else.
_ALIKE = ("n_group", "v_head_dim")


def contradictions(
    where: str, profile: ModelProfile, config: Mapping[str, Any] | None
) -> Iterable[Problem]:
    """Every contradiction of a profile.

    where: the file that holds it. config: of the model, whole or an excerpt, when there is one.
    """
    for field, found, fix in (
        *_empty(profile),
        *_tools(profile),
        *_elsewhere(profile.extra_args),
        *_network(profile),
        *_speculation(profile.speculative_config),
        *_batches(profile),
        *_tokenizer(profile),
        *_expectations(profile),
        *_against_model(profile, config or {}),
    ):
        yield Problem(where, field, found, fix)


_Found = Iterable[tuple[str, str, str]]


def switch(profile: ModelProfile, name: str) -> bool | None:
    """Whether a profile switches an option on or off; None when it leaves it alone."""
    for option, meaning in ((name, True), (f"no-{name}", False)):
        value = profile.extra_args.get(option)
        if isinstance(value, bool):
            return value is meaning
    return None


def _empty(profile: ModelProfile) -> _Found:
    for field in ("quantization", "online_quantization", "reasoning_parser", "tool_call_parser"):
        if getattr(profile, field) == "":
            yield field, "''", "is empty: write a name, or take the line out"


def _tools(profile: ModelProfile) -> _Found:
    extra = profile.extra_args
    choice = switch(profile, "enable-auto-tool-choice")
    if choice and not profile.tool_call_parser:
        fix = "needs a parser: set tool_call_parser, which switches tool choice on by itself"
        yield "extra_args.enable-auto-tool-choice", "True", fix
    if profile.tool_call_parser and extra.get("enable-auto-tool-choice") is False:
        fix = "tool_call_parser switches it on: take one of the two out"
        yield "extra_args.enable-auto-tool-choice", "False", fix
    if len(set(profile.served_names)) < len(profile.served_names):
        yield "served_names", shown(profile.served_names), "a name is there twice: write it once"
    if profile.quantization and profile.online_quantization:
        fix = "the checkpoint is quantized already, or it is quantized while loading: keep one"
        yield "online_quantization", shown(profile.online_quantization), fix
    for option in extra:
        splits = option in _SPLITTERS or option.startswith("data-parallel-")
        if profile.ray and option == "pipeline-parallel-size":
            continue
        if splits and extra[option] != 1:
            fix = "a Spark has one GPU: use tensor_parallel_size=2 and a pair of Sparks"
            if option == "pipeline-parallel-size":
                fix += ", or ray='ADDRESS:PORT' of a cluster that runs"
            yield f"extra_args.{option}", shown(extra[option]), fix


def _network(profile: ModelProfile) -> _Found:
    if profile.tensor_parallel_size == 1 or profile.ray:
        return
    for name in profile.env:
        if name in VARIABLES:
            fix = "is read on each Spark when a rank starts: take it out; fabric=dict(...) has "
            yield f"env.{name}", "", fix + "settings (docs/two-sparks.md)"


def _elsewhere(extra: Mapping[str, Any]) -> _Found:
    for option, key in _SPECULATIVE.items():
        if option in extra:
            yield f"extra_args.{option}", "", f"is {key!r} of the field speculative_config"


def _speculation(config: dict[str, Any] | None) -> _Found:
    if config is None:
        return
    method, model = config.get("method"), config.get("model")
    field = "speculative_config"
    if method is None and model is None:
        yield field, shown(config), "name a method, such as method='mtp', or a draft model"
        return
    if not isinstance(method, str | None):
        yield f"{field}.method", shown(method), "write the name of a method, such as 'mtp'"
        return
    if method in _NEED_MODEL and model is None:
        fix = f"{method} needs a second model: add model='/srv/models/...'"
        yield f"{field}.model", "", fix
    if model is not None and not (
        isinstance(model, str)
        and model.startswith("/")
        and model.rstrip("/") == posixpath.normpath(model)
        and not model.startswith(HIDDEN_FOLDERS)
    ):
        fix = (
            "a draft model is not downloaded: put it on the host and write its folder, "
            "'/srv/models/...'"
        )
        yield f"{field}.model", shown(model), fix
    count = config.get("num_speculative_tokens")
    if count is None and method not in ("mtp", "suffix") and "speculative_token_tree" not in config:
        yield f"{field}.num_speculative_tokens", "", "is required: tokens guessed in a step, 1 to 8"
    elif count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        yield f"{field}.num_speculative_tokens", shown(count), "write a whole number, 1 or more"


def _batches(profile: ModelProfile) -> _Found:
    batch, seqs, length = (
        profile.max_num_batched_tokens,
        profile.max_num_seqs,
        profile.max_model_len,
    )
    if not batch and seqs and seqs > BATCHED_TOKENS:
        fix = f"is above the tokens of a step, {BATCHED_TOKENS}: set max_num_batched_tokens too"
        yield "max_num_seqs", str(seqs), fix
    if batch and seqs and batch < seqs:
        fix = f"must not be below max_num_seqs ({seqs}): a step takes a token of each sequence"
        yield "max_num_batched_tokens", str(batch), fix
    if switch(profile, "enable-chunked-prefill") is False and batch and length and batch < length:
        fix = f"without chunked prefill a prompt of max_model_len ({length}) must fit into a step"
        yield "max_num_batched_tokens", str(batch), fix


def _tokenizer(profile: ModelProfile) -> _Found:
    name = profile.extra_args.get("tokenizer")
    if isinstance(name, str) and not name.startswith("/"):
        fix = "nothing is downloaded at a start: put it on the host and write its folder"
        yield "extra_args.tokenizer", shown(name), fix


def _expectations(profile: ModelProfile) -> _Found:
    cold, warm = profile.expects.cold_start_s, profile.expects.warm_start_s
    if cold and warm and cold < warm:
        yield "expects.cold_start_s", str(cold), f"a warm start ({warm} s) can't take longer"
    longest = max(cold or 0, warm or 0)
    if longest > profile.ready_timeout_s:
        fix = f"is below the start that is expected ({longest} s): every start would be cut off"
        yield "ready_timeout_s", str(profile.ready_timeout_s), fix


def _misspelt(part: Mapping[str, Any], place: str) -> _Found:
    """Keys that are nearly one from which the KV cost follows: it would be left out silently."""
    for key in part:
        close = difflib.get_close_matches(str(key), KEYS, n=1, cutoff=0.88)
        if key not in (*KEYS, *_ALIKE) and close and close[0] not in part:
            yield f"{place}.{key}", shown(part[key]), f"did you mean {close[0]!r}?"


def _against_model(profile: ModelProfile, config: Mapping[str, Any]) -> _Found:
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        yield "config.text_config", shown(text), "write it as config.json has it: dict(...)"
        return
    for key in ("max_position_embeddings", "num_attention_heads"):
        value = text.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            yield f"config.{key}", shown(value), "write the whole number of config.json"
            return
    if config is profile.config:
        yield from _misspelt(config, "config")
        if text is not config:
            yield from _misspelt(text, "config.text_config")
    longest = text.get("max_position_embeddings")
    length = profile.max_model_len
    stretched = {"hf-overrides", "rope-scaling"} & set(profile.extra_args)
    allowed = stretched or profile.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    if isinstance(longest, int) and length and length > longest and not allowed:
        fix = f"the model was made for {longest} (max_position_embeddings): vLLM refuses more"
        yield "max_model_len", str(length), fix
    heads = text.get("num_attention_heads")
    size = profile.tensor_parallel_size
    if isinstance(heads, int) and heads % size:
        fix = f"the model's {heads} attention heads can't be split evenly"
        yield "tensor_parallel_size", str(size), fix

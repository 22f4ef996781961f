"""What one sequence costs in vLLM's KV cache, from a model's `config.json`.

The rules are vLLM's own, read in 0.27.1, 0.32.0 and 0.33.0 (paths below `vllm/`) and compared with
its planner in docs/memory.md:

- what a layer keeps: `v1/kv_cache_interface.py` (FullAttentionSpec, MLAAttentionSpec,
  SlidingWindowSpec, MambaSpec) and `model_executor/layers/mamba/mamba_utils.py` (shapes of states);
- how layers share blocks: `v1/core/kv_cache_utils.py`, in 0.33.0 `v1/core/kv_cache_planning.py`
  (unify_kv_cache_spec_page_size, _get_kv_cache_groups_uniform_page_size);
- pages of models that mix attention and states: `platforms/interface.py`
  (_align_hybrid_block_size).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

BLOCK_TOKENS = 16
"""Tokens of a block on CUDA unless a backend or a state wants more (`config/cache.py`)."""
BATCHED_TOKENS = 2048
"""Default of `max_num_batched_tokens` for a server on GB10 (`engine/arg_utils.py`: small tier)."""
BATCHES = 2
"""In flight with async scheduling, the default (VllmConfig.max_in_flight_tokens)."""

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
_FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")

# Model types whose every layer is full attention (or, with sliding_window, a window) of one shape.
_PLAIN = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "glm4_moe"),
    *("qwen3_vl_text", "qwen3_vl_moe_text", "minimax_m2", "gpt_oss", "gemma3_text"),
)
_MLA = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite")
_GATED_DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_MOST_LAYERS = 10_000  # a slip of the keyboard, not a model
KNOWN = (*_PLAIN, *_MLA, *_GATED_DELTA, "gemma4_text", "nemotron_h")
"""Model types (of the text model) that `shape` reads."""


KEYS = (
    *("model_type", "text_config", "dtype", "torch_dtype", "quantization_config"),
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "layer_types", "layers_block_type", "hybrid_override_pattern"),
    *("sliding_window", "sliding_window_pattern", "use_sliding_window", "index_topk"),
    *("kv_lora_rank", "qk_rope_head_dim", "full_attention_interval", "linear_conv_kernel_dim"),
    *("linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads"),
    *("linear_value_head_dim", "mamba_ssm_dtype", "mamba_ssm_cache_dtype", "mamba_num_heads"),
    *("mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", "attention_k_eq_v"),
    *("global_head_dim", "num_global_key_value_heads", "num_kv_shared_layers"),
    *("mtp_num_hidden_layers", "num_nextn_predict_layers"),
)
"""What is read of a config.json, at its top or in its text_config."""


@dataclass(frozen=True)
class Attention:
    """Layers that keep a key and a value for every token, all alike."""

    layers: int
    heads: int
    """KV heads of the whole model; 1 with MLA, which every rank keeps in full."""
    head_dims: tuple[int, ...]
    """Values of one head and token: key and value, or the one latent of MLA."""
    window: int | None = None
    """Tokens that are kept, None: all."""


@dataclass(frozen=True)
class State:
    """Layers that keep one state for a whole sequence: Mamba 2 and gated delta net."""

    layers: int
    channels: int
    """Width of the convolution, whole model."""
    kernel: int
    heads: int
    head_values: int
    """Values that a head's recurrent state has."""
    value_bytes: int
    """Bytes of such a value; the convolution keeps 2 bytes each."""
    mamba2: bool = False
    """Whether vLLM up to 0.31 keeps a state for every block when it caches prefixes."""


@dataclass(frozen=True)
class Shape:
    """What a model keeps in the KV cache. `unknown` says why when that can't be told."""

    attention: tuple[Attention, ...] = ()
    state: State | None = None
    dtype_bytes: int = 2
    checkpoint_dtype: str | None = None
    """KV type that the checkpoint asks for and `auto` therefore means."""
    draft_layers: int = 0
    """Full-attention layers of the model's own multi-token prediction."""
    unknown: str = ""


class _Unknown(Exception):
    """A key that is missing, or holds what is not known here."""


def shape(config: Mapping[str, Any]) -> Shape:
    """Read the KV cost of a model from its `config.json` or the same keys of it.

    config: the whole file or an excerpt; `text_config` is followed. What can't be read is said in
    `unknown`, never guessed: other model types than KNOWN, sparse indexes, missing keys.
    """
    try:
        if not isinstance(config, Mapping):
            raise _Unknown(f"the config is {type(config).__name__}, not a dict")
        text = config.get("text_config", config)
        if not isinstance(text, Mapping):
            raise _Unknown(f"text_config is {type(text).__name__}, not a dict")
        attention, state, draft = _layers(text)
        attention = tuple(layers for layers in attention if layers.layers)
        if not attention:
            raise _Unknown("a model without attention layers is not known here")
        return Shape(
            attention,
            state if state and state.layers else None,
            _model_bytes(text, config),
            _checkpoint_dtype(config.get("quantization_config")),
            draft,
        )
    except _Unknown as reason:
        return Shape(unknown=str(reason))


def _layers(text: Mapping[str, Any]) -> tuple[tuple[Attention, ...], State | None, int]:
    kind = text.get("model_type")
    if kind is None:
        raise _Unknown("the config has no model_type")
    if kind not in KNOWN:
        raise _Unknown(f"model_type {_short(kind)} is not one that is known here")
    if text.get("index_topk"):
        raise _Unknown("sparse attention keeps an index beside the cache, not computed here")
    draft = max(
        _number(text, key, 0, least=0, most=_MOST_LAYERS)
        for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    )
    if kind in _MLA:
        latent = _number(text, "kv_lora_rank") + _number(text, "qk_rope_head_dim")
        return (Attention(_layer_count(text), 1, (latent,)),), None, draft
    if kind == "nemotron_h":
        return *_nemotron(text), draft
    if kind in _GATED_DELTA:
        return *_gated_delta(text), draft
    if kind == "gemma4_text":
        return _gemma4(text), None, draft
    return _windows(text, _heads(text)), None, draft


def _windows(text: Mapping[str, Any], full: Attention) -> tuple[Attention, ...]:
    """Split layers of one shape into full attention and windows."""
    window = text.get("sliding_window")
    if text.get("use_sliding_window") is False or window is None:
        return (full,)
    if text.get("use_sliding_window"):
        raise _Unknown("use_sliding_window with max_window_layers is not known here")
    window = _number(text, "sliding_window")
    types = text.get("layer_types")
    pattern = text.get("sliding_window_pattern")
    if types is None and pattern is not None:
        every = _number(text, "sliding_window_pattern")
        types = [
            "sliding_attention" if (i + 1) % every else "full_attention" for i in range(full.layers)
        ]
    if types is None:
        if text["model_type"] not in ("mistral", "mixtral"):
            raise _Unknown("which layers have the sliding_window: layer_types is missing")
        types = ["sliding_attention"] * full.layers
    counts = _count(types, full.layers, ("full_attention", "sliding_attention"))
    return (
        Attention(counts["full_attention"], full.heads, full.head_dims),
        Attention(counts["sliding_attention"], full.heads, full.head_dims, window),
    )


def _gemma4(text: Mapping[str, Any]) -> tuple[Attention, ...]:
    """Global layers have heads of their own; the last layers may share the cache of others."""
    if _number(text, "num_kv_shared_layers", 0, least=0):
        raise _Unknown("num_kv_shared_layers is not known here")
    layers, window = _layer_count(text), _number(text, "sliding_window")
    counts = _count(text.get("layer_types"), layers, ("full_attention", "sliding_attention"))
    heads, wide = _number(text, "num_key_value_heads"), _number(text, "global_head_dim")
    dim = _number(text, "head_dim")
    # attention_k_eq_v shares weights, and only then are there heads of another number.
    apart = text.get("attention_k_eq_v") and text.get("num_global_key_value_heads")
    wide_heads = _number(text, "num_global_key_value_heads") if apart else heads
    return (
        Attention(counts["full_attention"], wide_heads, (wide, wide)),
        Attention(counts["sliding_attention"], heads, (dim, dim), window),
    )


def _gated_delta(text: Mapping[str, Any]) -> tuple[tuple[Attention, ...], State]:
    layers = _layer_count(text)
    types = text.get("layer_types")
    if types is None:
        every = _number(text, "full_attention_interval")
        types = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    counts = _count(types, layers, ("full_attention", "linear_attention"))
    keys = _number(text, "linear_num_key_heads") * _number(text, "linear_key_head_dim")
    heads, dim = _number(text, "linear_num_value_heads"), _number(text, "linear_value_head_dim")
    state = State(
        counts["linear_attention"],
        2 * keys + heads * dim,
        _number(text, "linear_conv_kernel_dim"),
        heads,
        dim * _number(text, "linear_key_head_dim"),
        _dtype(text.get("mamba_ssm_dtype", "bfloat16"), "mamba_ssm_dtype"),
    )
    return (_heads(text, counts["full_attention"]),), state


def _nemotron(text: Mapping[str, Any]) -> tuple[tuple[Attention, ...], State]:
    words = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    types = text.get("layers_block_type")
    pattern = text.get("hybrid_override_pattern")
    if types is None and isinstance(pattern, str):
        types = [words.get(letter, letter) for letter in pattern]
    counts = _count(types, _layer_count(text), tuple(words.values()))
    heads, size = _number(text, "mamba_num_heads"), _number(text, "ssm_state_size")
    dim = _number(text, "mamba_head_dim")
    state = State(
        counts["mamba"],
        heads * dim + 2 * _number(text, "n_groups") * size,
        _number(text, "conv_kernel"),
        heads,
        dim * size,
        # vLLM takes float32 when the config is silent (NemotronHForCausalLMConfig).
        _dtype(text.get("mamba_ssm_cache_dtype", "float32"), "mamba_ssm_cache_dtype"),
        mamba2=True,
    )
    return (_heads(text, counts["attention"]),), state


def _heads(text: Mapping[str, Any], layers: int | None = None) -> Attention:
    """Grouped-query attention; multi-head attention when there is no num_key_value_heads."""
    if layers is None:
        layers = _layer_count(text)
    queries = _number(text, "num_attention_heads")
    heads = _number(text, "num_key_value_heads", queries)
    dim = _number(text, "head_dim", 0, least=0)
    if not dim:
        dim = _number(text, "hidden_size") // queries
    if not dim:
        raise _Unknown(f"hidden_size {text['hidden_size']} is below num_attention_heads {queries}")
    return Attention(layers, heads, (dim, dim))


def _layer_count(text: Mapping[str, Any]) -> int:
    return _number(text, "num_hidden_layers", most=_MOST_LAYERS)


def _number(
    text: Mapping[str, Any],
    key: str,
    default: int | None = None,
    *,
    least: int = 1,
    most: int = 10**9,
) -> int:
    """A whole number of the config; `default` when the key is missing or null."""
    value = text.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise _Unknown(f"the config has no {key}")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _Unknown(f"{key} is {_short(value)}, not a count")
    return value


def _short(value: Any) -> str:
    """A value for a message; Python refuses to write whole numbers of thousands of digits."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "far too large"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _count(types: Any, layers: int, known: tuple[str, ...]) -> dict[str, int]:
    if not isinstance(types, list | tuple):
        raise _Unknown("the kinds of the layers are missing (layer_types)")
    for name in types:
        if name not in known:
            raise _Unknown(f"a layer of kind {_short(name)} is not known here")
    if len(types) != layers:
        raise _Unknown(f"{len(types)} kinds of layers for {layers} layers")
    return {name: types.count(name) for name in known}


def _dtype(name: Any, key: str) -> int:
    size = float_bytes(name)
    if size is None:
        raise _Unknown(f"{key} {_short(name)} is not known here")
    return size


def float_bytes(name: Any) -> int | None:
    """Bytes of a value of a plain float type; None for another name."""
    return _DTYPE_BYTES.get(name.removeprefix("torch.")) if isinstance(name, str) else None


def _model_bytes(text: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Bytes of a value of type `auto`. vLLM serves float32 checkpoints as bfloat16."""
    for part in (text, config):
        name = part.get("dtype") or part.get("torch_dtype")
        if name is not None:
            return min(2, _dtype(name, "dtype"))
    return 2


def _checkpoint_dtype(quantization: Any) -> str | None:
    """What `auto` means for a quantized checkpoint; None: the type of the model.

    ModelOpt: `utils/torch_utils.py` (get_kv_cache_quant_algo_string), with the keys of
    hf_quant_config.json too (`transformers_utils/model_arch_config_convertor.py`); llm-compressor:
    `model_executor/layers/attention/attention.py`. What vLLM does not know there it takes as auto.
    """
    if not isinstance(quantization, Mapping):
        return None
    method, producer = quantization.get("quant_method"), quantization.get("producer")
    if isinstance(producer, Mapping) and producer.get("name") == "modelopt":
        method = "modelopt"
    method = method if isinstance(method, str) else ""
    if method.lower().replace("_", "-") == "compressed-tensors":
        return "fp8" if quantization.get("kv_cache_scheme") else None
    if not method.startswith("modelopt"):
        return None
    inner = quantization.get("quantization")
    parts = (inner, quantization) if isinstance(inner, Mapping) else (quantization,)
    keys = ("kv_cache_scheme", "kv_cache_quant_algo")
    scheme = next((part[key] for key in keys for part in parts if part.get(key)), None)
    if isinstance(scheme, Mapping):
        bits = scheme.get("num_bits") if scheme.get("type") == "float" else None
        fp8 = bits == 8 and scheme.get("dynamic") is False
        return "fp8" if fp8 else "nvfp4" if bits == 4 else None
    return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(scheme.lower()) if isinstance(scheme, str) else None


def value_bytes(shape: Shape, kv_cache_dtype: str | None) -> Fraction | None:
    """Bytes of one cached value, None for a type that is not known here.

    nvfp4: half a byte and an FP8 scale for 16 values (`nvfp4_kv_cache_full_dim`).
    """
    dtype = kv_cache_dtype or "auto"
    if dtype == "auto":
        dtype = shape.checkpoint_dtype or "auto"
    if dtype == "auto":
        return Fraction(shape.dtype_bytes)
    if dtype in _FP8:
        return Fraction(1)
    if dtype == "nvfp4":
        return Fraction(9, 16)
    size = float_bytes(dtype)
    return None if size is None else Fraction(size)


def token_bytes(layers: Attention, size: Fraction, tensor_parallel_size: int) -> int:
    """Bytes that one layer keeps for a token on one rank: a head is never split."""
    return int(max(1, layers.heads // tensor_parallel_size) * sum(layers.head_dims) * size)


def kv_bytes_per_token(
    shape: Shape, kv_cache_dtype: str | None = None, tensor_parallel_size: int = 1
) -> int | None:
    """Bytes that a sequence grows by with each token, on one rank; None when unknown.

    Only layers that keep every token count: windows and states are bounded.
    """
    size = value_bytes(shape, kv_cache_dtype)
    if shape.unknown or size is None:
        return None
    return sum(
        layers.layers * token_bytes(layers, size, tensor_parallel_size)
        for layers in shape.attention
        if layers.window is None
    )


def state_bytes(state: State, tensor_parallel_size: int = 1, speculative_tokens: int = 0) -> int:
    """Bytes of one layer's state of one sequence on one rank, without padding."""
    length = state.kernel - 1 + speculative_tokens
    convolution = state.channels // tensor_parallel_size * length * 2
    heads = state.heads // tensor_parallel_size
    return convolution + heads * state.head_values * state.value_bytes

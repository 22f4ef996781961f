"""How many tokens and sequences a KV cache of some bytes holds, as vLLM itself counts them.

vLLM cuts the cache into blocks that all layers share: layers are put into groups of equally many,
every group of a sequence takes blocks of its own, and a block is as large as one group
(`v1/core/kv_cache_utils.py`, get_max_concurrency_for_kv_cache_config; the same in 0.27.1, 0.32.0
and 0.33.0). "KV cache size" in its log is the number of full-length sequences times their length.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.kvcache import (
    BATCHED_TOKENS,
    BATCHES,
    BLOCK_TOKENS,
    Attention,
    Shape,
    State,
    state_bytes,
    token_bytes,
    value_bytes,
)


@dataclass(frozen=True)
class Use:
    """What decides a sequence's share of the cache beside the model. Lengths in tokens."""

    max_model_len: int
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int = 1
    max_num_batched_tokens: int | None = None
    state_copies: int = 3
    """Of each state for one sequence, see `state_copies`."""
    speculative_tokens: int = 0
    mtp: bool = False
    """Speculation by the model's own layers, which cache as well."""
    block_tokens: int = BLOCK_TOKENS
    """`--block-size`; backends may want more (the CPU's 128)."""
    batches: int = BATCHES
    """Batches in flight; 1 without async scheduling."""

    def wrong(self, shape: Shape) -> str:
        """Why nothing can be counted with these numbers and this model; empty when it can."""
        for name in ("max_model_len", "tensor_parallel_size", "max_num_batched_tokens",
                     "state_copies", "speculative_tokens", "block_tokens", "batches"):  # fmt: skip
            value = getattr(self, name)
            if value is None and name == "max_num_batched_tokens":
                continue
            least = 0 if name == "speculative_tokens" else 1
            name = "block-size" if name == "block_tokens" else name
            if isinstance(value, bool) or not isinstance(value, int):
                return f"{name} is {type(value).__name__}, not a whole number"
            if not least <= value <= _MOST:
                return f"{name} is {'below ' + str(least) if value < least else 'far too large'}"
        tp = self.tensor_parallel_size
        if shape.state and (shape.state.heads % tp or shape.state.channels % tp):
            return f"the states of the model can't be split over {tp} Sparks"
        return ""


_MOST = 10**12


def state_copies(version: tuple[int, ...], prefix_caching: bool | None) -> int:
    """Copies of a state that vLLM reserves for one sequence, for models that have states.

    With prefix caching this is mode "align"; `keeps_every_state` tells of the other one.

    version: of vLLM. prefix_caching: as the profile sets it, None for vLLM's default. One without
    prefix caching, which 0.27.1 leaves off for these models (`engine/arg_utils.py`); with it two
    (MambaSpec), and later one more for checkpoints while a prompt is read: Mamba 2
    in 0.32.0, gated delta net too in 0.33.0. Between 0.27.1 and 0.32.0 the most is taken.
    """
    if prefix_caching is None:
        prefix_caching = version >= (0, 28)
    if not prefix_caching:
        return 1
    return 3 if version >= (0, 28) else 2


def keeps_every_state(
    state: State, version: tuple[int, ...], prefix_caching: bool | None, mode: str | None
) -> bool:
    """Whether vLLM may keep a state for every block of a sequence, which is not computed here.

    mode: `--mamba-cache-mode`. 0.27.1 does so ("all") for Mamba 2 with prefix caching unless the
    mode is "align" (`model_executor/models/config.py`, MambaModelConfig); 0.32.0 no longer can.
    """
    caching = version >= (0, 28) if prefix_caching is None else prefix_caching
    return state.mamba2 and caching and version < (0, 32) and mode != "align"


@dataclass(frozen=True)
class Capacity:
    tokens: int
    """vLLM's "KV cache size"."""
    sequences: float
    """vLLM's "Maximum concurrency" at max_model_len."""
    longest: int
    """Tokens of the longest sequence that fits, at most max_model_len."""


@dataclass(frozen=True)
class _Kind:
    """Layers that are alike, with blocks of as many bytes as those of all other kinds."""

    layers: int
    page: int
    block_tokens: int
    window: int | None = None
    copies: int = 0
    """Of a state; 0 for attention."""

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Blocks of one group for a sequence (max_memory_usage_bytes of each spec)."""
        if self.copies:
            return self.copies
        if self.window is None:
            return -(-tokens // self.block_tokens)
        return -(-min(self.window - 1 + in_flight, tokens) // self.block_tokens) + 1


def capacity(shape: Shape, use: Use, pool_bytes: int) -> Capacity | None:
    """What a cache of `pool_bytes` on each rank holds.

    None when the shape or the type of the cache is unknown, or `use.wrong` says something.
    """
    kinds = _kinds(shape, use)
    if kinds is None:
        return None
    counts = [kind.layers for kind in kinds]
    group = min(counts)
    if max(counts) < 1.5 * group:
        group = max(counts)
    blocks = min(max(0, pool_bytes), _MOST * _MOST) // (group * max(kind.page for kind in kinds))
    in_flight = use.batches * (use.max_num_batched_tokens or BATCHED_TOKENS)

    def needs(tokens: int) -> int:
        return sum(-(-k.layers // group) * k.blocks(tokens, in_flight) for k in kinds)

    sequences = blocks / needs(use.max_model_len)
    low, high = 0, use.max_model_len
    while low < high:  # one block is never given out (the null block)
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needs(middle) <= blocks - 1 else (low, middle - 1)
    return Capacity(int(sequences * use.max_model_len), sequences, low)


def _kinds(shape: Shape, use: Use) -> list[_Kind] | None:
    size = value_bytes(shape, use.kv_cache_dtype)
    if shape.unknown or size is None or use.wrong(shape):
        return None
    tp = use.tensor_parallel_size
    attention = [
        (kind, kind.layers + (shape.draft_layers if use.mtp and kind.window is None else 0))
        for kind in shape.attention
    ]
    costs: dict[Attention, int] = {kind: token_bytes(kind, size, tp) for kind, _ in attention}
    block = use.block_tokens
    states: list[_Kind] = []
    if shape.state:
        state = state_bytes(shape.state, tp, use.speculative_tokens)
        # The block grows until a layer's page holds a state; the state's page is padded to it.
        block *= -(-state // (block * costs[shape.attention[0]]))
        page = block * costs[shape.attention[0]]
        copies = use.state_copies + use.speculative_tokens
        states = [_Kind(shape.state.layers, page, block, copies=copies)]
    page = block * max(costs.values())
    # Layers with smaller pages get blocks of more tokens, or padding when that does not work out.
    return states + [
        _Kind(
            layers,
            page,
            page // costs[kind] if page % (block * costs[kind]) == 0 else block,
            kind.window,
        )
        for kind, layers in attention
    ]

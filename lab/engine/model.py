"""A Qwen3 model of two layers without weights: what the lab serves with dummy weights."""

from __future__ import annotations

import json
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
END_OF_TEXT, _, END_OF_TURN, _, _ = range(len(SPECIAL_TOKENS))
CONTEXT = 2048  # tokens

_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model_files() -> dict[str, bytes]:
    """Return the model's files by name: configuration, tokenizer and chat template."""
    vocabulary = _vocabulary()
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": len(vocabulary),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": END_OF_TURN,
        "use_cache": True,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[END_OF_TURN],
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT],
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    generation_config = {"eos_token_id": END_OF_TURN, "pad_token_id": END_OF_TEXT}
    files = {
        "config.json": config,
        "generation_config.json": generation_config,
        "tokenizer_config.json": tokenizer_config,
        "tokenizer.json": _tokenizer(vocabulary),
    }
    return {
        name: (json.dumps(content, indent=1) + "\n").encode() for name, content in files.items()
    }


def _vocabulary() -> dict[str, int]:
    tokens = [*SPECIAL_TOKENS, *byte_alphabet(), *_words()]
    return {token: number for number, token in enumerate(tokens)}


def _words() -> list[str]:
    """Return made-up words that no merge leads to: never read, but often generated.

    Random weights pick any token. With bytes alone most answers would be broken UTF-8, which a
    server holds back, so that an answer could be empty.
    """
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    return [f"\u0120{first}{second}" for first in syllables for second in syllables][:4000]


def byte_alphabet() -> list[str]:
    """Return the character that stands for each byte in a byte-level BPE (GPT-2's table).

    Printable Latin-1 stands for itself; the other bytes, which a vocabulary can't show, take
    the characters from U+0100 on in their order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _tokenizer(vocabulary: dict[str, int]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, token in enumerate(SPECIAL_TOKENS)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }

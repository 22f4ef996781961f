"""Mistakes in `speculative_config`: place, key, value and fix."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.test_bad_input import MODEL, one

# (speculative_config, key that is named, its value, part of the fix)
SPECULATION: list[tuple[dict[str, Any], str, str, str]] = [
    ({"method": "eagle3", "num_speculative_tokens": 3}, ".model", "", "needs a second model"),
    ({"method": "eagle3", "model": "org/eagle", "num_speculative_tokens": 3}, ".model",
     "'org/eagle'", "is not downloaded: put it on the host"),
    ({"model": "org/draft", "num_speculative_tokens": 2}, ".model", "'org/draft'", "'/srv/models/"),
    ({"model": "/srv/../x", "num_speculative_tokens": 2}, ".model", "'/srv/../x'", "'/srv/models/"),
    ({"model": 7, "num_speculative_tokens": 2}, ".model", "7", "'/srv/models/"),
    ({"method": 7, "num_speculative_tokens": 2}, ".method", "7", "the name of a method"),
    ({"method": "ngram"}, ".num_speculative_tokens", "", "is required: tokens guessed in a step"),
    ({"method": "mtp", "num_speculative_tokens": 0}, ".num_speculative_tokens", "0", "1 or more"),
    ({"method": "mtp", "num_speculative_tokens": "3"}, ".num_speculative_tokens", "'3'", "1 or mo"),
    ({"method": "mtp", "num_speculative_tokens": True}, ".num_speculative_tokens", "True", "1 or "),
]  # fmt: skip


@pytest.mark.parametrize(("config", "key", "value", "fix"), SPECULATION, ids=str)
def test_speculation(config: dict[str, Any], key: str, value: str, fix: str) -> None:
    said = one({**MODEL, "speculative_config": config})
    shown = f"speculative_config{key}" + (f" = {value}" if value else "")
    assert said.startswith(f"group_data/tiny.py: {shown}: "), said
    assert fix in said

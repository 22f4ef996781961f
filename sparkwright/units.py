"""Amounts as people write them: "64K" tokens, "32 GiB", "15 min", "85%"."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

# As vLLM reads its own options: small letters count in thousands, capitals in 1,024s.
_STEPS = {"": 1, **{letter: 1000**n for n, letter in enumerate("kmgt", 1)}}
_STEPS |= {letter: 1024**n for n, letter in enumerate("KMGT", 1)}
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*(%|[A-Za-z]*)", re.ASCII)


def tokens(value: Any) -> Any:
    """A number of tokens: 65536, "65536", "64K" (65,536) or "64k" (64,000)."""
    return _scaled(value, _STEPS, "a number of tokens: 65536, '64K' (65,536) or '64k' (64,000)")


def size(value: Any) -> Any:
    """A number of bytes: 34359738368, "32GiB", "32G" (the same) or "32GB" (32,000,000,000)."""
    names = {f"{letter}iB": _STEPS[letter] for letter in "KMGT"}
    names |= {f"{letter}B": _STEPS[letter.lower()] for letter in "KMGT"} | {"B": 1}
    return _scaled(value, _STEPS | names, "a number of bytes: 34359738368, '32GiB' or '34.4GB'")


def seconds(value: Any) -> Any:
    """A number of seconds: 900, "900s", "15min" or "1h"."""
    return _scaled(value, {"": 1, **_SECONDS}, "a number of seconds: 900, '15min' or '1h'")


def fraction(value: Any) -> Any:
    """A share: 0.85, "0.85" or "85%"."""
    if isinstance(value, int | float) and 1 < value <= 100:
        raise ValueError(f"write a share of the memory: {value / 100:g} or '{value:g}%'")
    if not isinstance(value, str):
        return value
    found = _AMOUNT.fullmatch(value.strip())
    if not found or found[2] not in ("", "%"):
        raise ValueError("write a share of the memory: 0.85 or '85%'")
    return float(found[1]) / (100 if found[2] else 1)


def _scaled(value: Any, units: dict[str, int], allowed: str) -> Any:
    """The whole number that a text means; anything else is left to the type's own check."""
    if isinstance(value, bool):  # Python counts True as 1
        raise ValueError(f"write {allowed}")
    if not isinstance(value, str):
        return value
    found = _AMOUNT.fullmatch(value.strip().replace("_", ""))
    number = Fraction(found[1]) * units[found[2]] if found and found[2] in units else None
    if number is None or number.denominator != 1:
        raise ValueError(f"write {allowed}")
    return int(number)

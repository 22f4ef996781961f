"""Amounts as people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparkwright import units
from sparkwright.settings import ModelProfile

GIB = 2**30


@pytest.mark.parametrize(
    ("read", "written", "meant"),
    [
        (units.tokens, "65536", 65536),
        (units.tokens, "65_536", 65536),
        (units.tokens, "64K", 65536),
        (units.tokens, " 64 K ", 65536),
        (units.tokens, "64k", 64000),
        (units.tokens, "1.5K", 1536),
        (units.tokens, "1M", 1024**2),
        (units.tokens, "1m", 10**6),
        (units.size, "34359738368", 32 * GIB),
        (units.size, "32GiB", 32 * GIB),
        (units.size, "32 GiB", 32 * GIB),
        (units.size, "32G", 32 * GIB),
        (units.size, "32GB", 32 * 10**9),
        (units.size, "34.4GB", 34_400_000_000),
        (units.size, "0.5TiB", 512 * GIB),
        (units.size, "1024B", 1024),
        (units.seconds, "900", 900),
        (units.seconds, "900s", 900),
        (units.seconds, "15min", 900),
        (units.seconds, "15 min", 900),
        (units.seconds, "1.5h", 5400),
        (units.fraction, "0.85", 0.85),
        (units.fraction, "85%", 0.85),
        (units.fraction, "85.5 %", 0.855),
        (units.fraction, "1", 1),
    ],
)
def test_an_amount_and_what_it_means(
    read: Callable[[Any], Any], written: str, meant: float
) -> None:
    assert read(written) == meant


@pytest.mark.parametrize("read", [units.tokens, units.size, units.seconds, units.fraction])
@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "K",
        "-1",
        "+1",
        "1,5K",
        "1e3",
        "0x10",
        "1.",
        ".5",
        "64 K B",
        "1K1",
        "½",
        "nan",
        "inf",
    ],
)
def test_what_is_no_amount(read: Callable[[Any], Any], written: str) -> None:
    with pytest.raises(ValueError, match=r"^write a "):
        read(written)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (units.tokens, "64KB"),
        (units.tokens, "64Ki"),
        (units.tokens, "0.3"),
        (units.tokens, "15min"),
        (units.size, "32gib"),
        (units.size, "32Gib"),
        (units.size, "0.1B"),
        (units.seconds, "15m"),
        (units.seconds, "1d"),
        (units.seconds, "0.5s"),
        (units.fraction, "85K"),
    ],
)
def test_units_of_another_kind(read: Callable[[Any], Any], written: str) -> None:
    with pytest.raises(ValueError, match=r"^write a "):
        read(written)


@pytest.mark.parametrize("read", [units.tokens, units.size, units.seconds])
def test_true_is_no_amount_and_numbers_are_left_to_their_type(read: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"^write a number of "):
        read(True)
    for written in (7, 7.5, None, [7]):
        assert read(written) == written


def test_a_profile_takes_them() -> None:
    written = {
        "max_model_len": "64K",
        "max_num_batched_tokens": "8k",
        "kv_cache_memory_bytes": "32GiB",
        "gpu_memory_utilization": "80%",
        "ready_timeout_s": "15min",
        "shutdown_timeout_s": "30s",
    }
    profile = ModelProfile.model_validate({"model": "/m", **written})
    assert {name: getattr(profile, name) for name in written} == {
        "max_model_len": 65536,
        "max_num_batched_tokens": 8000,
        "kv_cache_memory_bytes": 32 * GIB,
        "gpu_memory_utilization": 0.8,
        "ready_timeout_s": 900,
        "shutdown_timeout_s": 30,
    }

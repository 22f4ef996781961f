"""Environment of an engine whose network is the fabric, as this host has it now."""

from __future__ import annotations

from common import Refusal


def environment(fabric: dict[str, object]) -> dict[str, str]:
    """Variables of NCCL, Gloo, UCX and vLLM. Raises Refusal when a rail isn't ready."""
    raise Refusal("the fabric is not set up: deploy again")

"""Whether what a host is to serve fits into its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkwright.errors import Problem

if TYPE_CHECKING:
    from sparkwright.plan import HostPlan


def check(plan: HostPlan) -> tuple[list[Problem], list[Problem]]:
    """Problems and warnings about the memory of one host."""
    return [], []

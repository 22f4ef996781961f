"""How mistakes are said."""

from __future__ import annotations

from sparkwright.errors import PlanError, Problem, nearest


def test_problem_with_and_without_field_and_value() -> None:
    assert str(Problem("file.py", "port", "80", "use 8000")) == "file.py: port = 80: use 8000"
    assert str(Problem("file.py", "port", "", "add it")) == "file.py: port: add it"
    assert str(Problem("host a", "", "", "is odd")) == "host a: is odd"


def test_plan_error_counts_sorts_and_says_each_once() -> None:
    one, two = Problem("b.py", "x", "1", "no"), Problem("a.py", "x", "1", "no")
    assert str(PlanError([one])).startswith("1 problem in the inventory, nothing was changed:")
    assert str(PlanError([one, two, one])).splitlines() == [
        "2 problems in the inventory, nothing was changed:",
        "  a.py: x = 1: no",
        "  b.py: x = 1: no",
    ]


def test_nearest() -> None:
    assert nearest("prot", ["port", "host"]) == "did you mean 'port'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", []) == "none is known"

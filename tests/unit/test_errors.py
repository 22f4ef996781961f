"""How mistakes are said."""

from __future__ import annotations

from sparkwright.errors import PlanError, Problem, nearest, together


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


def test_what_hosts_have_in_common_is_said_once() -> None:
    def said(*names: str, rest: str = "") -> list[str]:
        return [str(p) for p in together(Problem(f"host {n}{rest}", "x", "1", "no") for n in names)]

    assert said("a") == ["host a: x = 1: no"]
    assert said("b", "a") == ["hosts a, b: x = 1: no"]
    assert said("a", "b", rest=": release") == ["hosts a, b: release: x = 1: no"]
    assert said(*"abcde") == ["hosts a, b, c and 2 more: x = 1: no"]


def test_names_of_hosts_that_are_part_of_the_word_host() -> None:
    problems = [Problem(f"host {name}", "", "", "no") for name in ("h", "host", "o")]
    assert [str(p) for p in together(problems)] == ["hosts h, host, o: no"]
    assert [str(p) for p in together(problems[:1])] == ["host h: no"]


def test_what_differs_is_said_apart() -> None:
    places = [("host a", "1"), ("host b", "2"), ("f.py", "1"), ("pair p", "1")]
    told = together(Problem(where, "x", found, "no") for where, found in places)
    assert [str(p) for p in told] == [
        "f.py: x = 1: no",
        "host a: x = 1: no",
        "host b: x = 2: no",
        "pair p: x = 1: no",
    ]

"""Problems that a user can mend, and how they are said."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

# What pydantic calls by words of its own.
_WRITE = {
    "tuple_type": "a list: ['...']",
    "dict_type": "a dict: {'name': value}",
    "string_type": "a text, in quotes",
    "bool_type": "True or False",
    "bool_parsing": "True or False",
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
}
_SECRET_VALUE = re.compile(
    r"""(?i)(['"][\w-]*(?:key|token|secret|passw(?:or)?d)s?['"]\s*:\s*)(?:'[^']*'|"[^"]*")"""
)
# Fields whose values may hold a key.
_NEVER_SHOWN = ("api_key", "env", "extra_args", "speculative_config")


@dataclass(frozen=True)
class Problem:
    """One mistake in what a user wrote.

    where: file or host; field: dotted name, empty when it is about the whole; found: the value
    as written; fix: what is allowed and what to do.
    """

    where: str
    field: str
    found: str
    fix: str

    def __post_init__(self) -> None:
        """Take out what may be a secret, and what a terminal would obey, wherever it comes from."""
        for name in ("where", "field", "found", "fix"):
            text = _masked(getattr(self, name), values=name == "found")
            object.__setattr__(self, name, text)

    def __str__(self) -> str:
        place = f"{self.where}: {self.field}" if self.field else self.where
        found = f" = {self.found}" if self.found else ""
        return f"{place}{found}: {self.fix}"


class PlanError(Exception):
    """Every problem of an inventory at once; nothing has been done on any host."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = together(problems)
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in the inventory, nothing was changed:"
        super().__init__("\n".join([head, *(f"  {p}" for p in self.problems)]))


def together(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted, each once; what several hosts have in common is said once for all of them."""
    places: dict[Problem, list[str]] = {}
    for problem in sorted(set(problems), key=lambda p: (p.where, p.field, p.found)):
        name, colon, rest = problem.where.removeprefix("host ").partition(":")
        if problem.where.startswith("host "):
            problem = replace(problem, where=f"host {colon}{rest}")
        places.setdefault(problem, []).append(name)
    return sorted(
        (replace(p, where=_hosts(p.where, names)) for p, names in places.items()),
        key=lambda p: (p.where, p.field, p.found),
    )


def _hosts(where: str, names: list[str]) -> str:
    """`where` with the names put back: `host a: release`, or `hosts a, b and 6 more: release`."""
    if not where.startswith("host "):
        return where
    rest = where.removeprefix("host ")
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"host{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}{rest}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name is meant, or list them all: the tail of an error message."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(names)}" if names else "none is known"


def problems_of(error: ValidationError, where: str, model: type[BaseModel]) -> list[Problem]:
    """Translate pydantic's errors on `model` into problems, one a field.

    where: the file or host that holds the data.
    """
    problems = [_problem(dict(detail), where, model) for detail in error.errors()]
    return [replace(problem, fix=line) for problem in problems for line in problem.fix.split("\n")]


def _problem(detail: dict[str, Any], where: str, model: type[BaseModel]) -> Problem:
    location = [str(part) for part in detail["loc"]]
    field = ".".join(location)
    unknown = detail["type"] == "extra_forbidden"
    # A key written in the wrong place must not be repeated on the screen.
    secret = not location or location[0] in _NEVER_SHOWN
    if unknown and not isinstance(detail["input"], int | float | None):
        secret = True
    found = "" if secret else shown(detail["input"])
    if unknown:
        names = _fields_at(model, location[:-1])
        return Problem(where, field, found, f"no such field; {nearest(location[-1], names)}")
    if detail["type"] == "missing":
        return Problem(where, field, "", "is required, add it")
    if detail["type"] == "string_pattern_mismatch":
        example = model.model_fields[location[-1]].default if len(location) == 1 else None
        return Problem(where, field, found, f"write it like {example!r}")
    if detail["type"] in _WRITE:
        return Problem(where, field, found, f"write {_WRITE[detail['type']]}")
    message = str(detail["msg"])
    if message.startswith("Value error, "):  # ours, which may begin with a name
        return Problem(where, field, found, message.removeprefix("Value error, "))
    return Problem(where, field, found, message[0].lower() + message[1:])


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        info = model.model_fields.get(part)
        inner = getattr(info, "annotation", None)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def shown(value: Any) -> str:
    """A value as it was written, shortened; for `Problem.found`, which masks what looks secret."""
    try:
        text = repr(value)
    except Exception:  # a number of thousands of digits, an object of the user's own
        return f"a {type(value).__name__}"
    text = _masked(text, values=True)
    return text if len(text) <= 80 else text[:77] + "..."


def _masked(text: str, values: bool) -> str:
    """values: also what stands beside a name such as token, as in the text of a dict."""
    text = re.sub(r"://(?:[^\s'\"/@]+|[^\s'\"]*:[^\s'\"]*)@", "://***@", text)
    text = re.sub(r"\b(?:sk-|hf_|nvapi-|ghp_|AKIA)[A-Za-z0-9-]{10,}", "***", text)
    if values:
        text = re.sub(_SECRET_VALUE, r"\1'***'", text)
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)

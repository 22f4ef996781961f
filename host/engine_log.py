"""Read an engine's log: which phase of the start it is in, and what went wrong first.

Pure functions over lines; the phases' patterns come from the engine module with each deploy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# `(EngineCore pid=1699) ERROR 11-30 17:48:58 [core.py:1330] text`: process, level, date, place.
_PREFIX = re.compile(
    r"^(?P<process>\([\w .-]+ pid=\d+\) ?)?"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Warning|Refusal)?(:|$)")


def phase(lines: Iterable[str], phases: Sequence[Sequence[str]], before: str) -> str:
    """The phase that the lines end in. phases: (text that begins it, its name); before: so far."""
    for line in lines:
        for text, name in phases:
            if text in line:
                before = name
    return before


def first_exception(lines: Sequence[str]) -> str | None:
    """The exception that was raised first: later ones only report that something died.

    Falls back to argparse's complaint, then to the first line logged as an error. None when the
    log holds nothing of the kind.
    """
    parsed = [(m.group("process") or "", line[m.end() :]) for line in lines if (m := _match(line))]
    for number, (process, text) in enumerate(parsed):
        if text.startswith(_TRACEBACK):
            found = _raised(parsed[number + 1 :], process)
            if found:
                return found
    for _, text in parsed:
        if re.search(r"\berror: ", text):
            return text.strip()
    errors = (line[m.end() :] for line in lines if (m := _match(line)) and " ERROR " in f" {line}")
    return next((text.strip() for text in errors if text.strip()), None)


def _match(line: str) -> re.Match[str] | None:
    return _PREFIX.match(line)


def _raised(after: Sequence[tuple[str, str]], process: str) -> str | None:
    """The line that ends a traceback: the first of that process that is not indented."""
    for other, text in after:
        if other != process or not text.strip() or text[0].isspace():
            continue
        return text.strip() if _EXCEPTION.match(text) else None
    return None

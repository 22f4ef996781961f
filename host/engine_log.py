"""Read an engine's log: which phase of the start it is in, and what went wrong first.

Pure functions over lines; the phases' patterns come from the engine module with each deploy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

# `(EngineCore pid=1699) ERROR 11-30 17:48:58 [core.py:1330] text`: process, level, date, place.
_PREFIX = re.compile(
    r"^(?P<process>\([\w .-]+ pid=\d+\) ?)?"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?"
)
_TRACEBACK = "Traceback (most recent call last):"
# Not the lines of uvicorn, which begin with their level.
_EXCEPTION = re.compile(r"^(?!(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):)[A-Za-z_][\w.]*(:|$)")
# Logged with a traceback by an engine that goes on all the same: a cache that it can't write.
_SURVIVED = "Error saving model info cache"


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
    lines = list(_fatal(lines))
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


def _fatal(lines: Sequence[str]) -> Iterator[str]:
    """The lines without the tracebacks that an engine logs and survives."""
    survived = None
    for line in lines:
        prefix = m.group() if (m := _match(line)) else ""
        if line.startswith(_SURVIVED, len(prefix)):
            survived = prefix.strip() or None
        if prefix.strip() != survived:
            yield line


def _match(line: str) -> re.Match[str] | None:
    return _PREFIX.match(line)


def _raised(after: Sequence[tuple[str, str]], process: str) -> str | None:
    """The line that ends a traceback: the first of that process that is not indented."""
    own = [text for other, text in after if other == process and text.strip()]
    for text, below in zip(own, [*own[1:], ""], strict=True):
        if not text[0].isspace():
            # pydantic says what is wrong on the second line.
            more = f" {below.strip()}" if below[:1].isspace() else ""
            return text.strip() + more if _EXCEPTION.match(text) else None
    return None

"""Values of options as vLLM's parser would take them from a `--config` file.

Every value becomes text on vLLM's side before it is converted, so text that reads as the right
type is right: `"8"` for a whole number, `"32k"` where vLLM knows such units.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Seen with 0.27.1, 0.32.0 and 0.33.0: vLLM looks for the option that switches off in the wrong
# parser (that of `vllm`, not that of `vllm serve`), finds none, and goes on.
DROPPED = "`vllm serve --config` drops False without a word"

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "human_readable_int": "a whole number, or one such as '32k' (32,000) or '32K' (32,768)",
    "human_readable_int_or_auto": "a whole number, one such as '32K' (32,768), or 'auto'",
    "json": "a dict, or JSON text",
    "json object": "a dict, or the text of a JSON object",
    "json or str": "a dict or text",
}


@dataclass(frozen=True)
class Option:
    """One option of `vllm serve`.

    flags: every spelling that sets it, dashes included, and negative: those that switch it off;
    dest: its name in vLLM's own code, the same for all spellings; type: what its value is
    converted to (the words of `_WANTED`, "str" and "snake_case", "optional " in front where None is
    allowed); nargs: 0 for a switch, None for one value, "+" for one or more, "?" for none or one.
    """

    flags: tuple[str, ...]
    dest: str
    action: str
    type: str = "str"
    nargs: int | str | None = None
    choices: tuple[Any, ...] = ()
    negative: tuple[str, ...] = ()
    default: Any = None

    @property
    def name(self) -> str:
        """The long name without dashes in front."""
        return next(flag for flag in self.flags if flag.startswith("--"))[2:]

    @property
    def off(self) -> str | None:
        """The long name that switches it off, without dashes in front, when there is one."""
        return self.negative[0][2:] if self.negative else None

    @property
    def is_json(self) -> bool:
        """True when a dict can be its value."""
        return "json" in self.type or self.action == "LoRAParserAction"

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        return _WANTED.get(self.type.removeprefix("optional "), "text")


def problem(option: Option, value: Any) -> str | None:
    """What is wrong with a value and what to write; None when vLLM's parser takes it as it is."""
    if value is None:
        return "has no value: leave the option out"
    if option.nargs == 0:
        return _problem_of_switch(option, value)
    if value is True and option.nargs == "?":
        return None
    if isinstance(value, dict):
        return None if option.is_json else f"takes {option.wanted}, not a dict"
    if not isinstance(value, list | tuple):
        return _problem_of_one(option, value)
    if not value:
        return "vLLM drops an empty list: leave the option out"
    if option.nargs == "+":
        return next(filter(None, (_problem_of_one(option, item) for item in value)), None)
    if option.is_json:
        return f"vLLM wants the list as one text: {json.dumps(value)!r}"
    return f"takes one value, not a list: {option.wanted}"


def _problem_of_switch(option: Option, value: Any) -> str | None:
    if value is True:
        return None
    if value is not False:
        return "is a switch: True" + (", or False" if option.off else ", or leave it out")
    if option.off:
        return f"{DROPPED}: write {option.off!r}: True"
    return f"{DROPPED}, and it is off by itself: leave it out"


def _problem_of_one(option: Option, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"takes {option.wanted}"
    text = str(value)
    if text.startswith("-") and not re.fullmatch(r"-\d+", text):
        return "vLLM takes text that begins with a dash for another option"
    if option.action == "LoRAParserAction" and "=" not in text and not text.startswith("{"):
        return "takes name=path, one or more"
    try:
        converted = _converted(option.type, text)
    except ValueError:
        return f"takes {option.wanted}"
    if option.choices and converted not in option.choices:
        return one_of(str(converted), [str(c) for c in option.choices if c is not None])
    return None


def close(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Ask for the known names that begin like this one, or for the nearest; empty when none is.

    least: how near, 0 to 1 (difflib).
    """
    names = list(known)
    begins = sorted(k for k in names if name and k.startswith(name))
    meant = begins if 0 < len(begins) <= 4 else difflib.get_close_matches(name, names, 1, least)
    return f"did you mean {' or '.join(repr(k) for k in meant)}?" if meant else ""


def one_of(name: str, known: Iterable[str]) -> str:
    """Say which of a few values is meant, or list them all, in their order."""
    names = list(known)
    return close(name, names) or f"allowed: {', '.join(names)}"


def _converted(kind: str, text: str) -> Any:
    """What vLLM's parser makes of the text; raises ValueError where it would refuse it."""
    if kind.startswith("optional "):
        return None if text in ("", "None") else _converted(kind.removeprefix("optional "), text)
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text)
    if kind.startswith("human_readable_int"):
        auto = kind.endswith("_or_auto") and text.strip().lower() in ("-1", "auto")
        return -1 if auto else _human_readable_int(text.strip())
    if kind == "snake_case":
        return text.lower().replace("-", "_")
    if kind == "json or str" and not re.fullmatch(r"\s*{.*}\s*", text, re.S):
        return text
    if "json" in kind:
        found = json.loads(text)
        if kind == "json object" and not isinstance(found, dict):
            raise ValueError
        return found
    return text


def _human_readable_int(text: str) -> int:
    """1k is 1,000 and 1K is 1,024; only the small letters take decimals."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text)
    if not match:
        return int(text)
    number, unit = match.groups()
    if unit in _UNITS:
        return int(float(number) * _UNITS[unit])
    power = "KMGT".index(unit) + 1
    return int(number) << 10 * power

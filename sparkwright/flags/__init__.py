"""What each supported vLLM version accepts, read from its own parser and registries.

One JSON file for each version beside this one, written by scripts/catalog. The parser takes names
that a later step of the start refuses (parsers, backends, quantization methods); they are here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sparkwright.errors import shown
from sparkwright.flags.environment import replacement
from sparkwright.flags.values import DROPPED, Option, close, one_of, problem

_FOLDER = Path(__file__).parent

# Options whose values are looked up in a registry after parsing, and the option (if any) that
# names a file with further ones: then the names can't be known.
_REGISTRIES = {
    "attention-backend": None,
    "kv-cache-dtype": None,
    "load-format": None,
    "quantization": None,
    "reasoning-parser": "reasoning-parser-plugin",
    "tool-call-parser": "tool-parser-plugin",
}
# Not "tokens", which are counted.
_SECRET = re.compile(r"(keys?|token|secrets?|passwords?)$", re.I)


@dataclass(frozen=True)
class Complaint:
    """One option or variable that vLLM would refuse, ignore or take for something else.

    option: as it was written; found: the value as it was written, empty when it may be a secret;
    fix: what is allowed and what to do.
    """

    option: str
    found: str
    fix: str


@dataclass(frozen=True)
class Quantization:
    """Names that `--quantization` takes in one version.

    online: methods that quantize a BF16 checkpoint while loading, with the kinds of layers that
    they quantize (`linear`, `moe`; the others stay as they are); only_family: those that run on
    one family of GPUs only, by its capability times ten (100: B200 and its like; a GB10 is 120).
    """

    online: Mapping[str, tuple[str, ...]]
    only_family: Mapping[str, int]

    def online_for(self, word: str, capability: str = "12.1") -> str | None:
        """The online method that a word of guides (`nvfp4`, `fp8`, `mxfp8`) or a method's own name
        means on a GPU of this compute capability; None when this version has none for it.

        `fp8` is `fp8_per_tensor`, as vLLM itself says. `nvfp4` would be `nvfp4_per_token`, whose
        constructor refuses all but capability 10.x, a GB10 too.
        """
        family = int(capability.split(".")[0]) * 10
        names = [f"{word}_per_tensor", word, *(n for n in self.online if n.startswith(f"{word}_"))]
        fits = (n for n in names if n in self.online and self.only_family.get(n, family) == family)
        return next(fits, None)


@dataclass(frozen=True)
class Catalog:
    """The options and variables of one vLLM version.

    options: by every long spelling, without dashes in front, those that switch off included;
    names: values that registries allow, by option; environment: every VLLM_ variable it reads.
    """

    version: str
    options: Mapping[str, Option]
    names: Mapping[str, tuple[str, ...]]
    quantization: Quantization
    environment: frozenset[str]

    def spelled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options so that `vllm serve --config` does what they say: it drops False, which has
        to be written as another option, and takes a list for several arguments where JSON is
        wanted."""
        written: dict[str, Any] = {}
        for name, value in options.items():
            option = self.options.get(name)
            if option and option.nargs == 0 and value is False and option.off:
                written[option.name if _switches_off(option, name) else option.off] = True
            elif option and option.nargs is None and option.is_json and isinstance(value, list):
                written[name] = json.dumps(value)
            else:
                written[name] = value
        return written

    def values_of(self, name: str) -> tuple[str, ...]:
        """What an option's value can be, as texts; empty when anything goes."""
        option = self.options.get(name)
        choices = option.choices or () if option else ()
        return tuple(value for value in choices if isinstance(value, str) and value != "None")

    def check(self, options: Mapping[str, Any]) -> list[Complaint]:
        """Everything that this version would refuse or ignore in a `--config` file.

        options: long names without dashes in front. Keys within dicts are not checked.
        Stricter than the parser: names are exact (it takes any beginning of a name, underscores and
        dotted names), and nothing may be dropped without a word.
        """
        complaints = []
        seen: dict[str, str] = {}
        for name, value in options.items():
            option = self.options.get(name)
            fix = self._fix(option, name, value, options) if option else self._unknown(name)
            if option and not fix and option.dest in seen:
                fix = f"is the same option as {seen[option.dest]}: keep one"
            if option:
                seen.setdefault(option.dest, name)
            if fix:
                plain = option or isinstance(value, int | float)  # a text for who knows what
                shown_value = _shown(name, value) if plain else ""
                complaints.append(Complaint(name.split("=")[0], shown_value, fix))
        return complaints

    def check_environment(self, env: Mapping[str, str]) -> list[Complaint]:
        """VLLM_ variables that this version does not read: it would only log a warning."""
        complaints = []
        for name, value in env.items():
            if name.startswith("VLLM_") and name not in self.environment:
                fix = replacement(name, value, self.options, self.names)
                fix = fix or self._elsewhere(name, lambda other: other.environment)
                if not fix:
                    known = (known.removeprefix("VLLM_") for known in self.environment)
                    hint = (
                        close(name.removeprefix("VLLM_"), known)
                        .replace("mean '", "mean 'VLLM_")
                        .replace("or '", "or 'VLLM_")
                    )
                    fix = f"vLLM {self.version} reads no such variable; {hint or 'leave it out'}"
                complaints.append(Complaint(name, "", fix))
        return complaints

    def _fix(self, option: Option, name: str, value: Any, options: Mapping[str, Any]) -> str | None:
        if name in ("config", "help"):
            return "has no meaning in a file of options: leave it out"
        if _switches_off(option, name) and value is False:
            return f"{DROPPED}: write {option.name!r}: True"
        fix = problem(option, value)
        known = self.names.get(name)
        if fix or known is None or options.get(_REGISTRIES[name] or "") or value == "":
            return fix
        wanted = str(value)
        if name == "attention-backend":
            wanted, known = wanted.upper(), (*known, "AUTO")
        if wanted in known:
            return None
        if name == "quantization":
            # Not nvfp4_per_token for nvfp4: a GB10 can't run it.
            hint = close(wanted, set(known) - set(self.quantization.only_family), 0.8)
            return f"is no method of vLLM {self.version}; a quantized checkpoint needs none: " + (
                hint or "leave it out"
            )
        return one_of(wanted, known)

    def _unknown(self, written: str) -> str:
        name, equals, _ = written.partition("=")
        plain = name.lstrip("-").replace("_", "-")
        by_flag = {flag: option for option in self.options.values() for flag in option.flags}
        if equals:
            return f"name and value are two: {plain!r} and what follows the `=`"
        if plain in self.options:
            return f"write {plain!r}"
        if short := by_flag.get(f"-{plain}"):
            return f"write the long name, {short.name!r}"
        head = self.options.get(plain.split(".")[0])
        if head and head.is_json:
            return f"write a dict: {head.name}={{{plain.partition('.')[2]!r}: ...}}"
        if found := self._elsewhere(plain, lambda other: other.options):
            return found
        hint = close(plain, self.options)
        return f"is no option of vLLM {self.version}; {hint or 'leave it out'}"

    def _elsewhere(self, name: str, names: Callable[[Catalog], Container[str]]) -> str | None:
        """What other versions say about a name that this one does not have."""
        order = versions()
        here = order.index(self.version)
        has = [other.version for other in catalogs() if name in names(other)]
        before = [v for v in has if order.index(v) < here]
        if before:
            gone = order[order.index(before[-1]) + 1]
            return f"vLLM {before[-1]} had it, {gone} no longer has it: leave it out"
        if has:
            return f"comes with vLLM {has[0]}, this release is {self.version}"
        return None


def versions() -> tuple[str, ...]:
    """The vLLM versions that have a catalog, oldest first."""
    return tuple(sorted((f.stem for f in _FOLDER.glob("*.json")), key=_order))


@cache
def _read(version: str) -> Catalog | None:
    if version not in versions():
        return None
    data = json.loads((_FOLDER / f"{version}.json").read_text())
    options = {}
    for entry in data["options"]:
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        option = Option(**fields)
        for flag in (*option.flags, *option.negative):
            if flag.startswith("--"):
                options[flag[2:]] = option
    online = data["quantization online"]
    names = {name: tuple(data[name]) for name in _REGISTRIES if name in data}
    names["quantization"] = tuple(data["quantization methods"])
    quantization = Quantization(
        online={name: tuple(method["layers"]) for name, method in online.items()},
        only_family={n: m["only_family"] for n, m in online.items() if "only_family" in m},
    )
    return Catalog(version, options, names, quantization, frozenset(data["environment"]))


def catalog(version: str | None) -> Catalog | None:
    """The catalog of a vLLM version such as `0.33.0` (or `0.32.0+cpu`); None when there is none,
    and when the version is not known."""
    return _read(version.split("+")[0]) if version else None


def catalogs() -> list[Catalog]:
    """Every catalog, of the oldest version first."""
    return [found for version in versions() if (found := _read(version))]


def _switches_off(option: Option, name: str) -> bool:
    return f"--{name}" in option.negative


def _shown(name: str, value: Any) -> str:
    return "" if "=" in name or _SECRET.search(name) else shown(value)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))

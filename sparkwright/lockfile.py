"""What a lock file says: how it was made, what it pins, and what differs from another one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

_UV = ("--generate-hashes", "--only-binary", ":all:")
_PLAIN = ("--no-header", "--no-annotate", "--no-emit-index-url")
_FIXED = " ".join((*_UV, *_PLAIN))
_REPEATED = {"--override": "overrides", "--find-links": "find_links"}
_SINGLE = {
    "--python-version": "python",
    "--python-platform": "platform",
    "--exclude-newer": "exclude_newer",
}


@dataclass(frozen=True)
class Recipe:
    """How a lock is made. Its header holds it, so that the lock can be made again."""

    requirements: tuple[str, ...]
    python: str
    platform: str | None
    """uv's name of a platform; None: one lock for every platform."""
    exclude_newer: str | None = None
    """Day, YYYY-MM-DD: what was uploaded after it does not exist."""
    overrides: tuple[str, ...] = ()
    """Requirement files that replace what packages ask for."""
    find_links: tuple[str, ...] = ()
    """Folders with wheels, or names of environment variables that hold one (`LAB_WHEELS`)."""

    @property
    def target(self) -> list[str]:
        """uv's options for the place where the release will run and the day that counts."""
        words = ["--python-version", self.python]
        words += ["--python-platform", self.platform] if self.platform else ["--universal"]
        return words + (["--exclude-newer", self.exclude_newer] if self.exclude_newer else [])

    def options(self, find_links: tuple[str, ...] | None = None) -> list[str]:
        """Everything that `uv pip compile` is told. find_links: the folders themselves."""
        words = [*_FIXED.split(), *self.target]
        for file in self.overrides:
            words += ["--override", file]
        for folder in self.find_links if find_links is None else find_links:
            words += ["--find-links", folder]
        return words

    def header(self, uv_version: str) -> str:
        """The first lines of the lock file."""
        wants, told = shlex.join(self.requirements), shlex.join(self.options())
        return (
            f"# Made by sparkwright lock (uv {uv_version}) from: {wants}\n"
            f"# uv pip compile - {told}\n"
        )


def recipe_of(text: str) -> Recipe | None:
    """The recipe in a lock's header; None when it has none that can be read."""
    made = re.match(r"# Made by [^\n]* from: ([^\n]+)\n# uv pip compile - ([^\n]+)\n", text)
    if not made:
        return None
    values: dict[str, str] = {}
    lists: dict[str, list[str]] = {"overrides": [], "find_links": []}
    words = iter(shlex.split(made[2].replace(_FIXED, "")))
    for word in words:
        if word in _SINGLE:
            values[_SINGLE[word]] = next(words, "")
        elif word in _REPEATED:
            lists[_REPEATED[word]].append(next(words, ""))
        elif word != "--universal":
            return None
    return Recipe(
        requirements=tuple(shlex.split(made[1])),
        python=values.get("python", ""),
        platform=values.get("platform"),
        exclude_newer=values.get("exclude_newer"),
        overrides=tuple(lists["overrides"]),
        find_links=tuple(lists["find_links"]),
    )


def body_of(text: str) -> str:
    """A lock without the comments before its first line."""
    return re.sub(r"\A(?:#[^\n]*\n)+", "", text)


def pins_of(text: str) -> dict[str, str]:
    """The version of each package; several, as in a lock for every platform, joined by " or "."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.M):
        found.setdefault(name, set()).add(version)
    return {name: " or ".join(sorted(versions)) for name, versions in found.items()}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """One line for each package that was added (+), removed (-) or is of another version."""
    lines = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None:
            lines.append(f"+ {name} {new}")
        elif new is None:
            lines.append(f"- {name} {old}")
        elif old != new:
            lines.append(f"  {name} {old} -> {new}")
    return lines

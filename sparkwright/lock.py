"""``sparkwright lock``: resolve an engine release for the Sparks and write it down with hashes."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tomllib
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from sparkwright.lockfile import (
    PLATFORM,
    PYTHON,
    Recipe,
    body_of,
    changes,
    pins_of,
    recipe_of,
    recorded,
    requirement_of,
    text_of,
    write,
)
from sparkwright.uv import LockError, Uv, say
from sparkwright.wheels import unpacked_bytes, wheels_in

ROOT = Path(__file__).resolve().parent.parent

# DGX OS is Ubuntu 24.04: glibc 2.39. uv's `aarch64-unknown-linux-gnu` means glibc 2.28, for which
# some of vLLM's dependencies have no wheel (tilelang 0.1.12 wants 2.34): with binary wheels only
# it finds no solution, and without that rule it would lock sources, to be compiled on the Spark.
_SPARK = "aarch64-manylinux_2_39"
_PLATFORMS = {"aarch64": _SPARK, "x86_64": "x86_64-manylinux_2_39", "universal": None}

# A version that has been superseded for long meets dependencies that it was never tried with:
# vLLM 0.27.1 leaves transformers open above. It then gets what was there a few days after it.
_OLD = timedelta(days=30)
_GRACE = timedelta(days=4)

_EPILOG = """\
examples:
  sparkwright lock vllm==0.33.0
  sparkwright lock vllm==0.27.1 --exclude-newer 2026-08-15
  sparkwright lock -o releases/vllm-0.33.0-aarch64.txt    (again, as its header says)
Files are relative to the project's folder. What a lock is: docs/releases.md
"""


@dataclass(frozen=True)
class _Wish:
    """What the command line asks for; None where it says nothing."""

    requirements: tuple[str, ...]
    output: str | None
    platform: str | None
    python: str | None
    exclude_newer: str | None
    overrides: tuple[str, ...] | None
    find_links: tuple[str, ...] | None


def main(arguments: list[str]) -> int:
    """Run ``sparkwright lock`` with these arguments and return its exit status.

    1: nothing was written, the message says why; 2: the command line is wrong; 130, 143: stopped.
    """
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        _lock(_read(arguments))
        if sys.stdout:  # none when it is closed
            sys.stdout.flush()
    except LockError as error:
        print(f"sparkwright lock: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, _Terminated) as stop:
        print("sparkwright lock: stopped", file=sys.stderr)
        return 143 if isinstance(stop, _Terminated) else 130
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk behind `> FILE`, a folder that can't be looked into
        place = f": {error.filename}" if error.filename else ""
        print(f"sparkwright lock: can't go on: {error.strerror or error}{place}", file=sys.stderr)
        with contextlib.suppress(OSError):  # else what is still to be printed fails at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


class _Terminated(BaseException):
    """SIGTERM: ends as Ctrl-C does, uv and the temporary file with it."""


def _terminated(_number: int, _frame: object) -> None:
    raise _Terminated


def _read(arguments: list[str]) -> _Wish:
    parser = argparse.ArgumentParser(
        prog="sparkwright lock",
        description="Resolve an engine release for the Sparks, write it down with hashes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "requirements", nargs="*", metavar="REQUIREMENT", help="vllm==0.33.0 first, then others"
    )
    parser.add_argument("-o", dest="output", metavar="FILE", help="default: by name and version")
    parser.add_argument(
        "--platform",
        help=f"aarch64 ({_SPARK}, a Spark; the default), x86_64, universal, or in full",
    )
    parser.add_argument("--python", metavar="3.N", help="default: 3.12")
    parser.add_argument(
        "--exclude-newer",
        metavar="DATE",
        help="YYYY-MM-DD: as if nothing had been uploaded after that day; none: no such limit",
    )
    parser.add_argument(
        "--override", action="append", metavar="FILE", help="requirements that replace others"
    )
    parser.add_argument(
        "--find-links", action="append", metavar="FOLDER", help="with wheels; or a variable's name"
    )
    given = parser.parse_args(arguments)
    if not given.requirements and not given.output:
        parser.error("name a requirement (vllm==0.33.0), or a lock to make again (-o FILE)")
    for text in (given.output or "", *(given.override or ()), *(given.find_links or ())):
        if not text.isprintable():  # it goes into one line of the header, and onto the screen
            raise LockError(f"{text!a} is no name of a file here: write one in plain letters")
    return _Wish(
        tuple(_requirement(text) for text in given.requirements),
        given.output,
        _platform(given.platform) if given.platform else None,
        _python(given.python) if given.python else None,
        _day(given.exclude_newer) if given.exclude_newer else None,
        tuple(given.override) if given.override else None,
        tuple(given.find_links) if given.find_links else None,
    )


def _requirement(text: str) -> str:
    try:
        return requirement_of(text)
    except ValueError as error:
        raise LockError(str(error)) from None


def _platform(text: str) -> str:
    full = _PLATFORMS.get(text, text)
    if full is None or PLATFORM.fullmatch(full):
        return full or "universal"
    why = "; that one means glibc 2.28, too old for vLLM's wheels" if "linux-gnu" in text else ""
    raise LockError(
        f"--platform {text}: allowed are {', '.join(_PLATFORMS)}, or a name such as {_SPARK}{why}"
    )


def _python(text: str) -> str:
    if not PYTHON.fullmatch(text):
        raise LockError(f"--python {text}: write a version such as 3.12, the one of DGX OS")
    return text


def _day(text: str) -> str:
    if text == "none":
        return text
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise LockError(f"--exclude-newer {text}: write a day, 2026-08-15, or none") from None


def _lock(wish: _Wish) -> None:
    folder = (ROOT / (wish.output or "releases/default")).parent
    if not folder.is_dir():
        raise LockError(f"-o {wish.output}: there is no folder {folder}, name a file in releases/")
    uv = Uv(ROOT)
    file, recipe = _recipe(wish, uv)
    folders = tuple(_folder(text) for text in recipe.find_links)
    for override in recipe.overrides:
        if not (ROOT / override).is_file():
            raise LockError(f"--override {override}: no such file below {ROOT}")
    where = f"{recipe.platform or 'every platform'}, Python {recipe.python}"
    say(f"resolving {' '.join(recipe.requirements)} for {where} (normal: 5 to 20 s)")
    body = uv.resolve(recipe, folders)
    _is_whole(recipe, body)
    old_name, old = _previous(file, recipe)
    same = old_name == file.name and recipe_of(old) == recipe and body_of(old) == body
    if not same:
        _write(file, recipe.header(uv.version) + body)
    _report(file, old_name, pins_of(old), pins_of(body), same)
    _sizes(uv, recipe, body, folders)
    if _name(recipe) == "vllm" and recipe.platform == _SPARK:
        python = "" if recipe.python == "3.12" else f', python="{recipe.python}"'
        print(f'to use it: release = dict(lock="{_shown(file)}"{python}) in group_data/all.py')


def _is_whole(recipe: Recipe, body: str) -> None:
    """A lock without what was asked for would install, and lack it (an override can do that)."""
    pins = pins_of(body)
    wanted = (Requirement(text).name for text in recipe.requirements)
    if missing := [name for name in wanted if name not in pins]:
        raise LockError(
            f"uv's answer lacks {', '.join(missing)}, nothing was written: look for an override "
            "that takes it away"
        )


def _recipe(wish: _Wish, uv: Uv) -> tuple[Path, Recipe]:
    """The file to write, and how: as asked for, else as its header says, else as for a Spark."""
    new = Recipe(wish.requirements, wish.python or "3.12", _SPARK)
    if wish.platform:
        new = replace(new, platform=None if wish.platform == "universal" else wish.platform)
    uploaded = None
    file = ROOT / (wish.output or _default_name(new))
    before = _recorded(file)
    if wish.requirements and not (before and _version(new)):
        say(f"looking for {wish.requirements[0]} (normal: 1 to 12 s)")
        folders = tuple(_folder(text) for text in wish.find_links or ())
        version, uploaded = uv.look(replace(new, exclude_newer=_limit(wish)), folders)
        new = _pinned(new, version)
        file = ROOT / (wish.output or _default_name(new))
        before = _recorded(file)
    if before:
        say(f"{_shown(file)} exists: its own options are used where none is given")
        kept = replace(before, requirements=new.requirements or before.requirements)
        new = replace(
            kept,
            python=wish.python or kept.python,
            platform=new.platform if wish.platform else kept.platform,
        )
    elif not wish.requirements:
        raise LockError(f"{_shown(file)} does not exist: name what to lock, vllm==0.33.0")
    elif wish.exclude_newer is None and uploaded:
        new = replace(new, exclude_newer=_old_enough(new, uploaded))
    if wish.exclude_newer is not None:
        new = replace(new, exclude_newer=_limit(wish))
    if wish.overrides is not None:
        new = replace(new, overrides=wish.overrides)
    if wish.find_links is not None:
        new = replace(new, find_links=wish.find_links)
    return file, new


def _limit(wish: _Wish) -> str | None:
    return None if wish.exclude_newer == "none" else wish.exclude_newer


def _old_enough(recipe: Recipe, uploaded: date) -> str | None:
    if date.today() - uploaded <= _OLD:
        return None
    day = (uploaded + _GRACE).isoformat()
    say(
        f"{recipe.requirements[0]} is of {uploaded}: its dependencies are taken as they were on "
        f"{day} (--exclude-newer takes another day, or none)"
    )
    return day


def _version(recipe: Recipe) -> str | None:
    """The one version that the first requirement allows."""
    exact = re.fullmatch(r"==([^*,]+)", str(Requirement(recipe.requirements[0]).specifier))
    return exact[1] if exact else None


def _pinned(recipe: Recipe, version: str) -> Recipe:
    """The recipe with the version that was found, so that it can be made again."""
    if _version(recipe):
        return recipe
    first = Requirement(recipe.requirements[0])
    say(f"the newest {first} is {version}")
    extras = f"[{','.join(sorted(first.extras))}]" if first.extras else ""
    pinned = f"{first.name}{extras}=={version}"
    return replace(recipe, requirements=(pinned, *recipe.requirements[1:]))


def _default_name(recipe: Recipe) -> str:
    if not recipe.requirements:
        return ""
    place = recipe.platform.split("-")[0] if recipe.platform else "universal"
    return f"releases/{_name(recipe)}-{_version(recipe)}-{place}.txt"


def _recorded(file: Path) -> Recipe | None:
    """How the lock that is there was made. Anything else in its place is never replaced."""
    try:
        return recorded(file)
    except ValueError as error:
        raise LockError(f"{_shown(file)} {error}") from None
    except OSError as error:
        raise LockError(f"{_shown(file)}: {error.strerror}") from None


def _name(recipe: Recipe) -> str:
    return Requirement(recipe.requirements[0]).name


def _folder(text: str) -> str:
    """A folder with wheels; a name in capitals is a variable that holds one."""
    folder = text
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", text):
        folder = os.environ.get(text, "")
        if not folder:
            raise LockError(f"--find-links {text}: set this variable to the folder with the wheels")
    if not (ROOT / folder).is_dir():
        raise LockError(f"--find-links {text}: no folder {folder}")
    return folder


def _previous(file: Path, recipe: Recipe) -> tuple[str, str]:
    """Name and text of the lock to compare with: of that name, else the newest of its kind."""
    if file.is_file():
        return file.name, text_of(file)
    best: tuple[Version, str, str] | None = None
    for other in sorted({*file.parent.glob("*.txt"), *(ROOT / "releases").glob("*.txt")}):
        text = text_of(other)
        made = recipe_of(text)
        if made and (_name(made), made.platform) == (_name(recipe), recipe.platform):
            try:
                version = Version(pins_of(text).get(_name(made), "0"))
            except InvalidVersion:
                continue
            best = max(filter(None, (best, (version, other.name, text))))
    return (best[1], best[2]) if best else ("", "")


def _write(file: Path, text: str) -> None:
    try:
        write(file, text)
    except OSError as error:
        raise LockError(f"can't write {_shown(file)}: {error.strerror}") from None


def _report(
    file: Path, old_name: str, before: dict[str, str], after: dict[str, str], same: bool
) -> None:
    if same:
        print(f"{_shown(file)} is as it was: {len(after)} packages, no change")
        return
    print(f"{_shown(file)} written: {len(after)} packages")
    if not old_name:
        print("there is no earlier lock to compare it with")
        return
    lines = changes(before, after)
    count = {mark: sum(line[0] == mark for line in lines) for mark in "+- "}
    if not lines:
        print(f"compared with {old_name}: the same versions, other files or options")
        return
    counted = f"{count['+']} added, {count['-']} removed, {count[' ']} of another version"
    print(f"compared with {old_name}: {counted}")
    print("\n".join(f"  {line}" for line in lines))


def _sizes(uv: Uv, recipe: Recipe, body: str, folders: tuple[str, ...]) -> None:
    if recipe.platform is None:
        print("download and unpacked size: unknown for a lock for every platform")
        return
    say("asking how large the wheels are (normal: 10 to 45 s)")
    try:
        pylock = uv.sizes(recipe, body, folders)
        wheels = wheels_in(pylock, recipe.python, recipe.platform)
    except (LockError, tomllib.TOMLDecodeError, ValueError) as error:
        print(f"download and unpacked size: unknown ({str(error).splitlines()[0]})")
        return
    missing = sum(1 for wheel in wheels if not wheel.size)
    unsaid = f", without {missing} of unknown size" if missing else ""
    print(f"download: {sum(wheel.size for wheel in wheels) / 1e9:.2f} GB{unsaid}")
    try:
        total = unpacked_bytes(wheels, lambda done: say(f"{done} of {len(wheels)}", seldom=True))
    except (OSError, ValueError) as error:
        print(f"unpacked: unknown ({error})")
    else:
        print(f"unpacked: {total / 1e9:.2f} GB")


def _shown(file: Path) -> str:
    return str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)

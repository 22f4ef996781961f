"""How large the wheels of a lock are: to download, and unpacked.

uv's pylock.toml names each wheel with its size; how large it is unpacked stands at the end of the
wheel, in the directory of the zip, of which only that end is fetched.
"""

from __future__ import annotations

import io
import re
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

_TAIL = 64 * 1024
"""Bytes of a wheel's end that are fetched first; most directories fit."""
_AT_ONCE = 16


@dataclass(frozen=True)
class Wheel:
    """One file to download. size: bytes."""

    name: str
    url: str
    size: int


def wheels_in(pylock: str, python: str, platform: str) -> list[Wheel]:
    """The wheel of each package that an installer takes on that platform.

    pylock: content of a pylock.toml. python: "3.12". platform: "aarch64-manylinux_2_39".
    """
    order = _preference(python, platform)
    chosen = []
    for package in tomllib.loads(pylock).get("packages", ()):
        wheels = [_wheel(entry) for entry in package.get("wheels", ())]
        if wheels:
            chosen.append(min(wheels, key=lambda wheel: _rank(wheel.name, order)))
    return chosen


def _wheel(entry: dict[str, Any]) -> Wheel:
    where = str(entry.get("url") or entry.get("path")).removeprefix("file://")
    name = str(entry.get("name") or urllib.request.url2pathname(where.rsplit("/", 1)[-1]))
    size = entry.get("size")
    if size is None and Path(where).is_file():
        size = Path(where).stat().st_size
    return Wheel(name, where, int(size or 0))


def _preference(python: str, platform: str) -> dict[Tag, int]:
    architecture, glibc = re.fullmatch(r"(\w+?)-manylinux_2_(\d+)", platform).groups()  # type: ignore[union-attr]
    platforms = [f"manylinux_2_{minor}_{architecture}" for minor in range(int(glibc), 4, -1)]
    platforms += [f"manylinux2014_{architecture}", f"linux_{architecture}"]
    version = tuple(int(part) for part in python.split("."))
    interpreter = f"cp{python.replace('.', '')}"
    tags = [*cpython_tags(version, platforms=platforms)]
    tags += compatible_tags(version, interpreter, platforms)
    return {tag: place for place, tag in reversed(list(enumerate(tags)))}


def _rank(name: str, order: dict[Tag, int]) -> int:
    return min(order.get(tag, len(order)) for tag in parse_wheel_filename(name)[3])


def unpacked_bytes(wheels: list[Wheel], progress: Callable[[int], None]) -> int:
    """Size of all files in the wheels, bytes. progress: told how many wheels have answered.

    Raises OSError or ValueError when an index does not serve parts of files, or not zip files.
    """
    total = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = [pool.submit(_unpacked, wheel) for wheel in wheels]
        try:
            for done, future in enumerate(as_completed(waiting), 1):
                total += future.result()
                progress(done)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return total


def _unpacked(wheel: Wheel) -> int:
    if not re.match(r"https?://", wheel.url):
        with zipfile.ZipFile(wheel.url) as archive:
            return sum(member.file_size for member in archive.infolist())
    length = min(wheel.size, _TAIL)
    while True:
        try:
            with zipfile.ZipFile(io.BytesIO(_end(wheel, length))) as archive:
                return sum(member.file_size for member in archive.infolist())
        except zipfile.BadZipFile:  # the directory begins before what was fetched
            if length >= wheel.size:
                raise ValueError(f"{wheel.name} is no zip file") from None
            length = min(wheel.size, length * 8)


def _end(wheel: Wheel, length: int) -> bytes:
    wanted = f"bytes={wheel.size - length}-{wheel.size - 1}"
    request = urllib.request.Request(wheel.url, headers={"Range": wanted})
    with urllib.request.urlopen(request, timeout=60) as answer:
        if answer.status != 206:
            raise ValueError("the index does not serve parts of files")
        content: bytes = answer.read()
    return content

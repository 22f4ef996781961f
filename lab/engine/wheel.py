"""Wheels written byte for byte the same each time, so that a lock can name their hash."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel_bytes(
    name: str, version: str, files: Mapping[str, bytes], scripts: Mapping[str, str]
) -> bytes:
    """Return a pure Python wheel of dist ``name`` and ``version``.

    ``files`` maps paths inside site-packages to content, ``scripts`` console script names to
    entry points (``module:function``). Times are fixed and nothing is compressed: the bytes
    depend on the arguments only, not on the day or on the zlib at hand.
    """
    info = f"{name}-{version}.dist-info"
    members = dict(sorted(files.items()))
    members[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Summary: Simulated Sparks only, never for a real host\n"
    ).encode()
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: sparkwright-lab\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n"
    )
    if scripts:
        lines = [f"{script} = {target}" for script, target in sorted(scripts.items())]
        members[f"{info}/entry_points.txt"] = "\n".join(["[console_scripts]", *lines, ""]).encode()
    record = [_record_line(path, data) for path, data in members.items()]
    members[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, data in members.items():
            entry = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix: the next line is file permissions
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def write_if_changed(path: Path, data: bytes) -> bool:
    """Write ``data`` to ``path`` whole or not at all; leave an equal file alone."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    fresh.replace(path)
    return True


def _record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"

"""All files of a step together: one round trip to compare, one to send what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyinfra.api import FunctionCommand

from operations.run import observed, shown
from sparkwright.render import ManagedFile

_RECEIVER = Path(__file__).resolve().parent.parent / "host" / "receive.py"


def differing(
    files: Sequence[ManagedFile], folders: Sequence[ManagedFile] = (), absent: Sequence[str] = ()
) -> tuple[list[ManagedFile], list[ManagedFile], list[str]]:
    """Those files, folders and unwanted files that are not as they should be on the host.

    A folder is a ManagedFile without content.
    """
    paths = [entry.path for entry in (*files, *folders)] + list(absent)
    seen = observed(files=paths)["files"]

    def is_as_wanted(entry: ManagedFile) -> bool:
        there = seen.get(entry.path) or {}
        return (there.get("mode"), there.get("owner"), there.get("group")) == (
            entry.mode,
            entry.owner,
            entry.owner,
        )

    return (
        [f for f in files if not is_as_wanted(f) or seen[f.path].get("sha256") != f.sha256],
        [f for f in folders if not is_as_wanted(f)],
        [path for path in absent if seen.get(path)],
    )


def send(
    files: Sequence[ManagedFile],
    folders: Sequence[ManagedFile] = (),
    absent: Sequence[str] = (),
    then: tuple[str, Sequence[str]] | None = None,
) -> Iterator[FunctionCommand]:
    """The command that brings files to the host, and none when there are none to bring.

    then: one of the files, and a command to run on the host because of it, also when the
    connection is gone by then.
    """
    if not (files or folders or absent):
        return
    request = {
        "folders": [[f.path, f.mode, f.owner] for f in folders],
        "files": [[f.path, f.mode, f.owner, f.content] for f in files],
        "absent": list(absent),
        "then": [then[0], list(then[1])] if then else [],
    }
    yield shown("python3", "-c", _RECEIVER.read_text(), stdin=json.dumps(request))

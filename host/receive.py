"""Write files that arrive as JSON on the standard input, each beside its place and renamed.

Contents never are in an argument or in a file that others could read. Sent with the command
(operations/files.py).

input: {"folders": [[path, mode, owner]], "files": [[path, mode, owner, content]],
        "absent": [path], "then": [path, command] or []}

then: a command to run because of one of the files; when it fails that file is removed, so that the
next run tries again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys


def main() -> None:
    request = json.load(sys.stdin)
    for path, mode, owner in request["folders"]:
        os.makedirs(path, exist_ok=True)
        os.chmod(path, int(mode, 8))
        shutil.chown(path, owner, owner)
    for path, mode, owner, content in request["files"]:
        beside = f"{path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w") as file:
            file.write(content)
            shutil.chown(beside, owner, owner)
            os.fchmod(file.fileno(), int(mode, 8))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    for path in request["absent"]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    if request["then"]:
        path, command = request["then"]
        if subprocess.run(command).returncode:
            os.unlink(path)
            sys.exit(f"{' '.join(command)} failed")


if __name__ == "__main__":
    # Two controllers at once: one after the other, or both would write the same file beside.
    with open("/run/lock/sparkwright-receive", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            main()
        except OSError as error:
            sys.exit(str(error))

"""Make the tools venv (uv, hf) from its hash-locked list, with the system's python and pip.

usage: tools.py
"""

from __future__ import annotations

import hashlib
import os

from common import OPT, discard, download_environment, lock, main, run_long, say, settle, write

TOOLS = f"{OPT}/tools"
LIST = f"{OPT}/tools.txt"


def build() -> None:
    with open(LIST, "rb") as file:
        wanted = hashlib.sha256(file.read()).hexdigest()
    with lock("tools", "installing the tools"):
        if os.path.exists(f"{TOOLS}/.complete"):
            with open(f"{TOOLS}/.complete") as file:
                if file.read().strip() == wanted:
                    return
        say("   0 s  installing uv and hf (normal: 15 to 60 s)")
        discard(TOOLS)
        run_long(["/usr/bin/python3", "-m", "venv", TOOLS], "making the tools venv")
        run_long(
            [
                f"{TOOLS}/bin/pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--require-hashes",
                "-r",
                LIST,
            ],
            "installing the tools",
            download_environment(),
        )
        settle()
        write(f"{TOOLS}/.complete", f"{wanted}\n")


if __name__ == "__main__":
    main(build)

"""What is on a host, read in one round trip."""

from __future__ import annotations

import base64
import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from pyinfra.api import FactBase, QuoteString, StringCommand

from sparkwright import paths

_PROBE = Path(__file__).resolve().parent.parent / "host" / "probe.py"


@cache
def _program() -> str:
    """host/probe.py as an argument for `python3 -c`: nothing needs to be on the host before."""
    packed = base64.b64encode(zlib.compress(_PROBE.read_bytes(), 9)).decode()
    return f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"


def _object(output: list[str]) -> dict[str, Any]:
    """The JSON object on the last line; `{"unreadable": text}` when there is none.

    No FactProcessError: on the last host of a run pyinfra 3.10 shows that one with its traceback.
    """
    try:
        value = json.loads(output[-1])
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"unreadable": " ".join(output)[-300:]}


class Observed(FactBase[dict[str, Any]]):
    """Sections of host/probe.py, as root.

    request: JSON, section name to what that section should look at.
    """

    def command(self, request: str) -> StringCommand:
        return StringCommand("python3", "-c", QuoteString(_program()), QuoteString(request))

    def process(self, output: list[str]) -> dict[str, Any]:
        return _object(output)


class FirstContact(Observed):
    """Like Observed, called without sudo: tells too whether sudo works without a password.

    Answers `{"sudo": message}` when it does not, so that nobody is asked for a password in the
    middle of a run.
    """

    def command(self, request: str) -> StringCommand:
        refused = "sudo -n true 2>&1 | head -n 1 | python3 -c " + (
            "'import json,sys; print(json.dumps({\"sudo\": sys.stdin.read().strip()}))'"
        )
        return StringCommand(
            "if",
            "!",
            "sudo",
            "-n",
            "true",
            "2>/dev/null;",
            "then",
            refused + ";",
            "else",
            "sudo",
            "-n",
            super().command(request),
            ";",
            "fi",
        )


class Fabric(FactBase[dict[str, Any]]):
    """Whether the link to the other Spark of a pair is right, by host/fabric.py.

    wanted: JSON, this host's end of it.
    """

    def command(self, wanted: str) -> StringCommand:
        program = f"{paths.HOST_PROGRAMS}/fabric.py"
        return StringCommand("printf", "%s", QuoteString(wanted), "|", "python3", program, "check")

    def process(self, output: list[str]) -> dict[str, Any]:
        return _object(output)


class Instances(FactBase[dict[str, Any]]):
    """State and proof of engine instances, by host/activate.py; empty before it is installed.

    names: names of instances, separated by blanks.
    """

    def command(self, names: str) -> StringCommand:
        program = f"{paths.HOST_PROGRAMS}/activate.py"
        return StringCommand(
            "if",
            "test",
            "-e",
            f"{program};",
            "then",
            "python3",
            program,
            "check",
            f"{names};",
            "else",
            "echo",
            "'{}';",
            "fi",
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        return _object(output)

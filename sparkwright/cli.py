"""The ``sparkwright`` command: dispatches to one module per sub-command."""

from __future__ import annotations

import importlib
import io
import os
import sys

# Imported when asked for: each brings what the others don't need (Docker's, pyinfra's, uv's).
_COMMANDS = {
    "plan": ("operations.plan_command", "check an inventory, show who serves what; asks no host"),
    "status": ("operations.status_command", "who serves what, asked from every host"),
    "rollback": ("operations.rollback_command", "hosts go back to what they served before"),
    "lock": ("sparkwright.lock", "lock a vLLM release with hashes for Sparks"),
    "lab": ("lab.cli", "simulated Sparks on this machine"),
}


def main(argv: list[str] | None = None) -> int:
    """Run ``sparkwright`` with ``argv`` (default: the process's own) and return its exit status."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or [""]
    if name in _COMMANDS:
        module = importlib.import_module(_COMMANDS[name][0])
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a name that the terminal can't show
                stream.reconfigure(errors="backslashreplace")
        try:
            status: int = module.main(arguments)
            if sys.stdout:  # none with `>&-`
                sys.stdout.flush()
        except BrokenPipeError:  # `| head`: who reads has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return status
    lines = [f"  {command:8}  {what}" for command, (_, what) in _COMMANDS.items()]
    usage = "\n".join(["usage: sparkwright COMMAND ...", "", *lines])
    if name in ("-h", "--help"):
        print(usage)
        return 0
    found = f"sparkwright: no such command: {name!r}\n" if name else ""
    if name == "deploy":
        found = "sparkwright: deploying is pyinfra's: pyinfra -y inventory/sparks.py deploy.py\n"
    print(f"{found}{usage}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

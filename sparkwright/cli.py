"""The ``sparkwright`` command: dispatches to one module per sub-command."""

from __future__ import annotations

import argparse
import sys


def main(argv: list[str] | None = None) -> int:
    """Run ``sparkwright`` with ``argv`` (default: the process's own) and return its exit status."""
    parser = argparse.ArgumentParser(prog="sparkwright", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    lab = commands.add_parser("lab", help="simulated Sparks on this machine", add_help=False)
    lab.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["lab"]:
        # Handed over unparsed: argparse would take the options of a remainder for its own.
        from lab.cli import main as lab_main

        return lab_main(arguments[1:])
    parser.parse_args(arguments)
    return 2


if __name__ == "__main__":
    sys.exit(main())

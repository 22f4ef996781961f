"""Mistakes in data files that are no Python, or that Python can't carry out."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

from pyinfra.api.exceptions import PyinfraError
from pyinfra_cli import inventory
from pyinfra_cli.exceptions import CliError


def explain_mistakes() -> None:
    """Let a mistake in an inventory or a group's file end with file, line and reason.

    pyinfra 3.10 shows a traceback, or calls it an internal error of its own.
    """
    exec_file = inventory.exec_file
    if hasattr(exec_file, "__wrapped__"):
        return

    @wraps(exec_file)
    def explained(filename: str, *args: Any, **options: Any) -> Any:
        try:
            return exec_file(filename, *args, **options)
        except SystemExit as end:
            raise CliError(str(end)) from None
        except Exception as error:
            cause = getattr(error, "exception", error)
            if isinstance(cause, PyinfraError):
                raise
            raise CliError(_said(filename, cause)) from None

    inventory.exec_file = explained


def _said(filename: str, error: BaseException) -> str:
    """`group_data/x.py line 7: NameError: name 'foo' is not defined; nothing was done`."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == filename:
            line = frame.tb_lineno
        frame = frame.tb_next
    reason = error.msg if isinstance(error, SyntaxError) else f"{type(error).__name__}: {error}"
    if isinstance(error, UnicodeDecodeError):
        reason = "it is no UTF-8 text"
    place = os.path.relpath(filename) + (f" line {line}" if line else "")
    return f"{place}: {reason}; nothing was done"

"""Mistakes in data files that are no Python, that Python can't carry out, or name no hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from pyinfra.api.exceptions import PyinfraError
from pyinfra_cli import inventory
from pyinfra_cli.exceptions import CliError

from sparkwright.errors import shown


def explain_mistakes() -> None:
    """Let a mistake in an inventory or a group's file end with file, line and reason.

    pyinfra 3.10 shows a traceback, calls it an internal error of its own, or leaves a group out
    that is no list of hosts.
    """
    exec_file = inventory.exec_file
    if hasattr(exec_file, "__wrapped__"):
        return

    @wraps(exec_file)
    def explained(filename: str, *args: Any, **options: Any) -> Any:
        try:
            made = exec_file(filename, *args, **options)
        except SystemExit as end:
            if isinstance(end.code, str):
                raise CliError(end.code) from None
            raise CliError(f"{_place(filename)}: it ends the program; nothing was done") from None
        except Exception as error:
            cause = getattr(error, "exception", error)
            if isinstance(cause, PyinfraError):
                raise
            raise CliError(_said(filename, cause)) from None
        return made

    def groups(filename: str) -> dict[str, Any]:
        made = explained(filename, return_locals=True)
        mistakes = [f"{_place(filename)}: {told}" for told in misshaped(made)]
        if mistakes:
            raise CliError("\n".join(mistakes))
        return {key: value for key, value in made.items() if is_group(key, value)}

    is_group = inventory._is_inventory_group
    inventory.exec_file = explained
    assert inventory._get_groups_from_filename  # another version may have another name for it
    inventory._get_groups_from_filename = groups


def no_inventory(path: str) -> str | None:
    """Why a path is no file of an inventory, or None when it is one."""
    if Path(path).is_file():
        return None
    told = "is a folder, name a file in it" if Path(path).is_dir() else "no such file"
    return f"{path}: {told}"


def misshaped(made: Mapping[str, Any]) -> Iterable[str]:
    """What is wrong with the groups of an inventory file.

    made: what the file defines. Names that begin with `_`, modules, functions, numbers and other
    values that can't be meant as a group are left alone.
    """
    for group, value in made.items():
        if group.startswith("_") or not isinstance(
            value, str | bytes | list | tuple | dict | set | frozenset | None
        ):
            continue
        hosts = value[0] if isinstance(value, tuple) and len(value) == 2 else value
        data = value[1] if hosts is not value else {}
        if not isinstance(hosts, list) or not isinstance(data, dict):
            yield (
                f"{group}{_said_of(group, value)}: write a list of hosts, {group} = "
                "['spark-1.local']; a name that is no group begins with _"
            )
            continue
        for host in hosts:
            if not _is_host(host):
                yield (
                    f"{group}: {_shown(host)} is no host: write its name, 'spark-1.local', or "
                    "('spark-1.local', {'ssh_user': 'me'})"
                )


def _is_host(written: object) -> bool:
    name, data = written if isinstance(written, tuple) and len(written) == 2 else (written, {})
    if not isinstance(name, str) or not isinstance(data, dict):
        return False
    return (
        bool(name)
        and len(name.split()) == 1
        and name.isprintable()
        and all(isinstance(key, str) for key in data)
    )


def _said_of(group: str, value: object) -> str:
    """Not of a name that pyinfra knows for something else, which may be a password."""
    known = group.startswith("ssh_") or re.search("key|token|secret|passw", group, re.I)
    return "" if known else f" = {_shown(value)}"


def _shown(value: object) -> str:
    """The value without what a host's data may hold: passwords."""
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return f"({value[0]!r}, ...)"
    if isinstance(value, str | int | float | None):
        return shown(value)
    return f"a {type(value).__name__}"


def _place(filename: str) -> str:
    relative = os.path.relpath(filename)
    return filename if relative.startswith("..") else relative


def _said(filename: str, error: BaseException) -> str:
    """`group_data/x.py line 7: NameError: name 'foo' is not defined; nothing was done`."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == filename:
            line = frame.tb_lineno
        frame = frame.tb_next
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError):
        reason = error.msg
    if isinstance(error, UnicodeDecodeError):
        reason = "it is no UTF-8 text"
    python = {"null": "None", "true": "True", "false": "False"}.get(getattr(error, "name", ""))
    if isinstance(error, NameError) and python:
        reason += f", in Python it is {python}"
    at = f" line {line}" if line else ""
    return f"{_place(filename)}{at}: {reason}; nothing was done"

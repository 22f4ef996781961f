"""Run a program on a host so that the user sees what it says while it runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, cast

from pyinfra import host, state
from pyinfra.api import FunctionCommand, QuoteString, StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.output import echo

from facts.observe import Fabric, Instances, Observed

if TYPE_CHECKING:
    from pyinfra.api.host import Host
    from pyinfra.api.state import State

P = ParamSpec("P")

_LOST = (
    "the connection was lost; unless the host went down, what runs there goes on. Run the deploy "
    "again: it waits for it and continues"
)
_UNTOLD = -1
"""paramiko's exit status of a command whose session ended without one: sshd or the host went down,
or a signal ended the command's shell."""
_KILLED = range(129, 129 + 64)
"""A shell's exit status of a command that a signal ended: 128 and the number of the signal."""


_WHY: dict[str, str] = {}
"""By host, the first line of what was said when it failed last."""


def failed(host: str, message: str) -> None:
    """Keep why a host failed, for the summary."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    _WHY[host] = lines[0] if lines else ""


def why(host: str) -> str:
    """Why a host failed last, in one line; empty when nothing was said."""
    return _WHY.get(host, "")


class NoAnswerError(Exception):
    """The host did not say what was asked; what it holds is unknown."""


def one_host(body: Callable[P, Iterator[FunctionCommand]]) -> Callable[P, Iterator[Any]]:
    """Keep a failure in an operation's body on the host where it happened.

    In pyinfra 3.10 an exception there ends the run for every host.
    """

    @functools.wraps(body)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Iterator[FunctionCommand]:
        try:
            yield from body(*args, **kwargs)
        except PyinfraError:
            raise
        except NoAnswerError as error:
            yield refuse(str(error))
        except Exception as error:
            # paramiko says of a connection that broke no more than `EOFError`.
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
            yield refuse(text if _connected(host) else _LOST)

    return guarded


def fact(kind: type[Observed | Instances | Fabric], **arguments: Any) -> dict[str, Any]:
    """What a fact answers; empty when its command failed. Raises NoAnswerError when it is no JSON.

    Never fails the host by itself: the caller refuses, with a message. A fact that fails in an
    operation on the last host of a run makes pyinfra 3.10 print a traceback.
    """
    seen = host.get_fact(kind, _ignore_errors=True, **arguments)
    answer = cast("dict[str, Any]", seen or {})
    if not answer and not _connected(host):
        raise NoAnswerError(_LOST)
    if "unreadable" in answer:
        raise NoAnswerError(f"the probe's answer is no JSON: {answer['unreadable']!r}")
    return answer


def observed(**request: object) -> dict[str, Any]:
    """Ask the host for sections of host/probe.py, now. Raises NoAnswerError."""
    answer = fact(Observed, request=json.dumps(request))
    missing = set(request) - set(answer)
    if missing:
        raise NoAnswerError(f"the probe did not answer about {', '.join(sorted(missing))}")
    return answer


def refuse(message: str, short: str = "") -> FunctionCommand:
    """A command that fails on this host only and shows the message, without any round trip.

    short: what the summary says of it; default: the first line.
    """
    if not state.is_executing:
        # `--dry`, or before the question whether to go on: nothing else would show it.
        _say(host, message)
    return FunctionCommand(_refuse, (message, short or message), {})


def _refuse(state: State, host: Host, message: str, short: str) -> bool:
    failed(host.name, short)
    _say(host, message)
    return False


def _say(host: Host, message: str) -> None:
    for line in message.splitlines():
        echo(f"{host.print_prefix}{line}", err=True)


def shown(*words: str, stdin: str | None = None) -> FunctionCommand:
    """A command as root whose lines appear at once, whatever the verbosity.

    stdin: text for its standard input; it is never printed, at any verbosity. Use it for secrets.
    """
    return FunctionCommand(_shown, (words, _Hidden(stdin)), {})


class _Hidden:
    """Keeps a text out of every repr."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "*hidden*"


def _shown(state: State, host: Host, words: tuple[str, ...], stdin: _Hidden) -> bool:
    arguments: dict[str, Any] = {"_sudo": True}
    for name in ("_sudo_password", "_sudo_user", "_use_sudo_login"):
        value = host.data.get(name)
        if value:
            arguments[name] = value
    if stdin.text is not None:
        arguments["_stdin"] = stdin.text
    ended = arguments["_success_exit_codes"] = _Ended()
    done, output = host.run_shell_command(
        StringCommand(*(QuoteString(word) for word in words)),
        print_output=True,
        print_input=state.print_input,
        **arguments,
    )
    if not done:
        # Progress is indented, and so is all but the first line of a refusal, which comes last.
        said = [line for line in output.output.splitlines() if line.strip() == line != ""]
        failed(host.name, said[-1] if said else "")
    if not done and (not _connected(host) or ended.status == _UNTOLD):
        failed(host.name, _LOST.split(";")[0])
        _say(host, _LOST)
    elif not done and ended.status in _KILLED:
        _say(
            host,
            f"signal {ended.status - 128} ended the command: the host goes down, or somebody, or "
            "want of memory, ended it. Run the deploy again: it continues",
        )
    return bool(done)


class _Ended:
    """Which exit statuses are a success: 0. Notes the one that came, which pyinfra keeps to itself.

    None: it was not asked.
    """

    status: int | None = None

    def __contains__(self, status: int) -> bool:
        self.status = status
        return status == 0


def _connected(host: Host) -> bool:
    """False when the SSH connection is known to be gone."""
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client else None
    return transport is None or bool(transport.is_active())

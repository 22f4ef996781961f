"""What is changed in pyinfra is there, and used: another version must end with an error, not work
on without it.

Run by test_hooks.py in a process of its own: to import pyinfra makes greenlets of all threads.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gevent.pool import Pool
from pyinfra.api import util
from pyinfra.api.exceptions import PyinfraError
from pyinfra.connectors.ssh import SSHConnector
from pyinfra_cli import cli, inventory, main

from operations import (
    connection,
    planning,
    reading,
    rollback_command,
    rollout,
    run,
    status_command,
)
from sparkwright.plan import ROOT
from sparkwright.status import Answer

# (hook, where, name, functions of pyinfra that look it up there)
HOOKS: list[tuple[Callable[[], None], Any, str, list[Any]]] = [
    (planning.plan_before_connecting, cli, "connect_all", [cli._main]),
    (connection.refuse_empty_runs, cli, "connect_all", [cli._main]),
    (
        connection.refuse_empty_runs,
        cli,
        "_get_inventory_pattern_matches",
        [cli._apply_inventory_limit, cli._apply_inventory_exclude],
    ),
    (connection.refuse_unclear_answers, cli, "_do_confirm", [cli._main]),
    (connection.refuse_empty_runs, cli, "make_inventory", [cli._main]),
    (rollout.guard_runs, cli, "connect_all", [cli._main]),
    (rollout.guard_runs, cli, "run_ops", [cli._main]),
    (rollout.guard_runs, cli, "disconnect_all", [cli.cli.callback]),
    (reading.explain_mistakes, inventory, "exec_file", [inventory._get_group_data]),
    (reading.explain_mistakes, inventory, "_is_inventory_group", []),
    (
        reading.explain_mistakes,
        inventory,
        "_get_groups_from_filename",
        [inventory.make_inventory_from_files],
    ),
    (
        rollout.read_no_source,
        util,
        "stack",
        [util.get_caller_frameinfo, util.get_operation_order_from_stack],
    ),
    (rollout.read_no_source, util, "getframeinfo", [util.get_operation_order_from_stack]),
]


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Any:
    for _, where, name, _ in HOOKS:
        # As pyinfra has it: another test may have left its hook.
        now = getattr(where, name)
        monkeypatch.setattr(where, name, getattr(now, "__wrapped__", now))
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(("hook", "where", "name", "users"), HOOKS)
def test_what_is_not_there_any_more_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    hook: Callable[[], None],
    where: Any,
    name: str,
    users: list[Any],
) -> None:
    for user in users:
        code = getattr(user, "__wrapped__", user).__code__
        assert name in code.co_names and user.__globals__ is vars(where)
    monkeypatch.delattr(where, name)
    with pytest.raises(AttributeError):
        hook()


def test_the_rest_of_what_is_relied_on() -> None:
    assert "connect" in vars(SSHConnector)
    # Before the configuration file is read, which sets ours: the other would end with status 0.
    names = main.main.__code__.co_names
    assert names.index("SIGINT") < names.index("cli")
    # Asked before anything is connected.
    assert {"serial", "no_wait"} <= {option.name for option in cli.cli.params}


@pytest.mark.parametrize(
    "words",
    [
        "FILE --limit a --limit b tiny",
        "FILE tiny --limit a --limit b",
        "--limit a FILE --limit b tiny",
    ],
)
def test_the_words_of_a_rollback_in_any_order(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    file = str(ROOT / "inventory/sparks.py")
    given: list[list[str]] = []
    monkeypatch.setattr(rollback_command.os, "execv", lambda _, command: given.append(command))
    rollback_command.main(words.replace("FILE", file).split())
    (command,) = given
    limits = ["--limit", "a", "--limit", "b"]
    assert command[1:] == [
        *("-y", file, "rollback.py"), *limits, *("--data", "rollback_profile=tiny")
    ]  # fmt: skip


def test_a_rollback_of_an_inventory_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert rollback_command.main(["inventory/spark.py", "--limit", "a"]) == 2
    assert capsys.readouterr().err == "sparkwright rollback: inventory/spark.py: no such file\n"
    assert rollback_command.main(["inventory"]) == 2
    assert "inventory: is a folder, name a file in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (0, ""),
        (1, ""),
        (-1, "[a] the connection was lost; unless the host went down, what runs there goes on"),
        (143, "[a] signal 15 ended the command: the host goes down, or somebody"),
        (255, ""),
    ],
)
def test_a_command_that_could_not_say_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    """A container that reboots ends sshd's session cleanly, with no exit status: paramiko's -1."""
    assert "_success_exit_codes" in SSHConnector.run_shell_command.__code__.co_consts

    printed = "      progress\nno: because\n      of this"
    output = SimpleNamespace(output=printed)

    def command(*_: object, _success_exit_codes: Any, **__: object) -> tuple[bool, object]:
        return status in _success_exit_codes, output

    host: Any = SimpleNamespace(
        name="a",
        print_prefix="[a] ",
        data={},
        run_shell_command=command,
        connector=SimpleNamespace(),
    )
    state: Any = SimpleNamespace(print_input=False)
    lines: list[str] = []
    monkeypatch.setattr(run, "echo", lambda line, err: lines.append(line))
    assert run._shown(state, host, ("true",), run._Hidden(None)) is (status == 0)
    assert "".join(lines).startswith(said) and len(lines) == bool(said)
    if status:
        assert run.why("a") == ("the connection was lost" if status == -1 else "no: because")


def test_a_connector_with_errors_of_its_own_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(**_: object) -> None:
        raise PyinfraError("No docker\n container: a")

    host: Any = SimpleNamespace(name="a", connect=connect)
    state: Any = SimpleNamespace(pool=Pool(1))
    monkeypatch.setattr(status_command, "disconnect_all", lambda _: None)
    assert status_command._ask_all(state, [host]) == {"a": Answer("No docker container: a")}

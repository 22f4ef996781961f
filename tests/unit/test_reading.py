"""Mistakes in whole files: each ends with file, line where there is one, and the reason."""

from __future__ import annotations

import pytest

from tests.unit.plan_files import Case, Ran, plan_all

NO_HOST = "write its name, 'spark-1.local', or"
NO_LIST = "write a list of hosts, tiny = ['spark-1.local']"
ONE = 'tiny = ["spark-1"]\n'

# Inventories, and what is said after the name of the file.
INVENTORIES: dict[str, tuple[str | bytes, str]] = {
    "syntax": ("\ntiny = [", " line 2: '[' was never closed; nothing was done"),
    "indent": (' tiny = ["a"]\n', " line 1: unexpected indent"),
    "name": ("tiny = [spark_1]\n", " line 1: NameError: name 'spark_1' is not defined"),
    "import": ("import nosuchmodule\n", " line 1: ModuleNotFoundError: No module named 'nosuch"),
    "error": ("\n\n1 / 0\n", " line 3: ZeroDivisionError: division by zero"),
    "file": ("open('/no/such/file')\n", " line 1: FileNotFoundError: [Errno 2] No such file"),
    "plus": ('tiny = ["a"] + 3\n', " line 1: TypeError: can only concatenate list"),
    "two lines": ("raise ValueError('a\\n b')\n", " line 1: ValueError: a b; nothing was done"),
    "endless": ("def f(): f()\nf()\n", " line 1: RecursionError: maximum recursion depth"),
    "exit": ("import sys\nsys.exit(3)\n", ": it ends the program; nothing was done"),
    "not utf-8": (b'tiny = ["\xff"]\n', ": it is no UTF-8 text; nothing was done"),
    "null": (b"tiny = []\x00", ": source code string cannot contain null bytes"),
    "empty": ("", " names no host"),
    "no group": ('_tiny = ["spark-1"]\n', " names no host"),
    "function": ('def tiny(): return ["spark-1"]\n', " names no host"),
    "no hosts": ("tiny = []\n", " names no host"),
    "text": ('tiny = "spark-1"\n', f": tiny = 'spark-1': {NO_LIST}"),
    "dict": ('tiny = {"spark-1": {}}\n', f": tiny = a dict: {NO_LIST}"),
    "set": ('tiny = {"spark-1"}\n', f": tiny = a set: {NO_LIST}"),
    "none": ("tiny = None\n", f": tiny = None: {NO_LIST}"),
    "tuple": ("tiny = ()\n", f": tiny = a tuple: {NO_LIST}"),
    "data": ('tiny = (["spark-1"], 7)\n', f": tiny = a tuple: {NO_LIST}"),
    "beside a right one": (ONE + 'big = {"spark-2": {}}\n', ": big = a dict: write a list of hos"),
    "number": ("tiny = [1]\n", f": tiny: 1 is no host: {NO_HOST}"),
    "nothing": ("tiny = [None]\n", f": tiny: None is no host: {NO_HOST}"),
    "no name": ('tiny = [""]\n', f": tiny: '' is no host: {NO_HOST}"),
    "blank": ('tiny = ["spark 1"]\n', f": tiny: 'spark 1' is no host: {NO_HOST}"),
    "list": ('tiny = [["spark-1", {}]]\n', f": tiny: a list is no host: {NO_HOST}"),
    "host dict": ('tiny = [{"name": "a"}]\n', f": tiny: a dict is no host: {NO_HOST}"),
    "host data": ('tiny = [("a", "b")]\n', f": tiny: ('a', ...) is no host: {NO_HOST}"),
    "host no data": ('tiny = [("a",)]\n', f": tiny: ('a', ...) is no host: {NO_HOST}"),
    "host None": ('tiny = [("a", None)]\n', f": tiny: ('a', ...) is no host: {NO_HOST}"),
    "host three": ('tiny = [("a", {}, {})]\n', f": tiny: ('a', ...) is no host: {NO_HOST}"),
    "host key": ('tiny = [("a", {1: 2})]\n', f": tiny: ('a', ...) is no host: {NO_HOST}"),
    "connector": ('tiny = ["@nosuch/a"]\n', ": Invalid connector: nosuch"),
}

# Files of the group tiny, and what is said after the name of the file.
GROUPS: dict[str, tuple[str | bytes, str]] = {
    "group syntax": ("profile = dict(model=\n", " line 1: '(' was never closed; nothing was done"),
    "group twice": ("profile = dict(port=1, port=2)\n", " line 1: keyword argument repeated: port"),
    "group name": ("\nprofile = dict(model=M)\n", " line 2: NameError: name 'M' is not defined"),
    "group not utf-8": (b'profile = "\xff"\n', ": it is no UTF-8 text; nothing was done"),
    "group mark": (b"\xef\xbb\xbfprofile = dict()\n", " line 1: invalid non-printable character"),
    "group value": ("profile = dict('x')\n", " line 1: ValueError: dictionary update sequence"),
}

FINE = {
    "one": ONE,
    "data of a host": 'tiny = [("spark-1", {"ssh_user": "me"})]\n',
    "data of a group": 'tiny = (["spark-1"], {"ssh_user": "me"})\n',
    "twice": 'tiny = ["spark-1", "spark-1"]\n',
    "helpers": f"import os\nfrom pathlib import Path\n_HERE = {{}}\nCOUNT = 3\n{ONE}",
    "an empty group": ONE + "spare = []\n",
    "line ends of Windows": 'tiny = ["spark-1"]\r\n',
}

SECRET = 'tiny = [("a", {"ssh_password": "s3cret"}, {})]\nbig = {"b": {"ssh_password": "s3cret"}}\n'

CASES = {
    **{name: Case(inventory) for name, (inventory, _) in INVENTORIES.items()},
    **{name: Case(ONE, {"tiny": text}) for name, (text, _) in GROUPS.items()},
    **{name: Case(inventory) for name, inventory in FINE.items()},
    "says": Case("raise SystemExit('start the lab first')\n"),
    "several": Case('tiny = [1, ""]\nbig = "a"\n'),
    "secret": Case(SECRET),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return plan_all(CASES, tmp_path_factory.mktemp("reading"))


@pytest.mark.parametrize("name", INVENTORIES)
def test_a_mistake_in_an_inventory(ran: dict[str, Ran], name: str) -> None:
    run = ran[name]
    assert (run.status, run.out) == (2, ""), run.err
    assert run.err.startswith(f"sparkwright plan: {run.folder}/sparks.py{INVENTORIES[name][1]}")
    assert run.err.count("\n") == 1


@pytest.mark.parametrize("name", GROUPS)
def test_a_mistake_in_a_groups_file(ran: dict[str, Ran], name: str) -> None:
    run = ran[name]
    assert (run.status, run.out) == (2, ""), run.err
    place = f"sparkwright plan: {run.folder}/group_data/tiny.py"
    assert run.err.startswith(f"{place}{GROUPS[name][1]}")
    assert run.err.count("\n") == 1


@pytest.mark.parametrize("name", FINE)
def test_what_is_right(ran: dict[str, Ran], name: str) -> None:
    run = ran[name]
    assert (run.status, run.err) == (0, "")
    assert "No problem found in 1 host" in run.out


def test_a_file_that_ends_with_a_message_says_it(ran: dict[str, Ran]) -> None:
    assert (ran["says"].status, ran["says"].err) == (2, "sparkwright plan: start the lab first\n")


def test_every_misshapen_group_at_once(ran: dict[str, Ran]) -> None:
    lines = ran["several"].err.splitlines()
    assert [line.split("sparks.py: ")[1].split(": write")[0] for line in lines] == [
        "tiny: 1 is no host",
        "tiny: '' is no host",
        "big = 'a'",
    ]


def test_data_of_a_host_are_not_repeated(ran: dict[str, Ran]) -> None:
    assert ran["secret"].status == 2
    assert len(ran["secret"].err.splitlines()) == 2
    assert "s3cret" not in ran["secret"].err

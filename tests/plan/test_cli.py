"""What a user sees when something is wrong, and that nothing is done then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from sparkwright.checks import missing_key
from sparkwright.settings import ModelProfile
from tests.plan.cli import TINY, Run, Scenario

SECRETS = (("MY_API_KEY", "k3y-never-shown"), ("HF_TOKEN", "t0ken-never-shown"))
COMMIT = "a" * 40
DEBUG = ("-y", "--debug")

# Hosts that can't serve: how they answer, and what is said about them.
BAD_HOSTS: dict[str, tuple[str, list[str]]] = {
    "old": (
        '_cuda_12("old")',
        ["FAIL  CUDA toolkit", "12.8", "13.x at /usr/local/cuda", "fix: sudo apt install cuda-t",
         " requirements not met; @fake/old was left untouched"],
    ),
    "ask": (
        '_fake("ask", {"sudo": "sudo: a password is required"}, ssh_user="me")',
        ["Preflight of @fake/ask: sudo asks for a password (sudo: a password is required)",
         "'me ALL=(ALL) NOPASSWD:ALL'", "or set _sudo_password for this host"],
    ),
    "odd": (
        '_fake("odd", "Welcome to DGX Spark!")',
        ["the probe's answer is no JSON: 'Welcome to DGX Spark!'"],
    ),
    "mute": ('_fake("mute", "")', ["gave no answer; is python3 not there?"]),
    "pass": (
        '_fake("pass", "", _sudo_password="wrong")',
        ["gave no answer; is python3 not there, or _sudo_password is wrong?"],
    ),
    "bare": (
        '_fake("bare", {"success": False, "stderr": "sh: 1: python3: not found"})',
        ["sh: 1: python3: not found", "gave no answer; is python3 not there?"],
    ),
}  # fmt: skip

# Hosts that can't be reached: how they are written, and what is said about them.
_KEY = '"ssh_key": f"{_folder}/id", "ssh_known_hosts_file": f"{_folder}/known"'
UNREACHABLE = {
    "closed": ('("closed", {"ssh_hostname": "127.0.0.1", "ssh_port": 1})', "Could not connect"),
    "spark.invalid": ('("spark.invalid", {})', "Could not resolve hostname"),
    "locked": (
        f'("locked", {{"ssh_hostname": "127.0.0.1", "ssh_port": _port, {_KEY}}})',
        "Authentication error",
    ),
}

# Mistakes in what was written: (inventory, profile, what is said).
WRITTEN_WRONG: dict[str, tuple[str, str, str]] = {
    "typo": (
        'tny = [_fake("one", _probe(), platfrm={}), _healthy("two")]',
        f"{TINY}, max_model_length=4096, port=80",
        "4 problems in the inventory, nothing was changed:\n"
        "  group_data/tiny.py: max_model_length = 4096: no such field; did you mean "
        "'max_model_len'?\n"
        "  group_data/tiny.py: port = 80: input should be greater than or equal to 1024\n"
        "  host @fake/one: platfrm: no such setting; did you mean 'platform'?\n"
        "  hosts @fake/one, @fake/two: group = 'tny': no such file group_data/tny.py with a "
        "profile; did you mean 'tiny'?",
    ),
    # A file with one host: its only group must not be taken for the file's own.
    "group": (
        'no_such_model = [_healthy("one")]',
        TINY,
        "host @fake/one: group = 'no_such_model': no such file group_data/no_such_model.py with a "
        "profile; known: ",
    ),
}


def _inventory(hosts: Mapping[str, tuple[str, object]]) -> str:
    return f"tiny = [{', '.join(written for written, _ in hosts.values())}]"


FLEET = """
tiny = [_healthy(f"h{n:02}") for n in range(16)]
tiny += [_cuda_12("old"), _fake("odd", "rubbish"), _fake("bare", {"success": False})]
tiny += [("closed", {"ssh_hostname": "127.0.0.1", "ssh_port": 1})]
"""

# Named after the profile's fields: each asks for both secrets.
KEYED = f'model="org/name", revision="{COMMIT}", api_key="env:MY_API_KEY"'
KEYED_HOST = f"""
_seen = _probe()
_model = "/var/lib/sparkwright/models/org--name/{COMMIT}"
_seen |= {{"models": {{_model: "missing"}}, "sizes": {{f"{{_model}}.partial": 0}}}}
tiny = [_fake("one", _seen)]
"""

SCENARIOS = {
    "fleet": Scenario(FLEET),
    "dry": Scenario('tiny = [_cuda_12("one")]', options=("--dry",)),
    "asked": Scenario('tiny = [_healthy("one")]', options=("--debug",)),
    "secrets": Scenario(KEYED_HOST, KEYED, ("-y", "-vvv", "--debug", "--diff"), SECRETS),
    "json": Scenario(KEYED_HOST, KEYED, ("-y", "--json"), SECRETS),
    # Not with --debug: there pyinfra itself prints the data files, the user's own writing.
    "written-key": Scenario(
        'tiny = [_healthy("one")]', f'{TINY}, api_key="k3y-never-shown"', ("-y", "-vvv")
    ),
    "no-key": Scenario(KEYED_HOST, KEYED, DEBUG),
    "bad-hosts": Scenario(_inventory(BAD_HOSTS), options=DEBUG),
    "no-python": Scenario(f"tiny = [{BAD_HOSTS['bare'][0]}]"),
    "unreachable": Scenario(_inventory(UNREACHABLE)),
    **{name: Scenario(h, profile, DEBUG) for name, (h, profile, _) in WRITTEN_WRONG.items()},
}


@pytest.mark.parametrize("name", [n for n in SCENARIOS if n not in ("secrets", "json", "dry")])
def test_status_and_no_traceback(ran: Callable[[str], Run], name: str) -> None:
    run = ran(name)
    assert run.status != 0
    assert "Traceback" not in run.output


@pytest.mark.parametrize("name", BAD_HOSTS)
def test_a_host_that_can_not_serve(ran: Callable[[str], Run], name: str) -> None:
    run = ran("bad-hosts")
    said = "\n".join(run.lines(f"@fake/{name}"))
    for part in BAD_HOSTS[name][1]:
        assert part in said
    # The second one, for the summary, only asks who serves what.
    probe, asked = run.commands(name)
    assert "zlib" in probe and "program=" in asked


@pytest.mark.parametrize("name", WRITTEN_WRONG)
def test_a_mistake_in_what_was_written(ran: Callable[[str], Run], name: str) -> None:
    run = ran(name)
    assert WRITTEN_WRONG[name][2] in run.output
    assert run.commands("one") == run.commands("two") == []


def test_a_key_written_where_it_must_not_be_is_not_repeated(ran: Callable[[str], Run]) -> None:
    run = ran("written-key")
    assert "group_data/tiny.py: api_key: write 'generate' or 'env:NAME'" in run.output
    assert "never-shown" not in run.output


@pytest.mark.parametrize("name", UNREACHABLE)
def test_a_host_that_can_not_be_reached(ran: Callable[[str], Run], name: str) -> None:
    (said,) = ran("unreachable").lines(name)
    assert said.startswith(UNREACHABLE[name][1])


def test_in_a_fleet_the_others_go_on(ran: Callable[[str], Run]) -> None:
    run = ran("fleet")
    (results,) = run.output.split("--> Results:")[1:]
    operations = run.output.count("--> Starting operation: ")
    assert operations == 12 + 5, "five waves: a canary, then four of five hosts each"
    for number in range(16):
        said = run.lines(f"@fake/h{number:02}")
        assert not [line for line in said if "Error" in line]
        assert len([line for line in said if line in ("Success", "No changes")]) == operations
    for host, reason in [
        ("@fake/old", "requirements not met; @fake/old was left untouched"),
        ("@fake/odd", "the probe's answer is no JSON: 'rubbish'"),
        ("@fake/bare", "the probe gave no answer; is python3 not there?"),
        ("closed", "Could not "),
    ]:
        said = run.lines(host)
        assert [line for line in said if reason in line], host
        assert "Success" not in said
    assert "Activate, and prove by a generation" in results


def test_a_dry_run_shows_what_preflight_found(ran: Callable[[str], Run]) -> None:
    run = ran("dry")
    said = "\n".join(run.lines("@fake/one"))
    assert "fix: sudo apt install cuda-toolkit-13-0" in said
    assert "Traceback" not in run.output


def test_without_yes_and_without_a_terminal_nothing_is_done(ran: Callable[[str], Run]) -> None:
    run = ran("asked")
    assert "Detected changes" in run.output
    given = run.commands("one")
    assert given
    assert [c for c in given if "zlib" not in c and "activate.py check" not in c] == []


@pytest.mark.parametrize("name", ["secrets", "json"])
def test_no_secret_in_any_output(ran: Callable[[str], Run], name: str) -> None:
    run = ran(name)
    assert run.status == 0
    assert "Traceback" not in run.output
    assert "never-shown" not in run.output


def test_the_run_with_secrets_came_to_the_steps_that_use_them(ran: Callable[[str], Run]) -> None:
    given = ran("secrets").commands("one")
    assert [c for c in given if "weights.py" in c]
    assert [c for c in given if "activate.py apply tiny" in c]


def test_a_key_that_is_not_there(ran: Callable[[str], Run]) -> None:
    run = ran("no-key")
    assert (
        "group_data/tiny.py: api_key = 'env:MY_API_KEY': MY_API_KEY is not set where you run this: "
        "export MY_API_KEY=... and run again"
    ) in run.output
    assert not run.commands("one"), "nothing is done on any host"


@pytest.mark.parametrize("key", ["", "a b", 'a"b', "a\nb", "a\\b", "a'b", "ü", "$a", "a#b"])
def test_a_key_that_a_unit_can_not_pass_on(key: str) -> None:
    profile = ModelProfile.model_validate({"model": "/m", "api_key": "env:KEY"})
    (problem,) = missing_key("tiny", profile, {"KEY": key})
    assert "KEY" in str(problem) and (not key or key not in str(problem))
    assert not list(missing_key("tiny", profile, {"KEY": "sk-abc_DEF.123="}))

"""An instance's env file against the rules of systemd.exec(5), EnvironmentFile=."""

from __future__ import annotations

import pytest

from sparkwright import render
from sparkwright.settings import ModelProfile

PROFILE = ModelProfile.model_validate({"model": "/m/tiny", "port": 8001})


def rendered(environment: dict[str, str]) -> list[str]:
    text = render.template("etc/sparkwright/profile/env", environment=environment, profile=PROFILE)
    assert text.endswith("\n")
    return text.splitlines()


def read_as_systemd_does(line: str) -> tuple[str, str]:
    """One assignment in double quotes, as parse_env_file of systemd reads it.

    In double quotes a backslash escapes a double quote, a backslash, a backtick or a dollar sign;
    before anything else it stays. Dollar and per cent signs are not expanded in such a file.
    """
    name, _, quoted = line.partition("=")
    assert quoted[0] == quoted[-1] == '"'
    value, rest = "", quoted[1:-1]
    while rest:
        if rest[0] == "\\" and rest[1:2] in ('"', "\\", "`", "$"):
            value, rest = value + rest[1], rest[2:]
        else:
            assert rest[0] != '"', "the value would end here"
            value, rest = value + rest[0], rest[1:]
    return name, value


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("plain", 'A="plain"'),
        ("", 'A=""'),
        ("two  words ", 'A="two  words "'),
        ('say "hi"', 'A="say \\"hi\\""'),
        ("C:\\dir", 'A="C:\\\\dir"'),
        ("ends with \\", 'A="ends with \\\\"'),
        ('\\"', 'A="\\\\\\""'),
        ("\\$x", 'A="\\\\$x"'),
        ("50%", 'A="50%"'),
        ("%i %n", 'A="%i %n"'),
        ("$HOME ${HOME}", 'A="$HOME ${HOME}"'),
        ("`date`", 'A="`date`"'),
        ("it's", 'A="it\'s"'),
        ("#no comment", 'A="#no comment"'),
        ("a=b;c", 'A="a=b;c"'),
        ("{{ x }} {% y %}", 'A="{{ x }} {% y %}"'),
        ("über 東京", 'A="über 東京"'),
    ],
)
def test_quoting(value: str, line: str) -> None:
    _, written, _ = rendered({"A": value})
    assert written == line
    assert read_as_systemd_does(written) == ("A", value)


def test_every_variable_has_a_line_in_order_and_the_endpoint_comes_last() -> None:
    comment, *assignments = rendered({"B": "1", "A": "2", "SPARKWRIGHT_ENDPOINT": "elsewhere"})
    assert comment.startswith("# Managed by sparkwright")
    assert assignments == [
        'B="1"',
        'A="2"',
        'SPARKWRIGHT_ENDPOINT="elsewhere"',
        'SPARKWRIGHT_ENDPOINT="127.0.0.1:8001"',
    ]

"""What is said about a connection that fails: the field, its value, the way to try it by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.connection import advice

# (pyinfra's message, what differs from a plain host, parts of what is said)
CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "No such private key file: /home/me/.ssh/spark",
        {"key": "/home/me/.ssh/spark"},
        ["ssh_key = '/home/me/.ssh/spark': correct it in the inventory"],
    ),
    ("Invalid key: /home/me/key", {"key": "/home/me/key"}, ["ssh_key = '/home/me/key': correct"]),
    (
        "[Errno 2] No such file or directory: '/home/me/.ssh/known_hosts'",
        {},
        ["mkdir -m 700 ~/.ssh"],
    ),
    (
        "Could not resolve hostname ([Errno -2] Name or service not known)",
        {"address": "sprak-1"},
        ["the name 'sprak-1' resolves nowhere", '{"ssh_hostname": "192.0.2.7"}'],
    ),
    (
        "SSH error (Host key for server '192.0.2.7' does not match: got 'A', expected 'B')",
        {"port": 2222},
        ["ssh-keygen -R 192.0.2.7, then", "once by hand: ssh -p 2222 nvidia@192.0.2.7"],
    ),
    ("No host key for 192.0.2.7 found in known_hosts", {}, ["host key", "by hand: ssh"]),
    (
        "Authentication error (Authentication failed.)",
        {"key": "~/.ssh/spark"},
        ["ssh_user = 'nvidia', ssh_key = '~/.ssh/spark' is not let in: try ssh -i ~/.ssh/spark "
         "nvidia@192.0.2.7; bring the key there with ssh-copy-id"],
    ),
    ("Private key file is encrypted", {"key": "k"}, ["ssh_key = 'k' is not let in"]),
    ("Invalid passphrase for key", {"key": "k"}, ["is not let in"]),
    (
        "Could not connect ([Errno None] Unable to connect to port 22 on 192.0.2.7)",
        {"user": None},
        ["nothing answers at 192.0.2.7 port 22: is it on", "Try ssh 192.0.2.7"],
    ),
    ("Could not connect (timed out)", {"port": 2222}, ["port 2222", "Try ssh -p 2222 nvidia@192"]),
]  # fmt: skip


@pytest.mark.parametrize(("error", "host", "parts"), CASES, ids=[case[0] for case in CASES])
def test_advice(error: str, host: dict[str, Any], parts: list[str]) -> None:
    plain = {"address": "192.0.2.7", "port": 22, "user": "nvidia", "key": None}
    said = advice(error, **(plain | host))
    assert [part for part in parts if part not in said] == [], said
    assert "None" not in said and "\n" not in said

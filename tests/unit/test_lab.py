"""The lab's pure parts: subnets, names, the record, the command line's refusals."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path

import pytest

from lab import cli, network, record
from lab.record import Host, Record
from lab.shell import LabError

ROUTES = """\
default via 192.0.2.1 dev eth0
broadcast 172.17.255.255 dev docker0 table local proto kernel scope link src 172.17.0.1
172.17.0.0/16 dev docker0 proto kernel scope link src 172.17.0.1 linkdown
172.30.0.0/24 dev br-0123456789ab proto kernel scope link src 172.30.0.1
local 192.0.2.2 dev eth0 table local proto kernel scope host src 192.0.2.2
blackhole 10.213.0.0/17
"""


def test_routes_are_read_as_networks() -> None:
    found = {str(route) for route in network.routed(ROUTES)}
    assert {"172.17.0.0/16", "172.30.0.0/24", "192.0.2.2/32", "10.213.0.0/17"} <= found
    assert "0.0.0.0/0" not in found


def test_a_labs_own_bridge_is_no_conflict() -> None:
    own = network.routed(ROUTES, own_device="br-0123456789ab")
    assert IPv4Network("172.30.0.0/24") not in own


def test_the_first_free_subnets_are_offered() -> None:
    taken = [IPv4Network("172.30.0.0/23"), IPv4Network("172.30.3.128/25")]
    first = [str(subnet) for subnet in islice(network.choose(taken), 2)]
    assert first == ["172.30.2.0/24", "172.30.4.0/24"]


def test_a_wide_route_moves_the_lab_to_another_block() -> None:
    assert str(next(network.choose([IPv4Network("172.16.0.0/12")]))) == "10.213.0.0/24"


def test_no_free_subnet_is_said_with_a_way_to_look() -> None:
    taken = [IPv4Network("172.16.0.0/12"), IPv4Network("10.0.0.0/8"), IPv4Network("192.168.0.0/16")]
    with pytest.raises(LabError, match="ip route"):
        next(network.choose(taken))


def test_addresses_count_from_the_number() -> None:
    subnet = IPv4Network("172.30.4.0/24")
    assert [network.address(subnet, n) for n in (1, 2)] == ["172.30.4.11", "172.30.4.12"]


@pytest.mark.parametrize("name", ["cache", "locks", "A", "", "-x", "a_b", "x" * 32, "../up"])
def test_names_that_no_lab_may_have(name: str) -> None:
    with pytest.raises(LabError, match="can't name a lab"):
        record.check_name(name)


def make_record() -> Record:
    hosts = [Host("spark-1", "172.30.0.11", "sparkwright-x-spark-1")]
    return Record("x", "sparkwright-x", "172.30.0.0/24", "image", "key", "known", hosts=hosts)


def test_the_record_comes_back_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "STATE", tmp_path)
    record.save(make_record())
    assert record.load("x") == make_record()
    assert record.names() == ["x"]


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}', '{"hosts": [{"colour": 1}]}'])
def test_a_damaged_record_counts_as_none(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "STATE", tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x/lab.json").write_text(text)
    assert record.load("x") is None
    with pytest.raises(LabError, match="sparkwright lab up"):
        record.require("x")


def test_an_unknown_host_is_named_with_the_known() -> None:
    with pytest.raises(LabError, match=r"no host 'spark-7'.*spark-1"):
        make_record().host("spark-7")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--sparks", "0"], "from 1 to 32"),
        (["up", "--name", "cache"], "can't name a lab"),
        (["fault", "spark-1", "nonsense"], "no lab|no fault"),
        (["status", "--name", "absent"], "There is no lab 'absent'"),
    ],
)
def test_mistakes_end_in_a_sentence(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(record, "STATE", tmp_path)
    assert cli.main(arguments) != 0
    told = capsys.readouterr().err
    assert told.startswith("sparkwright lab: ")
    assert "Traceback" not in told
    assert any(word in told for word in words.split("|"))

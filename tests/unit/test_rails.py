"""What the tools of a ConnectX-7 print, and the variables and rules that follow from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bandwidth
import fabric
import netplans
import pairing
import pytest
import rails
from common import Refusal
from pairing import Pair, UnreachableError
from rails import Rail

# mlnx-tools, as on a Spark with a cable in port 1 (NVIDIA/dgx-spark-playbooks,
# nvidia/connect-two-sparks), and the GIDs that RoCE gives such devices.
IBDEV = """\
rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)
rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)
roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)
roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)
"""
GIDS = """\
DEV	PORT	INDEX	GID					IPv4  		VER	DEV
---	----	-----	---					------------  	---	---
rocep1s0f1	1	0	fe80:0000:0000:0000:4ebb:47ff:fe00:0000			v1	enp1s0f1np1
rocep1s0f1	1	1	fe80:0000:0000:0000:4ebb:47ff:fe00:0000			v2	enp1s0f1np1
rocep1s0f1	1	2	0000:0000:0000:0000:0000:ffff:c0a8:640a	192.168.100.10  	v1	enp1s0f1np1
rocep1s0f1	1	3	0000:0000:0000:0000:0000:ffff:c0a8:640a	192.168.100.10  	v2	enp1s0f1np1
roceP2p1s0f1	1	4	0000:0000:0000:0000:0000:ffff:c0a8:650a	192.168.101.10  	v1	enP2p1s0f1np1
roceP2p1s0f1	1	5	0000:0000:0000:0000:0000:ffff:c0a8:650a	192.168.101.10  	v2	enP2p1s0f1np1
n_gids_found=6
"""  # noqa: E501
FABRIC = {
    "own": ["192.168.100.10", "192.168.101.10"],
    "rails": [
        {"device": "enp1s0f1np1", "hca": "rocep1s0f1"},
        {"device": "enP2p1s0f1np1", "hca": "roceP2p1s0f1"},
    ],
    "gid_index": None,
    "sockets": "fabric",
    "merge_nics": True,
}
WANTED = {
    "own": FABRIC["own"],
    "peer": ["192.168.100.11", "192.168.101.11"],
    "prefixes": [24, 24],
    "ports": [29400, 29501],
    "port": None,
    "mtu": 9000,
    "rank": 0,
    "peer_host": "spark-2",
    "min_gbps": 80,
}
BOTH = [Rail("enp1s0f1np1", "rocep1s0f1", 1, True), Rail("enP2p1s0f1np1", "roceP2p1s0f1", 1, True)]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What commands print, by their first word; a test may change it. Links: of port 1."""
    told = {"ibdev2netdev": IBDEV, "show_gids": GIDS}

    def run(*command: str) -> str | None:
        return told.get(" ".join(command), told.get(command[0]))

    for device in ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"):
        (tmp_path / device).mkdir()
        (tmp_path / device / "carrier").write_text("1" if "f1" in device else "0")
    monkeypatch.setattr(rails, "NET", str(tmp_path))
    for module in (rails, fabric, bandwidth):
        monkeypatch.setattr(module, "run", run)
    have = {"enp1s0f1np1": "192.168.100.10", "enP2p1s0f1np1": "192.168.101.10"}
    monkeypatch.setattr(rails, "addresses", lambda d: [(have[d], 24)] if d in have else [])
    monkeypatch.setattr(fabric.time, "sleep", lambda _: None)
    return told


def test_devices_by_port(tools: dict[str, str]) -> None:
    assert [(r.device, r.port, r.up) for r in rails.devices()] == [
        ("enp1s0f0np0", 0, False),
        ("enP2p1s0f0np0", 0, False),
        ("enp1s0f1np1", 1, True),
        ("enP2p1s0f1np1", 1, True),
    ]
    assert fabric.choose(WANTED) == BOTH


def test_the_kernels_own_name_of_a_port_counts_more(tools: dict[str, str], tmp_path: Path) -> None:
    for device in ("enp1s0f0np0", "enP2p1s0f0np0"):
        (tmp_path / device / "phys_port_name").write_text("p1\n")
    for device in ("enp1s0f1np1", "enP2p1s0f1np1"):
        (tmp_path / device / "phys_port_name").write_text("p0\n")
    assert [rail.port for rail in fabric.choose(WANTED)] == [0, 0]


@pytest.mark.parametrize(
    ("links", "port", "words"),
    [
        ({}, None, "no QSFP cable: no device has a link (enp1s0f0np0, enP2p1s0f0np0"),
        ({"enp1s0f1np1", "enP2p1s0f1np1"}, 0, "no device of port 0 (fabric.port) has a link"),
        ({"enp1s0f1np1"}, None, "port 1 has a link on 1 of its two devices (enP2p1s0f1np1 has"),
    ],
)
def test_no_cable(
    tools: dict[str, str], tmp_path: Path, links: set[str], port: int | None, words: str
) -> None:
    for device in tmp_path.iterdir():
        (device / "carrier").write_text("1" if device.name in links else "0")
    with pytest.raises(Refusal) as told:
        fabric.choose({**WANTED, "port": port})
    assert words in str(told.value)


def test_no_nic_at_all(tools: dict[str, str]) -> None:
    tools["ibdev2netdev"] = ""
    with pytest.raises(Refusal, match="no ConnectX device found"):
        rails.devices()


def test_variables_of_what_is_there(tools: dict[str, str]) -> None:
    values = rails.environment(FABRIC)
    assert values["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    assert values["VLLM_HOST_IP"] == "192.168.100.10"
    assert values["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert values["NCCL_SOCKET_IFNAME"] == "=enp1s0f1np1"
    assert values["NCCL_IB_MERGE_NICS"] == "1"
    # The rails' indexes differ, and one variable can't name both.
    assert "NCCL_IB_GID_INDEX" not in values
    assert values["NCCL_IB_ROCE_VERSION_NUM"] == "2" and values["NCCL_IB_ADDR_FAMILY"] == "AF_INET"
    tools["show_gids"] = GIDS.replace("\t5\t", "\t3\t")
    assert rails.environment(FABRIC)["NCCL_IB_GID_INDEX"] == "3"
    assert rails.environment({**FABRIC, "gid_index": 7})["NCCL_IB_GID_INDEX"] == "7"
    assert rails.environment({**FABRIC, "merge_nics": False})["NCCL_IB_MERGE_NICS"] == "0"
    tools["ip"] = '[{"dev": "enP7s7"}]'
    values = rails.environment({**FABRIC, "sockets": "management"})
    assert values["GLOO_SOCKET_IFNAME"] == "enP7s7" and values["VLLM_HOST_IP"] == "192.168.100.10"


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda t, p: (p / "enP2p1s0f1np1/carrier").write_text("0"), "rail 2 .* has no link"),
        (lambda t, p: t.update(show_gids="n_gids_found=0"), "rail 1 .* no GID of RoCE v2 for 192"),
    ],
)
def test_a_rail_that_is_not_ready(
    tools: dict[str, str], tmp_path: Path, break_it: Callable[..., Any], words: str
) -> None:
    break_it(tools, tmp_path)
    with pytest.raises(Refusal, match=words):
        rails.environment(FABRIC)


def test_before_the_fabric_is_set_up() -> None:
    with pytest.raises(Refusal, match="the fabric is not set up: deploy again"):
        rails.environment({})


def test_a_subnet_that_is_used_otherwise(tools: dict[str, str]) -> None:
    entry = '{"ifname": "%s", "addr_info": [{"local": "192.168.101.7", "prefixlen": 24}]}'
    tools["ip -j -4 addr"] = f"[{entry % 'enP2p1s0f1np1'}]"
    fabric.refuse_overlap(WANTED, BOTH)
    tools["ip -j -4 addr"] = f"[{entry % 'enP7s7'}]"
    with pytest.raises(Refusal) as told:
        fabric.refuse_overlap(WANTED, BOTH)
    assert "192.168.101.0/24 of a rail is used by enP7s7 (192.168.101.7/24)" in str(told.value)


def test_files() -> None:
    text = netplans.text(BOTH, WANTED["own"], [24, 24], 9000)  # type: ignore[arg-type]
    assert "addresses: [192.168.101.10/24]" in text and text.count("mtu: 9000") == 2
    assert "renderer" not in text
    rules = fabric.rules(WANTED, BOTH)
    assert 'iifname { "lo", "enp1s0f1np1", "enP2p1s0f1np1" } accept' in rules
    assert "tcp dport { 29400, 29501 } drop" in rules


PERFTEST = """\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      20000            {0}              {0}              0.183883
---------------------------------------------------------------------------------------
"""


@pytest.fixture
def measured(tools: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A measurement whose tool prints what is given."""
    monkeypatch.setattr(bandwidth.shutil, "which", lambda _: "/usr/bin/ib_write_bw")
    monkeypatch.setattr(bandwidth, "ask", lambda *_, **__: (200, {}))
    monkeypatch.setattr(bandwidth.time, "sleep", lambda _: None)
    pair = Pair("", 0, "", ("192.168.100.10", "192.168.101.10"), ("a", "b"), "spark-2")

    def measure(told: str, busy: bool = False) -> Any:
        tools["ib_write_bw"] = told
        return bandwidth.measure(pair, BOTH, 80, busy)

    return measure


def test_bandwidth(measured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(PERFTEST.format("96.41")) == {"gbps": [96.41, 96.41]}
    with pytest.raises(Refusal, match=r"rail 1 \(enp1s0f1np1\) delivers 13.1 Gb/s to "):
        measured(PERFTEST.format("13.10"))
    under_load = measured(PERFTEST.format("13.10"), busy=True)["unknown"]
    assert "rail 1 gave 13.1 Gb/s while the pair serves; below 80" in under_load
    assert measured("Couldn't connect") == {
        "unknown": "ib_write_bw gave no figure on rail 1",
        "again": True,
    }
    monkeypatch.setattr(bandwidth, "ask", lambda *_, **__: (503, {}))
    assert "does not start on spark-2" in measured("")["unknown"]

    def silent(*_: Any, **__: Any) -> Any:
        raise UnreachableError("no answer")

    monkeypatch.setattr(bandwidth, "ask", silent)
    assert measured("") == {"unknown": "no answer", "again": True}
    monkeypatch.setattr(bandwidth.shutil, "which", lambda _: None)
    found = measured("")
    assert "apt install perftest" in found["unknown"]
    assert bandwidth.told(found)[0].startswith("the bandwidth is unknown: ib_write_bw is not")


def test_addresses_of_a_pair_in_service_do_not_change_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fabric, pairing):
        monkeypatch.setattr(module, "ETC", str(tmp_path))
    fabric.refuse_other_addresses(WANTED)
    (tmp_path / "m").mkdir()
    text = json.dumps({"own": WANTED["own"], "peer": WANTED["peer"]})
    (tmp_path / "m/pair.json").write_text(text)
    fabric.refuse_other_addresses(WANTED)
    with pytest.raises(Refusal, match="m is in service with other addresses"):
        fabric.refuse_other_addresses({**WANTED, "own": ["10.0.0.1", "10.0.1.1"]})

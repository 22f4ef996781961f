"""The link of a pair on two simulated Sparks: real netplan, nftables and pings over veth devices.

The tools of the ConnectX-7 are stand-ins (docs/lab.md). fabric.py runs on the hosts themselves;
that the deploy calls it is seen in test_12_pair.py.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright import render
from sparkwright.fabric import Fabric, link_pair
from tests.lab.helpers import LAB, ROOT, Spark, sparkwright

pytestmark = pytest.mark.lab

PROGRAM = "python3 /opt/sparkwright/host/fabric.py"
NETPLAN = "/etc/netplan/40-sparkwright-fabric.yaml"


# Addresses and routes of the device by which the host is reached.
MANAGEMENT = (
    "d=$(ip -o -4 route show default | sed 's/.* dev \\([^ ]*\\).*/\\1/'); "
    "ip -4 addr show dev $d; ip -4 route show dev $d"
)


class Fabrics:
    """Both ends of the link."""

    def __init__(self, hosts: list[Spark]) -> None:
        self.hosts = hosts
        settings = {host.name: Fabric.model_validate({}) for host in hosts}
        links, _ = link_pair("desk", (hosts[0].name, hosts[1].name), settings, ["m"])
        self.wanted = {name: link.as_json() for name, link in links.items()}

    def run(self, command: str, host: Spark, **other: Any) -> tuple[int, str]:
        """Exit status and output of fabric.py."""
        done = subprocess.run(
            ["docker", "exec", "-i", host.container, *PROGRAM.split(), command],
            input=json.dumps(self.wanted[host.name] | other),
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr

    def set_up(self, **other: Any) -> list[tuple[int, str]]:
        """Both at the same time, as a deploy does."""
        found: dict[str, tuple[int, str]] = {}

        def work(host: Spark) -> None:
            found[host.name] = self.run("setup", host, **other)

        threads = [threading.Thread(target=work, args=(host,)) for host in self.hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[host.name] for host in self.hosts]

    def missing(self, host: Spark) -> str | None:
        status, output = self.run("check", host)
        assert status == 0, output
        missing: str | None = json.loads(output)["missing"]
        return missing


def programs(host: Spark) -> None:
    """Bring what the step before it brings."""
    host.sh("mkdir -p /opt/sparkwright/host /etc/sparkwright /var/lib/sparkwright")
    subprocess.run(
        ["docker", "cp", "-q", f"{ROOT}/host/.", f"{host.container}:/opt/sparkwright/host"]
    )
    for file in render.base_files():
        if file.path.startswith("/etc/systemd/"):
            host.sh(f"cat > {file.path} <<'END'\n{file.content}END")
    host.sh("systemctl daemon-reload")


@pytest.fixture(scope="module")
def fabrics(sparks: dict[str, Spark]) -> Iterator[Fabrics]:
    made = Fabrics([sparks["spark-1"], sparks["spark-2"]])
    for host in made.hosts:
        sparkwright("lab", "clear", host.name, "--name", LAB)
        host.wipe()
        programs(host)
    yield made
    for host in made.hosts:
        host.wipe()


@pytest.fixture
def linked(fabrics: Fabrics) -> Iterator[Fabrics]:
    """The link, which is right before a test."""
    if any(fabrics.missing(host) for host in fabrics.hosts):
        ended = fabrics.set_up()
        assert [status for status, _ in ended] == [0, 0], ended
    yield fabrics
    for host in fabrics.hosts:
        sparkwright("lab", "clear", host.name, "--name", LAB)


def test_nothing_but_a_cable_is_needed(fabrics: Fabrics) -> None:
    first, second = fabrics.hosts
    before = [host.sh(MANAGEMENT) for host in fabrics.hosts]
    ended = fabrics.set_up()
    for status, output in ended:
        assert status == 0, output
        assert "QSFP port 1: enp1s0f1np1 (rocep1s0f1), enP2p1s0f1np1 (roceP2p1s0f1)" in output
        assert "the rails carry 96.4 and 96.4 Gb/s" in output
    assert first.sh(f"stat -c '%a %U' {NETPLAN}") == "600 root"
    for rail in (100, 101):
        first.sh(f"ping -c1 -W2 -M do -s 8972 192.168.{rail}.11")
        second.sh(f"ping -c1 -W2 -M do -s 8972 192.168.{rail}.10")
    after = [host.sh(MANAGEMENT) for host in fabrics.hosts]
    assert after == before, "the management network is not touched"


def test_again_nothing_is_missing(linked: Fabrics) -> None:
    for host in linked.hosts:
        begun = host.sh("networkctl status enp1s0f1np1 | grep -c . ; stat -c %Y " + NETPLAN)
        assert linked.missing(host) is None
        assert begun == host.sh("networkctl status enp1s0f1np1 | grep -c . ; stat -c %Y " + NETPLAN)


def test_a_reboot_brings_it_back(linked: Fabrics) -> None:
    sparkwright("lab", "reboot", "spark-2", "--name", LAB)
    linked.hosts[1].wait_until("ping -c1 -W1 -M do -s 8972 192.168.101.10")
    linked.hosts[1].sh("nft list table inet sparkwright_fabric")
    linked.hosts[1].sh("systemctl start sparkwright-pair")
    assert linked.missing(linked.hosts[1]) == "the bandwidth was not measured since the last boot"


FAULTS = [
    ("rail-down", "port 1 has a link on 1 of its two devices (enP2p1s0f1np1 has none)"),
    ("rail-mtu", "rail 2 (enP2p1s0f1np1) reaches spark-2 (192.168.101.11), but packets of 9000"),
    ("fabric-cut", "rail 1 (enp1s0f1np1) does not reach spark-2 (192.168.100.11)"),
]


@pytest.mark.parametrize(("fault", "words"), FAULTS)
def test_a_fault_is_told(linked: Fabrics, fault: str, words: str) -> None:
    here, there = linked.hosts
    sparkwright("lab", "fault", there.name, fault, "--name", LAB)
    assert words in str(linked.missing(here))
    sparkwright("lab", "clear", there.name, fault, "--name", LAB)
    here.wait_until("ping -c1 -W1 -M do -s 8972 192.168.101.11")
    assert linked.missing(here) is None


def test_a_link_that_says_200_and_delivers_13(linked: Fabrics) -> None:
    sparkwright("lab", "fault", "spark-2", "slow-fabric", "--name", LAB)
    for host in linked.hosts:
        host.sh("rm /var/lib/sparkwright/fabric-measured.json")
    for status, output in linked.set_up():
        assert status == 1 and "delivers 13.1 Gb/s to spark-" in output, output
        assert "boot them cold" in output


def test_drivers_that_differ(linked: Fabrics) -> None:
    sparkwright("lab", "fault", "spark-2", "driver-older", "--name", LAB)
    (status, output), _ = linked.set_up()
    assert status == 1, output
    assert "the NVIDIA driver is 580.159.03 here and 580.126.09 on spark-2" in output


def test_what_another_tool_left_is_kept_beside(linked: Fabrics) -> None:
    sparkwright("lab", "fault", "spark-2", "one-subnet", "--name", LAB)
    host = linked.hosts[1]
    left = host.sh("cat /etc/netplan/40-cx7.yaml")
    assert linked.missing(host) == f"{NETPLAN} is not as it should be"
    ended = linked.set_up()
    assert [status for status, _ in ended] == [0, 0], ended
    kept = "/etc/netplan/40-cx7.yaml.kept-by-sparkwright"
    assert f"kept as {kept}" in ended[1][1]
    assert host.sh(f"cat {kept}") == left and linked.missing(host) is None
    host.sh(f"rm {kept}")


def test_a_file_that_is_about_more_is_left_alone(linked: Fabrics) -> None:
    host = linked.hosts[1]
    text = "network: {version: 2, ethernets: {enp1s0f1np1: {mtu: 1500}, eth9: {dhcp4: true}}}"
    host.sh(f"echo '{text}' > /etc/netplan/90-mine.yaml; chmod 600 /etc/netplan/90-mine.yaml")
    try:
        status, output = linked.run("setup", host)
        assert status == 1 and "/etc/netplan/90-mine.yaml configures a rail of the fabric" in output
        assert "together with eth9" in output
        assert text in host.sh("cat /etc/netplan/90-mine.yaml")
    finally:
        host.sh("rm /etc/netplan/90-mine.yaml")


def test_addresses_that_reach_nobody_are_taken_back(linked: Fabrics) -> None:
    """One end alone gets others: what was there before is there again."""
    host = linked.hosts[0]
    before = host.sh(f"cat {NETPLAN}; ip -4 -br addr")
    other = {"own": ["10.9.0.1", "10.9.1.1"], "peer": ["10.9.0.2", "10.9.1.2"]}
    patience = "sed -i 's/^PEER_S = .*/PEER_S = 5/' /opt/sparkwright/host/fabric.py"
    host.sh(patience)
    try:
        status, output = linked.run("setup", host, **other)
    finally:
        programs(host)
    assert status == 1 and "rail 1 (enp1s0f1np1) does not reach spark-2 (10.9.0.2)" in output
    assert "netplan's files are what they were before" in output
    host.wait_until("ping -c1 -W1 192.168.100.11")
    assert host.sh(f"cat {NETPLAN}; ip -4 -br addr") == before


def test_a_cable_in_different_ports_works(linked: Fabrics) -> None:
    sparkwright("lab", "fault", "spark-2", "other-port", "--name", LAB)
    ended = linked.set_up()
    assert [status for status, _ in ended] == [0, 0], ended
    assert "QSFP port 0: enp1s0f0np0 (rocep1s0f0)" in ended[1][1]
    notes = ended[0][1] + ended[1][1]
    assert "the cable is in port 1 here, in port 0 on spark-2: it works" in notes
    assert [linked.missing(host) for host in linked.hosts] == [None, None]


def test_networkmanager_takes_the_same_file(linked: Fabrics, tmp_path: Path) -> None:
    """DGX OS has it; what netplan makes for it is looked at, it does not run here."""
    host = linked.hosts[0]
    host.sh(
        "rm -rf /root/nm; mkdir -p /root/nm/etc/netplan; "
        f"cp {NETPLAN} /root/nm/etc/netplan/; cd /root/nm/etc/netplan; "
        "echo 'network: {version: 2, renderer: NetworkManager}' > 01-network-manager-all.yaml; "
        "chmod 600 *; netplan generate --root-dir /root/nm"
    )
    made = host.sh("cat /root/nm/run/NetworkManager/system-connections/netplan-enP2p1s0f1np1*")
    assert "address1=192.168.101.10/24" in made and "mtu=9000" in made
    assert "method=manual" in made


def test_who_is_in_no_pair_any_more(linked: Fabrics) -> None:
    host = linked.hosts[1]
    assert host.sh(f"{PROGRAM} remove; echo $?").endswith("0")
    assert host.sh("ls /etc/netplan /etc/sparkwright") == "/etc/netplan:\n\n/etc/sparkwright:"
    assert "192.168." not in host.sh("ip -4 -br addr")
    host.sh("! nft list table inet sparkwright_fabric 2>/dev/null")

"""Set up and check the link between the two Sparks of a pair.

usage: fabric.py check < WANTED      one line of JSON: {"missing": text or null, "notes": [...]}
       fabric.py setup < WANTED      as far as it is not done; both hosts at the same time
       fabric.py remove              of a host that is in no pair any more

WANTED is what sparkwright/fabric.py says of this host's end. Nothing but the devices of the QSFP
ports is touched. A link that does not reach the other host is taken back.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from ipaddress import IPv4Interface
from typing import Any

import alike
import bandwidth
import netplans
import rails
import service
from common import ETC, HEARTBEAT_S, VAR, Refusal, lock, main, read_json, say, write
from instance import boot, content
from pairing import Pair, UnreachableError, ask, served
from rails import Rail, run

CONFIG = f"{ETC}/fabric.json"
RULES = f"{ETC}/fabric.nft"
MEASURED = f"{VAR}/fabric-measured.json"
FIREWALL = "sparkwright-fabric.service"
AGENT = "sparkwright-pair.service"
PEER_S = 90
"""How long the other host is waited for: pyinfra sets both up at once."""
_LINK_S = 8
_FULL_SPEED = 200_000
Wanted = dict[str, Any]


def choose(wanted: Wanted) -> list[Rail]:
    """The two rails of the port that is cabled. Raises Refusal."""
    found = rails.devices()
    if not _linked(found, wanted):
        for rail in found:  # one that is switched off shows no link
            run("ip", "link", "set", rail.device, "up")
        deadline = time.monotonic() + _LINK_S
        while not _linked(found, wanted) and time.monotonic() < deadline:
            time.sleep(1)
            found = rails.devices()
    ports = _linked(found, wanted) or sorted({r.port for r in found if r.up and _may(r, wanted)})
    if not ports:
        names = ", ".join(rail.device for rail in found)
        where = "" if wanted["port"] is None else f" of port {wanted['port']} (fabric.port)"
        raise Refusal(
            f"no QSFP cable: no device{where} has a link ({names}). Plug the cable in on both "
            f"Sparks, until it clicks; {wanted['peer_host']} must be switched on"
        )
    both = [rail for rail in found if rail.port == ports[0]]
    down = [rail.device for rail in both if not rail.up]
    if down or len(both) != 2:
        raise Refusal(
            f"port {ports[0]} has a link on {len(both) - len(down)} of its two devices "
            f"({', '.join(down) or 'one is missing'} has none): pull the plug of the cable and of "
            "the power of this Spark, and boot it cold"
        )
    return both


def _may(rail: Rail, wanted: Wanted) -> bool:
    return wanted["port"] in (None, rail.port)


def _linked(found: list[Rail], wanted: Wanted) -> list[int]:
    """Ports whose two devices have a link, of those that may be used."""
    up = [rail.port for rail in found if rail.up and _may(rail, wanted)]
    return sorted({port for port in up if up.count(port) == 2})


def refuse_overlap(wanted: Wanted, both: list[Rail]) -> None:
    """Raises Refusal when a rail's subnet is one that this host reaches otherwise."""
    told = json.loads(run("ip", "-j", "-4", "addr") or "[]")
    own = {rail.device for rail in both}
    for address, prefix in zip(wanted["own"], wanted["prefixes"], strict=True):
        subnet = IPv4Interface(f"{address}/{prefix}").network
        for device in told:
            for entry in device.get("addr_info", []) if device.get("ifname") not in own else []:
                there = IPv4Interface(f"{entry['local']}/{entry['prefixlen']}")
                if there.network.overlaps(subnet):
                    raise Refusal(
                        f"the subnet {subnet} of a rail is used by {device['ifname']} ({there}): "
                        "write other addresses for both Sparks, fabric=dict(addresses=(...))"
                    )


def config(wanted: Wanted, both: list[Rail]) -> str:
    """What fabric.json says: what is wanted, and what was found for it."""
    found = [{"device": rail.device, "hca": rail.hca} for rail in both]
    return json.dumps({**wanted, "rails": found}, indent=1) + "\n"


def rules(wanted: Wanted, both: list[Rail]) -> str:
    """The firewall: who is not on the cable reaches neither the engine's ports nor an address of
    the rails, where its other ports are. What a person's own firewall forbids stays forbidden."""
    inside = ", ".join(f'"{name}"' for name in ["lo", *(rail.device for rail in both)])
    ports = ", ".join(map(str, wanted["ports"]))
    return f"""# Managed by sparkwright: vLLM does not authenticate what its ranks tell each other.
table inet sparkwright_fabric
delete table inet sparkwright_fabric
table inet sparkwright_fabric {{
  chain input {{
    type filter hook input priority -10; policy accept;
    iifname {{ {inside} }} accept
    tcp dport {{ {ports} }} drop
    ip daddr {{ {", ".join(wanted["own"])} }} drop
  }}
}}
"""


def missing(wanted: Wanted) -> tuple[str, list[str]]:
    """What is not as it should be, in words ("": nothing), and what is worth to know."""
    try:
        both = choose(wanted)
        name = _not_in_place(wanted, both)
        if name:
            return f"{name} is not as it should be", []
        notes = verify(wanted, both)
        measured = read_json(MEASURED)
        if measured.get("key") != _measured_key(wanted, both):
            return "the bandwidth was not measured since the last boot", notes
        return "", [*notes, *bandwidth.told(measured)]
    except Refusal as refusal:
        return str(refusal), []


def _not_in_place(wanted: Wanted, both: list[Rail]) -> str:
    files = {CONFIG: config(wanted, both), RULES: rules(wanted, both)}
    for path, text in files.items():
        if content(path) != text.encode():
            return path
    names = [rail.device for rail in rails.devices()]
    plan = netplans.text(both, wanted["own"], wanted["prefixes"], wanted["mtu"])
    if not netplans.is_in_place(plan) or netplans.foreign(names):
        return netplans.FILE
    unit = service.show(FIREWALL)
    if not unit.enabled or not firewall_is_up():
        return FIREWALL
    return ""


def verify(wanted: Wanted, both: list[Rail]) -> list[str]:
    """Prove each rail by traffic of its full packet size, which comes back as large. Raises
    Refusal; answers with what is worth to know."""
    notes = []
    peer_host = wanted["peer_host"]
    ends = zip(both, wanted["own"], wanted["peer"], strict=True)
    for number, (rail, own, peer) in enumerate(ends, 1):
        name = f"rail {number} ({rail.device})"
        if own not in [address for address, _ in rails.addresses(rail.device)]:
            raise Refusal(f"{name} has not got its address {own}")
        if rails.mtu(rail.device) != wanted["mtu"]:
            raise Refusal(f"{name} has MTU {rails.mtu(rail.device)}, not {wanted['mtu']}")
        route = run("ip", "route", "get", peer, "from", own) or ""
        if f" dev {rail.device} " not in f"{route} ":
            raise Refusal(
                f"what {name} is to send to {peer} leaves elsewhere: {route.strip() or 'nowhere'}; "
                "both rails, or a rail and another network, are in one subnet"
            )
        if not _ping(rail, peer, 56):
            raise Refusal(f"{name} does not reach {peer_host} ({peer})")
        size = wanted["mtu"] - 28  # headers of IP and ICMP
        if not _ping(rail, peer, size):
            raise Refusal(
                f"{name} reaches {peer_host} ({peer}), but packets of {wanted['mtu']} bytes get "
                "lost: the MTU is smaller there, or on a switch between them"
            )
        speed = rails.speed(rail.device)
        if speed is not None and speed < _FULL_SPEED:
            notes.append(
                f"{name} came up with {speed // 1000} Gb/s instead of 200: another cable, or a "
                "switch's port without autonegotiation"
            )
    return notes


def _ping(rail: Rail, peer: str, size: int) -> bool:
    count = ["-c", "3", "-i", "0.2", "-W", "1", "-M", "do", "-s", str(size)]
    return run("ping", "-q", "-n", "-I", rail.device, *count, peer) is not None


def setup(wanted: Wanted) -> None:
    """Bring the link up, prove it, measure it. Raises Refusal; what was before is put back when
    the other host can't be reached."""
    both = choose(wanted)
    port, peer_host = both[0].port, wanted["peer_host"]
    say(f"      QSFP port {port}: {', '.join(f'{r.device} ({r.hca})' for r in both)}")
    refuse_overlap(wanted, both)
    refuse_other_addresses(wanted)
    before = {path: content(path) for path in (RULES, CONFIG)}
    _configure({RULES: rules(wanted, both), CONFIG: config(wanted, both)})
    undo = _address(wanted, both)
    try:
        notes = _patiently(lambda: verify(wanted, both), f"waiting for {peer_host}")
    except Refusal as refusal:
        if not undo:
            raise
        undo()
        _configure({path: old.decode() for path, old in before.items() if old is not None})
        raise Refusal(f"{refusal}; netplan's files are what they were before") from None
    pair = Pair("", wanted["rank"], "", tuple(wanted["own"]), tuple(wanted["peer"]), peer_host)
    other = _greeting(pair, both)
    wrong = alike.driver_difference(rails.driver(), peer_host, str(other.get("driver")))
    if wrong:
        raise Refusal(wrong)
    its = other.get("port")
    if its not in (None, port):
        notes.append(f"the cable is in port {port} here, in port {its} on {peer_host}: it works")
    found = bandwidth.measure(pair, both, wanted["min_gbps"], busy=_serves())
    if not found.get("again"):
        write(MEASURED, json.dumps({"key": _measured_key(wanted, both), **found}) + "\n")
    for note in [*notes, *bandwidth.told(found)]:
        say(f"      {note}")


def _configure(files: dict[str, str]) -> None:
    """Put the firewall and what the agent reads in place. The firewall's unit is not restarted: at
    no moment are the ports of a serving rank open."""
    changed = [path for path, text in files.items() if content(path) != text.encode()]
    for path in changed:
        write(path, files[path])
    service.systemctl("enable", "--quiet", FIREWALL)
    service.systemctl("start", FIREWALL)
    if RULES in changed or not firewall_is_up():
        load_firewall()
    service.systemctl("restart" if changed else "start", AGENT)


def firewall_is_up() -> bool:
    return run("nft", "list", "table", "inet", "sparkwright_fabric") is not None


def load_firewall() -> None:
    """Raises Refusal when the kernel does not take the rules."""
    if run("nft", "-f", RULES) is None:
        raise Refusal(f"nft does not take {RULES}: sudo nft -f {RULES} says why")


def refuse_other_addresses(wanted: Wanted) -> None:
    """Raises Refusal when a pair that is in service here has others: its ranks would lose each
    other, and a change that fails could not go back."""
    for name in served():
        there = read_json(f"{ETC}/{name}/pair.json")
        if (there.get("own"), there.get("peer")) != (wanted["own"], wanted["peer"]):
            raise Refusal(
                f"{name} is in service with other addresses ({there.get('own')}): take both hosts "
                f"out of the group {name} and deploy, then put them back and deploy again"
            )


def _serves() -> bool:
    return any(service.show(f"vllm@{name}.service").active == "active" for name in served())


def _address(wanted: Wanted, both: list[Rail]) -> Callable[[], None] | None:
    """Give the rails their addresses; what undoes it, when anything was changed."""
    plan = netplans.text(both, wanted["own"], wanted["prefixes"], wanted["mtu"])
    names = [rail.device for rail in rails.devices()]
    changes = not netplans.is_in_place(plan) or netplans.foreign(names)
    undo = netplans.put(plan, names) if changes else None
    for rail, address in zip(both, wanted["own"], strict=True):
        # Addresses that no file names, from a guide's `ip addr add`.
        for other, prefix in rails.addresses(rail.device):
            if other != address:
                run("ip", "addr", "del", f"{other}/{prefix}", "dev", rail.device)
    return undo


def _greeting(pair: Pair, both: list[Rail]) -> dict[str, Any]:
    """What the other host's agent tells of it. Raises Refusal."""
    try:
        told: dict[str, Any] = _patiently(
            lambda: _hello(pair), f"waiting for the agent of {pair.peer_host}"
        )
    except UnreachableError as problem:
        allow = "; ".join(f"sudo ufw allow in on {rail.device}" for rail in both)
        raise Refusal(
            f"{problem}, though ping gets through: does a firewall there drop what comes in by "
            f"the rails? On both: {allow}"
        ) from None
    return told


def _hello(pair: Pair) -> dict[str, Any]:
    status, answer = ask(pair, "/")
    if status != 200 or not isinstance(answer, dict):
        raise UnreachableError(f"{pair.peer_host} is not ready: {status} {answer}")
    return answer


def _patiently(look: Callable[[], Any], what: str) -> Any:
    """What a look gives that raises no Refusal, within PEER_S."""
    begun = spoken = time.monotonic()
    while True:
        try:
            return look()
        except Refusal as refusal:
            now = time.monotonic()
            if now - begun > PEER_S:
                raise
            if now - spoken > HEARTBEAT_S:
                say(f"{now - begun:4.0f} s  {what}: {refusal}")
                spoken = now
        time.sleep(1)


def _measured_key(wanted: Wanted, both: list[Rail]) -> str:
    text = json.dumps([boot(), rails.driver(), wanted["min_gbps"], config(wanted, both)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def remove() -> None:
    """Take away what setup brought, but files of others that it kept. Not while a pair serves."""
    if served():
        return
    for unit in (AGENT, FIREWALL):
        service.systemctl("disable", "--quiet", "--now", unit, check=False)
    run("nft", "delete", "table", "inet", "sparkwright_fabric")
    found = read_json(CONFIG).get("rails")
    devices = [str(rail["device"]) for rail in found] if isinstance(found, list) else []
    netplans.remove(devices)
    for device in devices:
        run("ip", "-4", "addr", "flush", "dev", device)
    for path in (RULES, MEASURED, CONFIG):
        if os.path.exists(path):
            os.unlink(path)


def program() -> None:
    (command,) = sys.argv[1:]
    if command == "check":
        text, notes = missing(json.load(sys.stdin))
        print(json.dumps({"missing": text or None, "notes": notes}))
        return
    with lock("fabric", "setting up the link to the other Spark"):
        if command == "remove":
            remove()
        else:
            setup(json.load(sys.stdin))


if __name__ == "__main__":
    main(program)

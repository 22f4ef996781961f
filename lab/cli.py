"""``sparkwright lab``: simulated Sparks on this machine."""

from __future__ import annotations

import argparse
import json
import sys

from lab import docker, manage, record
from lab.faults import FAULTS
from lab.shell import LabError, say


def main(argv: list[str]) -> int:
    """Run ``sparkwright lab`` with ``argv`` and return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        record.check_name(arguments.name)
        result: int = arguments.run(arguments)
        return result
    except LabError as error:
        print(f"sparkwright lab: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("\nInterrupted. Run the command again to finish what it began.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparkwright lab", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="lab", help="which lab (default: lab)")

    up = verbs.add_parser("up", parents=[named], help="start or complete a lab")
    up.add_argument("--sparks", type=int, default=1, metavar="N", help="hosts (default: 1)")
    up.add_argument("--fabric", action="store_true", help="a QSFP cable between each two Sparks")
    up.set_defaults(run=_up)
    down = verbs.add_parser("down", parents=[named], help="remove a lab")
    down.add_argument("--all", action="store_true", help="every lab, the image and the downloads")
    down.set_defaults(run=_down)
    status = verbs.add_parser("status", parents=[named], help="hosts, addresses, faults")
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)
    ssh = verbs.add_parser("ssh", parents=[named], help="log in: ssh HOST [-- COMMAND...]")
    ssh.add_argument("host")
    ssh.add_argument("words", nargs="*", metavar="COMMAND")
    ssh.set_defaults(run=_ssh)
    fault = verbs.add_parser("fault", parents=[named], help="switch a fault on")
    fault.add_argument("--list", action="store_true", help="what faults there are")
    fault.add_argument("host", nargs="?")
    fault.add_argument("fault", nargs="?")
    fault.add_argument("value", nargs="?")
    fault.set_defaults(run=_fault)
    clear = verbs.add_parser("clear", parents=[named], help="switch faults off")
    clear.add_argument("host")
    clear.add_argument("fault", nargs="?", help="default: all")
    clear.set_defaults(run=_clear)
    reboot = verbs.add_parser("reboot", parents=[named], help="reboot a host")
    reboot.add_argument("host")
    reboot.set_defaults(run=_reboot)
    return parser


def _up(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.sparks <= 32:
        raise LabError(f"--sparks {arguments.sparks}: give a number from 1 to 32.", status=2)
    if arguments.fabric and arguments.sparks < 2:
        raise LabError("--fabric needs two Sparks or more: --sparks 2 --fabric", status=2)
    lab = manage.up(arguments.name, arguments.sparks, arguments.fabric)
    say(f"Lab '{lab.name}' is up:")
    for host in lab.hosts:
        say(f"  {host.name}  {host.address}  systemd and sshd answer")
    option = "" if lab.name == "lab" else f" --name {lab.name}"
    say(f"Log in:    sparkwright lab ssh{option} {lab.hosts[0].name}")
    say(f"Take down: sparkwright lab down{option}")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    if arguments.all:
        manage.down_all()
    else:
        manage.down(arguments.name)
        docker.stop_own_daemon()
    return 0


def _status(arguments: argparse.Namespace) -> int:
    rows = manage.status(record.require(arguments.name))
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        faults = ", ".join(row["faults"]) or "no faults"
        systemd = f", systemd {row['systemd']}" if row["systemd"] else ""
        print(f"{row['name']}  {row['address']}  {row['container']}{systemd}, {faults}")
    return 0


def _ssh(arguments: argparse.Namespace) -> int:
    lab = record.require(arguments.name)
    manage.ssh(lab, lab.host(arguments.host), arguments.words)
    return 0


def _fault(arguments: argparse.Namespace) -> int:
    if arguments.list or not (arguments.host and arguments.fault):
        for name, fault in FAULTS.items():
            print(f"{(name + ' ' + fault.argument).strip():<20} {fault.summary}")
        return 0 if arguments.list else 2
    lab = record.require(arguments.name)
    manage.fault(lab, lab.host(arguments.host), arguments.fault, arguments.value)
    say(f"{arguments.host}: {' '.join(filter(None, [arguments.fault, arguments.value]))} is on")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    lab = record.require(arguments.name)
    manage.clear(lab, lab.host(arguments.host), arguments.fault)
    say(f"{arguments.host}: {arguments.fault or 'every fault'} is off")
    return 0


def _reboot(arguments: argparse.Namespace) -> int:
    lab = record.require(arguments.name)
    say(f"{arguments.host}: rebooting (10 to 30 s; up to two minutes with a busy engine)")
    seconds = manage.reboot(lab, lab.host(arguments.host))
    say(f"{arguments.host}: back after {seconds:.0f} s")
    return 0

"""Simulated Sparks that serve with the lab's stand-in engine: how a fleet changes, in seconds.

    sparkwright lab up --name fleet --sparks 3
    pyinfra -y inventory/lab_fleet/sparks.py deploy.py

SPARKWRIGHT_LAB_RELEASE=2 names the next release; STANDIN_* variables (docs/lab.md) make the engine
misbehave. SPARKWRIGHT_LAB names the lab (default: fleet).
"""

import json
import os
from pathlib import Path

_name = os.environ.get("SPARKWRIGHT_LAB", "fleet")
_folder = Path(__file__).resolve().parent.parent.parent / ".lab"
_file = _folder / _name / "lab.json"
_lab = json.loads(_file.read_text()) if _file.exists() else {"hosts": []}
_locks = {"1": "standin.lock.txt", "2": "standin2.lock.txt"}
_release = os.environ.get("SPARKWRIGHT_LAB_RELEASE", "1")

if not _lab["hosts"]:
    raise SystemExit(
        f"No lab named {_name!r} is up. Start it: sparkwright lab up --name {_name} --sparks 3"
    )
if _release not in _locks:
    raise SystemExit(f"SPARKWRIGHT_LAB_RELEASE={_release}: write 1 or 2")

tiny = [
    (
        host["name"],
        {
            "ssh_hostname": host["address"],
            "ssh_port": host["port"],
            "ssh_user": _lab["user"],
            "ssh_key": _lab["key"],
            "ssh_known_hosts_file": _lab["known_hosts"],
            "ssh_strict_host_key_checking": "yes",
            "platform": {
                "architecture": _lab["architecture"],
                "memory_gib": 8,
                "os_reserve_gib": 2,
            },
            "release": {
                "lock": str(_folder / "wheels" / _locks[_release]),
                "python": _lab["python"],
                "cuda": None,
                "find_links": _lab["find_links"],
                "disk_gib": 0.5,
            },
        },
    )
    for host in _lab["hosts"]
]

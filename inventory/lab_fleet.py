"""Several simulated Sparks that serve with the lab's stand-in engine, to try rollouts with.

    sparkwright lab up --name lab --sparks 3
    pyinfra -y inventory/lab_fleet.py deploy.py

SPARKWRIGHT_LAB names the lab (default: lab). SPARKWRIGHT_LAB_RELEASE says which of the stand-in's
two releases is wanted, 1 (default) or 2. The profile is group_data/lab_standin.py.
"""

import json
import os
from pathlib import Path

_root = Path(__file__).resolve().parent.parent / ".lab"
_name = os.environ.get("SPARKWRIGHT_LAB", "lab")
_file = _root / _name / "lab.json"
_lab = json.loads(_file.read_text()) if _file.exists() else {"hosts": []}
_locks = {"1": "standin.lock.txt", "2": "standin2.lock.txt"}
_release = os.environ.get("SPARKWRIGHT_LAB_RELEASE", "1")

if not _lab["hosts"]:
    raise SystemExit(
        f"No lab named {_name!r} is up. Start it: sparkwright lab up --name {_name} --sparks 3"
    )
if _release not in _locks:
    raise SystemExit(f"SPARKWRIGHT_LAB_RELEASE={_release}: write 1 or 2")

lab_standin = [
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
                "lock": str(_root / "wheels" / _locks[_release]),
                "python": _lab["python"],
                "cuda": None,
                "find_links": _lab["find_links"],
                "disk_gib": 0.5,
            },
        },
    )
    for host in _lab["hosts"]
]

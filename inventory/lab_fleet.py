"""Several simulated Sparks that serve with the lab's stand-in engine, to try rollouts with.

    sparkwright lab up --name lab --sparks 3
    pyinfra -y inventory/lab_fleet.py deploy.py

SPARKWRIGHT_LAB names the lab (default: lab). SPARKWRIGHT_LAB_RELEASE says which of the stand-in's
two releases is wanted, 1 (default) or 2. The profile is group_data/lab_standin.py.
"""

import os
import runpy
from pathlib import Path

_here = Path(__file__).resolve().parent
_wheels = _here.parent / ".lab" / "wheels"
_locks = {"1": "standin.lock.txt", "2": "standin2.lock.txt"}
_release = os.environ.get("SPARKWRIGHT_LAB_RELEASE", "1")

try:
    _hosts = runpy.run_path(str(_here / "lab.py"))["tiny_qwen3"]
except SystemExit as error:
    raise SystemExit(f"{error} --sparks 3") from None
if _release not in _locks:
    raise SystemExit(f"SPARKWRIGHT_LAB_RELEASE={_release}: write 1 or 2")

# The hosts of lab.py, with another engine.
lab_standin = [
    (
        host,
        {
            **data,
            "release": {
                "lock": str(_wheels / _locks[_release]),
                "python": data["release"]["python"],
                "cuda": None,
                "find_links": data["release"]["find_links"],
                "disk_gib": 0.5,
            },
        },
    )
    for host, data in _hosts
]

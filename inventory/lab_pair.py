"""Two simulated Sparks that serve a tiny model as one, with the real vLLM over two ranks.

    sparkwright lab up --sparks 2 --fabric
    pyinfra -y inventory/lab_pair.py deploy.py

SPARKWRIGHT_LAB names the lab (default: lab). The profile is group_data/lab_tiny_pair.py.
"""

import runpy
from pathlib import Path

try:
    _hosts = runpy.run_path(str(Path(__file__).resolve().parent / "lab.py"))["tiny_qwen3"]
except SystemExit as error:
    raise SystemExit(f"{error} --sparks 2 --fabric") from None
if len(_hosts) < 2:
    raise SystemExit("The lab has one host: sparkwright lab up --sparks 2 --fabric")

lab_tiny_pair = [(host, {**data, "pair": "desk"}) for host, data in _hosts[:2]]

"""The simulated Sparks that the tests of this folder share: made once, in the order of the files.

spark-1 serves with the real vLLM (test_real.py), spark-2 with the stand-in engine; a QSFP cable
joins them (test_11_fabric.py, test_12_pair.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.helpers import LAB, ROOT, Spark, sparkwright


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files by their numbers, 10 after 9; what is not of this folder stays where it is."""

    def number(item: pytest.Item) -> int:
        found = re.match(r"test_(\d+)_", item.path.name)
        return int(found[1]) if found else 0

    here = [at for at, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[at] for at in here), key=number)
    for at, item in zip(here, ordered, strict=True):
        items[at] = item


@pytest.fixture(scope="session")
def sparks() -> Iterator[dict[str, Spark]]:
    """Two fresh hosts; what a killed run left of them is removed first."""
    sparkwright("lab", "down", "--name", LAB)
    sparkwright("lab", "up", "--sparks", "2", "--fabric", "--name", LAB)
    record = json.loads((ROOT / ".lab" / LAB / "lab.json").read_text())
    wheels = ROOT / ".lab" / "wheels"
    standin = [
        {
            "lock": str(wheels / lock),
            "python": record["python"],
            "cuda": None,
            "find_links": record["find_links"],
            "disk_gib": 0.5,
        }
        for lock in ("standin.lock.txt", "standin2.lock.txt")
    ]
    hosts = {}
    for host in record["hosts"]:
        data = {
            "ssh_hostname": host["address"],
            "ssh_user": record["user"],
            "ssh_key": record["key"],
            "ssh_known_hosts_file": record["known_hosts"],
            "ssh_strict_host_key_checking": "yes",
            "platform": {
                "architecture": record["architecture"],
                "memory_gib": 8,
                "os_reserve_gib": 2,
            },
        }
        hosts[host["name"]] = Spark(host["name"], host["container"], data, standin)
    yield hosts


@pytest.fixture
def spark(sparks: dict[str, Spark]) -> Spark:
    """The host for tests with the stand-in engine."""
    return sparks["spark-2"]

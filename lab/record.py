"""What is on disk about the labs of this checkout: ``.lab/<name>/lab.json`` and shared folders."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab.shell import LabError

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".lab"
CACHE = STATE / "cache"  # downloads of uv and pip, shared by all hosts
MODELS = STATE / "models"
WHEELS = STATE / "wheels"
LOCKS = STATE / "locks"
RESERVED = {"cache", "models", "wheels", "locks"}


@dataclass
class Host:
    """One simulated Spark as an SSH client reaches it."""

    name: str
    address: str
    container: str
    port: int = 22


@dataclass
class Record:
    """One lab: what ``inventory/lab.py`` and the tests need to know about it."""

    name: str
    network: str
    subnet: str
    image: str
    key: str
    known_hosts: str
    user: str = "nvidia"
    python: str = ""
    architecture: str = ""
    find_links: list[str] = field(default_factory=list)
    torch: str = "index"
    model: str = "/srv/models/tiny-qwen3"
    standin_lock: str | None = None
    fabric: bool = False
    hosts: list[Host] = field(default_factory=list)

    def host(self, name: str) -> Host:
        """Return the host called ``name``; raises LabError when the lab has none."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts) or "none"
        raise LabError(f"Lab '{self.name}' has no host '{name}'. Its hosts: {known}.")


def check_name(name: str) -> str:
    """Return ``name`` when a lab may be called so; raises LabError otherwise."""
    if name in RESERVED or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
        raise LabError(
            f"'{name}' can't name a lab. Allowed: up to 31 of a-z, 0-9 and '-', "
            f"and none of {', '.join(sorted(RESERVED))}.",
            status=2,
        )
    return name


def folder(name: str) -> Path:
    """Return the folder of lab ``name``."""
    return STATE / name


def names() -> list[str]:
    """Return the names of the labs that have a record here."""
    return sorted(path.parent.name for path in STATE.glob("*/lab.json"))


def load(name: str) -> Record | None:
    """Return the record of lab ``name``, or None when there is none that can be read."""
    try:
        raw = json.loads((folder(name) / "lab.json").read_text())
        raw["hosts"] = [Host(**host) for host in raw["hosts"]]
        return Record(**raw)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        # Unreadable counts as absent: `up` writes it anew from what Docker knows.
        return None


def require(name: str) -> Record:
    """Return the record of lab ``name``; raises LabError when the lab is not up."""
    record = load(name)
    if record is None:
        known = ", ".join(names())
        raise LabError(
            f"There is no lab '{name}'"
            + (f" (there is: {known})" if known else "")
            + f". Start it: sparkwright lab up --sparks 1 --name {name}"
        )
    return record


def save(record: Record) -> None:
    """Write ``record`` so that a reader sees the old or the new one, never half of it."""
    path = folder(record.name) / "lab.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(asdict(record), indent=2) + "\n")
    os.replace(draft, path)

"""The files that a host gets, as text: templates filled, nothing sent."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sparkwright import engine, paths
from sparkwright.fabric import Link
from sparkwright.plan import ROOT, HostPlan, Instance

_HOST_PROGRAMS = (
    "common.py",
    "probe.py",
    "tools.py",
    "release.py",
    "weights.py",
    "engine_log.py",
    "service.py",
    "instance.py",
    "rails.py",
    "pairing.py",
    "alike.py",
    "netplans.py",
    "bandwidth.py",
    "fabric.py",
    "together.py",
    "pair.py",
    "pair_agent.py",
    "starting.py",
    "undoing.py",
    "transaction.py",
    "detached.py",
    "status.py",
    "activate.py",
    "ready.py",
    "watch.py",
)
_UNITS = (
    "sparkwright-watch@.service",
    "sparkwright-watch@.timer",
    "sparkwright-recover.service",
    "sparkwright-fabric.service",
    "sparkwright-pair.service",
)


@dataclass(frozen=True)
class ManagedFile:
    """A file as it must be on a host. mode: octal digits, `0644`."""

    path: str
    content: str = field(repr=False)
    mode: str = "0644"
    owner: str = "root"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(ROOT / "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )


def template(target: str, **values: object) -> str:
    """Fill `templates/<target>.j2`; the target is the path on the host without its first slash."""
    return _templates().get_template(f"{target}.j2").render(paths=paths, **values)


def base_files() -> list[ManagedFile]:
    """Files that every Spark gets, whatever it serves."""
    files = [
        ManagedFile(f"{paths.HOST_PROGRAMS}/{name}", (ROOT / "host" / name).read_text(), "0755")
        for name in _HOST_PROGRAMS
    ]
    units = "etc/systemd/system"
    files += [ManagedFile(f"/{units}/{n}", template(f"{units}/{n}")) for n in _UNITS]
    files.append(ManagedFile("/etc/default/earlyoom", template("etc/default/earlyoom")))
    files.append(ManagedFile(f"{paths.OPT}/tools.txt", (ROOT / "releases/tools.txt").read_text()))
    return files


def release_files(plan: HostPlan) -> list[ManagedFile]:
    """The lock files of the releases that a host serves with."""
    return [
        ManagedFile(f"{paths.RELEASES}/{release.id}.txt", release.lock_text)
        for release in plan.releases
    ]


def instance_files(instance: Instance) -> list[ManagedFile]:
    """What activation puts in service for one instance, in its staging folder.

    A change of `start.json` (how to follow a start) or `instance.conf` (time-outs, order) does not
    restart the engine; a change of any other does.
    """
    profile = instance.profile
    folder = f"{paths.STAGED}/{instance.name}"
    environment = engine.environment(profile, instance.name)
    drop_in = template(
        "etc/systemd/system/vllm@.service.d/instance.conf",
        instance=instance,
        start_timeout_s=instance.start_timeout_s,
        stop_timeout_s=profile.shutdown_timeout_s + 30,
    )
    start = {
        "endpoint": {"host": profile.host, "port": profile.port, "name": profile.names[0]},
        "phases": engine.PAIR_PHASES if instance.link else engine.PHASES,
        "normal": engine.normal_start(profile),
        "timeout_s": instance.start_timeout_s + 30,
        "memory_fraction": profile.gpu_memory_utilization,
    }
    wanted = engine.serve_options(profile, instance.model_path, instance.quantization)
    link = instance.link
    ranks = _rank_options(instance, link) if link else {}
    serve = engine.serve_yaml(wanted | ranks, instance.release.engine_version)
    return [
        ManagedFile(f"{folder}/serve.yaml", serve),
        *([_pair_file(instance, link, [wanted, environment])] if link else []),
        ManagedFile(
            f"{folder}/env",
            template("etc/sparkwright/profile/env", environment=environment, profile=profile),
            "0640",
        ),
        ManagedFile(f"{folder}/release", f"{instance.release.id}\n"),
        ManagedFile(f"{folder}/vllm@.service", template("etc/systemd/system/vllm@.service")),
        ManagedFile(f"{folder}/instance.conf", drop_in),
        ManagedFile(f"{folder}/start.json", json.dumps(start, indent=1) + "\n"),
    ]


def _rank_options(instance: Instance, link: Link) -> dict[str, Any]:
    head = link.peer[0] if link.rank else link.own[0]
    return engine.rank_options(link.rank, head, instance.master_port)


def _pair_file(instance: Instance, link: Link, equal: list[dict[str, Any]]) -> ManagedFile:
    """What a rank knows of its pair (host/pairing.py). equal: what both ranks must be started with;
    the key is of that, and ranks with different keys wait for each other."""
    ends = sorted([link.own, link.peer])
    # So that a setting that the engine sees is tried like every other change.
    network = [link.settings.sockets, link.settings.merge_nics, link.settings.mtu]
    both = [instance.release.id, instance.master_port, ends, network, *equal]
    content = {
        "pair": link.pair,
        "rank": link.rank,
        "key": hashlib.sha256(json.dumps(both, sort_keys=True).encode()).hexdigest()[:32],
        "own": link.own,
        "peer": link.peer,
        "peer_host": link.peer_host,
        "model": instance.model_path,
        "gid_index": link.settings.gid_index,
    }
    text = json.dumps(content, indent=1) + "\n"
    return ManagedFile(f"{paths.STAGED}/{instance.name}/pair.json", text)

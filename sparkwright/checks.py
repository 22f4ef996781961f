"""Mistakes in an inventory that show before any host is asked: names, groups, ports, keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

from sparkwright.errors import Problem, nearest, shown
from sparkwright.settings import ARCHITECTURES, ModelProfile, Platform

if TYPE_CHECKING:
    from sparkwright.plan import HostPlan, Plan, RawHost
    from sparkwright.releases import Release
    from sparkwright.rollout import Rollout

# What data files may set besides pyinfra's own: connectors' settings and global arguments.
_KEYS = ("profile", "release", "platform", "pair", "fabric", "rollout")
# Arguments of every operation with which waves have no order, or a failure no consequence, or a
# canary that fails is restarted again and again.
DISORDER = (
    *("_serial", "_run_once", "_ignore_errors", "_continue_on_error"),
    *("_retries", "_retry_until"),
)
_PYINFRA_KEYS = ("_", "ssh_", "fake_", "docker_", "local_", "vagrant_")


def unknown_groups(
    raw: RawHost, others: set[str], known: set[str], serves: bool
) -> Iterable[Problem]:
    """A group that is no profile is fine (a rack), unless it looks like one that was meant."""
    for group in sorted(others):
        hint = nearest(group, known)
        if hint.startswith("did you mean") or not serves:
            yield Problem(
                f"host {raw.name}",
                "group",
                repr(group),
                f"no such file group_data/{group}.py with a profile; {hint}",
            )


def same_machine(hosts: Iterable[RawHost]) -> Iterable[Problem]:
    """Two names for one machine would undo each other's work."""
    seen: dict[tuple[str, str], str] = {}
    for raw in hosts:
        yield from _address(raw)
        user, at, name = raw.name.partition("@")
        if user and at:
            fix = f"the account is a setting of its own: ({name!r}, {{'ssh_user': {user!r}}})"
            yield Problem(f"host {raw.name}", "", "", fix)
        address = str(raw.data.get("ssh_hostname") or raw.name)
        port = str(raw.data.get("ssh_port") or 22)
        other = seen.setdefault((address.lower(), port), raw.name)
        if other != raw.name:
            yield Problem(
                f"host {raw.name}",
                "ssh_hostname",
                repr(address),
                f"{other} is the same machine: write one host into both groups",
            )


def _address(raw: RawHost) -> Iterable[Problem]:
    for key, kind, fix in (
        ("ssh_hostname", str, "write a name or an address, a text"),
        ("ssh_user", str, "write the name of an account, a text"),
        ("ssh_port", int, "write a number from 1 to 65535, such as 22"),
    ):
        value = raw.data.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            yield Problem(f"host {raw.name}", key, shown(value), fix)


def unknown_keys(where: str, data: Mapping[str, Any]) -> Iterable[Problem]:
    """A misspelt `profile` must not read as "serves nothing", nor one that nobody reads."""
    for key in data:
        if key == "profile" and where.startswith("host "):
            fix = "belongs into a file: group_data/NAME.py, and the host into the group NAME"
            yield Problem(where, key, "", fix)
        elif key in DISORDER:
            fix = "a fleet could no longer be changed wave by wave: take it out"
            yield Problem(where, key, "", fix)
        elif key not in _KEYS and not key.startswith(_PYINFRA_KEYS):
            known = [k for k in _KEYS if k != "profile" or not where.startswith("host ")]
            tail = nearest(key, known)
            if key in ModelProfile.model_fields:
                tail = f"{key} belongs into profile = dict(...); another value for one host is " + (
                    "another profile: copy the file in group_data/"
                )
            yield Problem(where, key, "", f"no such setting; {tail}")


def port_clashes(raw: RawHost, profiles: Mapping[str, ModelProfile]) -> Iterable[Problem]:
    """Two profiles of one host can't listen on one port."""
    ports: dict[int, str] = {}
    for group, profile in profiles.items():
        other = ports.setdefault(profile.port, group)
        if other != group:
            yield Problem(
                f"host {raw.name}",
                "port",
                str(profile.port),
                f"profiles {other} and {group} both use it: give one of them another port",
            )


def missing_key(
    group: str, profile: ModelProfile, environment: Mapping[str, str]
) -> Iterable[Problem]:
    """An API key that is to come from the environment, but does not, or can't be passed on."""
    variable = profile.key_variable
    if variable is None:
        return
    key = environment.get(variable, "")
    if not key:
        found = "is not set where you run this"
    elif not (key.isascii() and key.isprintable()) or set(key) & set(" \"'\\$#"):
        found = "holds blanks, quotes, $, # or backslashes, which a unit can't pass on"
    else:
        return
    yield Problem(
        f"group_data/{group}.py",
        "api_key",
        repr(profile.api_key),
        f"{variable} {found}: export {variable}=... and run again, or write 'generate'",
    )


def unmet_engine(
    where: str,
    profile: ModelProfile,
    release: Release,
    known: Callable[[], Mapping[str, str | None]],
    architecture: str,
) -> Iterable[Problem]:
    """A profile that needs another vLLM than its host's release holds.

    known: gives the engine version of each lock file in releases/. architecture: of the host.
    """
    version, lock = release.engine_version, release.settings.lock
    if lock is not None and version is None:
        fix = "pins no vllm==VERSION, so it is no lock of an engine: make one, `sparkwright lock`"
        yield Problem(lock or "release", "", "", fix)
    if profile.engine is None or version is None:
        return
    wanted = SpecifierSet(profile.engine, prereleases=True)
    if version not in wanted:
        elsewhere = [a for a in ARCHITECTURES if a != architecture]
        fits = sorted(
            name
            for name, other in known().items()
            if other and other in wanted and not any(a in name for a in elsewhere)
        )
        have = " or ".join(fits) or "none of those in releases/: make one, `sparkwright lock`"
        fix = f"the release holds vLLM {version}; releases that meet it: {have}"
        yield Problem(where, "engine", repr(profile.engine), fix)


def missing_ray(where: str, profile: ModelProfile, release: Release) -> Iterable[Problem]:
    """vLLM's wheels for CUDA do not bring Ray along (0.27 to 0.33)."""
    if profile.ray and not re.search(r"^ray\b", release.lock_text, re.M | re.I):
        fix = f"the release {release.settings.lock or release.id} holds no ray: make a lock of both"
        version = release.engine_version or "VERSION"
        fix = f"{fix}, `sparkwright lock vllm=={version} ray==VERSION`, the version of the cluster"
        yield Problem(where, "ray", repr(profile.ray), fix)


def wrong_lock(host: str, release: Release, platform: Platform) -> Iterable[Problem]:
    """A lock that was resolved for another machine or Python: its header says for which."""
    if release.engine_version is None:  # no lock of an engine at all, which is said already
        return
    made = re.search(r"^# uv pip compile .*", release.lock_text, re.M)
    lock, header = release.settings.lock, made[0] if made else ""
    machine = re.search(r"--python-platform (aarch64|x86_64)\b", header)
    if machine and machine[1] != platform.architecture:
        fix = f"was made for {machine[1]}, this host is {platform.architecture}: another lock"
        yield Problem(f"host {host}", "release.lock", repr(lock), fix)
    python = re.search(r"--python-version (3\.\d+)\b", header)
    # In a lock for every platform (--universal) that is the oldest Python only.
    if machine and python and python[1] != release.settings.python:
        fix = f"{lock} was made for Python {python[1]}: write that, or make another lock"
        yield Problem(f"host {host}", "release.python", repr(release.settings.python), fix)


def unequal_pairs(plans: Mapping[str, HostPlan]) -> Iterable[Problem]:
    """The two Sparks of a pair must hold the same engine on the same kind of machine."""
    for plan in plans.values():
        for instance in plan.instances:
            if instance.pair is None or instance.rank == 0:
                continue
            head = plans.get(instance.pair.hosts[0])
            other = (
                next((i for i in head.instances if i.name == instance.name), None) if head else None
            )
            if not head or not other:
                continue
            where = f"pair {instance.pair.name}"
            if other.release.id != instance.release.id:
                found = f"{other.release.id} on {head.name}, {instance.release.id} on {plan.name}"
                yield Problem(where, "release", found, "both Sparks need the same release")
            if head.platform != plan.platform:
                fix = f"{head.name} and {plan.name} must be the same kind of machine"
                yield Problem(where, "platform", "", fix)


def unequal_rollouts(hosts: Iterable[RawHost], read: Iterable[Rollout | None]) -> Iterable[Problem]:
    """One run has one policy."""
    first: tuple[str, Rollout] | None = None
    for raw, rollout in zip(hosts, read, strict=True):
        if rollout and first and rollout != first[1]:
            fix = f"differs from that of {first[0]}: write it once, in group_data/all.py"
            yield Problem(f"host {raw.name}", "rollout", "", fix)
        first = first or ((raw.name, rollout) if rollout else None)


def start_cap_too_low(rollout: Rollout, profiles: Mapping[str, ModelProfile]) -> Iterable[Problem]:
    """A limit below a start that is expected would undo every change."""
    cap = rollout.start_timeout_s
    for group, profile in profiles.items():
        longest = max(profile.expects.cold_start_s or 0, profile.expects.warm_start_s or 0)
        if cap is not None and cap < longest:
            fix = f"is below the start that {group} expects ({longest} s): no start could succeed"
            yield Problem("rollout", "start_timeout_s", str(cap), fix)


def not_reproducible(release: Release) -> Problem:
    """What a release without a lock, or a lock without hashes, means."""
    where = f"release {release.id}"
    if release.unhashed:
        names = ", ".join(release.unhashed[:3])
        more = " and others" if len(release.unhashed) > 3 else ""
        fix = (
            f"{names}{more} have no hash: the install will refuse it; make it with sparkwright lock"
        )
        return Problem(where, "", "", fix)
    fix = (
        "is resolved on the host when it is installed: it can't be reproduced, and hosts may "
        "differ; a lock from releases/ is the same everywhere"
    )
    return Problem(where, "", "", fix)


def halved_pairs(plan: Plan, chosen: set[str]) -> Iterable[Problem]:
    """A run that is limited to one Spark of a pair would leave the two unequal.

    chosen: names of the hosts that the run is limited to.
    """
    for name in chosen & set(plan.hosts):
        for instance in plan.hosts[name].instances:
            missing = set(instance.pair.hosts if instance.pair else ()) - chosen
            for other in missing:
                assert instance.pair is not None
                fix = f"{other} is the other half of pair {instance.pair.name}: name both"
                yield Problem(f"host {name}", "--limit", "", fix)

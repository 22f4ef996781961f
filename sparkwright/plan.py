"""From an inventory's data to what each host must hold, or to every mistake in it at once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from sparkwright import paths
from sparkwright.errors import PlanError, Problem, nearest, problems_of
from sparkwright.settings import EngineRelease, ModelProfile, Platform, Setting

ROOT = Path(__file__).resolve().parent.parent

T = TypeVar("T", bound=Setting)

# What data files may set besides pyinfra's own: connectors' settings and global arguments.
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)
_KEYS = ("profile", "release", "platform")
_PYINFRA_KEYS = ("_", "ssh_", "fake_", "docker_", "local_", "vagrant_")


@dataclass(frozen=True)
class RawHost:
    """A host as the inventory gives it: nothing checked yet."""

    name: str
    groups: tuple[str, ...]
    data: Mapping[str, Any]
    own: Mapping[str, Any] = field(default_factory=dict)
    """What the inventory itself says of this host; part of `data` too."""


@dataclass(frozen=True)
class Release:
    """An engine release, identified by what it is made of."""

    settings: EngineRelease
    lock_text: str = field(repr=False)

    @property
    def id(self) -> str:
        """Names the folder on the host: another lock or another Python is another release."""
        made_of = f"{self.settings.python} {self.settings.cuda}\n{self.lock_text}"
        digest = hashlib.sha256(made_of.encode()).hexdigest()
        return f"{Path(self.settings.lock).stem}-{digest[:10]}"

    @property
    def path(self) -> str:
        return f"{paths.RELEASES}/{self.id}"


@dataclass(frozen=True)
class Instance:
    """One profile on one host: one systemd unit."""

    name: str
    profile: ModelProfile
    release: Release
    after: str | None
    """The instance of the same host that starts before this one: one engine start at a time."""

    @property
    def model_path(self) -> str:
        """Folder with the weights on the host."""
        if self.profile.is_path:
            return self.profile.model
        folder = self.profile.model.replace("/", "--")
        return f"{paths.MODELS}/{folder}/{self.profile.revision}"


@dataclass(frozen=True)
class HostPlan:
    """What one host must be and hold."""

    name: str
    platform: Platform
    instances: tuple[Instance, ...]

    @property
    def releases(self) -> tuple[Release, ...]:
        return tuple({i.release.id: i.release for i in self.instances}.values())


def build_plan(
    hosts: Iterable[RawHost],
    group_data: Mapping[str, Mapping[str, Any]],
    ignored_groups: Iterable[str] = ("all",),
    environment: Mapping[str, str] = MappingProxyType({}),
    root: Path = ROOT,
) -> dict[str, HostPlan]:
    """Check the whole inventory and plan every host of it.

    group_data: for each group that has a file in group_data/, what the file defines.
    ignored_groups: groups that choose nothing (`all`, the inventory file's own).
    environment: variables of the controller, which API keys may come from.
    root: folder that lock files are relative to.
    Raises PlanError with every problem found.
    """
    problems: list[Problem] = []
    profiles = _profiles(group_data, problems)
    for group, data in group_data.items():
        problems += _unknown_keys(f"group_data/{group}.py", data)
    known = {name for name, data in group_data.items() if "profile" in data}
    plans: dict[str, HostPlan] = {}
    hosts = list(hosts)
    problems += _same_machine(hosts)
    for raw in hosts:
        chosen = [group for group in dict.fromkeys(raw.groups) if group in known]
        problems += _unknown_keys(f"host {raw.name}", raw.own)
        others = set(raw.groups) - known - set(ignored_groups)
        problems += _unknown_groups(raw, others, known, bool(chosen))
        platform = _read(raw, "platform", Platform, problems, required=False)
        release = _release(raw, problems, root) if chosen else None
        if platform is None or (chosen and release is None):
            continue
        usable = [group for group in chosen if group in profiles]
        problems += _clashes(raw, platform, {group: profiles[group] for group in usable})
        for group in usable:
            problems += _missing_key(group, profiles[group], environment)
        instances: list[Instance] = []
        for group in usable:
            assert release is not None  # chosen is not empty here
            before = instances[-1].name if instances else None
            instances.append(Instance(group, profiles[group], release, before))
        plans[raw.name] = HostPlan(raw.name, platform, tuple(instances))
    if problems:
        raise PlanError(problems)
    return plans


def check_syntax(root: Path = ROOT) -> None:
    """End with a message when a data file is no Python; pyinfra would call it an internal error."""
    for file in sorted((root / "group_data").glob("*.py")):
        try:
            compile(file.read_text(), str(file), "exec")
        except (SyntaxError, UnicodeDecodeError) as error:
            line = f" line {error.lineno}" if isinstance(error, SyntaxError) else ""
            reason = error.msg if isinstance(error, SyntaxError) else "it is no UTF-8 text"
            raise SystemExit(f"group_data/{file.name}{line}: {reason}; nothing was done") from None


def _profiles(
    group_data: Mapping[str, Mapping[str, Any]], problems: list[Problem]
) -> dict[str, ModelProfile]:
    profiles: dict[str, ModelProfile] = {}
    for group, data in group_data.items():
        if "profile" not in data:
            continue
        where = f"group_data/{group}.py"
        if not _NAME.fullmatch(group):
            allowed = "it becomes part of a unit's name: 1 to 64 letters without accents, digits, _"
            problems.append(Problem(where, "", repr(group), allowed))
            continue
        written = data["profile"]
        if not isinstance(written, Mapping):
            problems.append(Problem(where, "profile", type(written).__name__, "write dict(...)"))
            continue
        try:
            profiles[group] = ModelProfile.model_validate(dict(written))
        except ValidationError as error:
            problems += problems_of(error, where, ModelProfile)
            continue
        if profiles[group].tensor_parallel_size > 1:
            problems.append(
                Problem(where, "tensor_parallel_size", "> 1", "pairs are not supported yet, use 1")
            )
    return profiles


def _read(
    raw: RawHost, key: str, model: type[T], problems: list[Problem], required: bool = True
) -> T | None:
    written = raw.data.get(key)
    if written is None and not required:
        written = {}
    where = f"host {raw.name}"
    if not isinstance(written, Mapping):
        found = "" if written is None else repr(written)
        problems.append(
            Problem(where, key, found, f"write {key} = dict(...), for all hosts in all.py")
        )
        return None
    try:
        return model.model_validate(dict(written))
    except ValidationError as error:
        problems += problems_of(error, f"{where}: {key}", model)
        return None


def _release(raw: RawHost, problems: list[Problem], root: Path) -> Release | None:
    settings = _read(raw, "release", EngineRelease, problems)
    if settings is None:
        return None
    file = root / settings.lock
    try:
        return Release(settings, file.read_text())
    except (OSError, ValueError):
        have = [f"releases/{f.name}" for f in (root / "releases").glob("vllm*.txt")]
        problems.append(
            Problem(
                f"host {raw.name}",
                "release.lock",
                repr(settings.lock),
                f"no such file; {nearest(settings.lock, have)}",
            )
        )
        return None


def _unknown_groups(
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


def _same_machine(hosts: Iterable[RawHost]) -> Iterable[Problem]:
    """Two names for one machine would undo each other's work."""
    seen: dict[tuple[str, object], str] = {}
    for raw in hosts:
        address = str(raw.data.get("ssh_hostname") or raw.name)
        other = seen.setdefault((address, raw.data.get("ssh_port") or 22), raw.name)
        if other != raw.name:
            yield Problem(
                f"host {raw.name}",
                "ssh_hostname",
                repr(address),
                f"{other} is the same machine: write one host into both groups",
            )


def _unknown_keys(where: str, data: Mapping[str, Any]) -> Iterable[Problem]:
    """A misspelt `profile` must not read as "serves nothing"."""
    for key in data:
        if key not in _KEYS and not key.startswith(_PYINFRA_KEYS):
            yield Problem(where, key, "", f"no such setting; {nearest(key, _KEYS)}")


def _clashes(
    raw: RawHost, platform: Platform, profiles: Mapping[str, ModelProfile]
) -> Iterable[Problem]:
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
    # A Spark does not OOM-kill, it freezes.
    budget = sum(profile.budget for profile in profiles.values())
    shares = [
        f"{group} {profile.budget:g}"
        + ("" if profile.gpu_memory_utilization else " (vLLM's default)")
        for group, profile in profiles.items()
    ]
    allowed = max(0, 1 - platform.os_reserve_gib / platform.memory_gib)
    if profiles and budget > allowed + 1e-9:
        yield Problem(
            f"host {raw.name}",
            "gpu_memory_utilization",
            f"{budget:.2f} in all",
            f"{', '.join(shares)}: lower it to {allowed:.2f} of the memory at most, so that "
            f"{platform.os_reserve_gib:g} GiB are left for the OS",
        )


def _missing_key(
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

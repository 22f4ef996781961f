"""From an inventory's data to what each host must hold, or to every mistake in it at once."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from sparkwright import budget, checks, engine, memory, paths
from sparkwright.contradictions import contradictions
from sparkwright.errors import PlanError, Problem, nearest, problems_of, shown
from sparkwright.fabric import MASTER_PORT, Fabric, Link, link_pair
from sparkwright.memory import Estimate
from sparkwright.pairs import Member, Pair, find_pairs
from sparkwright.releases import EngineRelease, Release, version_in
from sparkwright.rollout import Rollout
from sparkwright.settings import ModelProfile, Platform, Setting

ROOT = Path(__file__).resolve().parent.parent

T = TypeVar("T", bound=Setting)

ALLOWANCE_S = 120
"""What a start may take beyond the engine's own limit: imports before, the API server after it."""

_NAME = re.compile(r"[A-Za-z0-9_]{1,64}", re.ASCII)


@dataclass(frozen=True)
class RawHost:
    """A host as the inventory gives it: nothing checked yet."""

    name: str
    groups: tuple[str, ...]
    data: Mapping[str, Any]
    own: Mapping[str, Any] = field(default_factory=dict)
    """What the inventory itself says of this host; part of `data` too."""


@dataclass(frozen=True)
class Instance:
    """One profile on one host: one systemd unit."""

    name: str
    profile: ModelProfile
    release: Release
    after: str | None
    """The instance of the same host that starts before this one: one engine start at a time."""
    config: Mapping[str, Any] | None = field(default=None, repr=False)
    """The model's config.json as far as it is known here: the file itself, or the profile's."""
    quantization: str | None = None
    """What `--quantization` has to say in this release; None: nothing."""
    pair: Pair | None = None
    rank: int = 0
    link: Link | None = None
    """The fabric over which it is one server with the other host of its pair."""
    master_port: int = MASTER_PORT
    """Where rank 0 listens for rank 1."""
    start_cap_s: int | None = None
    """No start may take longer, in seconds, whatever the profile allows (`rollout`)."""

    @property
    def start_timeout_s(self) -> int:
        """Longest start, in seconds, as systemd enforces it.

        It is the outer limit, so that the engine's own error is what is read; a cap is a cap.
        """
        longest = self.profile.ready_timeout_s + ALLOWANCE_S
        return longest if self.start_cap_s is None else min(longest, self.start_cap_s)

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
    estimates: tuple[Estimate, ...] = ()
    """Memory of each instance."""

    @property
    def releases(self) -> tuple[Release, ...]:
        return tuple({i.release.id: i.release for i in self.instances}.values())

    @property
    def link(self) -> Link | None:
        """Its end of the fabric, when it is one of a pair."""
        return next((i.link for i in self.instances if i.link), None)


@dataclass(frozen=True)
class Plan:
    """All hosts of an inventory, and everything that is wrong or doubtful about it.

    hosts: those that could be planned, in inventory order; with problems, nothing is deployed.
    """

    hosts: Mapping[str, HostPlan]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    rollout: Rollout = field(default_factory=lambda: Rollout.model_validate({}))


def build_plan(
    hosts: Iterable[RawHost],
    group_data: Mapping[str, Mapping[str, Any]],
    ignored_groups: Iterable[str] = ("all",),
    environment: Mapping[str, str] = MappingProxyType({}),
    root: Path = ROOT,
) -> dict[str, HostPlan]:
    """The plan of each host. Arguments as for `make_plan`; raises PlanError with every problem."""
    plan = make_plan(hosts, group_data, ignored_groups, environment, root)
    if plan.problems:
        raise PlanError(plan.problems)
    return dict(plan.hosts)


def make_plan(
    hosts: Iterable[RawHost],
    group_data: Mapping[str, Mapping[str, Any]],
    ignored_groups: Iterable[str] = ("all",),
    environment: Mapping[str, str] = MappingProxyType({}),
    root: Path = ROOT,
) -> Plan:
    """Check the whole inventory and plan every host of it. Reads files, asks no network.

    group_data: for each group that has a file in group_data/, what the file defines.
    ignored_groups: groups that choose nothing (`all`, the inventory file's own).
    environment: variables of the controller: API keys, and where Hugging Face's cache is.
    root: folder that lock files are relative to.
    """
    planner = _Planner(group_data, environment, root)
    hosts = list(hosts)
    planner.problems += checks.same_machine(hosts)
    rollout = planner.rollout(hosts)
    chosen = {raw.name: planner.choice(raw, set(ignored_groups)) for raw in hosts}
    sizes = {
        name: 1 if profile.ray else profile.tensor_parallel_size
        for name, profile in planner.profiles.items()
    }
    members = (Member(raw.name, raw.data.get("pair"), chosen[raw.name]) for raw in hosts)
    pairs, incomplete = find_pairs(members, sizes)
    planner.problems += incomplete
    links = planner.links(hosts, pairs)
    plans = {raw.name: planner.host(raw, chosen[raw.name], pairs, links) for raw in hosts}
    planned = {name: plan for name, plan in plans.items() if plan}
    planner.problems += checks.unequal_pairs(planned)
    return Plan(planned, tuple(planner.problems), tuple(planner.warnings), rollout)


class _Planner:
    """What the hosts of one inventory share while they are planned."""

    def __init__(
        self,
        group_data: Mapping[str, Mapping[str, Any]],
        environment: Mapping[str, str],
        root: Path,
    ) -> None:
        self.environment, self.root = environment, root
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.profiles: dict[str, ModelProfile] = {}
        self.known = {group for group, data in group_data.items() if "profile" in data}
        self.texts: dict[Path, str] = {}
        self.releases: dict[EngineRelease, Release] = {}
        self.estimates: dict[tuple[str, str, float], Estimate] = {}
        self.quantized: dict[tuple[str, str, str], str | None] = {}
        self.configs: dict[str, Mapping[str, Any] | None] = {}
        self.start_cap_s: int | None = None
        for group, data in group_data.items():
            where = f"group_data/{group}.py"
            self.problems += checks.unknown_keys(where, data)
            if "profile" in data:
                self._profile(where, group, data["profile"])

    @cached_property
    def locks(self) -> Mapping[str, str | None]:
        """For each lock file of the project the version of vLLM in it."""
        found = {}
        for file in sorted((self.root / "releases").glob("vllm*.txt")):
            with contextlib.suppress(OSError, ValueError):  # only a host that names it is told
                found[f"releases/{file.name}"] = version_in(self._text(file))
        return found

    def _text(self, file: Path) -> str:
        if not file.is_file() and file.exists():
            raise IsADirectoryError(None, "it is no file")  # a device or a pipe has no end
        if file not in self.texts:
            self.texts[file] = file.read_text()
        return self.texts[file]

    def _profile(self, where: str, group: str, written: object) -> None:
        if not _NAME.fullmatch(group):
            allowed = "it becomes part of a unit's name: 1 to 64 letters without accents, digits, _"
            self.problems.append(Problem(where, "", repr(group), allowed))
        elif not isinstance(written, Mapping):
            self.problems.append(
                Problem(where, "profile", type(written).__name__, "write dict(...)")
            )
        else:
            try:
                self.profiles[group] = ModelProfile.model_validate(dict(written))
            except ValidationError as error:
                self.problems += map(engine.placed, problems_of(error, where, ModelProfile))

    def rollout(self, hosts: Iterable[RawHost]) -> Rollout:
        """The one rollout policy that all hosts share."""
        hosts = list(hosts)
        read = [self._read(raw, "rollout", Rollout, required=False) for raw in hosts]
        self.problems += checks.unequal_rollouts(hosts, read)
        rollout = next((entry for entry in read if entry), Rollout.model_validate({}))
        self.start_cap_s = rollout.start_timeout_s
        self.problems += checks.start_cap_too_low(rollout, self.profiles)
        return rollout

    def choice(self, raw: RawHost, ignored: set[str]) -> tuple[str, ...]:
        """The profiles that a host's groups choose, in the order of the groups."""
        chosen = [group for group in dict.fromkeys(raw.groups) if group in self.known]
        self.problems += checks.unknown_keys(f"host {raw.name}", raw.own)
        others = set(raw.groups) - self.known - ignored
        self.problems += checks.unknown_groups(raw, others, self.known, bool(chosen))
        return tuple(chosen)

    def links(
        self, hosts: Iterable[RawHost], pairs: Mapping[tuple[str, str], Pair]
    ) -> dict[str, Link]:
        """By host its end of its pair's link; of pairs whose settings make sense."""
        fabrics: dict[str, Fabric] = {}
        for raw in hosts:
            settings = self._read(raw, "fabric", Fabric, required=False)
            if settings:
                fabrics[raw.name] = settings
            if "fabric" in raw.own and not any(host == raw.name for host, _ in pairs):
                fix = "is for the two Sparks of a pair, this one is in none: take it out"
                self.problems.append(Problem(f"host {raw.name}", "fabric", "", fix))
        found: dict[str, Link] = {}
        for pair in dict.fromkeys(pairs.values()):
            if not set(pair.hosts) <= set(fabrics):
                continue
            served = {profile for (_, profile), other in pairs.items() if other == pair}
            ends, problems = link_pair(pair.name, pair.hosts, fabrics, served)
            found |= ends
            self.problems += problems
        return found

    def host(
        self,
        raw: RawHost,
        chosen: tuple[str, ...],
        pairs: Mapping[tuple[str, str], Pair],
        links: Mapping[str, Link],
    ) -> HostPlan | None:
        """The plan of one host; None when too little of it could be read."""
        platform = self._read(raw, "platform", Platform, required=False)
        release = self._release(raw) if chosen else None
        # Those of a pair last: while they wait for the other Spark, nothing waits for them.
        chosen = tuple(sorted(chosen, key=lambda group: (raw.name, group) in pairs))
        usable = {group: self.profiles[group] for group in chosen if group in self.profiles}
        self.problems += checks.port_clashes(raw, usable)
        if release and platform:
            self.problems += checks.wrong_lock(raw.name, release, platform)
        if platform is None or (chosen and release is None):
            return None
        shared = sorted(profile for host, profile in pairs if host == raw.name)
        instances: list[Instance] = []
        for group, profile in usable.items():
            assert release is not None  # chosen is not empty here
            quantized = self._check(group, profile, release, platform)
            pair = pairs.get((raw.name, group))
            before = instances[-1].name if instances else None
            rank = pair.hosts.index(raw.name) if pair else 0
            config = self._config(group, profile)
            instances.append(
                Instance(
                    *(group, profile, release, before, config, quantized, pair, rank),
                    link=links.get(raw.name) if pair else None,
                    master_port=MASTER_PORT + (shared.index(group) if pair else 0),
                    start_cap_s=self.start_cap_s,
                )
            )
        estimates = [self._estimate(instance, platform.memory_gib) for instance in instances]
        plan = HostPlan(raw.name, platform, tuple(instances), tuple(estimates))
        problems, warnings = budget.check(plan)
        self.problems += problems
        self.warnings += warnings
        return plan

    def _check(
        self, group: str, profile: ModelProfile, release: Release, platform: Platform
    ) -> str | None:
        """What concerns a profile, a release and a GPU, whatever the host: once for each three.

        Returns what `--quantization` has to say.
        """
        key = (group, release.id, platform.compute_capability)
        if key in self.quantized:
            return self.quantized[key]
        where, version = f"group_data/{group}.py", release.engine_version
        config = self._config(group, profile)
        quantized = engine.quantization(profile, config, version, platform.compute_capability)
        self.quantized[key] = quantized.option
        self.problems += checks.missing_key(group, profile, self.environment)
        self.problems += contradictions(where, profile, config)
        self.problems += checks.missing_ray(where, profile, release)
        self.problems += checks.unmet_engine(
            where, profile, release, lambda: self.locks, platform.architecture
        )
        problems, warnings = engine.check(where, profile, quantized, version)
        self.problems += problems
        self.warnings += warnings
        if not release.reproducible:
            self.warnings.append(checks.not_reproducible(release))
        return quantized.option

    def _estimate(self, instance: Instance, memory_gib: float) -> Estimate:
        key = (instance.name, instance.release.id, memory_gib)
        if key not in self.estimates:
            self.estimates[key] = budget.estimate(instance, memory_gib)
        return self.estimates[key]

    def _config(self, group: str, profile: ModelProfile) -> Mapping[str, Any] | None:
        if group not in self.configs:
            found = memory.find_config(profile.model, profile.revision, self.environment)
            self.configs[group] = found or profile.config
        return self.configs[group]

    def _read(self, raw: RawHost, key: str, model: type[T], required: bool = True) -> T | None:
        written = raw.data.get(key)
        if written is None and not required:
            written = {}
        where = f"host {raw.name}"
        if not isinstance(written, Mapping):
            found = "" if written is None else shown(written)
            example = "lock='releases/...'" if key == "release" else "..."
            fix = f"write {key} = dict({example}), for all hosts in group_data/all.py"
            self.problems.append(Problem(where, key, found, fix))
            return None
        try:
            return model.model_validate(dict(written))
        except ValidationError as error:
            self.problems += problems_of(error, f"{where}: {key}", model)
            return None

    def _release(self, raw: RawHost) -> Release | None:
        settings = self._read(raw, "release", EngineRelease)
        if settings is None:
            return None
        try:
            if settings not in self.releases:
                lock = settings.lock
                text = self._text(self.root / lock) if lock is not None else settings.unlocked_text
                self.releases[settings] = Release(settings, text)
            return self.releases[settings]
        except (OSError, ValueError) as error:
            have = [f"releases/{f.name}" for f in (self.root / "releases").glob("vllm*.txt")]
            missing = isinstance(error, FileNotFoundError)
            reason = getattr(error, "strerror", None) or "it is no text"
            fix = "no such file" if missing else f"can't be read: {reason}"
            fix = f"{fix}; {nearest(str(settings.lock), have)}"
            self.problems.append(
                Problem(f"host {raw.name}", "release.lock", shown(settings.lock), fix)
            )
            return None

"""Two Sparks that serve one model: which hosts belong together, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkwright.errors import Problem, shown


@dataclass(frozen=True)
class Pair:
    """Two hosts that are one server. hosts: rank 0 (the head) first, in inventory order."""

    name: str
    hosts: tuple[str, str]


@dataclass(frozen=True)
class Member:
    """A host as far as pairs need it. pair: the name that its data give, unchecked."""

    host: str
    pair: object
    profiles: tuple[str, ...]


def find_pairs(
    members: Iterable[Member], sizes: Mapping[str, int]
) -> tuple[dict[tuple[str, str], Pair], list[Problem]]:
    """Pairs by (host, profile), and what is wrong with those that are incomplete.

    members: all hosts, in inventory order. sizes: `tensor_parallel_size` of each profile.
    """
    members = list(members)
    problems = [problem for member in members for problem in _badly_named(member, sizes)]
    named: dict[str, list[Member]] = {}
    for member in members:
        if isinstance(member.pair, str) and _is_name(member.pair):
            named.setdefault(member.pair, []).append(member)
    pairs: dict[tuple[str, str], Pair] = {}
    for name, together in named.items():
        shared = sorted({p for member in together for p in _shared(member, sizes)})
        mistake = _mistake(name, together, shared)
        if mistake:
            problems.append(Problem(f"pair {name}", "", "", mistake))
        else:
            head, worker = (member.host for member in together)
            pair = Pair(name, (head, worker))
            pairs |= {(host, profile): pair for host in pair.hosts for profile in shared}
    return pairs, problems


def _shared(member: Member, sizes: Mapping[str, int]) -> list[str]:
    return [profile for profile in member.profiles if sizes.get(profile, 1) > 1]


def _is_name(pair: str) -> bool:
    return bool(pair) and pair.isprintable() and pair == pair.strip()


def _badly_named(member: Member, sizes: Mapping[str, int]) -> Iterable[Problem]:
    where = f"host {member.host}"
    if member.pair is None:
        for profile in _shared(member, sizes):
            yield Problem(
                where,
                "pair",
                "",
                f"is missing: {profile} is served by two Sparks (tensor_parallel_size=2); write "
                "the same pair = '...' into the data of both",
            )
    elif not isinstance(member.pair, str) or not _is_name(member.pair):
        yield Problem(where, "pair", shown(member.pair), "write a name, the same for both Sparks")


def _mistake(name: str, members: list[Member], shared: list[str]) -> str | None:
    """What is wrong with a pair; shared: profiles of its hosts that take two Sparks."""
    hosts = [member.host for member in members]
    if not shared:
        return (
            f"no profile of {' and '.join(hosts)} is served by two Sparks: put both hosts into the "
            "group of one with tensor_parallel_size=2, or take pair out"
        )
    if len(hosts) > 2:
        return (
            f"has {len(hosts)} hosts, {', '.join(hosts)}: leave two, give the others a name of "
            "their own"
        )
    if len(hosts) == 1:
        return f"has one host, {hosts[0]}: write pair = {name!r} into the data of the second"
    missing = [
        f"{member.host} is not in the group {profile}"
        for member in members
        for profile in shared
        if profile not in member.profiles
    ]
    if missing:
        return f"{', '.join(missing)}: put both hosts of the pair into the same group"
    return None

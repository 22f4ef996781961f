"""Two Sparks that serve one model: which hosts belong together, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkwright.errors import Problem


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
        if isinstance(member.pair, str) and member.pair:
            named.setdefault(member.pair, []).append(member)
    pairs: dict[tuple[str, str], Pair] = {}
    for name, together in named.items():
        hosts = [member.host for member in together]
        shared = {p for member in together for p in member.profiles if sizes.get(p, 1) > 1}
        for profile in sorted(shared):
            serving = [member.host for member in together if profile in member.profiles]
            if len(serving) == len(hosts) == 2:
                pair = Pair(name, (hosts[0], hosts[1]))
                pairs |= {(host, profile): pair for host in hosts}
            else:
                problems += _incomplete(name, hosts, profile, serving)
    return pairs, problems


def _badly_named(member: Member, sizes: Mapping[str, int]) -> Iterable[Problem]:
    where = f"host {member.host}"
    shared = [profile for profile in member.profiles if sizes.get(profile, 1) > 1]
    if member.pair is None:
        for profile in shared:
            yield Problem(
                where,
                "pair",
                "",
                f"is missing: {profile} is served by two Sparks (tensor_parallel_size=2); write "
                "the same pair = '...' into the data of both",
            )
    elif not isinstance(member.pair, str) or not member.pair.strip():
        yield Problem(where, "pair", repr(member.pair), "write a name, the same for both Sparks")
    elif not shared:
        yield Problem(
            where,
            "pair",
            repr(member.pair),
            "no profile of this host is served by two Sparks: put the host into the group of one "
            "with tensor_parallel_size=2, or take pair out",
        )


def _incomplete(name: str, hosts: list[str], profile: str, serving: list[str]) -> Iterable[Problem]:
    if len(hosts) > 2:
        told = f"has {len(hosts)} hosts, {', '.join(hosts)}: leave two, give the others a name of "
        yield Problem(f"pair {name}", profile, "", f"{told}their own")
    elif len(hosts) == 1:
        told = f"has one host, {hosts[0]}: write pair = {name!r} into the data of the second"
        yield Problem(f"pair {name}", profile, "", told)
    else:
        (missing,) = set(hosts) - set(serving)
        told = f"{missing} is not in the group {profile}: put both hosts of the pair into it"
        yield Problem(f"pair {name}", profile, "", told)

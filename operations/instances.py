"""Engine instances: staged, then put in service wave by wave, or brought back; and removed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from pyinfra import host
from pyinfra import state as pyinfra_state
from pyinfra.api import FunctionCommand, operation

from facts.observe import Instances
from operations import files, rollout
from operations.run import fact, observed, one_host, refuse, shown
from operations.status import ask
from sparkwright import paths, render
from sparkwright.plan import HostPlan
from sparkwright.render import ManagedFile
from sparkwright.rollout import Outcome

_PROGRAM = f"{paths.HOST_PROGRAMS}/activate.py"


@operation()
@one_host
def stage(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Bring each instance's configuration to the host, beside what is in service.

    + plan: what the host is to serve
    """
    wrong, missing, unwanted = files.differing(*_wanted(plan))
    yield from files.send(wrong, missing, unwanted)
    yield from _generate_keys(plan)


def _wanted(plan: HostPlan) -> tuple[list[ManagedFile], list[ManagedFile], list[str]]:
    """Files and folders of the staging area, and files that must not be there."""
    wanted: list[ManagedFile] = []
    folders: list[ManagedFile] = []
    absent: list[str] = []
    for instance in plan.instances:
        folder = f"{paths.STAGED}/{instance.name}"
        folders.append(ManagedFile(folder, "", "0700"))
        wanted += render.instance_files(instance)
        if not instance.link:
            absent.append(f"{folder}/pair.json")
        if instance.rank:  # it answers nobody
            absent.append(f"{folder}/api-key.env")
        elif instance.profile.key_variable:
            content = f"VLLM_API_KEY={os.environ[instance.profile.key_variable]}\n"
            wanted.append(ManagedFile(f"{folder}/api-key.env", content, "0600"))
        elif not instance.profile.api_key:
            absent.append(f"{folder}/api-key.env")
    return wanted, folders, absent


def _generate_keys(plan: HostPlan) -> Iterator[FunctionCommand]:
    names = [i.name for i in plan.instances if i.profile.api_key == "generate" and not i.rank]
    if not names:
        return
    key_files = {name: f"{paths.STAGED}/{name}/api-key.env" for name in names}
    there = observed(files=list(key_files.values()))["files"]
    for name, path in key_files.items():
        if not there.get(path):
            yield shown("python3", _PROGRAM, "key", name)


@operation()
@one_host
def survey(plan: HostPlan) -> Iterator[FunctionCommand]:
    """See whether what is staged serves already; changes nothing.

    + plan: what the host is to serve

    Which hosts change, and in which wave, follows from what all of them say here. A host that was
    dropped before is no member of any wave.
    """
    rollout.forget(host.name)
    names = [instance.name for instance in plan.instances]
    others = sorted(set(observed(instances=paths.VAR)["instances"]) - set(names))
    seen = fact(Instances, names=" ".join(names)) if names else {}
    states = {name: seen.get(name, {}) for name in names}
    good = all(state.get("proof") and state.get("enabled") for state in states.values())
    # `--dry`: nothing is staged yet, but what will be makes the difference.
    if good and not pyinfra_state.is_executing:
        good = not any(files.differing(*_wanted(plan)))
    _OTHERS[host.name] = others
    rollout.note(host.name, bool(others) or not good, answered=pyinfra_state.is_executing)
    told = [str(s.get("proof") or s.get("missing") or "not there yet") for s in states.values()]
    host.noop("; ".join([*told, *(f"{name} is no longer wanted" for name in others)]) or "nothing")
    yield from ()


_OTHERS: dict[str, list[str]] = {}
"""Instances by host that it no longer serves."""


@operation()
@one_host
def activate(plan: HostPlan, wave: int) -> Iterator[FunctionCommand]:
    """Put in service what is staged, and prove that it serves, on the hosts of one wave.

    + plan: what the host is to serve
    + wave: from 0, the canary's

    Called on every host for every wave. A host of a later wave is held back, and fails with the
    reason, when too many members of the waves before have failed. Instances that are no longer
    wanted are stopped first, since the new ones need their memory, and come back when those fail.
    """
    names = [instance.name for instance in plan.instances]
    others = _OTHERS.get(host.name, [])
    # All in one call: what must be switched is stopped first, so that neither memory nor a port
    # is still held by an instance that gives it up in the same run.
    yield from _in_turn(wave, ["apply", *names, *(["--without", *others] if others else [])])


@operation()
@one_host
def survey_back(names: Sequence[str]) -> Iterator[FunctionCommand]:
    """See whether the instances serve already what they went back to; changes nothing.

    + names: of instances of this host
    """
    rollout.forget(host.name)
    answer = ask(host)
    if answer.problem:
        yield refuse(answer.problem)
        return
    done = {one.name for one in answer.instances if one.serves and one.went_back}
    change = not done.issuperset(names) or bool(answer.transaction)
    rollout.note(host.name, change, answered=pyinfra_state.is_executing)
    rollout.saw(host.name, answer)
    if not change:
        rollout.say_of(host.name, "already went back" if names else "nothing is to serve there")
    host.noop("nothing to do" if not change else "to go back")


@operation()
@one_host
def go_back(names: Sequence[str], wave: int) -> Iterator[FunctionCommand]:
    """Put the previous release and configuration of instances in service, on one wave's hosts.

    + names: of instances of this host
    + wave: from 0, the canary's
    """
    # When each instance last changed is known from the survey.
    yield from _in_turn(wave, ["rollback", *names], Outcome.WENT_BACK)


def _in_turn(
    wave: int, words: Sequence[str], outcome: Outcome = Outcome.UPDATED
) -> Iterator[FunctionCommand]:
    """Run activate.py when it is this host's turn, refuse when it is held back, else nothing."""
    executing = pyinfra_state.is_executing
    reason = rollout.refusal(host.name, wave) if executing else None
    if reason:
        yield refuse(reason)
    elif rollout.is_turn(host.name, wave, executing):
        if executing:
            rollout.begin(host.name)
            if outcome is Outcome.UPDATED:
                seen = observed(stamps=[paths.STATE])["stamps"]
                rollout.remember(host.name, seen.get(paths.STATE))
        yield shown("python3", _PROGRAM, *words)
        # Only reached when it did not fail.
        if executing:
            rollout.succeeded(host.name, outcome)
    else:
        host.noop("not in this wave")

"""Engine instances: staged, validated, put in service one after the other, removed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pyinfra import host
from pyinfra import state as pyinfra_state
from pyinfra.api import FunctionCommand, operation

from facts.observe import Instances
from operations import files
from operations.run import fact, observed, one_host, shown
from sparkwright import paths, render
from sparkwright.plan import HostPlan
from sparkwright.render import ManagedFile

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
        if instance.profile.key_variable:
            content = f"VLLM_API_KEY={os.environ[instance.profile.key_variable]}\n"
            wanted.append(ManagedFile(f"{folder}/api-key.env", content, "0600"))
        elif not instance.profile.api_key:
            absent.append(f"{folder}/api-key.env")
    return wanted, folders, absent


def _generate_keys(plan: HostPlan) -> Iterator[FunctionCommand]:
    names = [i.name for i in plan.instances if i.profile.api_key == "generate"]
    if not names:
        return
    key_files = {name: f"{paths.STAGED}/{name}/api-key.env" for name in names}
    there = observed(files=list(key_files.values()))["files"]
    for name, path in key_files.items():
        if not there.get(path):
            yield shown("python3", _PROGRAM, "key", name)


@operation()
@one_host
def remove_others(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Stop and remove the instances that this host no longer serves; leave the others alone.

    + plan: what the host is to serve
    """
    there = observed(instances=paths.VAR)["instances"]
    for name in sorted(set(there) - {i.name for i in plan.instances}):
        yield shown("python3", _PROGRAM, "remove", name)


@operation()
@one_host
def activate(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Put in service what is staged, one instance after the other, and prove that each serves.

    + plan: what the host is to serve

    An instance that runs what is staged and generates is left alone.
    """
    names = [instance.name for instance in plan.instances]
    if not names:
        return
    seen = fact(Instances, names=" ".join(names))
    states = {name: seen.get(name, {}) for name in names}
    good = all(state.get("proof") and state.get("enabled") for state in states.values())
    # `--dry`: nothing is staged yet, but what will be makes the difference.
    if good and not pyinfra_state.is_executing:
        good = not any(files.differing(*_wanted(plan)))
    if good:
        host.noop("; ".join(state["proof"] for state in states.values()))
    else:
        # All in one call: what must be switched is stopped first, so that neither memory nor a port
        # is still held by an instance that gives it up in the same run.
        yield shown("python3", _PROGRAM, "apply", *names)

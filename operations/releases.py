"""Engine releases: built beside the one in service, and removed when nobody needs them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pyinfra.api import FunctionCommand, operation

from operations.run import observed, one_host, shown
from sparkwright import paths
from sparkwright.plan import HostPlan

_PROGRAM = f"{paths.HOST_PROGRAMS}/release.py"


@operation()
@one_host
def build(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Build each release that is not complete: from its lock, or as the host resolves it now.

    + plan: what the host is to serve
    """
    stamps = [f"{release.path}/.complete" for release in plan.releases]
    programs = [f"{release.path}/bin/vllm" for release in plan.releases]
    seen = observed(stamps=stamps, files=programs)
    for release, stamp, engine in zip(plan.releases, stamps, programs, strict=True):
        if seen["stamps"].get(stamp) is None or not seen["files"].get(engine):
            settings = release.settings
            request = {
                "id": release.id,
                "locked": release.reproducible,
                "python": settings.python,
                "cuda": settings.cuda,
                "find_links": list(settings.find_links),
            }
            yield shown("python3", _PROGRAM, "build", json.dumps(request))


@operation()
@one_host
def prune(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Keep the releases in service and the ones before them; remove the others.

    + plan: what the host is to serve
    """
    links = f"{paths.ACTIVE}/*"
    seen = observed(listing=[paths.RELEASES], links=links, stamps=[paths.STATE])
    try:
        state = json.loads(seen["stamps"].get(paths.STATE) or "{}")
    except ValueError:
        state = {}
    keep = {release.id for release in plan.releases}
    keep |= {target.rsplit("/", 1)[-1] for target in seen["links"].values()}
    for entry in state.values() if isinstance(state, dict) else ():
        if isinstance(entry, dict):
            keep |= {str(entry.get("release")), str(entry.get("previous_release"))}
    names = {name.rstrip("/") for name in seen["listing"][paths.RELEASES]}
    if {name.removesuffix(".txt") for name in names} - keep:
        yield shown("python3", _PROGRAM, "prune", *sorted(keep))

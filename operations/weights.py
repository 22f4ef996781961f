"""Model weights at their pinned revision."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from pyinfra.api import FunctionCommand, operation

from operations.run import observed, one_host, shown
from sparkwright import paths
from sparkwright.plan import HostPlan


@operation()
@one_host
def fetch(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Fetch weights that are not on the host yet; a model given as a path is left alone.

    + plan: what the host is to serve

    HF_ENDPOINT and HF_TOKEN are taken from the environment of the controller. The token travels
    on the standard input of the program that fetches, and is stored nowhere.
    """
    hub = {i.model_path: i.profile for i in plan.instances if not i.profile.is_path}
    if not hub:
        return
    there = observed(models=sorted(hub))["models"]
    for path, profile in hub.items():
        if there.get(path) != "ok":
            request = {
                "model": profile.model,
                "revision": profile.revision,
                "path": path,
                "endpoint": os.environ.get("HF_ENDPOINT", ""),
                "token": os.environ.get("HF_TOKEN", ""),
            }
            yield shown("python3", f"{paths.HOST_PROGRAMS}/weights.py", stdin=json.dumps(request))

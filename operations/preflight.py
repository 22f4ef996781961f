"""Refuse a host that can't serve, before anything is changed on it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from pyinfra import host, logger
from pyinfra.api import FunctionCommand, operation

from facts.observe import FirstContact, Observed
from operations.run import fact, one_host, refuse
from sparkwright import preflight
from sparkwright.plan import HostPlan


@operation()
@one_host
def check(plan: HostPlan) -> Iterator[FunctionCommand]:
    """Check every requirement in one round trip; a host that fails is dropped with a table.

    + plan: what the host is to serve

    Warnings are printed; the whole table of a host that passes too with `-v`.
    """
    request = json.dumps(preflight.request(plan))
    if host.data.get("_sudo_password"):
        seen = fact(Observed, request=request)
    else:
        seen = fact(FirstContact, request=request, _sudo=False)
    if "sudo" in seen:
        user = host.data.get("ssh_user") or "your user"
        yield refuse(
            f"Preflight of {host.name}: sudo asks for a password ({seen['sudo']}). Let {user} use "
            f"sudo without one, on the host: echo '{user} ALL=(ALL) NOPASSWD:ALL' | "
            "sudo tee /etc/sudoers.d/sparkwright, or set _sudo_password for this host",
            "sudo asks for a password",
        )
        return
    if "platform" not in seen:
        wrong = ", or _sudo_password is wrong" if host.data.get("_sudo_password") else ""
        told = f"the probe gave no answer; is python3 not there{wrong}?"
        yield refuse(f"Preflight of {host.name}: {told}", told)
        return
    findings = preflight.judge(plan, seen, time.time())
    table = preflight.table(host.name, findings)
    failed = [f for f in findings if f.verdict == preflight.FAIL]
    if failed:
        count = len(failed)
        end = f"{count} of {len(findings)} requirements not met; {host.name} was left untouched"
        more = f" and {count - 1} more" if count > 1 else ""
        yield refuse(f"{table}\n{end}", f"{failed[0].requirement}: {failed[0].found}{more}")
        return
    warnings = [f for f in findings if f.verdict == preflight.WARN]
    logger.debug(table)
    for finding in warnings:
        logger.warning(f"{host.print_prefix}{finding.requirement}: {finding.found}; {finding.fix}")
    host.noop(f"{len(findings)} requirements checked, {len(warnings)} warnings\n{table}")

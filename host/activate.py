"""Put what is staged for instances in service, prove that they serve, and tell what is served.

usage: activate.py check NAME...     state of instances as one line of JSON; changes nothing
       activate.py status            all that the host serves as one line of JSON; changes nothing
       activate.py apply NAME...     switch what differs, start, follow, prove; in this order
       activate.py rollback NAME...  the same with the release and configuration before
       activate.py remove NAME       stop and remove an instance; others are left alone
       activate.py key NAME          make an API key in the staging folder unless there is one

For units only: transact COMMAND NAME... and finish (in sparkwright-activation.service), recover (at
boot). Safe to be killed and run again: what is in place is read from the files and from systemd.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Callable

import detached
import service
import starting
import status
import transaction
from common import ETC, VAR, Refusal, lock, main, say, write
from instance import Instance, content


def check(names: list[str]) -> None:
    """Print for each instance whether it is enabled, and its proof, or why there is none."""
    print(json.dumps({name: _check(Instance(name)) for name in names}))


def _check(instance: Instance) -> dict[str, object]:
    unit = service.show(instance.unit)
    answer: dict[str, object] = {"enabled": unit.enabled, "proof": None, "missing": None}
    if transaction.record():
        answer["missing"] = "an activation is under way, or was cut off"
    elif not instance.in_place() or instance.must_restart(unit):
        answer["missing"] = "what is staged is not what is in service"
    elif unit.active != "active":
        answer["missing"] = f"{instance.unit} is {unit.active}"
    elif instance.remembered().get("status") != "serving":
        # A run was killed before its proof; state.json still says that it is starting.
        answer["missing"] = "it was not proven yet"
    else:
        try:
            answer["proof"] = service.prove(
                instance.unit, service.endpoint(instance.start, instance.name), patient=False
            )
        except Refusal as refusal:
            answer["missing"] = str(refusal)
    return answer


def rollback(names: list[str]) -> None:
    """Go back to the release and configuration before, by the same transaction."""
    for name in names:
        before = transaction.instance_of("rollback", name)
        if not before.start:
            raise Refusal(
                f"{name}: there is nothing to go back to, nothing was before on this host"
            )
        if not before.has_release():
            raise Refusal(
                f"{name}: there is no way back: release {before.release()} was deleted; nothing "
                "was stopped. Deploy with that release, which builds it again"
            )
    detached.run("rollback", names)


def remove(name: str) -> None:
    instance = Instance(name)
    with lock("activation", "starting an engine"):
        # A name that no unit can have has nothing to stop.
        with contextlib.suppress(Refusal):
            starting.stop(instance)
        instance.remove()
        say(f"      {name} is stopped and removed; its weights are kept")


def key(name: str) -> None:
    staged, active = f"{VAR}/staged/{name}/api-key.env", f"{ETC}/{name}/api-key.env"
    if not os.path.exists(staged):
        known = content(active)
        text = known.decode() if known else f"VLLM_API_KEY={secrets.token_urlsafe(32)}\n"
        os.makedirs(os.path.dirname(staged), exist_ok=True)
        write(staged, text, 0o600)


def program() -> None:
    command, *names = sys.argv[1:]
    commands: dict[str, Callable[[], object]] = {
        "check": lambda: check(names),
        "status": lambda: print(json.dumps(status.status())),
        "apply": lambda: detached.run("apply", names),
        "rollback": lambda: rollback(names),
        "remove": lambda: remove(names[0]),
        "key": lambda: key(names[0]),
        "transact": lambda: transaction.run(names[1:], names[0]),
        "finish": lambda: transaction.run([]),
        "recover": transaction.recover,
    }
    commands[command]()


if __name__ == "__main__":
    main(program)

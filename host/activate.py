"""Put what is staged for instances in service, prove that they serve, and tell what is served.

usage: activate.py check NAME...     state of instances as one line of JSON; changes nothing
       activate.py status            all that the host serves as one line of JSON; changes nothing
       activate.py apply NAME... [--without NAME...]
                                     switch what differs, start, follow, prove; in this order.
                                     Others (--without) are stopped first and removed at the end,
                                     or put back with the rest when anything fails
       activate.py rollback NAME...  the same with the release and configuration before; once
       activate.py remove NAME...    the same as apply --without NAME...
       activate.py key NAME          make an API key in the staging folder unless there is one

For units only: transact COMMAND NAME... [--without NAME...] and finish (both in
sparkwright-activation.service), recover (at boot). Safe to be killed and run again: what is in
place is read from the files and from systemd.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable

import detached
import pairing
import service
import status
import transaction
from common import ETC, VAR, Refusal, main, say, write
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
            answer["proof"] = pairing.prove(
                instance.name, service.endpoint(instance.start, instance.name), patient=False
            )
        except Refusal as refusal:
            answer["missing"] = str(refusal)
    return answer


def rollback(names: list[str]) -> None:
    """Go back to the release and configuration before, by the same transaction.

    Said again, it does not go forward: what was left by a rollback is nothing to go back to.
    """
    quiet = not transaction.record() and not service.is_running(transaction.UNIT)
    left = []
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
        if quiet and not before.differs() and service.show(before.unit).active == "active":
            say(f"      {name} already went back; a deploy brings what the inventory says")
        else:
            left.append(name)
    if left:
        detached.run("rollback", left)


def key(name: str) -> None:
    staged, active = f"{VAR}/staged/{name}/api-key.env", f"{ETC}/{name}/api-key.env"
    if not os.path.exists(staged):
        known = content(active)
        text = known.decode() if known else f"VLLM_API_KEY={secrets.token_urlsafe(32)}\n"
        os.makedirs(os.path.dirname(staged), exist_ok=True)
        write(staged, text, 0o600)


def parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Names that are wanted, and those after --without; each once."""
    at = words.index("--without") if "--without" in words else len(words)
    names = list(dict.fromkeys(words[:at]))
    return names, [name for name in dict.fromkeys(words[at + 1 :]) if name not in names]


def program() -> None:
    command, *names = sys.argv[1:]
    commands: dict[str, Callable[[], object]] = {
        "check": lambda: check(names),
        "status": lambda: print(json.dumps(status.status())),
        "apply": lambda: detached.run("apply", *parted(names)),
        "rollback": lambda: rollback(names),
        "remove": lambda: detached.run("apply", *parted(["--without", *names])),
        "key": lambda: key(names[0]),
        "transact": lambda: transaction.run(*parted(names[1:]), command=names[0]),
        "finish": lambda: transaction.run([]),
        "recover": transaction.recover,
    }
    commands[command]()


if __name__ == "__main__":
    main(program)

"""One change of what a host serves, which ends with all of the new or all of the old in service.

Before each step `transaction.json` says what is going on, so that whoever comes after a `kill -9`,
a power cut or a reboot goes on from there. What is to be and what was lie in
`transaction/<name>/next` and `before`; going back is the same switch from another folder. Of an
instance that is not wanted any more there is no `next`: its files are withdrawn with the switch, so
that they can come back, and what else there is of it is removed at the end.

phases: prepared, stopping, switching, starting, done; after a failure undoing, restoring. Of one
half of a pair each waits for the other half (together.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterable, Sequence

import probe
import service
import starting
import together
from common import VAR, Refusal, lock, read_json, say, settle, write
from instance import Instance
from undoing import TerminatedError, Undoing, at_any_rate, strings

UNIT = "sparkwright-activation.service"
RECOVERY = "sparkwright-recover.service"
RECOVERY_WAIT_S = 60
"""How long a boot waits for the lock; the watch holds it for a look."""
_UNKNOWN = "unknown"
"""Phase of a record that can't be read."""


def record() -> dict[str, object]:
    """What transaction.json says; empty when no transaction is under way or was cut off. Of one
    that can't be read the phase is `unknown`."""
    path = f"{VAR}/transaction.json"
    data = read_json(path)
    lists = (data.get(key) for key in ("names", "changed", "stopped", "new"))
    if isinstance(data.get("phase"), str) and all(isinstance(value, list) for value in lists):
        return data
    return {"phase": _UNKNOWN, "names": []} if os.path.lexists(path) else {}


def result() -> dict[str, object]:
    """How the last one ended: `{"command": …, "names": […], "tried": {name: fingerprint}, "error":
    message or null, "keys": {name: key of a pair}, "id": another one each time}`.

    The fingerprint of what was to be removed is that of nothing.
    """
    return read_json(f"{VAR}/transaction-result.json")


def run(names: Sequence[str], gone: Sequence[str] = (), command: str = "apply") -> None:
    """Bring instances to what is staged (`rollback`: to what was before) and remove others; first
    finish what was cut off. Raises Refusal with the reason when that can't be."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with lock("activation", "starting an engine"):
            _run(names, gone, command)
    except TerminatedError as problem:
        raise Refusal(str(problem)) from None


def _run(names: Sequence[str], gone: Sequence[str], command: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{VAR}/transaction-result.json")
    tried: dict[str, str] = {}
    keys: dict[str, str] = {}
    error: str | None = "it was cut off"
    try:
        _refuse_damage()
        keys = together.keys(strings(record().get("names")))
        tried = {one.name: one.fingerprint(whole=True) for one in _asked(names, gone, command)}
        try:
            finish()
        except Refusal as refusal:
            failed = read_json(f"{VAR}/state.json")
            same = any(_tried(failed.get(name)) == tried[name] for name in names)
            if same or not tried:
                raise
            say(f"      {refusal}")
        signal.signal(signal.SIGTERM, _terminate)
        if tried:
            # Read anew: what was before is another one when something was finished.
            asked = _asked(names, gone, command)
            tried = {one.name: one.fingerprint(whole=True) for one in asked}
            wanted, unwanted = asked[: len(names)], asked[len(names) :]
            change = _Transaction.prepare(wanted, unwanted, command)
            keys = together.keys(change.names)
            change.forward()
        error = None
    except (Refusal, OSError, TerminatedError) as problem:
        error = str(problem)
        raise Refusal(error) from None
    finally:
        ended: dict[str, object] = {"command": command, "names": [*names], "tried": tried}
        ended |= {"error": error, "keys": keys}
        # On a full disk the reason is on the screen all the same.
        with contextlib.suppress(OSError):
            # An engine's words may be in it.
            text = json.dumps({**ended, "id": secrets.token_hex(8)})
            write(f"{VAR}/transaction-result.json", text, 0o600)


def _asked(names: Sequence[str], gone: Sequence[str], command: str) -> list[Instance]:
    return [*(instance_of(command, name) for name in names), *map(nothing_of, gone)]


def _refuse_damage() -> None:
    """Raises Refusal when there is a record, but nobody can tell what it was about, or what it
    kept is gone."""
    path, folder = f"{VAR}/transaction.json", f"{VAR}/transaction"
    known = record()
    if not known:
        return
    missing = [name for name in _needed(known) if not os.path.exists(f"{folder}/{name}")]
    if known.get("phase") == _UNKNOWN:
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            _refuse(f"can't be read (it begins with {file.read(60)!r})")
    elif missing:
        _refuse(f"tells of files that are gone ({', '.join(missing)} in {folder})")


def _needed(known: dict[str, object]) -> list[str]:
    """Files below transaction/ without which a record leads nowhere."""
    gone = strings(known.get("gone"))
    kept = [name for name in strings(known.get("changed")) if name not in strings(known.get("new"))]
    needed = [f"{name}/next/start.json" for name in strings(known["names"]) if name not in gone]
    # At its end what was before is moved away.
    if known.get("phase") != "done":
        needed += [f"{name}/before/{file}" for name in kept for file in ("release", "serve.yaml")]
    return needed


def _refuse(what: str) -> None:
    folder = f"{VAR}/transaction"
    raise Refusal(
        f"{VAR}/transaction.json {what}, so nobody knows how far the activation came that was cut "
        f"off; nothing was touched. What was in service before it is in {folder}/NAME/before. "
        "Move transaction.json and transaction/ elsewhere and run the same command again: it "
        "brings what is staged"
    )


def instance_of(command: str, name: str) -> Instance:
    """The instance with the source that a command puts in service."""
    return Instance(name, f"{VAR}/previous/{name}" if command == "rollback" else None)


def nothing_of(name: str) -> Instance:
    """An instance that is not wanted any more: its source holds nothing."""
    return Instance(name, os.devnull)


def finish() -> None:
    """Complete or undo a transaction that was cut off, whose record is whole. Raises Refusal as it
    would have."""
    if not record():
        return
    cut = _Transaction(record())
    say(f"      an activation was cut off while {cut.phase}; it is brought to its end first")
    if cut.phase == "done":
        cut.complete()
    elif cut.phase == "prepared":
        cut.end()
    elif cut.phase == "restoring":
        cut.restore()
    elif cut.phase == "starting" and not cut.data.get("again"):
        # Once: a start that takes the host down must not do so at every boot.
        with at_any_rate():
            cut.note("starting", again=True)
        cut.forward()
    else:
        reason = cut.data.get("reason") or f"the activation was cut off while {cut.phase}"
        cut.undo(Refusal(reason), str(cut.data.get("failed", "")))


def recover() -> None:
    """At boot, before any engine starts: no mixture of old and new files may start.

    The starts and their proof are left to a unit of its own: a boot does not wait for them.
    """
    _refuse_damage()
    deadline = time.monotonic() + RECOVERY_WAIT_S
    while record():
        try:
            with lock("activation", "starting an engine", wait=False):
                _recover()
        except BlockingIOError:
            if service.is_running(UNIT) or time.monotonic() > deadline:
                say("an activation runs already; it finishes what was cut off")
                return
            time.sleep(1)
        else:
            command = f"{os.path.dirname(__file__)}/activate.py"
            service.launch(UNIT, ["/usr/bin/python3", command, "finish"])
            return


def _recover() -> None:
    if not record():
        return
    cut = _Transaction(record())
    again = cut.phase == "starting" and cut.data.get("again")
    if again or cut.phase in ("stopping", "switching", "undoing"):
        reason = f"the activation was cut off by a reboot while {cut.phase}"
        with at_any_rate():
            cut.note(cut.phase, reason=cut.data.get("reason") or reason)
        cut.put_back()


class _Transaction(Undoing):
    """The way forward."""

    @classmethod
    def prepare(
        cls, wanted: list[Instance], unwanted: Sequence[Instance] = (), command: str = "apply"
    ) -> _Transaction:
        """Find out what differs, keep what is in service. Raises Refusal; nothing was stopped."""
        cls.discard()
        kinds: dict[str, list[str]] = {"changed": [], "stopped": [], "new": [], "gone": []}
        for one in wanted:
            if not one.start:
                raise Refusal(f"nothing is staged for {one.name} in {one.source}")
            if service.is_masked(one.unit):
                raise Refusal(
                    f"{one.unit} is masked, so it can't be started; nothing was stopped. "
                    f"systemctl unmask {one.unit}, or take the host out of the group"
                )
            if not one.in_place():
                one.verify()
        for one in wanted:
            one.copy_to(f"{VAR}/transaction/{one.name}/next")
        for name in [one.name for one in wanted]:
            new = Instance(name, f"{VAR}/transaction/{name}/next")
            stops = new.must_restart(service.show(new.unit))
            if not stops and new.in_place():
                continue
            kinds["changed"].append(name)
            if stops and not new.has_release():
                release = new.release()
                cls.discard()
                raise Refusal(
                    f"{name}: release {release} is not on this host; nothing was stopped. "
                    "The deploy builds it again"
                )
            if stops:
                kinds["stopped"].append(name)
            for path in new.drift():
                say(f"      {name}: {path} was changed by hand; it is put back")
            if not cls._keep(new, stops):
                kinds["new"].append(name)
        there = probe.instances(VAR) if unwanted else []
        for one in unwanted:
            if one.name not in there:
                continue
            kinds["gone"].append(one.name)
            kinds["changed"].append(one.name)
            runs = False
            # A name that no unit can have has nothing to stop.
            with contextlib.suppress(Refusal):
                runs = not service.show(one.unit).down
                kinds["stopped"].append(one.name)
            if not cls._keep(one, stops=True):
                kinds["new"].append(one.name)
                if runs:
                    say(f"      {one.name}: there is no way back, its files in service are gone")
        names = [*(one.name for one in wanted), *kinds["gone"]]
        return cls({"command": command, "names": names, "phase": "prepared", **kinds})

    @staticmethod
    def _keep(one: Instance, stops: bool) -> bool:
        """Keep what is in service of an instance; False when nothing is."""
        kept = f"{VAR}/transaction/{one.name}/before"
        if not one.keep(kept):
            return False
        before = Instance(one.name, kept)
        if stops and not before.has_release():
            say(
                f"      {one.name}: there is no way back, its release in service was deleted "
                f"({before.release()})"
            )
        return True

    def forward(self) -> None:
        """From where it is to the end; undone when anything fails."""
        name, switches = "", bool(self.phase == "prepared" and self.data["changed"])
        if switches:
            try:
                service.systemctl("enable", "--quiet", RECOVERY)
            except Refusal as refusal:
                self.discard()
                raise Refusal(
                    f"{refusal}\n      a reboot in between could start a mixture; nothing was "
                    "stopped. The deploy installs that unit"
                ) from None
        halves = together.halves(self._wanted())
        if halves and self.phase == "prepared":
            self._meet(halves.values())
        try:
            if switches:
                self.note("stopping")
                # All stops before the first start: one that gives up memory or a port comes first.
                for one in self.those("stopped"):
                    if one.name in halves:
                        halves[one.name].drain()
                    starting.stop(one)
                self.note("switching")
                for one in self.those("changed"):
                    one.withdraw() if one.name in self.gone else self.put(one)
                settle()
            self.note("starting")
            for name in self._wanted():
                check = [halves[name].check] if name in halves else []
                say(f"      {starting.serve(self.next(name), *check)}")
                self.next(name).remember(status="serving")
            if halves:
                self.note("starting", proven=self._wanted())
            for half in halves.values():
                half.agree()
        except BaseException as problem:
            if service.shutting_down():
                # What ends with the host says nothing about the engine: the boot goes on from here.
                raise SystemExit(1) from None
            self.undo(problem, name)
        self.complete()

    def _meet(self, halves: Iterable[together.Half]) -> None:
        """Let the other host know, and wait until it is as far. Nothing was stopped yet."""
        self.note("prepared")
        try:
            service.systemctl("start", together.AGENT)
            for half in halves:
                half.meet()
        except BaseException as problem:
            self.end()
            if isinstance(problem, Refusal):
                raise Refusal(f"{problem}; nothing was stopped") from None
            raise

    def _wanted(self) -> list[str]:
        return [name for name in self.names if name not in self.gone]

    def complete(self) -> None:
        """All serve: what was before is kept for a rollback, what is not wanted is removed."""
        self.note("done")
        for name in self._wanted():
            one = self.next(name)
            self._keep_for_rollback(one)
            if "files" not in one.remembered():
                # state.json was lost: what serves what was asked for is known again.
                one.remember(**one.seen(), release=one.release())
            self.remember(name, "went back" if self._goes_back() else "serving", None)
        for one in self.those("gone"):
            one.remove()
            say(f"      {one.name} is stopped and removed; its weights are kept")
        self.end()

    def _goes_back(self) -> bool:
        return self.data.get("command") == "rollback"

    def _keep_for_rollback(self, one: Instance) -> None:
        """Keep what the change before this one put in service, not what somebody edited since."""
        folder, served = f"{VAR}/transaction/{one.name}", Instance(one.name, one.served)
        # After a cut the one or the other holds it, whole.
        sources = (f"{folder}/served", one.served, f"{folder}/before")
        old = Instance(one.name, next((s for s in sources if os.path.isdir(s)), os.devnull))
        # What a rollback left is nothing to go back to: it failed, for who asked for that.
        keeps = os.path.isdir(f"{folder}/before") and not self._goes_back()
        if keeps and old.fingerprint() != one.fingerprint():
            if old.release() != one.release():
                # Kept when old releases are removed, whatever else changes meanwhile.
                one.remember(previous_release=old.release())
            shutil.rmtree(one.previous, ignore_errors=True)
            old.copy_to(one.previous)
        if served.fingerprint(whole=True) != one.fingerprint(whole=True):
            one.copy_to(f"{folder}/serves")
            if os.path.isdir(one.served):
                os.rename(one.served, f"{folder}/served")
            os.makedirs(os.path.dirname(one.served), mode=0o700, exist_ok=True)
            os.rename(f"{folder}/serves", one.served)


def _terminate(*_: object) -> None:
    raise TerminatedError("the activation was stopped (SIGTERM)")


def _tried(entry: object) -> object:
    last = entry.get("last") if isinstance(entry, dict) else None
    return last.get("tried") if isinstance(last, dict) else None

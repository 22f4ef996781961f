"""One change of what a host serves, which ends with all of the new or all of the old in service.

Before each step `transaction.json` says what is going on, so that whoever comes after a `kill -9`,
a power cut or a reboot goes on from there. What is to be and what was lie in
`transaction/<name>/next` and `before`; going back is the same switch from another folder. Of an
instance that is not wanted any more there is no `next`: its files are withdrawn with the switch, so
that they can come back, and what else there is of it is removed at the end.

phases: stopping, switching, starting, done; after a failure undoing, restoring.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence

import probe
import service
import starting
from common import VAR, Refusal, lock, read_json, say, write
from instance import Instance

UNIT = "sparkwright-activation.service"
RECOVERY = "sparkwright-recover.service"


class TerminatedError(BaseException):
    """SIGTERM; no Exception, so that nothing takes it for a failure of its own."""


def record() -> dict[str, object]:
    """What transaction.json says; empty when no transaction is under way or was cut off."""
    return read_json(f"{VAR}/transaction.json")


def result() -> dict[str, object]:
    """How the last one ended: `{"tried": {name: fingerprint}, "error": message or null}`.

    The fingerprint of what was to be removed is that of nothing.
    """
    return read_json(f"{VAR}/transaction-result.json")


def run(names: Sequence[str], gone: Sequence[str] = (), command: str = "apply") -> None:
    """Bring instances to what is staged (`rollback`: to what was before) and remove others; first
    finish what was cut off. Raises Refusal with the reason when that can't be."""
    signal.signal(signal.SIGTERM, _terminate)
    with lock("activation", "starting an engine"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{VAR}/transaction-result.json")
        wanted = [instance_of(command, name) for name in names]
        unwanted = [nothing_of(name) for name in gone]
        tried = {one.name: one.fingerprint() for one in [*wanted, *unwanted]}
        error: str | None = "it was cut off"
        try:
            try:
                finish()
            except Refusal as refusal:
                failed = read_json(f"{VAR}/state.json")
                same = any(_tried(failed.get(name)) == tried[name] for name in names)
                if same or not tried:
                    raise
                say(f"      {refusal}")
            if tried:
                _Transaction.prepare(wanted, unwanted).forward()
            error = None
        except (Refusal, OSError, TerminatedError) as problem:
            error = str(problem)
            raise Refusal(error) from None
        finally:
            write(f"{VAR}/transaction-result.json", json.dumps({"tried": tried, "error": error}))


def instance_of(command: str, name: str) -> Instance:
    """The instance with the source that a command puts in service."""
    return Instance(name, f"{VAR}/previous/{name}" if command == "rollback" else None)


def nothing_of(name: str) -> Instance:
    """An instance that is not wanted any more: its source holds nothing."""
    return Instance(name, os.devnull)


def finish() -> None:
    """Complete or undo a transaction that was cut off. Raises Refusal as it would have."""
    if not record():
        return
    cut = _Transaction(record())
    say(f"      an activation was cut off while {cut.phase}; it is brought to its end first")
    if cut.phase == "done":
        cut.complete()
    elif cut.phase == "restoring":
        cut.restore()
    elif cut.phase == "starting" and not cut.data.get("again"):
        # Once: a start that takes the host down must not do so at every boot.
        cut.note("starting", again=True)
        cut.forward()
    else:
        reason = cut.data.get("reason") or f"the activation was cut off while {cut.phase}"
        cut.undo(Refusal(reason), str(cut.data.get("failed", "")))


def recover() -> None:
    """At boot, before any engine starts: no mixture of old and new files may start.

    The starts and their proof are left to a unit of its own: a boot does not wait for them.
    """
    if not record():
        return
    with lock("activation", "starting an engine"):
        cut = _Transaction(record())
        again = cut.phase == "starting" and cut.data.get("again")
        if again or cut.phase in ("stopping", "switching", "undoing"):
            reason = f"the activation was cut off by a reboot while {cut.phase}"
            cut.note(cut.phase, reason=cut.data.get("reason") or reason)
            cut.put_back()
    service.launch(UNIT, ["/usr/bin/python3", f"{os.path.dirname(__file__)}/activate.py", "finish"])


class _Transaction:
    """names: all instances, in the order of their starts, then those that are not wanted any more.
    changed: whose files differ; stopped: those that run something else; new: nothing of them was in
    service before; gone: not wanted any more, which makes them changed and stopped too."""

    def __init__(self, data: dict[str, object]) -> None:
        self.data = data
        self.names, self.phase = _strings(data["names"]), str(data["phase"])
        # A transaction that an older program left does not know them.
        self.gone = _strings(data.get("gone"))

    def those(self, kind: str) -> list[Instance]:
        """Instances of a kind, from what is to be."""
        return [self.next(n) for n in self.names if n in _strings(self.data.get(kind))]

    def next(self, name: str) -> Instance:
        return Instance(name, f"{VAR}/transaction/{name}/next")

    def before(self, name: str) -> Instance:
        """What was in service; of what nothing was changed, what is."""
        kept = f"{VAR}/transaction/{name}/before"
        return Instance(name, kept) if os.path.isdir(kept) else self.next(name)

    def note(self, phase: str, **more: object) -> None:
        """Write down the step that comes now, so that it survives a power cut."""
        self.phase = phase
        self.data.update(phase=phase, **more)
        write(f"{VAR}/transaction.json", json.dumps(self.data, indent=1) + "\n", 0o600)
        folder = os.open(VAR, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    @classmethod
    def prepare(cls, wanted: list[Instance], unwanted: Sequence[Instance] = ()) -> _Transaction:
        """Find out what differs, keep what is in service. Raises Refusal; nothing was stopped."""
        cls._discard()
        kinds: dict[str, list[str]] = {"changed": [], "stopped": [], "new": [], "gone": []}
        for one in wanted:
            if not one.start:
                raise Refusal(f"nothing is staged for {one.name} in {one.source}")
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
                cls._discard()
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
        return cls({"names": names, "phase": "prepared", **kinds})

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
        name = ""
        try:
            if self.phase == "prepared" and self.data["changed"]:
                service.systemctl("enable", "--quiet", RECOVERY, check=False)
                self.note("stopping")
                # All stops before the first start: one that gives up memory or a port comes first.
                for one in self.those("stopped"):
                    starting.stop(one)
                self.note("switching")
                for one in self.those("changed"):
                    one.withdraw() if one.name in self.gone else self._put(one)
            self.note("starting")
            for name in self._wanted():
                say(f"      {starting.serve(self.next(name))}")
                self.next(name).remember(status="serving")
        except BaseException as problem:
            if service.shutting_down():
                # What ends with the host says nothing about the engine: the boot goes on from here.
                raise SystemExit(1) from None
            self.undo(problem, name)
        self.complete()

    def _wanted(self) -> list[str]:
        return [name for name in self.names if name not in self.gone]

    def complete(self) -> None:
        """All serve: what was before is kept for a rollback, what is not wanted is removed."""
        self.note("done")
        for name in self._wanted():
            one, kept = self.next(name), f"{VAR}/transaction/{name}/before"
            if os.path.isdir(kept) and self.before(name).fingerprint() != one.fingerprint():
                if self.before(name).release() != one.release():
                    # Kept when old releases are removed, whatever else changes meanwhile.
                    one.remember(previous_release=self.before(name).release())
                shutil.rmtree(one.previous, ignore_errors=True)
                os.makedirs(os.path.dirname(one.previous), mode=0o700, exist_ok=True)
                os.rename(kept, one.previous)
            if "files" not in one.remembered():
                # state.json was lost: what serves what was asked for is known again.
                one.remember(**one.seen(), release=one.release())
            self._remember(name, "serving", None)
        for one in self.those("gone"):
            one.remove()
            say(f"      {one.name} is stopped and removed; its weights are kept")
        self._end()

    def undo(self, problem: BaseException, failed: str = "") -> None:
        """Put everything back and start it. Raises Refusal with all that happened."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        known = isinstance(problem, Refusal | OSError | TerminatedError)
        reason = str(problem) if known else f"{type(problem).__name__}: {problem}"
        if failed and failed not in reason:
            reason = f"{failed}: {reason}"
        detail = getattr(problem, "detail", None) or self.data.get("detail")
        detail = detail or {"exception": reason, "phase": self.phase}
        with _at_any_rate():
            self.note("undoing", reason=reason, detail=detail, failed=failed)
        with _at_any_rate():
            Instance(failed).keep_log("new", getattr(problem, "detail", {}).get("invocation"))
        say(f"      {reason}")
        say("      everything is put back to what was in service before")
        for name in self.names:
            if name == failed or name in _strings(self.data["stopped"]):
                try:
                    starting.stop(self.next(name))
                except Refusal as refusal:
                    # The files go back all the same; a start says what still is in its way.
                    say(f"      {refusal}")
        self.put_back()
        self.restore()

    def put_back(self) -> None:
        """The files and links that were; of what was not there before, none."""
        new = _strings(self.data["new"])
        for one in self.those("changed"):
            if one.name in new:
                service.systemctl("stop", "--no-block", one.unit, check=False)
                one.withdraw()
            else:
                with _at_any_rate():
                    self._put(self.before(one.name))
        with _at_any_rate():
            self.note("restoring")

    def _put(self, one: Instance) -> None:
        """What runs on must not look as if it had been started before its files."""
        one.switch() if one.name in _strings(self.data["stopped"]) else one.install()

    def restore(self) -> None:
        """Start what was in service before, and prove it. Raises Refusal with how it ended."""
        lines, reason = [], str(self.data.get("reason"))
        changed, new = _strings(self.data["changed"]), _strings(self.data["new"])
        back: list[bool] = []
        # New ones last: they failed, unless by that the host is again what it was.
        for name in sorted(self.names, key=lambda name: name in new):
            if name in new:
                came = bool(back) and all(back)
                with _at_any_rate():
                    Instance(name).forget()
                if name not in self.gone:
                    lines.append(
                        f"{name}: nothing of it is left in service; what was tried is in "
                        f"{Instance(name).source}"
                    )
            else:
                came = self._comes_back(name, lines)
            if name in changed or not came:
                back.append(came)
                with _at_any_rate():
                    self._remember(name, "rolled back" if came else "failed", reason)
        self._end()
        raise Refusal("\n      ".join([reason, *lines]))

    def _comes_back(self, name: str, lines: list[str]) -> bool:
        old, tried = self.before(name), self.next(name)
        try:
            if name == self.data.get("failed") and old.fingerprint() == tried.fingerprint():
                # The same again would fail again.
                raise Refusal("nothing else was in service before")
            if not old.has_release():
                raise Refusal(f"its release {old.release()} was deleted")
            lines.append(
                f"{name}: what was in service before ({old.release()}) serves: "
                f"{starting.serve(old)}"
            )
        except (Refusal, OSError) as problem:
            detail = getattr(problem, "detail", {})
            starting.stop(old)
            with _at_any_rate():
                old.keep_log("old", detail.get("invocation"))
                old.remember(status="failed", old_invocation=detail.get("invocation"))
            lines.append(
                f"{name}: {old.unit} is stopped, nothing serves: there is no way back: {problem}\n"
                f"      logs are kept in {old.failures}"
            )
            return False
        with _at_any_rate():
            old.remember(status="serving")
        return True

    def _remember(self, name: str, outcome: str, reason: str | None) -> None:
        last: dict[str, object] = {"result": outcome, "reason": reason, "at": time.time()}
        if reason:
            last["detail"] = self.data.get("detail")
            last["tried"] = self.next(name).fingerprint()
        Instance(name).remember(last=last)

    def _end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{VAR}/transaction.json")
        self._discard()

    @staticmethod
    def _discard() -> None:
        shutil.rmtree(f"{VAR}/transaction", ignore_errors=True)


@contextlib.contextmanager
def _at_any_rate() -> Iterator[None]:
    """On the way back a full disk is said, but keeps nothing from being started again."""
    try:
        yield
    except OSError as problem:
        say(f"      {problem}")


def _terminate(*_: object) -> None:
    raise TerminatedError("the activation was stopped (SIGTERM)")


def _strings(value: object) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []


def _tried(entry: object) -> object:
    last = entry.get("last") if isinstance(entry, dict) else None
    return last.get("tried") if isinstance(last, dict) else None

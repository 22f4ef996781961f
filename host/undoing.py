"""The way back of a transaction, and what it knows of itself: names, phase, the files before.

On the way back nothing ends it but the end of the host: what fails is said, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

import service
import starting
from common import VAR, Refusal, say, settle, write
from instance import Instance

_TOLERATED = (Refusal, OSError, subprocess.SubprocessError)


class TerminatedError(BaseException):
    """SIGTERM; no Exception, so that nothing takes it for a failure of its own."""


class Undoing:
    """names: all instances, in the order of their starts, then those that are not wanted any more.
    changed: whose files differ; stopped: those that run something else; new: nothing of them was in
    service before; gone: not wanted any more, which makes them changed and stopped too."""

    def __init__(self, data: dict[str, object]) -> None:
        self.data = data
        self.names, self.phase = strings(data["names"]), str(data["phase"])
        # A transaction that an older program left does not know them.
        self.gone = strings(data.get("gone"))

    def those(self, kind: str) -> list[Instance]:
        """Instances of a kind, from what is to be."""
        return [self.next(n) for n in self.names if n in strings(self.data.get(kind))]

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

    def undo(self, problem: BaseException, failed: str = "") -> None:
        """Put everything back and start it. Raises Refusal with all that happened."""
        signal.signal(signal.SIGTERM, _stay)
        known = isinstance(problem, Refusal | OSError | TerminatedError)
        reason = str(problem) if known else f"{type(problem).__name__}: {problem}"
        if failed and failed not in reason:
            reason = f"{failed}: {reason}"
        detail = getattr(problem, "detail", None) or self.data.get("detail")
        detail = detail or {"exception": reason, "phase": self.phase}
        with at_any_rate():
            self.note("undoing", reason=reason, detail=detail, failed=failed)
        with at_any_rate():
            Instance(failed).keep_log("new", getattr(problem, "detail", {}).get("invocation"))
        say(f"      {reason}")
        say("      everything is put back to what was in service before")
        for name in self.names:
            if name == failed or name in strings(self.data["stopped"]):
                # The files go back all the same; a start says what still is in its way.
                with at_any_rate():
                    starting.stop(self.next(name))
        _leave_to_the_boot()
        self.put_back()
        self.restore()

    def put_back(self) -> None:
        """The files and links that were; of what was not there before, none."""
        new = strings(self.data["new"])
        for one in self.those("changed"):
            if one.name in new:
                with at_any_rate():
                    service.systemctl("stop", "--no-block", one.unit, check=False)
                    one.withdraw()
                continue
            old = self.before(one.name)
            with at_any_rate():
                self.put(old)
            if old.differs():
                # A mixture must not start, neither now nor at a boot.
                with at_any_rate():
                    service.systemctl("disable", "--quiet", old.unit, check=False)
                    service.systemctl("stop", "--no-block", old.unit, check=False)
        settle()
        with at_any_rate():
            self.note("restoring")

    def put(self, one: Instance) -> None:
        """What runs on must not look as if it had been started before its files."""
        one.switch() if one.name in strings(self.data["stopped"]) else one.install()

    def restore(self) -> None:
        """Start what was in service before, and prove it. Raises Refusal with how it ended."""
        signal.signal(signal.SIGTERM, _stay)
        lines, reason = [], str(self.data.get("reason"))
        changed, new = strings(self.data["changed"]), strings(self.data["new"])
        back: list[bool] = []
        # New ones last: they failed, unless by that the host is again what it was.
        for name in sorted(self.names, key=lambda name: name in new):
            if name in new:
                came = bool(back) and all(back)
                with at_any_rate():
                    Instance(name).forget()
                if name not in self.gone:
                    lines.append(_what_is_left(Instance(name)))
            else:
                came = self._comes_back(name, lines)
            if name in changed or not came:
                back.append(came)
                with at_any_rate():
                    self.remember(name, "rolled back" if came else "failed", reason)
        self.end()
        raise Refusal("\n      ".join([reason, *lines]))

    def _comes_back(self, name: str, lines: list[str]) -> bool:
        old = self.before(name)
        try:
            self._may_start(old)
            proof = starting.serve(old)
        # Whatever it is: the others are to be started too.
        except Exception as problem:
            _leave_to_the_boot()
            detail = getattr(problem, "detail", {})
            if starting.waits_for_partner(old):
                lines.append(f"{name}: {problem}\n      it waits on, and serves when both do")
                return False
            state = "stopped"
            try:
                starting.stop(old)
            except _TOLERATED as left:
                state = f"not stopped ({left})"
            with at_any_rate():
                old.keep_log("old", detail.get("invocation"))
                old.remember(status="failed", old_invocation=detail.get("invocation"))
            logs = f"\n      logs are kept in {old.failures}" * os.path.isdir(old.failures)
            lines.append(
                f"{name}: {old.unit} is {state}, nothing serves: there is no way back: {problem}"
                f"{logs}"
            )
            return False
        lines.append(f"{name}: what was in service before ({old.release()}) serves: {proof}")
        with at_any_rate():
            old.remember(status="serving")
        return True

    def _may_start(self, old: Instance) -> None:
        """Raises Refusal when a start of what was before can only fail, or would be a mixture."""
        others = {*strings(self.data["changed"])} - {old.name}
        same = old.fingerprint() == self.next(old.name).fingerprint()
        if old.name == self.data.get("failed") and same and not others:
            # The same again would fail again; unless another one took its memory or its port.
            raise Refusal("nothing else was in service before")
        if not old.has_release():
            raise Refusal(f"its release {old.release()} was deleted")
        if wrong := old.differs():
            raise Refusal(f"its files could not be put back: {', '.join(wrong)}")

    def remember(self, name: str, outcome: str, reason: str | None) -> None:
        last: dict[str, object] = {"result": outcome, "reason": reason, "at": time.time()}
        if reason:
            last["detail"] = self.data.get("detail")
            last["tried"] = self.next(name).fingerprint(whole=True)
        Instance(name).remember(last=last)

    def end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{VAR}/transaction.json")
        self.discard()

    @staticmethod
    def discard() -> None:
        shutil.rmtree(f"{VAR}/transaction", ignore_errors=True)


def _what_is_left(one: Instance) -> str:
    """Of one that was not there before, after it was withdrawn."""
    left = [path for path in (one.link, one.etc, one.drop_ins) if os.path.lexists(path)]
    if left:
        return f"{one.name}: it is stopped, but these could not be removed: {', '.join(left)}"
    return f"{one.name}: nothing of it is left in service; what was tried is in {one.source}"


@contextlib.contextmanager
def at_any_rate() -> Iterator[None]:
    """What fails on the way back is said, but keeps nothing else from going back."""
    try:
        yield
    except _TOLERATED as problem:
        say(f"      {problem}")


def _leave_to_the_boot() -> None:
    """What ends with the host says nothing about the engine: the boot goes on from the record."""
    if service.shutting_down():
        raise SystemExit(1) from None


def _stay(*_: object) -> None:
    """SIGTERM on the way back: it is gone to its end, unless the host ends."""
    _leave_to_the_boot()


def strings(value: object) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list) else []

"""One change of a rank that is made by both hosts of the pair, or by neither.

Nothing is stopped before both are about to do the same, and what they tried is kept only when both
have seen it generate. Each host keeps its own record and undoes its own change; they tell each
other how far they are, and the head has the last word.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import alike
from common import HEARTBEAT_S, Refusal, say
from pairing import Pair, Peer, UnreachableError, look_on_any

AGENT = "sparkwright-pair.service"
MEET_S = 180
"""How long one host waits for the other to begin the same change: pyinfra begins both at once."""
AGREE_S = 300
"""How long one host, whose rank serves, waits for the other to say the same."""
STALE_S = 60
"""An older failure of the same change counts when it still stands after this time."""
DRAIN_S = 150
"""How long a worker waits for its head to finish its requests before it stops."""
_BACK = ("undoing", "restoring")


class Half:
    """One change of a rank, made with the other host or not at all."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.begun = time.monotonic()
        self.first: object = None
        self.joined = False
        self.seen = Peer()

    def meet(self) -> None:
        """Wait until the other host is about to bring the same. Raises Refusal when it is not.

        Nothing was stopped yet, on either.
        """
        self._wait("to begin the same change", self._has_met, MEET_S)
        different = alike.difference(self.pair, self.seen)
        if different:
            raise Refusal(different)

    def _has_met(self, peer: Peer) -> bool:
        return self._goes_along(peer) or self._is_there(peer)

    def _goes_along(self, peer: Peer) -> bool:
        return peer.phase not in ("", *_BACK) and peer.target == self.pair.key

    def _is_there(self, peer: Peer) -> bool:
        return not peer.phase and peer.key == self.pair.key

    def drain(self) -> None:
        """A worker lets its head finish its requests first. A head need not wait."""
        if self.pair.rank == 0:
            return
        try:
            self._wait("to finish its requests", self._is_drained, DRAIN_S)
        except Refusal as refusal:
            say(f"      {refusal}; stopping all the same")

    def _is_drained(self, peer: Peer) -> bool:
        stopping = peer.stops and peer.phase in ("prepared", "stopping")
        return not stopping or peer.unit not in ("active", "deactivating")

    def check(self) -> None:
        """Raises Refusal when the other host can't or won't bring the same any more.

        One that gives no answer is waited for: how long, the start's limit says.
        """
        try:
            self._judge(look_on_any(self.pair))
        except UnreachableError:
            return

    def agree(self) -> None:
        """Both serve. The head waits for its worker to say so, the worker for the head's end.

        Raises Refusal when that does not come.
        """
        self._wait("to see it serve as well", self._agrees, AGREE_S)

    def _agrees(self, peer: Peer) -> bool:
        if self._is_there(peer):
            return True
        ready = peer.proven if self.pair.rank == 0 else peer.phase == "done"
        return ready and peer.target == self.pair.key

    def _judge(self, peer: Peer) -> None:
        other, key = self.pair.peer_host, self.pair.key
        if peer.target == key and peer.phase in _BACK:
            raise Refusal(f"{other}, the other half of the pair, goes back; its lines say why")
        keys = peer.ended.get("keys")
        failed = isinstance(keys, dict) and keys.get(self.pair.name) == key and peer.ended["error"]
        self.first = self.first or peer.ended.get("id") or "none"
        old = peer.ended.get("id") == self.first and time.monotonic() - self.begun < STALE_S
        if failed and not peer.phase and not old:
            raise Refusal(f"{other}, the other half of the pair, failed; its lines say why")
        self.joined |= peer.target == key
        if self.joined and not peer.phase and peer.key != key:
            raise Refusal(f"{other}, the other half of the pair, serves something else again")

    def _wait(self, what: str, done: Callable[[Peer], bool], limit_s: float) -> None:
        begun = spoken = time.monotonic()
        while True:
            told = f"waiting for {self.pair.peer_host} {what}"
            try:
                peer = self.seen = look_on_any(self.pair)
                if done(peer):
                    return
                self._judge(peer)
            except UnreachableError as problem:
                told += f": {problem}"
            now = time.monotonic()
            if now - begun > limit_s:
                raise Refusal(f"after {now - begun:.0f} s still {told}")
            if now - spoken >= HEARTBEAT_S:
                say(f"{now - begun:4.0f} s  {told}")
                spoken = now
            time.sleep(0.5)


def halves(names: Iterable[str]) -> dict[str, Half]:
    """By name those of a transaction's instances that will be one half of a pair."""
    return {name: Half(pair) for name in names if (pair := Pair.coming(name))}


def keys(names: Iterable[str]) -> dict[str, str]:
    """What the other hosts know those by, as `result` keeps it."""
    return {name: half.pair.key for name, half in halves(names).items()}

"""One change on two hosts: what each waits for, and when it gives up with the other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import together
from common import Refusal
from pairing import Pair, Peer, UnreachableError

OLD, NEW = "old", "new"
ENDED = {"id": "e1", "error": True, "keys": {"m": NEW}}
Said = pytest.CaptureFixture[str]
Play = Callable[..., together.Half]


def pair(rank: int = 0) -> Pair:
    return Pair("m", rank, NEW, ("10.0.0.1", "10.0.1.1"), ("10.0.0.2", "10.0.1.2"), "spark-2")


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """A half whose other half answers what is given, one after the other, then the last for ever.

    A step is half a second.
    """

    def make(*answers: Peer | str, rank: int = 0) -> together.Half:
        left, clock = list(answers), SimpleNamespace(now=0.0)

        def look(_: Pair) -> Peer:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, str):
                raise UnreachableError(answer)
            return answer

        def sleep(seconds: float) -> None:
            clock.now += seconds

        fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
        monkeypatch.setattr(together, "look_on_any", look)
        monkeypatch.setattr(together, "time", fake)
        made = together.Half(pair(rank))
        monkeypatch.setattr(made, "clock", clock, raising=False)
        return made

    return make


def seconds(half: Any) -> float:
    return float(half.clock.now)


OLD_ONE = Peer(key=OLD, unit="active")


def test_nothing_is_stopped_before_the_other_host_begins(play: Play, capsys: Said) -> None:
    prepared = Peer(key=OLD, phase="prepared", target=NEW, unit="active")
    half = play("refused", *[OLD_ONE] * 40, prepared)
    half.meet()
    assert seconds(half) == 20.5
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "waiting for spark-2 to begin the same change" in said[0]


@pytest.mark.parametrize(
    "other",
    [
        Peer(key=NEW, unit="active"),
        Peer(key=OLD, phase="switching", target=NEW),
        Peer(key=NEW, phase="starting", target=NEW),
    ],
)
def test_another_that_is_as_far_or_farther_is_met_at_once(play: Play, other: Peer) -> None:
    half = play(other)
    half.meet()
    assert seconds(half) == 0


@pytest.mark.parametrize(
    ("answers", "said", "after"),
    [
        ([OLD_ONE], "after 180 s still waiting for spark-2 to begin the same change", 180.5),
        (["no route to host"], "to begin the same change: no route to host", 180.5),
        ([Peer(phase="undoing", target=NEW)], "spark-2, the other half of the pair, goes back", 0),
        # It refused in this run: the failure is another one than at the first look.
        ([OLD_ONE, Peer(key=OLD, ended=ENDED)], "spark-2, the other half of the pair, failed", 0.5),
        # One of an earlier run: it may still begin.
        ([Peer(key=OLD, ended=ENDED)], "spark-2, the other half of the pair, failed", 60),
    ],
)
def test_why_it_does_not_begin(play: Play, answers: Any, said: str, after: float) -> None:
    half = play(*answers)
    with pytest.raises(Refusal, match=said):
        half.meet()
    assert seconds(half) == after


def test_a_start_is_given_up_when_the_other_goes_back(play: Play) -> None:
    starting = Peer(key=NEW, phase="starting", target=NEW)
    half = play(starting, "cut off", Peer(key=NEW, phase="restoring", target=NEW))
    half.check()
    half.check()
    with pytest.raises(Refusal, match=r"goes back; its lines say why"):
        half.check()
    half = play(starting, OLD_ONE)
    half.check()
    with pytest.raises(Refusal, match="serves something else again"):
        half.check()


def test_the_head_waits_for_its_worker_and_the_worker_for_the_heads_last_word(play: Play) -> None:
    starting = Peer(key=NEW, phase="starting", target=NEW)
    proven = Peer(key=NEW, phase="starting", target=NEW, proven=True)
    done = Peer(key=NEW, phase="done", target=NEW)
    half = play(starting, starting, proven)
    half.agree()
    assert seconds(half) == 1
    half = play(starting, proven, proven, done, rank=1)
    half.agree()
    assert seconds(half) == 1.5
    # It was done so quickly that its record is gone.
    half = play(proven, Peer(key=NEW, unit="active"), rank=1)
    half.agree()
    assert seconds(half) == 0.5
    half = play(proven, rank=1)
    with pytest.raises(Refusal, match="still waiting for spark-2 to see it serve"):
        half.agree()


def test_a_worker_stops_after_its_heads_requests(play: Play, capsys: Said) -> None:
    serving = Peer(key=OLD, phase="prepared", target=NEW, unit="active", stops=True)
    drains = Peer(key=OLD, phase="stopping", target=NEW, unit="deactivating", stops=True)
    stopped = Peer(key=OLD, phase="stopping", target=NEW, unit="inactive", stops=True)
    half = play(serving, drains, drains, stopped, rank=1)
    half.drain()
    assert seconds(half) == 1.5
    half = play(serving)
    half.drain()
    assert seconds(half) == 0, "a head waits for nobody"
    half = play(Peer(key=NEW, phase="starting", target=NEW, unit="active"), rank=1)
    half.drain()
    assert seconds(half) == 0, "one that does not stop is not waited for"
    half = play(drains, rank=1)
    half.drain()
    assert "stopping all the same" in capsys.readouterr().out

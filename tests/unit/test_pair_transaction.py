"""One half of a pair changes with the other half, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import starting
import together
import transaction
from common import Refusal
from pairing import Pair, Peer, UnreachableError

from tests.unit.fake_systemd import FAILED, RUNNING, STARTING, Spark, Start

FAILS: Start = [(1, STARTING, []), (2, FAILED, [])]
Other = Callable[[Pair], Peer]
Meet = Callable[[Other], None]


def stage(spark: Spark, length: int, rank: int = 0) -> str:
    """Stage one rank of a pair; its key."""
    spark.stage(a={"max_model_len": length})
    pair = {
        "pair": "desk",
        "rank": rank,
        "key": f"k{length}",
        "own": ["10.0.0.1", "10.0.1.1"],
        "peer": ["10.0.0.2", "10.0.1.2"],
        "peer_host": "spark-2",
    }
    spark.staged("a", "pair.json").write_text(json.dumps(pair))
    return f"k{length}"


def goes_along(pair: Pair) -> Peer:
    """The other half is always as far as it has to be."""
    return Peer(key=pair.key, unit="active")


@pytest.fixture
def other(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> Meet:
    """Says what the other half answers."""
    clock = SimpleNamespace(monotonic=lambda: spark.systemd.now, sleep=spark.systemd.advance)
    monkeypatch.setattr(together, "time", clock)

    def answers(what: Other) -> None:
        monkeypatch.setattr(together, "look_on_any", what)

    answers(goes_along)
    return answers


def served(spark: Spark) -> str:
    return str(json.loads((spark.etc / "a/pair.json").read_text())["key"])


def nothing_pending(spark: Spark) -> bool:
    return not transaction.record() and not (spark.var / "transaction").exists()


def test_both_change(spark: Spark, other: Meet) -> None:
    stage(spark, 1024)
    transaction.run(["a"])
    asked = spark.systemd.changes()
    assert asked.index("start sparkwright-pair.service") < asked.index("start vllm@a.service")
    assert transaction.result()["keys"] == {"a": "k1024"}
    assert served(spark) == "k1024" and nothing_pending(spark)


def test_a_host_whose_other_half_does_not_begin_stops_nothing(spark: Spark, other: Meet) -> None:
    stage(spark, 1024)
    transaction.run(["a"])
    spark.systemd.asked.clear()
    stage(spark, 2048)
    other(lambda _: Peer(key="k1024", unit="active"))
    with pytest.raises(Refusal, match=r"spark-2 to begin the same change; nothing was stopped"):
        transaction.run(["a"])
    assert not [asked for asked in spark.systemd.changes() if asked.startswith("stop")]
    assert served(spark) == "k1024" and nothing_pending(spark)
    assert transaction.result()["keys"] == {"a": "k2048"}, "the other half reads what was tried"


def test_the_other_half_fails_during_the_start(spark: Spark, other: Meet) -> None:
    stage(spark, 1024)
    transaction.run(["a"])
    new = stage(spark, 2048)
    states = iter([Peer(key="k1024", phase="prepared", target=new)])

    def fails(_: Pair) -> Peer:
        return next(states, Peer(key=new, phase="undoing", target=new))

    other(fails)
    with pytest.raises(Refusal, match="spark-2, the other half of the pair, goes back") as told:
        transaction.run(["a"])
    assert "what was in service before" in str(told.value)
    assert served(spark) == "k1024" and spark.state("a").active == "active"
    assert nothing_pending(spark)


def test_the_other_half_serves_not_though_this_one_does(spark: Spark, other: Meet) -> None:
    stage(spark, 1024)
    transaction.run(["a"])
    new = stage(spark, 2048)

    def never_proven(_: Pair) -> Peer:
        return Peer(key=new, phase="starting", target=new)

    other(never_proven)
    with pytest.raises(Refusal, match="still waiting for spark-2 to see it serve as well"):
        transaction.run(["a"])
    assert served(spark) == "k1024" and spark.state("a").active == "active"


def test_it_proves_before_it_waits_for_the_other(spark: Spark, other: Meet) -> None:
    """Or both would wait for each other."""
    key, seen = stage(spark, 1024), []

    def watches(_: Pair) -> Peer:
        seen.append(transaction.record().get("proven"))
        phase = "prepared" if len(seen) == 1 else "starting"
        return Peer(key=key, phase=phase, target=key, proven=True)

    other(watches)
    transaction.run(["a"])
    assert seen[0] is None and seen[-1] == ["a"]


def test_a_failed_start_here_is_told_before_anything_else(spark: Spark, other: Meet) -> None:
    stage(spark, 1024)
    transaction.run(["a"])
    new, phases = stage(spark, 2048), []

    def follows(_: Pair) -> Peer:
        phases.append((transaction.record() or {}).get("phase"))
        return Peer(key="k1024", phase="starting", target=new)

    other(follows)
    spark.systemd.starts["vllm@a.service"] = [FAILS]
    with pytest.raises(Refusal, match="a did not start: "):
        transaction.run(["a"])
    assert phases[0] == "prepared"
    assert served(spark) == "k1024" and spark.state("a").active == "active"


def test_cut_off_while_it_waits_for_the_other(spark: Spark, other: Meet) -> None:
    stage(spark, 1024)
    transaction.run(["a"])
    stage(spark, 2048)

    class CutError(BaseException):
        pass

    def cut(_: Pair) -> Peer:
        raise CutError

    def kept(self: Any) -> None:
        raise CutError  # a killed program cleans nothing up

    other(cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction._Transaction, "end", kept)
        with pytest.raises(CutError):
            transaction.run(["a"])
    assert transaction.record()["phase"] == "prepared"
    other(goes_along)
    spark.systemd.asked.clear()
    transaction.finish()
    assert not spark.systemd.changes() and nothing_pending(spark)
    transaction.run(["a"])
    assert served(spark) == "k2048"


def test_a_connection_that_comes_and_goes_fails_nothing(spark: Spark, other: Meet) -> None:
    key, looks = stage(spark, 1024), iter(range(1000))

    def flickers(_: Pair) -> Peer:
        if next(looks) % 2:
            raise UnreachableError("no route to host")
        return Peer(key=key, unit="active")

    other(flickers)
    transaction.run(["a"])
    assert served(spark) == "k1024"


def test_a_pair_that_becomes_one_spark_again(spark: Spark, other: Meet) -> None:
    stage(spark, 1024)
    transaction.run(["a"])

    def not_asked(_: Pair) -> Peer:
        raise AssertionError("what comes is served by this host alone")

    other(not_asked)
    spark.staged("a", "pair.json").unlink()
    spark.stage(a={"max_model_len": 2048})
    transaction.run(["a"])
    assert not (spark.etc / "a/pair.json").exists() and spark.state("a").active == "active"


def test_the_watch_is_the_heads(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, wanted in ((0, True), (1, False)):
        stage(spark, 1024, rank)
        (spark.etc / "a").mkdir(parents=True, exist_ok=True)
        (spark.etc / "a/pair.json").write_text(spark.staged("a", "pair.json").read_text())
        monkeypatch.setattr(starting.pairing, "prove", lambda *_: "proven")
        spark.systemd.units["vllm@a.service"] = replace(spark.state("a"), **RUNNING)
        spark.systemd.asked.clear()
        starting.serve(transaction.instance_of("apply", "a"))
        assert ("start sparkwright-watch@a.timer" in spark.systemd.asked) == wanted

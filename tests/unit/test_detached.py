"""A transaction in a unit of its own, joining one that runs, and what a host tells of itself."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import activate
import detached
import pytest
import service
import status
import transaction
from common import Refusal
from instance import Instance

from tests.unit.fake_systemd import GOOD, Spark
from tests.unit.test_activate import A, B
from tests.unit.test_transaction import BAD, Said, cut_at, fails


class Relayed:
    """A transient unit: its lines, and what happens when it is launched."""

    def __init__(self, spark: Spark, monkeypatch: pytest.MonkeyPatch, busy: list[Any]) -> None:
        self.spark, self.busy, self.launched = spark, busy, 0
        monkeypatch.setattr(service, "launch", self.launch)
        monkeypatch.setattr(service, "is_running", lambda _: False)
        monkeypatch.setattr(detached.subprocess, "run", lambda *_, **__: None)
        unit = replace(spark.state("x"), invocation="run")
        show = spark.systemd.show
        monkeypatch.setattr(
            service, "show", lambda name: unit if name == transaction.UNIT else show(name)
        )
        spark.systemd.journals["run"] = ["line of the unit"]

    def launch(self, unit: str, words: list[str]) -> bool:
        if self.busy:
            self.busy.pop(0)()
            return False
        self.launched += 1
        with contextlib.suppress(Refusal):
            transaction.run(*activate.parted(words[4:]), command=words[3])
        return True


def test_it_runs_in_a_unit_of_its_own(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    spark.stage(a={})
    unit = Relayed(spark, monkeypatch, [])
    detached.run("apply", ["a"])
    assert unit.launched == 1 and "line of the unit" in capsys.readouterr().out
    spark.stage(a={"max_num_seqs": 2})
    spark.systemd.starts[A] = [BAD, GOOD]
    with pytest.raises(SystemExit) as ended:
        detached.run("apply", ["a"])
    assert ended.value.code == 1


def test_one_that_runs_is_joined(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    spark.stage(a={})
    unit = Relayed(spark, monkeypatch, [lambda: transaction.run(["a"])])
    detached.run("apply", ["a"])
    assert unit.launched == 0
    assert "this run joins it" in capsys.readouterr().out


def test_one_that_tried_the_same_and_failed_is_not_repeated(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.stage(a={})
    spark.systemd.starts[A] = [BAD]
    unit = Relayed(spark, monkeypatch, [lambda: fails("a")])
    with pytest.raises(SystemExit):
        detached.run("apply", ["a"])
    assert unit.launched == 0


def test_after_one_that_did_something_else_an_own_one_runs(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.stage(a={})

    def other() -> None:
        transaction.run(["a"])
        spark.stage(a={"max_num_seqs": 2})

    unit = Relayed(spark, monkeypatch, [other])
    detached.run("apply", ["a"])
    assert unit.launched == 1 and Instance("a").in_place()


def test_one_that_was_killed_for_good(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.stage(a={})
    Relayed(spark, monkeypatch, [])
    monkeypatch.setattr(service, "launch", lambda *_: True)
    with pytest.raises(
        Refusal, match="the activation left no result: it was stopped or killed before its end"
    ):
        detached.run("apply", ["a"])


def test_status(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status.probe, "instances", lambda _: ["a", "b"])
    spark.serve(a={})
    spark.stage(a={}, b={"port": 8001})
    spark.systemd.starts[B] = [BAD]
    fails("a", "b")
    seen: Any = status.status()
    assert seen["memory"]["total"] > seen["memory"]["available"] > 0 and seen["boot"]
    assert seen["transaction"] is None
    a, b = seen["instances"]["a"], seen["instances"]["b"]
    assert (a["unit"], a["health"], a["problem"]) == ("active", "m generated 8 tokens", None)
    assert a["release"] == Instance("a").release() and a["since"] and a["restarts"] == 0
    assert (b["release"], b["health"], b["problem"]) == (None, None, f"{B} is inactive")
    assert b["last"]["result"] == "failed" and "no kernel image" in b["last"]["reason"]
    (spark.etc / "a/env").write_text("edited")
    spark.systemd.proofs[A] = [Refusal("gave nothing"), "m generated"]  # type: ignore[list-item]
    seen = status.status()
    assert seen["instances"]["a"]["problem"] == "gave nothing"
    assert status.status()["instances"]["a"]["problem"] == f"changed by hand: {spark.etc}/a/env"


def test_status_of_what_is_under_way(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status.probe, "instances", lambda _: [])
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "switching")
    seen = status.status()["transaction"]
    assert seen == {"phase": "switching", "names": ["a"], "running": False}

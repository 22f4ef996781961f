"""`activate.py rollback`: back once, however often it is said, and never to what failed."""

from __future__ import annotations

import os
import shutil
from typing import Any

import activate
import detached
import instance
import pytest
import service
import status
import transaction
from instance import Instance

from tests.unit.fake_systemd import GOOD, Spark
from tests.unit.test_activate import A
from tests.unit.test_detached import Relayed
from tests.unit.test_transaction import BAD, Cut, Said, cut_at, fails, files


@pytest.fixture
def good(spark: Spark) -> dict[str, str]:
    """The files of the release before, after one that is to go."""
    spark.var.mkdir(exist_ok=True)
    spark.serve(a={})
    before = files(spark)
    spark.serve(a={"max_num_seqs": 2})
    return before


def test_said_twice(
    spark: Spark, good: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    unit = Relayed(spark, monkeypatch, [])
    seen: Any = status.status()
    assert seen["instances"]["a"]["previous_release"]
    assert seen["instances"]["a"]["went_back"] is False
    assert seen["instances"]["a"]["differs_from_staged"] is False
    activate.rollback(["a"])
    assert files(spark) == good and unit.launched == 1
    seen = status.status()["instances"]
    assert seen["a"]["last"]["result"] == "went back" and seen["a"]["went_back"] is True
    assert seen["a"]["differs_from_staged"] is True, "the next deploy changes it"
    spark.systemd.asked.clear()
    activate.rollback(["a"])
    assert files(spark) == good and unit.launched == 1 and spark.systemd.asked == []
    said = capsys.readouterr().out
    assert "a already went back; a deploy brings what the inventory says" in said
    assert status.status()["instances"]["a"]["previous_release"] is None  # type: ignore[index]
    spark.systemd.systemctl("stop", A)
    activate.rollback(["a"])
    assert unit.launched == 2 and spark.state("a").active == "active" and files(spark) == good
    transaction.run(["a"])
    assert files(spark) != good, "a deploy brings what the inventory says"
    seen = status.status()["instances"]["a"]
    assert (seen["last"]["result"], seen["went_back"]) == ("serving", False)
    activate.rollback(["a"])
    assert files(spark) == good


def test_said_again_after_it_failed(spark: Spark, good: dict[str, str]) -> None:
    """A rack of which one host failed: those that went back stay there, this one tries again."""
    spark.systemd.starts[A] = [BAD, GOOD]
    assert "what was in service before" in fails("a", command="rollback")
    assert files(spark) != good
    transaction.run(["a"], command="rollback")
    assert files(spark) == good


@pytest.mark.parametrize("fault", [False, True])
def test_said_again_while_it_runs(
    spark: Spark, good: dict[str, str], monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    if fault:
        spark.systemd.starts[A] = [BAD, GOOD]
        unit = Relayed(spark, monkeypatch, [lambda: fails("a", command="rollback")])
        with pytest.raises(SystemExit):
            activate.rollback(["a"])
    else:
        unit = Relayed(spark, monkeypatch, [lambda: transaction.run(["a"], command="rollback")])
        activate.rollback(["a"])
        assert files(spark) == good
    assert unit.launched == 0


def test_one_that_was_cut_off_goes_on_and_stays(
    spark: Spark, good: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = transaction.run
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "run", lambda names: run(names, command="rollback"))
        cut_at(spark, patch, "starting")
    unit = Relayed(spark, monkeypatch, [])
    activate.rollback(["a"])
    assert unit.launched == 1 and files(spark) == good
    assert not Instance("a", Instance("a").previous).differs()


def test_after_a_deploy_that_runs_an_own_one(
    spark: Spark, good: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is before is then what served until now."""
    second = files(spark)
    spark.stage(a={"max_num_seqs": 3})
    unit = Relayed(spark, monkeypatch, [lambda: transaction.run(["a"])])
    activate.rollback(["a"])
    assert unit.launched == 1 and files(spark) == second


def test_of_what_nothing_was_seen_the_reason_is(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    """A unit that has ended before anybody looks is gone, and its journal with it."""
    spark.stage(a={})
    spark.systemd.starts[A] = [BAD]
    Relayed(spark, monkeypatch, [])
    monkeypatch.setattr(detached, "_relay", lambda: False)
    with pytest.raises(SystemExit):
        detached.run("apply", ["a"])
    assert capsys.readouterr().out.splitlines()[-4].startswith("a did not start: RuntimeError")


def test_what_is_staged_meanwhile_is_brought_too(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.stage(a={})
    unit = Relayed(spark, monkeypatch, [])
    launch, wanted = unit.launch, iter(range(2, 9))

    def then_staged(*words: Any) -> bool:
        own = launch(*words)
        if unit.launched < limit:
            spark.stage(a={"max_num_seqs": next(wanted)})
        return own

    monkeypatch.setattr(service, "launch", then_staged)
    limit = 2
    detached.run("apply", ["a"])
    assert unit.launched == 2 and Instance("a").in_place()
    limit = 99
    with pytest.raises(Exception, match="3 times another run staged something else meanwhile"):
        detached.run("apply", ["a"])


def edit(spark: Spark) -> None:
    """Somebody is at the host, and tries something."""
    path = spark.etc / "a/serve.yaml"
    path.write_text(path.read_text() + "by-hand: 1\n")


def test_it_returns_to_what_a_deploy_had_made(spark: Spark, good: dict[str, str]) -> None:
    second = files(spark)
    edit(spark)
    spark.serve(a={"max_num_seqs": 3})
    transaction.run(["a"], command="rollback")
    assert files(spark) == second, "nobody but somebody at the host ever wanted the other"


def test_what_is_put_back_is_nothing_to_go_back_to(spark: Spark, good: dict[str, str]) -> None:
    second = files(spark)
    edit(spark)
    transaction.run(["a"])
    assert files(spark) == second
    transaction.run(["a"], command="rollback")
    assert files(spark) == good


def test_a_failure_brings_back_what_was_in_service(spark: Spark, good: dict[str, str]) -> None:
    """To the letter: it may be why it works."""
    second = files(spark)
    edit(spark)
    edited = files(spark)
    spark.stage(a={"max_num_seqs": 3})
    spark.systemd.starts[A] = [BAD, GOOD]
    fails("a")
    assert files(spark) == edited
    spark.serve(a={"max_num_seqs": 4})
    transaction.run(["a"], command="rollback")
    assert files(spark) == second


def test_of_what_an_older_program_put_in_service(spark: Spark, good: dict[str, str]) -> None:
    """It left no copy: what is in service is all that there is."""
    second = files(spark)
    shutil.rmtree(spark.var / "served")
    spark.serve(a={"max_num_seqs": 3})
    transaction.run(["a"], command="rollback")
    assert files(spark) == second


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("steps", [0, 3, 6, 9, 12, 13])
def test_a_cut_while_it_is_kept(
    spark: Spark, good: dict[str, str], monkeypatch: pytest.MonkeyPatch, steps: int, older: bool
) -> None:
    """At any of its writes and renames."""
    second = files(spark)
    if older:
        shutil.rmtree(spark.var / "served")
    else:
        edit(spark)
    spark.stage(a={"max_num_seqs": 3})
    cut_at(spark, monkeypatch, "done")
    left = [steps]

    def until_then(real: Any) -> Any:
        def dies(*what: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Cut
            real(*what)

        return dies

    with monkeypatch.context() as patch:
        patch.setattr(instance, "write", until_then(instance.write))
        patch.setattr(transaction.os, "rename", until_then(os.rename))
        with pytest.raises(Cut):
            transaction.run([])
    transaction.run(["a"])
    third = files(spark)
    transaction.run(["a"], command="rollback")
    assert files(spark) == second != third


def test_a_release_that_is_gone_is_told_before_a_restart(
    spark: Spark, good: dict[str, str]
) -> None:
    seen: Any = status.status()
    assert seen["instances"]["a"]["release_gone"] is False
    (spark.opt / "releases" / Instance("a").release() / ".complete").unlink()
    seen = status.status()
    assert seen["instances"]["a"]["release_gone"] is True and seen["instances"]["a"]["health"]

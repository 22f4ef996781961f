"""Instances that are not wanted any more: they go with the transaction, or come back with it."""

from __future__ import annotations

import contextlib
import shutil
from typing import Any

import activate
import detached
import instance
import pytest
import service
import starting
import transaction
import undoing
from common import Refusal
from instance import Instance

from tests.unit.fake_systemd import GOOD, Spark
from tests.unit.test_activate import A, B
from tests.unit.test_detached import Relayed
from tests.unit.test_transaction import BAD, Cut, Said, files, nothing_pending, remembered

EMPTY = Refusal("a generation returned no token")


@pytest.fixture(autouse=True)
def state_is_read_where_it_is(spark: Spark) -> None:
    spark.var.mkdir(exist_ok=True)


def a_then_b(spark: Spark) -> dict[str, str]:
    """`a` serves and has served before, `b` is staged, and both together have no room."""
    spark.serve(a={"gpu_memory_utilization": 0.6})
    spark.serve(a={"gpu_memory_utilization": 0.6, "max_num_seqs": 2})
    before = files(spark)
    spark.stage(b={"gpu_memory_utilization": 0.6})
    return before


def fails(names: list[str], gone: list[str]) -> str:
    with pytest.raises(Refusal) as caught:
        transaction.run(names, gone)
    return str(caught.value)


def traces(spark: Spark, name: str) -> list[str]:
    """All that is left of an instance."""
    return [str(p) for p in spark.root.rglob("*") if name in (p.name, p.name[5:-10])]


def assert_old(spark: Spark, before: dict[str, str]) -> None:
    assert files(spark) == before
    assert spark.state("a").active == "active" and spark.state("a").enabled
    assert spark.state("b").active == "inactive" and not spark.state("b").enabled
    assert remembered(spark)["status"] == "serving"
    for folder in ("staged", "previous", "cache"):
        assert (spark.var / folder / "a").is_dir(), folder


def assert_new(spark: Spark) -> None:
    assert Instance("b").in_place()
    assert spark.state("b").active == "active" and spark.state("b").enabled
    assert spark.state("a").active == "inactive" and not spark.state("a").enabled
    assert traces(spark, "a") == []
    with pytest.raises(KeyError):
        remembered(spark)
    assert remembered(spark, "b")["last"]["result"] == "serving"


def test_another_profile(spark: Spark, capsys: Said) -> None:
    a_then_b(spark)
    assert len(traces(spark, "a")) >= 5, "or nothing below would tell"
    transaction.run(["b"], ["a"])
    asked = [x for x in spark.systemd.changes() if x.split()[0] in ("start", "stop", "disable")]
    assert asked[0] == f"stop {A}" and asked[-2:] == [f"start {B}", f"disable {A}"]
    assert_new(spark)
    assert nothing_pending(spark)
    assert "a is stopped and removed; its weights are kept" in capsys.readouterr().out


@pytest.mark.parametrize("proof", [False, True])
def test_another_profile_that_fails(spark: Spark, proof: bool) -> None:
    before = a_then_b(spark)
    if proof:
        spark.systemd.proofs[B] = [EMPTY]
    else:
        spark.systemd.starts[B] = [BAD]
    said = fails(["b"], ["a"])
    assert said.startswith("b started, but does not" if proof else "b did not start: RuntimeError")
    assert "a: what was in service before" in said and "b: nothing of it is left" in said
    assert_old(spark, before)
    assert nothing_pending(spark) and spark.staged("b", "env").exists()
    for name in ("a", "b"):
        last = remembered(spark, name)["last"]
        assert last["result"] == "rolled back" and last["reason"].startswith("b "), last
    transaction.run(["b"], ["a"])
    assert_new(spark)


def test_neither_comes_back(spark: Spark) -> None:
    a_then_b(spark)
    spark.systemd.starts |= {A: [BAD], B: [BAD]}
    assert f"a: {A} is stopped, nothing serves: there is no way back" in fails(["b"], ["a"])
    for name in ("a", "b"):
        assert remembered(spark, name)["last"]["result"] == "failed"
    assert spark.systemd.state(A).active == spark.systemd.state(B).active == "inactive"


def test_one_of_two(spark: Spark) -> None:
    spark.serve(a={}, b={})
    transaction.run(["b"], ["a"])
    assert spark.state("b").active == "active" and traces(spark, "a") == []
    assert f"stop {B}" not in spark.systemd.asked, "it runs on"
    assert not {f"start {A}", f"start {B}"} & {*spark.systemd.asked}


def test_one_of_two_while_the_other_fails(spark: Spark) -> None:
    spark.serve(a={}, b={})
    before = files(spark)
    spark.stage(a={}, b={"max_num_seqs": 2})
    spark.systemd.starts[B] = [BAD, GOOD]
    said = fails(["b"], ["a"])
    assert "a: what was in service before" in said and "b: what was in service before" in said
    assert files(spark) == before
    assert (spark.state("a").active, spark.state("b").active) == ("active", "active")


def test_nothing_is_wanted_any_more(spark: Spark) -> None:
    spark.serve(a={})
    transaction.run([], ["a"])
    assert files(spark) == {} and traces(spark, "a") == []
    assert spark.state("a").active == "inactive" and nothing_pending(spark)


def test_what_can_not_be_stopped_stays(spark: Spark) -> None:
    before = a_then_b(spark)
    spark.systemd.left = ["pid 7 VLLM::EngineCore"]
    assert "these are left: pid 7 VLLM::EngineCore" in fails([], ["a"])
    spark.systemd.left = []
    assert_old(spark, before)


def test_the_same_twice(spark: Spark) -> None:
    a_then_b(spark)
    words = ["b", "b", "--without", "a", "a", "b"]
    assert activate.parted(words) == (["b"], ["a"]), "what is wanted is wanted"
    transaction.run(*activate.parted(words))
    spark.systemd.asked.clear()
    transaction.run(*activate.parted(words))
    transaction.run([], ["a"])
    assert spark.systemd.changes() == []
    assert_new(spark)


def test_what_a_failed_try_left_goes_too(spark: Spark) -> None:
    """Nothing of it was in service, so nothing of it comes back; what serves is not touched."""
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={}, b={})
    spark.systemd.starts[B] = [BAD]
    fails(["a", "b"], [])
    spark.systemd.asked.clear()
    spark.stage(a={"max_num_seqs": 2})
    spark.systemd.starts[A] = [BAD, GOOD]
    assert "b:" not in fails(["a"], ["b"])
    assert files(spark) == before and "b" in spark.instances(), "the next run tries again"
    transaction.run(["a"], ["b"])
    assert traces(spark, "b") == [] and Instance("a").in_place()


def test_files_that_are_gone_are_told_before_it_stops(spark: Spark, capsys: Said) -> None:
    a_then_b(spark)
    shutil.rmtree(spark.etc / "a")
    spark.systemd.starts[B] = [BAD]
    fails(["b"], ["a"])
    assert "a: there is no way back, its files in service are gone" in capsys.readouterr().out
    assert remembered(spark, "b")["last"]["result"] == "failed"


def test_a_deleted_release_is_told_before_it_stops(spark: Spark, capsys: Said) -> None:
    a_then_b(spark)
    (spark.opt / "releases" / Instance("a").release() / ".complete").unlink()
    with pytest.raises(Refusal, match=r"b: release .* is not on this host; nothing was stopped"):
        transaction.run(["b"], ["a"])
    assert spark.systemd.changes() == [] and nothing_pending(spark)
    transaction.run([], ["a"])
    assert "a: there is no way back, its release in service was deleted" in capsys.readouterr().out


def test_a_name_that_no_unit_can_have(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.serve(a={})
    (spark.var / "staged/odd name").mkdir()
    show = service.show

    def strict(unit: str) -> service.Unit:
        if " " in unit:
            raise Refusal("Invalid unit name")
        return show(unit)

    monkeypatch.setattr(service, "show", strict)
    transaction.run(["a"], ["odd name"])
    assert spark.instances() == ["a"] and spark.state("a").active == "active"


class Killed:
    """kill -9 at the n-th thing that is asked of systemd or done to files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.left, self.at = at, at
        for owner, name in (
            (service, "systemctl"), (instance, "write"), (transaction, "write"),
            (undoing, "write"),
            (shutil, "rmtree"), (instance.os, "replace"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Any) -> Any:
        def counted(*what: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Cut
            return real(*what, **more)

        return counted


@pytest.mark.parametrize("at", range(96))
def test_killed_at_every_step(spark: Spark, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Then a boot or the next run; 74 steps there are when all goes well, 94 when `b` fails."""
    boot, bad = bool(at % 2), bool(at // 2 % 2) or at > 74
    before = a_then_b(spark)
    spark.systemd.starts[B] = [BAD] * 3 if bad else [GOOD] * 3
    with monkeypatch.context() as patch:
        Killed(patch, at)
        with contextlib.suppress(Cut, Refusal):
            transaction.run(["b"], ["a"])
    if boot:
        for unit in (A, B):
            spark.systemd.systemctl("stop", unit)
        monkeypatch.setattr(service, "launch", lambda *_: True)
        transaction.recover()
        for name, unit in (("a", A), ("b", B)):
            if spark.systemd.state(unit).enabled and (spark.opt / "active" / name).is_symlink():
                spark.systemd.systemctl("start", unit)
    with contextlib.suppress(Refusal):
        transaction.run([])
    spark.systemd.advance(99)
    assert transaction.record() == {}
    if bad or spark.state("a").active == "active":
        assert_old(spark, before)
    else:
        assert_new(spark)


@pytest.mark.parametrize("boot", [False, True])
@pytest.mark.parametrize("phase", ["stopping", "switching", "done"])
def test_the_removal_of_the_last_one_is_cut(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, phase: str, boot: bool
) -> None:
    spark.serve(a={})
    before = files(spark)
    note = transaction._Transaction.note

    def and_die(one: Any, now: str, **more: Any) -> None:
        note(one, now, **more)
        if now == phase:
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(transaction._Transaction, "note", and_die)
        patch.setattr(transaction._Transaction, "undo", lambda *_: (_ for _ in ()).throw(Cut))
        with pytest.raises(Cut):
            transaction.run([], ["a"])
    if boot:
        monkeypatch.setattr(service, "launch", lambda *_: True)
        spark.systemd.systemctl("stop", A)
        transaction.recover()
    if phase == "done":
        transaction.run([])
    else:
        assert f"cut off {'by a reboot ' * boot}while {phase}" in fails([], [])
        assert files(spark) == before and spark.state("a").active == "active"
        transaction.run([], ["a"])
    assert files(spark) == {} and traces(spark, "a") == []


@pytest.mark.parametrize("written", range(10))
def test_a_disk_that_is_full_from_some_moment_on(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    before = a_then_b(spark)
    stop, left = starting.stop, [10**6]
    write = transaction.write

    def stop_then_full(one: Any) -> None:
        stop(one)
        left[0] = min(left[0], written)

    def full(*what: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        write(*what)

    monkeypatch.setattr(starting, "stop", stop_then_full)
    monkeypatch.setattr(undoing, "write", full)
    monkeypatch.setattr(transaction, "write", full)
    monkeypatch.setattr(instance, "write", full)
    with contextlib.suppress(Refusal, OSError):
        transaction.run(["b"], ["a"])
    serving = [name for name in ("a", "b") if spark.state(name).active == "active"]
    assert (serving == ["a"] and files(spark) == before) or serving == ["b"]


def test_one_that_did_the_same_is_joined(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    a_then_b(spark)
    unit = Relayed(spark, monkeypatch, [lambda: transaction.run(["b"], ["a"])])
    detached.run("apply", ["b"], ["a"])
    assert unit.launched == 0
    assert_new(spark)


def test_one_that_failed_at_the_same_is_not_repeated(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = a_then_b(spark)
    spark.systemd.starts[B] = [BAD]
    unit = Relayed(spark, monkeypatch, [lambda: fails(["b"], ["a"])])
    with pytest.raises(SystemExit):
        detached.run("apply", ["b"], ["a"])
    assert unit.launched == 0
    assert_old(spark, before)


def test_after_one_that_removed_nothing_an_own_one_runs(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.serve(a={})
    spark.stage(a={}, b={})
    unit = Relayed(spark, monkeypatch, [lambda: transaction.run(["a", "b"])])
    detached.run("apply", ["b"], ["a"])
    assert unit.launched == 1 and traces(spark, "a") == []
    spark.stage(a={}, b={})
    unit.busy.append(lambda: transaction.run([], ["a"]))
    spark.stage(a={})
    detached.run("apply", [], ["a"])
    assert traces(spark, "a") == []

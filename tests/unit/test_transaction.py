"""All of the new or all of the old: failures at every step, cuts at every step, and joining."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import activate
import instance
import pytest
import service
import starting
import transaction
import undoing
from common import Refusal
from instance import Instance

from tests.unit.fake_systemd import FAILED, GOOD, STARTING, Spark, Start
from tests.unit.test_activate import CRASH, A, B, checked

BAD: Start = [(1, STARTING, []), (5, FAILED, CRASH)]
Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def state_is_read_where_it_is(spark: Spark) -> None:
    spark.var.mkdir(exist_ok=True)


def remembered(spark: Spark, name: str = "a") -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((spark.var / "state.json").read_text())[name]
    return entry


def files(spark: Spark) -> dict[str, str]:
    """Everything in service, by path."""
    found = [p for folder in (spark.etc, spark.units) for p in folder.rglob("*") if p.is_file()]
    links = {str(p): os.readlink(p) for p in (spark.opt / "active").glob("*")}
    return {str(path): path.read_text() for path in found} | links


def fails(*names: str, command: str = "apply") -> str:
    with pytest.raises(Refusal) as caught:
        transaction.run(names, command=command)
    return str(caught.value)


def nothing_pending(spark: Spark) -> bool:
    return (
        not (spark.var / "transaction.json").exists() and not (spark.var / "transaction").exists()
    )


def test_a_failure_puts_all_instances_back(spark: Spark) -> None:
    spark.serve(a={}, b={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2}, b={"max_num_seqs": 3})
    spark.systemd.starts[B] = [BAD, GOOD]
    said = fails("a", "b")
    assert said.startswith("b did not start: RuntimeError: no kernel image")
    assert "a: what was in service before" in said and "b: what was in service before" in said
    assert files(spark) == before and nothing_pending(spark)
    assert (spark.state("a").active, spark.state("b").active) == ("active", "active")
    for name in ("a", "b"):
        entry = remembered(spark, name)
        assert (entry["status"], entry["last"]["result"]) == ("serving", "rolled back")
        assert entry["last"]["reason"].startswith("b did not start")
    assert "no kernel image" in (spark.var / "failures/b/new.log").read_text()
    assert not (spark.var / "failures/a").exists()
    assert not (spark.var / "previous").exists(), "what came back is not what was before"


def test_what_was_before_is_kept_for_a_rollback(spark: Spark, capsys: Said) -> None:
    spark.serve(a={})
    first = files(spark)
    spark.serve(a={"max_num_seqs": 2})
    spark.stage(a={"max_num_seqs": 3})
    spark.systemd.starts[A] = [BAD, GOOD]
    fails("a")
    transaction.run(["a"], command="rollback")
    assert files(spark) == first, "the failed try in between is not what was before"
    transaction.run(["a"], command="rollback")
    assert files(spark) == first, "it is no toggle"
    transaction.run(["a"])
    assert files(spark) != first
    assert "previous_release" not in remembered(spark), "it is the same"
    old = Instance("a").release()
    spark.build("new")
    spark.staged("a", "release").write_text("new\n")
    transaction.run(["a"])
    assert remembered(spark)["previous_release"] == old
    spark.serve(a={"max_num_seqs": 4})
    spark.serve(a={"max_num_seqs": 5})
    assert remembered(spark)["previous_release"] == "new", "the last other one"


def test_neither_the_new_nor_the_old(spark: Spark) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    spark.systemd.starts[A] = [BAD, [(1, STARTING, []), (2, FAILED, [CRASH[0], "OSError: gone"])]]
    said = fails("a")
    assert "RuntimeError: no kernel image" in said
    assert f"a: {A} is stopped, nothing serves: there is no way back: a did not start: OS" in said
    assert spark.state("a").active == "inactive" and files(spark) == before
    assert "OSError: gone" in (spark.var / "failures/a/old.log").read_text()
    assert "no kernel image" in (spark.var / "failures/a/new.log").read_text()
    assert (remembered(spark)["status"], remembered(spark)["last"]["result"]) == ("failed",) * 2
    assert nothing_pending(spark)


def test_a_first_installation_that_fails_leaves_nothing(spark: Spark) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={}, b={})
    spark.systemd.starts[B] = [BAD]
    assert "b: nothing of it is left in service" in fails("a", "b")
    assert files(spark) == before and spark.staged("b", "env").exists()
    assert f"disable {B}" in spark.systemd.asked
    assert spark.systemd.asked.count(f"stop {A}") == 0, "the other one runs on"
    assert remembered(spark, "b").keys() == {"last"}
    assert remembered(spark, "a")["last"]["result"] == "serving"


def test_alone_it_takes_the_unit_with_it(spark: Spark) -> None:
    spark.stage(a={})
    spark.systemd.starts[A] = [BAD]
    fails("a")
    assert files(spark) == {}


@pytest.mark.parametrize(
    "problem", [OSError(28, "No space left on device"), ValueError("odd"), Refusal("no")]
)
@pytest.mark.parametrize("step", ["switch", "serve"])
def test_any_cause_puts_it_back(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, step: str, problem: Exception
) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    owner: Any = Instance if step == "switch" else starting
    real, calls = getattr(owner, step), []

    def once(one: Any) -> Any:
        calls.append(one)
        if len(calls) == 1:
            if step == "switch":
                one.install()
            raise problem
        return real(one)

    monkeypatch.setattr(owner, step, once)
    said = fails("a")
    assert str(problem) in said and "what was in service before" in said
    assert files(spark) == before and spark.state("a").active == "active"


@pytest.mark.parametrize("written", range(8))
def test_a_disk_that_is_full_from_some_moment_on(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """While it is stopped, whatever can't be written: it does not stay stopped."""
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    stop, left = starting.stop, [10**6]

    def stop_then_full(one: Any) -> None:
        stop(one)
        left[0] = min(left[0], written)

    def full(*what: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        common_write(*what)

    common_write = transaction.write
    monkeypatch.setattr(starting, "stop", stop_then_full)
    monkeypatch.setattr(undoing, "write", full)
    monkeypatch.setattr(transaction, "write", full)
    monkeypatch.setattr(instance, "write", full)
    try:
        transaction.run(["a"])
    except Refusal as refusal:
        assert "No space left" in str(refusal)
    except OSError:
        pass
    assert spark.state("a").active == "active"
    assert files(spark) == before or Instance("a").in_place(), "all of one"


def test_sigterm_puts_it_back(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    wait = spark.systemd.advance
    moved: list[float] = []

    def terminated(seconds: float) -> None:
        moved.append(seconds)
        wait(seconds)
        if len(moved) == 2:
            transaction._terminate()

    monkeypatch.setattr(starting.time, "sleep", terminated)
    assert "SIGTERM" in fails("a")
    assert files(spark) == before and spark.state("a").active == "active"


def test_a_host_that_shuts_down_is_left_to_its_boot(spark: Spark) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    spark.systemd.starts[A] = [BAD]
    spark.stopping_host = True
    with pytest.raises(SystemExit):
        transaction.run(["a"])
    assert transaction.record()["phase"] == "starting"
    assert transaction.result()["error"] == "it was cut off"


class Cut(BaseException):
    """kill -9: nothing of the program runs any more."""


def cut_at(spark: Spark, monkeypatch: pytest.MonkeyPatch, phase: str, half: bool = False) -> None:
    """Leave behind what a kill leaves after it wrote down a phase."""
    note = transaction._Transaction.note

    def and_die(one: Any, now: str, **more: Any) -> None:
        note(one, now, **more)
        if now == phase:
            if half:
                shutil.copy(spark.staged("a", "serve.yaml"), spark.etc / "a/serve.yaml")
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(transaction._Transaction, "note", and_die)
        patch.setattr(transaction._Transaction, "undo", lambda *_: (_ for _ in ()).throw(Cut))
        with pytest.raises(Cut):
            transaction.run(["a"])
    assert transaction.record()["phase"] == phase


@pytest.mark.parametrize("phase", ["stopping", "switching", "starting", "done"])
@pytest.mark.parametrize("boot", [False, True])
def test_after_a_cut_all_of_one_is_in_service(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, phase: str, boot: bool, capsys: Said
) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, phase, half=phase == "switching")
    forward = phase in ("starting", "done")
    assert checked(capsys, "a")["a"]["missing"] == "an activation is under way, or was cut off"
    if boot:
        launched: list[str] = []
        monkeypatch.setattr(service, "launch", lambda unit, words: launched.append(words[-1]))
        spark.systemd.systemctl("stop", A)
        transaction.recover()
        assert launched == ["finish"]
        assert (files(spark) == before) is not forward, "before any engine starts"
        spark.systemd.begin(A, list(GOOD))
        if phase == "done":
            spark.systemd.advance(9)
    if forward:
        transaction.run([])
        assert files(spark) != before and Instance("a").in_place()
        assert remembered(spark)["last"]["result"] == "serving"
        assert (spark.var / "previous/a").exists()
    else:
        assert f"cut off {'by a reboot ' * boot}while {phase}" in fails()
        assert files(spark) == before
        assert remembered(spark)["last"]["result"] == "rolled back"
    assert spark.state("a").active == "active" and nothing_pending(spark)


def test_a_start_is_tried_again_once_only(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be what takes the host down."""
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "starting")
    transaction._Transaction(transaction.record()).note("starting", again=True)
    monkeypatch.setattr(service, "launch", lambda *_: True)
    transaction.recover()
    assert files(spark) == before and transaction.record()["phase"] == "restoring"
    assert "cut off by a reboot while starting" in fails()
    assert spark.state("a").active == "active"


def test_cut_while_it_goes_back(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "switching", half=True)
    transaction._Transaction(transaction.record()).note("undoing", reason="it broke", failed="a")
    assert fails().startswith("a: it broke") and files(spark) == before


def test_what_was_cut_off_is_finished_before_another_begins(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "stopping")
    spark.stage(a={"max_num_seqs": 3})
    transaction.run(["a"])
    assert "it is brought to its end first" in capsys.readouterr().out
    assert Instance("a").in_place()


def test_what_failed_when_it_was_finished_is_not_tried_again(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "starting")
    spark.systemd.starts[A] = [BAD, GOOD]
    assert fails("a").startswith("a did not start")
    assert spark.state("a").active == "active" and spark.systemd.starts[A] == []


def test_an_instance_that_was_removed_does_not_come_back(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "switching")
    transaction.run([], ["a"])
    assert files(spark) == {} and spark.state("a").active == "inactive"


def test_a_deleted_release_is_told_before_anything_stops(spark: Spark, capsys: Said) -> None:
    spark.serve(a={})
    old = Instance("a").release()
    spark.staged("a", "release").write_text("new\n")
    assert "release new is not on this host; nothing was stopped" in fails("a")
    assert spark.systemd.changes() == [] and nothing_pending(spark)
    spark.build("new")
    (spark.opt / "releases" / old / ".complete").unlink()
    spark.systemd.starts[A] = [BAD]
    said = fails("a")
    assert f"a: there is no way back, its release in service was deleted ({old})" in (
        capsys.readouterr().out
    )
    assert f"there is no way back: its release {old} was deleted" in said
    assert spark.state("a").active == "inactive"


def test_rollback_refuses_what_is_not_there(spark: Spark) -> None:
    spark.serve(a={})
    with pytest.raises(Refusal, match="a: there is nothing to go back to"):
        activate.rollback(["a"])
    old = Instance("a").release()
    spark.build("new")
    spark.staged("a", "release").write_text("new\n")
    transaction.run(["a"])
    (spark.opt / "releases" / old / ".complete").unlink()
    with pytest.raises(Refusal, match=f"a: there is no way back: release {old} was deleted"):
        activate.rollback(["a"])


def test_processes_that_stay(spark: Spark) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    spark.systemd.left = ["pid 7 VLLM::EngineCore"]
    said = fails("a")
    assert f"{A} is stopped, but after 61 s these are left: pid 7 VLLM::EngineCore" in said
    assert "max_num_seqs" not in (spark.etc / "a/serve.yaml").read_text()


def test_a_lost_state_is_mended_without_a_restart(spark: Spark) -> None:
    spark.serve(a={})
    (spark.var / "state.json").write_text("")
    transaction.run(["a"])
    assert spark.systemd.changes() == []
    assert remembered(spark)["release"] == Instance("a").release()
    (spark.etc / "a/env").write_text("edited")
    assert Instance("a").drift() == [f"{spark.etc}/a/env"]


def test_a_clock_that_jumps(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine in service is not taken for one that started before its files: time.time() leaps
    between 2001 and 2033 here. Nothing is told about clocks of systemd or the journal."""
    times = iter([2e9, 1e9] * 50)
    monkeypatch.setattr(transaction.time, "time", lambda: next(times))
    monkeypatch.setattr(starting.time, "time", lambda: next(times))
    spark.serve(a={})
    spark.serve(a={"max_num_seqs": 2})
    transaction.run(["a"])
    assert spark.systemd.changes() == [] and spark.state("a").active == "active"

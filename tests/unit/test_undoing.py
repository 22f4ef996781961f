"""The way back when it meets trouble itself: no mixture starts, nothing is lost for the rest."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import activate
import common
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
from tests.unit.test_transaction import BAD, Said, cut_at, fails, files, nothing_pending, remembered


@pytest.fixture(autouse=True)
def state_is_read_where_it_is(spark: Spark) -> None:
    spark.var.mkdir(exist_ok=True)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_key_is_private_wherever_it_is(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.stage(a={})
    activate.key("a")
    spark.staged("a", "api-key.env").chmod(0o644)
    transaction.run(["a"])
    assert mode(spark.etc / "a/api-key.env") == 0o600
    spark.systemd.asked.clear()
    transaction.run(["a"])
    assert spark.systemd.changes() == [], "its mode is no difference for ever"
    (spark.etc / "a/api-key.env").chmod(0o644)
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "starting")
    pending = spark.var / "transaction/a"
    for folder in (pending, pending / "next", pending / "before"):
        assert mode(folder) == 0o700
    assert {mode(pending / f"{k}/api-key.env") for k in ("next", "before")} == {0o600}
    transaction.run(["a"])
    assert mode(spark.var / "previous/a") == mode(spark.var / "previous") == 0o700
    assert mode(spark.var / "previous/a/api-key.env") == 0o600
    assert mode(spark.var / "transaction-result.json") == 0o600


def test_a_key_is_private_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "api-key.env", tmp_path / "other"
    source.write_text("key")
    source.chmod(0o644)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(instance, "write", full)
    instance._copy(str(source), str(target))
    assert target.read_text() == "key" and mode(target) == 0o600


def stops_the_host(spark: Spark, monkeypatch: pytest.MonkeyPatch, step: str, call: int) -> None:
    """From the n-th call of a step on the host shuts down, and the step fails for it."""
    real, calls = getattr(starting, step), []

    def ends(one: Any) -> Any:
        calls.append(one)
        if len(calls) == call:
            spark.stopping_host = True
            raise Refusal("Transaction is destructive")
        return real(one)

    monkeypatch.setattr(starting, step, ends)


@pytest.mark.parametrize(
    ("step", "call", "phase"), [("serve", 2, "restoring"), ("stop", 2, "undoing")]
)
def test_a_reboot_on_the_way_back(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, step: str, call: int, phase: str
) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    spark.systemd.starts[A] = [BAD, GOOD]
    with monkeypatch.context() as patch:
        stops_the_host(spark, patch, step, call)
        with pytest.raises(SystemExit):
            transaction.run(["a"])
    assert transaction.record()["phase"] == phase, "it is not taken for the engine's failure"
    spark.stopping_host = False
    spark.systemd.systemctl("stop", A)
    monkeypatch.setattr(service, "launch", lambda *_: True)
    transaction.recover()
    assert files(spark) == before
    assert "a: what was in service before" in fails()
    assert spark.state("a").active == "active" and nothing_pending(spark)
    assert remembered(spark)["last"]["result"] == "rolled back"


def test_sigterm_on_the_way_back(spark: Spark) -> None:
    undoing._stay()
    spark.stopping_host = True
    with pytest.raises(SystemExit):
        undoing._stay()


def test_one_that_can_not_even_be_stopped(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens to it is said; the other one is started all the same."""
    spark.serve(a={}, b={})
    spark.stage(a={"max_num_seqs": 2}, b={"max_num_seqs": 2})
    spark.systemd.starts |= {A: [GOOD, BAD], B: [BAD, GOOD]}
    stop, stopped = starting.stop, []

    def stays(one: Any) -> None:
        stop(one)
        stopped.append(one.name)
        if stopped.count("a") == 3:
            raise Refusal("these are left: pid 7")

    monkeypatch.setattr(starting, "stop", stays)
    said = fails("a", "b")
    assert f"a: {A} is not stopped (these are left: pid 7), nothing serves: " in said
    assert "b: what was in service before" in said and spark.state("b").active == "active"
    assert nothing_pending(spark)


def test_a_new_one_that_can_not_be_removed(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2}, b={})
    spark.systemd.starts[B] = [BAD]

    def refuses(_: Any) -> None:
        raise Refusal("systemctl daemon-reload: no")

    monkeypatch.setattr(Instance, "withdraw", refuses)
    said = fails("b", "a")
    assert f"b: it is stopped, but these could not be removed: {spark.opt}/active/b" in said
    assert "a: what was in service before" in said and spark.state("a").active == "active"
    assert {path: text for path, text in files(spark).items() if path in before} == before


@pytest.mark.parametrize("phase", ["now", "boot"])
def test_no_mixture_starts(spark: Spark, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
    """The new release's link is in place, and the old one's can't be put back."""
    spark.serve(a={})
    spark.build("new")
    spark.staged("a", "release").write_text("new\n")
    switch = Instance.switch

    def once(one: Instance) -> None:
        if one.source.endswith("before"):
            raise OSError(5, "Input/output error")
        switch(one)

    if phase == "boot":
        cut_at(spark, monkeypatch, "starting")
        transaction._Transaction(transaction.record()).note("undoing", reason="it broke")
        spark.systemd.begin(A, [(9, {"queued": True}, [])])
        monkeypatch.setattr(service, "launch", lambda *_: True)
    monkeypatch.setattr(Instance, "switch", once)
    if phase == "boot":
        transaction.recover()
        assert f"stop {A}" in spark.systemd.asked and not spark.state("a").enabled
        said = fails()
    else:
        spark.systemd.starts[A] = [BAD]
        said = fails("a")
    assert f"there is no way back: its files could not be put back: {spark.opt}/active/a" in said
    assert spark.systemd.asked.count(f"start {A}") == (phase == "now")
    assert spark.state("a").active == "inactive" and not spark.state("a").enabled
    monkeypatch.setattr(Instance, "switch", switch)
    transaction.run(["a"])
    assert spark.state("a").enabled and Instance("a").in_place()


def test_one_whose_memory_another_took(spark: Spark) -> None:
    """Nothing of `a` was changed, but of the host it was: back there, it may serve again."""
    spark.serve(a={}, b={})
    spark.stage(a={}, b={"max_num_seqs": 2})
    spark.systemd.proofs[A] = [Refusal("a generation gave nothing")]
    spark.systemd.starts[A] = [BAD, GOOD]
    said = fails("a", "b")
    assert "a: what was in service before" in said
    assert (spark.state("a").active, spark.state("b").active) == ("active", "active")
    spark.stage(a={}, b={})
    spark.systemd.proofs[A] = [Refusal("a generation gave nothing")]
    spark.systemd.starts[A] = [BAD, GOOD]
    assert "nothing else was in service before" in fails("a", "b")
    assert spark.systemd.starts[A] == [GOOD], "the same again would fail again"


def test_a_longer_time_out_is_another_try(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "starting")
    spark.stage(a={"max_num_seqs": 2, "ready_timeout_s": 900})
    spark.systemd.starts[A] = [BAD, GOOD, GOOD]
    transaction.run(["a"])
    assert spark.systemd.starts[A] == [] and Instance("a").in_place()


@pytest.mark.parametrize("runs", [True, False])
def test_a_boot_does_not_wait_for_who_holds_the_lock(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, runs: bool, capsys: Said
) -> None:
    """A transaction ends what was cut off; the watch lets go after its look."""
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "switching")
    launched: list[str] = []
    monkeypatch.setattr(service, "launch", lambda unit, _: launched.append(unit))
    monkeypatch.setattr(service, "is_running", lambda _: runs)
    held = common.lock("activation", "looking")
    held.__enter__()
    monkeypatch.setattr(transaction.time, "sleep", lambda _: held.__exit__(None, None, None))
    transaction.recover()
    assert launched == ([] if runs else [transaction.UNIT])
    assert transaction.record()["phase"] == ("switching" if runs else "restoring")
    assert ("runs already" in capsys.readouterr().out) is runs


def test_files_are_on_disk_before_the_record_says_so(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    spark.systemd.starts[A] = [BAD, GOOD]
    steps: list[str] = []
    note = undoing.Undoing.note
    for module in (transaction, undoing):
        monkeypatch.setattr(module, "settle", lambda: steps.append("settle"))

    def noted(one: Any, phase: str, **more: Any) -> None:
        steps.append(phase)
        note(one, phase, **more)

    monkeypatch.setattr(undoing.Undoing, "note", noted)
    fails("a")
    way = "stopping switching settle starting undoing settle restoring"
    assert steps == way.split()


def test_without_recovery_at_boot_nothing_begins(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    real = service.systemctl

    def refuses(*words: str, check: bool = True) -> str:
        if check and words[-1] == transaction.RECOVERY:
            raise Refusal("Unit sparkwright-recover.service does not exist")
        return real(*words, check=check)

    monkeypatch.setattr(service, "systemctl", refuses)
    said = fails("a")
    assert "sparkwright-recover.service does not exist" in said and "nothing was stopped" in said
    assert spark.systemd.changes() == [] and nothing_pending(spark)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"phase": "switching"}', '{"names": 1}'])
def test_a_record_that_can_not_be_read(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """It is not thrown away with the only copy of what was in service."""
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "switching")
    spark.systemd.asked.clear()
    (spark.var / "transaction.json").write_text(text)
    for names in ([], ["a"]):
        said = fails(*names)
        assert f"transaction.json can't be read (it begins with {text!r})" in said
    with pytest.raises(Refusal, match="can't be read"):
        transaction.recover()
    assert spark.systemd.changes() == []
    assert (spark.var / "transaction/a/before/serve.yaml").exists()
    (spark.var / "transaction.json").unlink()
    shutil.move(spark.var / "transaction", spark.root / "elsewhere")
    transaction.run(["a"])
    assert Instance("a").in_place()


def test_a_cut_before_anything_was_written_down(spark: Spark) -> None:
    """Only copies were made; so there is nothing to be told."""
    spark.serve(a={})
    (spark.var / "transaction/a/before").mkdir(parents=True)
    transaction.run(["a"])
    assert nothing_pending(spark)
    assert json.loads((spark.var / "transaction-result.json").read_text())["error"] is None
    assert os.listdir(spark.etc) == ["a"]

"""What a host must survive of damage: records without their files, no disk, odd bytes, a mask."""

from __future__ import annotations

import os
import shutil
from typing import Any

import common
import detached
import pytest
import service
import transaction
import undoing
from common import Refusal

from tests.unit.fake_systemd import Spark
from tests.unit.test_activate import A
from tests.unit.test_detached import Relayed
from tests.unit.test_transaction import cut_at, fails, files


@pytest.mark.parametrize("phase", ["stopping", "switching", "starting"])
@pytest.mark.parametrize("lost", ["", "a/before", "a/before/release", "a/next"])
def test_a_record_whose_files_are_gone_touches_nothing(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, phase: str, lost: str
) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, phase)
    gone = spark.var / "transaction" / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    before = files(spark)
    spark.systemd.asked.clear()
    said = fails("a")
    assert "transaction.json tells of files that are gone (a/" in said and "nothing was" in said
    with pytest.raises(Refusal, match="tells of files that are gone"):
        transaction.recover()
    assert spark.systemd.asked == [] and files(spark) == before


def test_a_boot_with_a_full_disk_puts_the_old_files_back(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.serve(a={})
    before = files(spark)
    spark.stage(a={"max_num_seqs": 2})
    cut_at(spark, monkeypatch, "switching", half=True)
    write = common.write

    def full(path: str, *rest: Any) -> None:
        if path.endswith("transaction.json"):
            raise OSError(28, "No space left on device", path)
        write(path, *rest)

    monkeypatch.setattr(undoing, "write", full)
    monkeypatch.setattr(service, "launch", lambda *_: True)
    monkeypatch.setattr(service, "is_running", lambda _: True)
    transaction._recover()
    assert files(spark) == before


def test_bytes_that_are_no_text(spark: Spark) -> None:
    spark.serve(a={})
    spark.staged("a", "release").write_bytes(b"\377\376")
    assert "is not on this host; nothing was stopped" in fails("a")
    assert spark.state("a").active == "active"


def test_a_masked_unit_keeps_its_engine(spark: Spark) -> None:
    spark.serve(a={})
    spark.stage(a={"max_num_seqs": 2})
    spark.masked.append(A)
    assert f"{A} is masked, so it can't be started; nothing was stopped" in fails("a")
    assert f"stop {A}" not in spark.systemd.asked


def test_an_older_result_is_no_answer(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    """The activation was stopped while it waited for another program."""
    spark.serve(a={})
    assert transaction.result()["error"] is None
    unit = Relayed(spark, monkeypatch, [])
    monkeypatch.setattr(transaction, "run", lambda *_, **__: None)
    with pytest.raises(Refusal, match="the activation left no result"):
        detached.run("apply", ["a"])
    assert unit.launched == 1


def test_what_could_not_be_written_leaves_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        common.write(f"{tmp_path}/state.json", "{}")
    assert os.listdir(tmp_path) == []

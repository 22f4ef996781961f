"""Putting instances in service: what is stopped, started, followed and left alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import activate
import pytest
import starting
import transaction
from common import Refusal

from tests.unit.fake_systemd import (
    FAILED,
    GOOD,
    QUEUED,
    RUNNING,
    STARTING,
    Spark,
    Start,
)

A, B = "vllm@a.service", "vllm@b.service"
CRASH = ["Traceback (most recent call last):", "RuntimeError: no kernel image is available"]
Said = pytest.CaptureFixture[str]


def checked(capsys: Said, *names: str) -> dict[str, Any]:
    capsys.readouterr()
    activate.check(list(names))
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def edit(spark: Spark, name: str, file: str, text: str) -> None:
    path = spark.staged(name, file)
    path.write_text(path.read_text() + text)


def test_a_first_start(spark: Spark, capsys: Said) -> None:
    spark.stage(a={})
    transaction.run(["a"])
    assert spark.verified == ["a"]
    assert spark.systemd.changes() == ["daemon-reload", f"start {A}"]
    said = capsys.readouterr().out
    assert "waiting for its turn" in said and "loading weights" in said and "ready" in said
    assert "m generated 8 tokens" in said
    entry = json.loads((spark.var / "state.json").read_text())["a"]
    assert (entry["status"], entry["last"]["result"]) == ("serving", "serving")
    assert spark.state("a").enabled
    assert (spark.root / "drop_caches").read_text() == "3"


def test_again_nothing_is_done(spark: Spark, capsys: Said) -> None:
    spark.serve(a={}, b={})
    transaction.run(["a", "b"])
    assert spark.systemd.changes() == []
    assert spark.verified == ["a", "b"], "what is in place is not verified again"
    seen = checked(capsys, "a", "b")
    assert [entry["proof"] for entry in seen.values()] == ["m generated 8 tokens"] * 2
    assert all(entry["enabled"] for entry in seen.values())


@pytest.mark.parametrize("file", ["env", "serve.yaml", "vllm@.service"])
def test_a_comment_restarts_nothing(spark: Spark, file: str, capsys: Said) -> None:
    spark.serve(a={})
    edit(spark, "a", file, "\n# A word more.\n")
    assert checked(capsys, "a")["a"]["missing"] == "what is staged is not what is in service"
    assert spark.systemd.changes() == [], "check changes nothing"
    transaction.run(["a"])
    assert spark.systemd.changes() == ["daemon-reload"]
    assert "proof" in checked(capsys, "a")["a"], "and is in place now"


def test_order_and_time_outs_are_reloaded_only(spark: Spark) -> None:
    spark.serve(a={}, b={})
    edit(spark, "b", "instance.conf", "TimeoutStopSec=999\n")
    transaction.run(["a", "b"])
    assert spark.systemd.changes() == ["daemon-reload"]
    assert "999" in (spark.units / f"{B}.d/instance.conf").read_text()


def test_how_a_start_is_followed_is_nobodys_restart(spark: Spark) -> None:
    spark.serve(a={})
    spark.stage(a={"expects": {"warm_start_s": 5}})
    transaction.run(["a"])
    assert spark.systemd.changes() == []


def test_a_changed_value_restarts_its_instance_alone(spark: Spark, capsys: Said) -> None:
    spark.serve(a={}, b={})
    spark.stage(a={}, b={"max_model_len": 4096})
    assert "missing" in checked(capsys, "b")["b"]
    transaction.run(["a", "b"])
    assert spark.systemd.changes() == [f"stop {B}", "daemon-reload", f"start {B}"]
    assert "4096" in (spark.etc / "b/serve.yaml").read_text()


def test_memory_that_one_gives_up_is_there_for_the_other(spark: Spark) -> None:
    spark.serve(a={"gpu_memory_utilization": 0.2}, b={"gpu_memory_utilization": 0.6})
    spark.stage(a={"gpu_memory_utilization": 0.6}, b={"gpu_memory_utilization": 0.2})
    transaction.run(["a", "b"])
    asked = [a for a in spark.systemd.changes() if a != "daemon-reload"]
    assert asked == [f"stop {A}", f"stop {B}", f"start {A}", f"start {B}"]


def test_memory_that_does_not_come_back(spark: Spark, capsys: Said) -> None:
    spark.stage(a={"gpu_memory_utilization": 0.5})
    spark.systemd.units["other"] = spark.state("a").__class__(
        "active", "running", 9, "x", 0, "", 1, True, "", False
    )
    spark.systemd.held["other"] = 0.8
    with pytest.raises(Refusal, match=r"20.0 of 50.0 GiB are free after 304 s; largest: 80.0 GiB"):
        transaction.run(["a"])
    assert f"start {A}" not in spark.systemd.asked
    assert "waiting for memory: 20.0 of 50.0 GiB are free" in capsys.readouterr().out
    last = json.loads((spark.var / "state.json").read_text())["a"]["last"]
    assert last["result"] == "failed" and "80.0 GiB" in last["reason"]


LOOP = {"active": "activating", "sub": "auto-restart", "main_pid": 0, "exit_status": "1"}
BAD_STARTS: dict[str, Start] = {
    "dies": [(0, QUEUED, []), (1, STARTING, []), (5, FAILED, CRASH)],
    "dies before it is looked at": [(0, FAILED, CRASH)],
    "loops": [(1, STARTING, []), (5, {**LOOP, "restarts": 1}, CRASH)],
    "was started again": [(1, STARTING, []), (1.1, LOOP, CRASH), (1.2, STARTING, [])],
    "never gets ready": [(1, STARTING, CRASH)],
}


@pytest.mark.parametrize("start", BAD_STARTS.values(), ids=BAD_STARTS)
def test_a_start_that_fails_is_stopped_and_remembered(spark: Spark, start: Start) -> None:
    spark.stage(a={})
    spark.systemd.starts[A] = [start]
    with pytest.raises(Refusal) as caught:
        transaction.run(["a"])
    assert str(caught.value).startswith("a did not start: RuntimeError: no kernel image")
    assert "whole log: sudo journalctl -u vllm@a.service ID=i1" in str(caught.value)
    assert spark.state("a").active == "inactive"
    never = start == BAD_STARTS["never gets ready"]
    assert never or spark.systemd.now < 20, "it is not waited for the time-out"
    last = json.loads((spark.var / "state.json").read_text())["a"]["last"]
    assert last["result"] == "failed" and str(caught.value).startswith(last["reason"])
    assert last["detail"]["exception"] == "RuntimeError: no kernel image is available"
    assert last["detail"]["phase"] and last["detail"]["elapsed_s"] <= 250


@pytest.mark.parametrize(
    ("expects", "said"),
    [
        ({"warm_start_s": 4}, ["   5 s  longer than normal; given up after 210 s"]),
        (
            {"warm_start_s": 2, "cold_start_s": 6},
            ["   7 s  longer than normal; given up after 210 s"],
        ),
        ({"warm_start_s": 30}, []),
        ({}, []),
    ],
)
def test_longer_than_normal_is_said_once(
    spark: Spark, capsys: Said, expects: dict[str, int], said: list[str]
) -> None:
    spark.stage(a={"expects": expects})
    transaction.run(["a"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "longer than normal" in line] == said


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_systemd_starts_again_is_not_still_starting(
    spark: Spark, capsys: Said, restarts: int
) -> None:
    again = LOOP if restarts else {**LOOP, "sub": "start-post"}
    spark.stage(a={})
    spark.systemd.starts[A] = [[(1, STARTING, []), (5, {**again, "restarts": restarts}, CRASH)]]
    with pytest.raises(Refusal):
        transaction.run(["a"])
    said = capsys.readouterr().out
    assert (f"stopping {A}, which systemd starts again" in said) is bool(restarts)
    assert (f"stopping {A}, which is still starting" in said) is not restarts


def test_after_a_failure_the_next_run_tries_again(spark: Spark, capsys: Said) -> None:
    spark.stage(a={})
    spark.systemd.starts[A] = [[(0, FAILED, CRASH)], GOOD]
    with pytest.raises(Refusal):
        transaction.run(["a"])
    assert checked(capsys, "a")["a"]["missing"] == "what is staged is not what is in service"
    transaction.run(["a"])
    assert json.loads((spark.var / "state.json").read_text())["a"]["status"] == "serving"


def test_one_between_its_own_starts_is_stopped_first(spark: Spark) -> None:
    """Or systemd starts it while its memory is waited for."""
    spark.serve(a={})
    spark.systemd.units[A] = replace(spark.state("a"), **LOOP)
    spark.systemd.asked.clear()
    transaction.run(["a"])
    asked = spark.systemd.changes()
    assert asked[0] == asked[2] == f"stop {A}" and asked[-1] == f"start {A}"
    assert spark.state("a").active == "active"


def test_a_start_that_is_not_taken_up_has_no_journal(spark: Spark) -> None:
    spark.stage(a={})
    spark.systemd.starts[A] = [[]]
    with pytest.raises(Refusal, match="did not start: no exception in its journal"):
        transaction.run(["a"])
    assert starting.GRACE_S < spark.systemd.now < 2 * starting.GRACE_S


def test_a_start_that_waits_for_another_unit_is_waited_for(spark: Spark, capsys: Said) -> None:
    spark.stage(a={})
    spark.systemd.starts[A] = [[(0, QUEUED, []), (50, STARTING, []), (60, RUNNING, [])]]
    transaction.run(["a"])
    assert spark.state("a").active == "active"
    assert capsys.readouterr().out.count("waiting for its turn") >= 5


@pytest.mark.parametrize("wait", [0, 30])
def test_a_start_that_is_under_way_is_followed(spark: Spark, wait: int) -> None:
    """After a reboot, or when an earlier run was killed while it followed."""
    spark.serve(a={})
    spark.systemd.systemctl("stop", A)
    spark.systemd.begin(A, [(0, QUEUED, []), (wait, STARTING, []), (wait + 9, RUNNING, [])])
    spark.systemd.asked.clear()
    transaction.run(["a"])
    assert spark.systemd.changes() == []
    assert spark.state("a").active == "active"


def test_a_start_that_is_under_way_and_fails(spark: Spark) -> None:
    spark.serve(a={})
    spark.systemd.systemctl("stop", A)
    spark.systemd.begin(A, [(0, STARTING, []), (9, FAILED, CRASH)])
    with pytest.raises(Refusal, match="a did not start: RuntimeError: no kernel image"):
        transaction.run(["a"])


def test_what_starts_with_old_files_is_not_let_finish(spark: Spark) -> None:
    spark.serve(a={})
    spark.systemd.systemctl("stop", A)
    spark.systemd.begin(A, [(0, STARTING, []), (99, RUNNING, [])])
    spark.systemd.asked.clear()
    spark.stage(a={"max_num_seqs": 2})
    transaction.run(["a"])
    assert spark.systemd.changes()[:3] == [f"stop {A}", f"kill {A}", f"stop {A}"]


def test_a_queued_start_with_old_files_is_taken_back(spark: Spark) -> None:
    spark.serve(a={})
    spark.systemd.systemctl("stop", A)
    spark.systemd.begin(A, [(0, QUEUED, []), (999, STARTING, [])])
    spark.systemd.asked.clear()
    spark.stage(a={"max_num_seqs": 2})
    transaction.run(["a"])
    assert spark.systemd.changes()[0] == f"stop {A}"


def test_a_busy_server_is_left_alone(spark: Spark, capsys: Said) -> None:
    spark.serve(a={})
    spark.systemd.proofs[A] = ["m is busy: 123 tokens for others in 5 s"] * 2
    assert "busy" in checked(capsys, "a")["a"]["proof"]
    transaction.run(["a"])
    assert spark.systemd.changes() == []


def test_a_server_that_generates_nothing_is_started_anew(spark: Spark, capsys: Said) -> None:
    spark.serve(a={})
    spark.systemd.proofs[A] = [Refusal("a generation gave nothing in 30 s")] * 2 + ["m generated"]
    assert checked(capsys, "a")["a"]["missing"] == "a generation gave nothing in 30 s"
    transaction.run(["a"])
    assert spark.systemd.changes() == [f"stop {A}", f"start {A}"]
    assert "a generation gave nothing in 30 s; it is started anew" in capsys.readouterr().out


def test_a_server_that_starts_and_generates_nothing(spark: Spark) -> None:
    spark.stage(a={})
    spark.systemd.proofs[A] = [Refusal("a generation returned no token")]
    with pytest.raises(Refusal, match="returned no token"):
        transaction.run(["a"])
    assert spark.state("a").active == "inactive"


def test_nothing_staged(spark: Spark) -> None:
    spark.stage(a={})
    with pytest.raises(Refusal, match="nothing is staged for b in "):
        transaction.run(["a", "b"])
    assert spark.systemd.asked == [], "not even the one that is staged was touched"


def test_a_unit_that_systemd_refuses_stops_nothing(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.serve(a={}, b={})
    spark.stage(a={"max_num_seqs": 2}, b={"max_num_seqs": 2})

    def refuse(one: Any) -> None:
        if one.name == "b":
            raise Refusal("systemd does not accept the staged unit")

    monkeypatch.setattr(activate.Instance, "verify", refuse)
    with pytest.raises(Refusal, match="does not accept"):
        transaction.run(["a", "b"])
    assert spark.systemd.changes() == []


def test_removal_leaves_others_and_weights_alone(spark: Spark, capsys: Said) -> None:
    spark.serve(a={}, b={})
    weights = spark.var / "models/org--name/weights"
    weights.parent.mkdir(parents=True)
    weights.touch()
    transaction.run([], ["a"])
    assert spark.systemd.changes()[0] == f"stop {A}" and not spark.state("a").enabled
    gone = (spark.etc, spark.var / "staged", spark.var / "cache", spark.opt / "active")
    assert [[p.name for p in sorted(folder.iterdir())] for folder in gone] == [["b"]] * 4
    assert list(json.loads((spark.var / "state.json").read_text())) == ["b"]
    assert [p.name for p in sorted(spark.units.iterdir())] == ["vllm@.service", f"{B}.d"]
    assert weights.exists()
    assert "a is stopped and removed" in capsys.readouterr().out
    assert "proof" in checked(capsys, "b")["b"]


def test_a_key_is_made_once(spark: Spark) -> None:
    spark.serve(a={})
    activate.key("a")
    made = spark.staged("a", "api-key.env")
    assert made.stat().st_mode & 0o777 == 0o600
    first = made.read_text()
    assert first.startswith("VLLM_API_KEY=") and len(first) > 40
    activate.key("a")
    assert made.read_text() == first
    transaction.run(["a"])
    assert (spark.etc / "a/api-key.env").stat().st_mode & 0o777 == 0o600
    made.unlink()
    activate.key("a")
    assert made.read_text() == first, "the one in service is taken over"
    made.unlink()
    transaction.run(["a"])
    assert not (spark.etc / "a/api-key.env").exists(), "no key is wanted any more"

"""A fleet of pretended hosts, changed canary first: who is touched, who is not, what is said.

What takes long is in test_fleet.py.
"""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.cli import ROOT, Run, Scenario
from tests.plan.fleet import ACTIVATE, HOSTS, applied, small, summary

# An API key that is not there, and a host that can't be planned: nothing to do with the others.
_ELSEWHERE = """
tiny = _fleet(["good"])
keyed = [_spark("h001")]
other = [_fake("h002", {}, platform={"architecture": "arm64"})]
"""
SCENARIOS = {
    "canary-fails": small("bad good good"),
    "same": small("same same same"),
    "policy": small("good good", canary=0, wave="0%", failure=1, start_timeout_s="1 week"),
    "data": Scenario(f"{HOSTS}tiny = _fleet(['good'], _serial=True, _retries=3)"),
    # Enter: do it; enter: go on although a host failed.
    "asked-first": replace(small("unbuilt good good"), options=(), stdin="\n\n"),
    "interrupted": replace(small("hangs good"), interrupt=f"{ACTIVATE}: canary"),
    "back": Scenario(
        HOSTS + _ELSEWHERE, options=("-y", "--limit", "@fake/h000"), deploy="rollback.py"
    ),
    "back-misspelt": Scenario(HOSTS + "tny = _fleet(['good'])", deploy="rollback.py"),
    "back-again": Scenario(
        HOSTS + "tiny = _fleet(['back', 'good'])",
        options=("-y", "--limit", "tiny"),
        deploy="rollback.py",
    ),
    "back-all": Scenario(HOSTS + "tiny = _fleet(['good', 'good'])", deploy="rollback.py"),
    "back-serial": Scenario(
        HOSTS + "tiny = _fleet(['good', 'good'])",
        options=("-y", "--serial", "--limit", "tiny"),
        deploy="rollback.py",
    ),
    "back-unknown": Scenario(
        HOSTS + "tiny = _fleet(['good'])",
        options=("-y", "--data", "rollback_profile=tny"),
        deploy="rollback.py",
    ),
    # The profile's memory can't be told: a warning of each host.
    "one-of-two": Scenario(
        HOSTS + "tiny = _fleet(['same', 'same'])", options=("-y", "--limit", "@fake/h000")
    ),
}


def test_a_canary_that_fails_leaves_the_others_as_they_are(ran: Callable[[str], Run]) -> None:
    run = ran("canary-fails")
    assert run.status == 1
    assert applied(run) == {f"{ACTIVATE}: canary": ["@fake/h000"]}
    for host in ("@fake/h001", "@fake/h002"):
        assert f"held back: canary @fake/h000 failed; {host} stays as it is" in run.lines(host)
    assert summary(run) == {
        "@fake/h000": "rolled back: RuntimeError: boom",
        "@fake/h001": "held back: canary @fake/h000 failed",
        "@fake/h002": "held back: canary @fake/h000 failed",
    }
    assert "@fake/h001  tiny    old-1" in run.output


def test_nothing_to_do(ran: Callable[[str], Run]) -> None:
    run = ran("same")
    assert run.status == 0 and applied(run) == {}
    assert set(summary(run).values()) == {"unchanged"}
    # Nobody is asked again for the summary.
    assert "--> Asking" not in run.output


def test_mistakes_in_the_policy_are_said_at_once(ran: Callable[[str], Run]) -> None:
    run = ran("policy")
    assert run.status == 1
    for told in (
        "hosts @fake/h000, @fake/h001: rollout: canary = 0: input should be greater than or",
        "rollout: wave = '0%': write a number of members from 1, or a share of them up to '100%'",
        "rollout: failure = 1: no such field; did you mean 'failures'?",
        "rollout: start_timeout_s = '1 week': write a number of seconds",
    ):
        assert told in run.output
    run = ran("data")
    assert run.status == 1
    for key in ("_serial", "_retries"):
        told = f"host @fake/h000: {key}: a fleet could no longer be changed wave by wave: take it"
        assert told in run.output


def test_without_yes_a_host_that_fails_before_the_waves_holds_nobody_back(
    ran: Callable[[str], Run],
) -> None:
    run = ran("asked-first")
    assert run.status == 1
    assert applied(run) == {
        f"{ACTIVATE}: canary": ["@fake/h001"],
        f"{ACTIVATE}: wave 2": ["@fake/h002"],
    }
    outcomes = summary(run)
    assert outcomes.pop("@fake/h000").startswith("dropped")
    assert set(outcomes.values()) == {"updated"}


def test_a_run_that_is_stopped(ran: Callable[[str], Run]) -> None:
    run = ran("interrupted")
    assert run.status == 130 and "Traceback" not in run.output
    assert "What was begun on a host goes on there" in run.output
    assert summary(run) == {
        "@fake/h000": "in progress: starting",
        "@fake/h001": "not reached",
    }
    assert "    1 in progress, 1 not reached\n" in run.output


def test_mistakes_elsewhere_do_not_keep_a_host_from_going_back(ran: Callable[[str], Run]) -> None:
    run = ran("back")
    assert run.status == 0, run.output
    assert list(applied(run, "rollback").values()) == [["@fake/h000"]]
    assert summary(run) == {"@fake/h000": "went back"}
    run = ran("back-misspelt")
    assert run.status == 1 and not applied(run, "rollback")
    assert "host @fake/h000: group = 'tny': no such file" in run.output


def test_a_host_that_went_back_is_left_alone(ran: Callable[[str], Run]) -> None:
    run = ran("back-again")
    assert run.status == 0, run.output
    assert [hosts for hosts in applied(run, "rollback").values()] == [["@fake/h001"]]
    assert summary(run) == {
        "@fake/h000": "unchanged: already went back",
        "@fake/h001": "went back",
    }
    assert "@fake/h000  tiny    old-1" in run.output
    assert "warning:" not in run.output


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("back-all", "the inventory has 2 hosts: name those that are to go back"),
        ("back-serial", "--serial: waves need hosts that wait for each other, nothing was done"),
        ("back-unknown", "'tny', nothing was done; did you mean 'tiny'?\n"),
    ],
)
def test_a_rollback_that_is_refused_before_it_connects(
    ran: Callable[[str], Run], name: str, told: str
) -> None:
    run = ran(name)
    assert run.status == 1 and told in run.output
    assert "Connected" not in run.output and "Who serves what" not in run.output


def test_warnings_are_of_the_hosts_of_the_run(ran: Callable[[str], Run]) -> None:
    run = ran("one-of-two")
    told = [line for line in run.output.splitlines() if "warning: " in line]
    assert any("host @fake/h000" in line for line in told)
    assert "@fake/h001" not in "".join(told)


def test_an_inventory_that_is_not_there() -> None:
    command = [ROOT / ".venv/bin/pyinfra", "-y", "inventory/spark.py", "deploy.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "inventory/spark.py: no such file, nothing was done" in done.stderr
    assert "--limit" not in done.stderr and "Traceback" not in done.stderr


def test_the_fleet_of_the_stand_in_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inventory").mkdir()
    shutil.copy(ROOT / "inventory/lab.py", tmp_path / "inventory")
    file = shutil.copy(ROOT / "inventory/lab_fleet.py", tmp_path / "inventory")
    monkeypatch.setenv("SPARKWRIGHT_LAB", "three")
    with pytest.raises(SystemExit, match=r"No lab named 'three' is up\. Start it: sparkwright lab"):
        runpy.run_path(file)
    keys = ("user", "key", "known_hosts", "architecture", "torch", "python", "find_links")
    hosts = [{"name": f"spark-{n}", "address": f"192.0.2.{n}", "port": 22} for n in (1, 2, 3)]
    (tmp_path / ".lab/three").mkdir(parents=True)
    record = {**dict.fromkeys(keys, "x"), "hosts": hosts}
    (tmp_path / ".lab/three/lab.json").write_text(json.dumps(record))
    for release, lock in (("1", "standin.lock.txt"), ("2", "standin2.lock.txt")):
        monkeypatch.setenv("SPARKWRIGHT_LAB_RELEASE", release)
        made = runpy.run_path(file)["lab_standin"]
        assert [name for name, _ in made] == ["spark-1", "spark-2", "spark-3"]
        assert {Path(data["release"]["lock"]).name for _, data in made} == {lock}
    monkeypatch.setenv("SPARKWRIGHT_LAB_RELEASE", "3")
    with pytest.raises(SystemExit, match="SPARKWRIGHT_LAB_RELEASE=3: write 1 or 2"):
        runpy.run_path(file)
    monkeypatch.setenv("STANDIN_DIE_AT", "load")
    profile = runpy.run_path(str(ROOT / "group_data/lab_standin.py"))["profile"]
    assert profile["env"] == {"STANDIN_DIE_AT": "load"}

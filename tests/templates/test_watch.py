"""The units of the watch: lines that matter, their tie to the instance, and systemd's opinion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sparkwright import render

FILES = {Path(f.path).name: f for f in render.base_files() if "sparkwright-watch@" in f.path}
SERVICE = FILES["sparkwright-watch@.service"].content
TIMER = FILES["sparkwright-watch@.timer"].content
DROP_IN = (
    render.ROOT / "templates/etc/systemd/system/vllm@.service.d/instance.conf.j2"
).read_text()


def test_both_are_where_systemd_looks() -> None:
    assert {str(Path(f.path).parent) for f in FILES.values()} == {"/etc/systemd/system"}
    assert {(f.mode, f.owner) for f in FILES.values()} == {("0644", "root")}


@pytest.mark.parametrize(
    "line",
    [
        "Type=oneshot",
        "ExecStart=/usr/bin/python3 /opt/sparkwright/host/watch.py %i",
        "TimeoutStartSec=5min",
        "RuntimeDirectory=sparkwright",
        "RuntimeDirectoryPreserve=yes",
        "LogLevelMax=notice",
        "CapabilityBoundingSet=CAP_SYS_PTRACE CAP_DAC_OVERRIDE",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateDevices=yes",
        "NoNewPrivileges=yes",
        "SystemCallFilter=@system-service",
    ],
)
def test_line_of_the_service(line: str) -> None:
    assert line in SERVICE.splitlines()


@pytest.mark.parametrize(
    "directive", ["ProtectProc", "PrivateNetwork", "PrivateUsers", "ProcSubset"]
)
def test_what_would_hide_whose_the_port_is(directive: str) -> None:
    assert not re.search(rf"^{directive}=", SERVICE, re.M)


def test_the_program_comes_with_it() -> None:
    assert "/opt/sparkwright/host/watch.py" in {f.path for f in render.base_files()}


def test_it_starts_and_stops_with_its_instance() -> None:
    assert "\nWants=sparkwright-watch@%i.timer\n" in DROP_IN
    assert "PartOf=vllm@%i.service" in TIMER.splitlines()
    # A stop of the instance must not be the end of the watch that asked for a restart.
    assert "PartOf" not in SERVICE


def test_it_is_in_no_cycle_at_boot() -> None:
    assert "DefaultDependencies=no" in TIMER.splitlines()
    assert not re.search(r"^After=", TIMER, re.M)


def test_the_clock_of_the_wall_plays_no_part() -> None:
    assert "OnCalendar" not in TIMER
    assert re.findall(r"^On\w+=.*$", TIMER, re.M) == ["OnActiveSec=1min", "OnUnitInactiveSec=1min"]
    program = (render.ROOT / "host/watch.py").read_text()
    assert not re.search(r"time\.time\(|datetime", program)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    # That its programs exist is known only on a Spark.
    text = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", SERVICE, flags=re.M)
    (tmp_path / "sparkwright-watch@.service").write_text(text)
    (tmp_path / "sparkwright-watch@a.timer").write_text(TIMER)
    (tmp_path / "vllm@.service").write_text("[Service]\nExecStart=/bin/true\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "sparkwright-watch@a.timer"],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert (done.returncode, done.stderr) == (0, "")

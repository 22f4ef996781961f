"""The unit of an engine instance and its drop-in: lines that matter, and systemd's opinion."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparkwright import render
from sparkwright.plan import RawHost, build_plan

DATA = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
UNIT = render.template("etc/systemd/system/vllm@.service")


def drop_ins(*groups: str, **profile: Any) -> list[str]:
    data = {
        name: {
            "profile": {
                "model": "/m/x",
                "port": 8000 + number,
                "gpu_memory_utilization": 0.2,
                **profile,
            }
        }
        for number, name in enumerate(groups)
    }
    plan = build_plan([RawHost("spark-1", groups, DATA)], data)["spark-1"]
    files = [render.instance_files(instance) for instance in plan.instances]
    return [f.content for some in files for f in some if f.path.endswith("/instance.conf")]


@pytest.mark.parametrize(
    "line",
    [
        "Type=exec",
        "User=vllm",
        "Group=vllm",
        "Restart=always",
        "RestartSec=10",
        "StartLimitIntervalSec=2h",
        "StartLimitBurst=6",
        "RestartPreventExitStatus=2",
        "KillMode=mixed",
        "UMask=0077",
        "LimitMEMLOCK=infinity",
        "OOMScoreAdjust=500",
        "WorkingDirectory=/var/lib/sparkwright/cache/%i",
        "EnvironmentFile=/etc/sparkwright/%i/env",
        "EnvironmentFile=-/etc/sparkwright/%i/api-key.env",
        "ExecStart=/opt/sparkwright/active/%i/bin/vllm serve "
        "--config /etc/sparkwright/%i/serve.yaml",
        "ExecStartPost=/usr/bin/python3 /opt/sparkwright/host/ready.py",
        "ReadWritePaths=/var/lib/sparkwright/cache/%i",
        "ProtectSystem=strict",
        "ProtectHome=yes",
        "PrivateTmp=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "AmbientCapabilities=",
        "ProtectKernelTunables=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelLogs=yes",
        "ProtectControlGroups=yes",
        "ProtectHostname=yes",
        "ProtectProc=invisible",
        "RestrictNamespaces=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "LockPersonality=yes",
        "RemoveIPC=yes",
        "SystemCallArchitectures=native",
        "SystemCallFilter=@system-service",
        "WantedBy=multi-user.target",
    ],
)
def test_line(line: str) -> None:
    assert line in UNIT.splitlines()


def test_path_holds_the_venv_and_cuda_before_the_systems() -> None:
    (path,) = re.findall(r"^Environment=PATH=(.*)$", UNIT, re.M)
    folders = path.split(":")
    assert folders[:2] == ["/opt/sparkwright/active/%i/bin", "/usr/local/cuda/bin"]
    assert {"/usr/bin", "/bin", "/usr/sbin"} <= set(folders)


@pytest.mark.parametrize(
    "directive",
    # Each would keep the engine from the GPU, from compiling, or from reading its memory.
    ["PrivateDevices", "ProtectClock", "MemoryDenyWriteExecute", "PrivateNetwork", "ProcSubset"],
)
def test_what_an_engine_can_not_live_with(directive: str) -> None:
    assert not re.search(rf"^{directive}=", UNIT, re.M)


def test_no_option_of_the_engine_is_written_in_the_unit() -> None:
    (start,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.M)
    assert re.findall(r"--\S+", start) == ["--config"]


def seconds(drop_in: str, name: str) -> int:
    (value,) = re.findall(rf"^{name}=(\d+)$", drop_in, re.M)
    return int(value)


@pytest.mark.parametrize("limit", [30, 600, 3600])
def test_systemd_waits_longer_than_the_engine_does(limit: int) -> None:
    (drop_in,) = drop_ins("a", ready_timeout_s=limit)
    assert seconds(drop_in, "TimeoutStartSec") > limit


def test_systemd_waits_longer_than_a_graceful_stop_takes() -> None:
    (drop_in,) = drop_ins("a", shutdown_timeout_s=45)
    assert seconds(drop_in, "TimeoutStopSec") > 45


def test_instances_of_one_host_start_one_after_the_other() -> None:
    first, second, third = drop_ins("a", "b", "c")
    assert "After=vllm@" not in first
    assert "\nAfter=vllm@a.service\n" in second
    assert "\nAfter=vllm@b.service\n" in third


def test_sections_are_where_their_directives_belong() -> None:
    for text in (UNIT, *drop_ins("a", "b")):
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.read_string(text)
        assert set(parser.sections()) <= {"Unit", "Service", "Install"}
        for name in ("starttimeout", "timeoutstartsec", "restart", "execstart"):
            assert name not in parser["Unit"]
        assert "startlimitburst" not in parser["Service"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    _, drop_in = drop_ins("a", "b")
    # That its programs exist is known only on a Spark.
    text = re.sub(r"^(ExecStart(?:Post)?)=.*$", r"\1=/bin/true", UNIT, flags=re.M)
    text = re.sub(r"^(User|Group)=.*$", r"\1=root", text, flags=re.M)
    (tmp_path / "vllm@b.service").write_text(text)
    (tmp_path / "vllm@b.service.d").mkdir()
    (tmp_path / "vllm@b.service.d/instance.conf").write_text(drop_in)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "vllm@b.service"],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_earlyoom_goes_for_the_engine_and_spares_the_way_in() -> None:
    text = render.template("etc/default/earlyoom")
    (arguments,) = re.findall(r'^EARLYOOM_ARGS="(.*)"$', text, re.M)
    prefer, avoid = re.findall(r"'(\^.*?\$)'", arguments)
    assert [n for n in ("vllm", "VLLM::EngineCore", "python3") if not re.match(prefer, n)] == []
    assert [n for n in ("sshd", "systemd", "systemd-logind") if not re.match(avoid, n)] == []
    assert not re.match(prefer, "sshd")

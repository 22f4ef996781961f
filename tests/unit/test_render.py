"""The files that a host gets, as a set: names, modes, what they depend on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright import render
from sparkwright.engine import PHASES
from sparkwright.plan import HostPlan, RawHost, build_plan
from sparkwright.render import ManagedFile

ROOT = Path(__file__).parents[2]


def plan(**profile: Any) -> HostPlan:
    groups = {"tiny": {"profile": {"model": "/m/tiny", **profile}}}
    data = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
    return build_plan([RawHost("spark-1", ("tiny",), data)], groups)["spark-1"]


def staged(**profile: Any) -> dict[str, ManagedFile]:
    files = render.instance_files(plan(**profile).instances[0])
    return {file.path.rsplit("/", 1)[1]: file for file in files}


def test_staged_files_and_their_modes() -> None:
    assert {name: file.mode for name, file in staged().items()} == {
        "serve.yaml": "0644",
        "env": "0640",
        "release": "0644",
        "vllm@.service": "0644",
        "instance.conf": "0644",
        "start.json": "0644",
    }
    assert {file.path.rsplit("/", 1)[0] for file in staged().values()} == {
        "/var/lib/sparkwright/staged/tiny"
    }


def test_same_profile_same_files() -> None:
    assert staged() == staged()


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"max_model_len": 4096}, {"serve.yaml"}),
        ({"env": {"A": "b"}}, {"env"}),
        ({"port": 8001}, {"serve.yaml", "env", "start.json"}),
        ({"gpu_memory_utilization": 0.5}, {"serve.yaml", "start.json"}),
        ({"ready_timeout_s": 900}, {"env", "instance.conf", "start.json"}),
        ({"shutdown_timeout_s": 5}, {"serve.yaml", "instance.conf"}),
        ({"expects": {"warm_start_s": 50}}, {"start.json"}),
        ({"api_key": "generate"}, set()),
    ],
    ids=str,
)
def test_a_changed_value_changes_only_what_depends_on_it(
    change: dict[str, Any], differing: set[str]
) -> None:
    before, after = staged(), staged(**change)
    assert {name for name in before if before[name].sha256 != after[name].sha256} == differing


def test_start_json_tells_how_to_follow_a_start() -> None:
    start = json.loads(
        staged(gpu_memory_utilization=0.4, ready_timeout_s=900)["start.json"].content
    )
    assert start["endpoint"] == {"host": "127.0.0.1", "port": 8000, "name": "tiny"}
    assert start["phases"] == [list(entry) for entry in PHASES]
    assert start["memory_fraction"] == 0.4
    assert start["timeout_s"] > 900 + 120, "systemd's own limit must be reached first"


def test_serve_yaml_and_release() -> None:
    files = staged()
    assert yaml.safe_load(files["serve.yaml"].content)["model"] == "/m/tiny"
    assert files["release"].content == f"{plan().releases[0].id}\n"


def test_base_files_hold_every_host_program_and_what_it_imports() -> None:
    files = {file.path: file for file in render.base_files()}
    sent = {Path(path).stem for path in files if path.startswith("/opt/sparkwright/host/")}
    local = {file.stem for file in (ROOT / "host").glob("*.py")}
    for name in sent:
        source = (ROOT / "host" / f"{name}.py").read_text()
        imported = set(re.findall(r"^(?:import|from) (\w+)", source, re.M))
        assert imported & local <= sent
        assert files[f"/opt/sparkwright/host/{name}.py"].mode == "0755"
    # receive.py travels with its command.
    assert local - sent == {"receive"}
    assert "/etc/default/earlyoom" in files
    assert "uv==" in files["/opt/sparkwright/tools.txt"].content


def test_each_release_brings_its_lock() -> None:
    (file,) = render.release_files(plan())
    assert file.path == f"{plan().releases[0].path}.txt"
    assert file.content == (ROOT / "releases/vllm-0.27.1-aarch64.txt").read_text()


def test_content_is_in_no_repr() -> None:
    assert "s3cret" not in repr(ManagedFile("/x", "s3cret"))

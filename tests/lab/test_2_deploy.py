"""The deploy on one host with the stand-in engine: what changes, what does not, what fails."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab.helpers import BIN, LAB, ROOT, STANDIN, Spark, inventory, pyinfra, sparkwright

pytestmark = pytest.mark.lab

OPERATIONS = {
    "Check what the host is",
    "Install system packages",
    "Make the service account and folders",
    "Install host programs, memory guard and release locks",
    "Set up the link of a pair",
    "Install uv and hf",
    "Build the engine release",
    "Fetch model weights",
    "Stage the configuration",
    "See what each host serves",
    "Activate, and prove by a generation",
    "Take down the link of a pair that is none any more",
    "Remove old releases",
}
ACTIVATE = "Activate, and prove by a generation"


def standin(**changes: Any) -> dict[str, dict[str, Any]]:
    return {"standin": {**STANDIN, **changes}}


def test_first_run_second_run(spark: Spark, tmp_path: Path) -> None:
    file = inventory(tmp_path, [spark])
    first = pyinfra(str(file))
    assert first.code == 0, first.output
    assert spark.complete("tiny") == 8
    assert spark.unit("standin", "UnitFileState") == "enabled"
    entered = spark.unit("standin", "ActiveEnterTimestampMonotonic")
    before = spark.ssh_commands()
    second = pyinfra(str(file))
    assert second.code == 0 and second.names("no_change") == OPERATIONS, second.output
    assert spark.ssh_commands() - before <= 15
    assert spark.unit("standin", "ActiveEnterTimestampMonotonic") == entered


def test_one_value_changes_one_thing(spark: Spark, tmp_path: Path) -> None:
    pyinfra(str(inventory(tmp_path, [spark])))
    run = pyinfra(str(inventory(tmp_path, [spark], standin(max_model_len=512))))
    assert run.code == 0, run.output
    assert run.names("success") == {"Stage the configuration", ACTIVATE}
    assert spark.ask("/v1/models")["data"][0]["max_model_len"] == 512
    assert spark.unit("standin", "NRestarts") == "0"
    # What is only expected of the engine does not restart it.
    entered = spark.unit("standin", "ActiveEnterTimestampMonotonic")
    profile = standin(max_model_len=512, expects={"warm_start_s": 2})
    run = pyinfra(str(inventory(tmp_path, [spark], profile)))
    assert run.names("success") == {"Stage the configuration"}, run.output
    assert spark.unit("standin", "ActiveEnterTimestampMonotonic") == entered


def test_dry_run_and_drift(spark: Spark, tmp_path: Path) -> None:
    file = inventory(tmp_path, [spark])
    pyinfra(str(file))
    spark.sh("echo '# by hand' >> /etc/systemd/system/vllm@.service")
    dry = pyinfra("--dry", str(file))
    assert dry.code == 0
    planned = {e["name"] for e in dry.results["plan"] if e["hosts_with_change"]}
    assert planned == {ACTIVATE}, dry.output
    assert pyinfra(str(file)).names("success") == {ACTIVATE}
    assert "by hand" not in spark.sh("cat /etc/systemd/system/vllm@.service")
    spark.sh("systemctl disable -q vllm@standin; systemctl stop vllm@standin")
    assert pyinfra(str(file)).names("success") == {ACTIVATE}
    assert spark.complete("tiny") == 8


def test_only_a_comment_or_the_order_changes(spark: Spark, tmp_path: Path) -> None:
    """Neither is a reason to restart an engine that takes minutes to start."""
    pyinfra(str(inventory(tmp_path, [spark])))
    entered = spark.unit("standin", "ActiveEnterTimestampMonotonic")
    spark.sh("sed -i '1s/.*/# another comment/' /etc/systemd/system/vllm@.service")
    run = pyinfra(str(inventory(tmp_path, [spark], standin(ready_timeout_s=30))))
    assert run.names("success") == {ACTIVATE}, run.output
    assert "another comment" not in spark.sh("cat /etc/systemd/system/vllm@.service")
    first = {"alpha": {**STANDIN, "port": 8001, "served_names": ["two"]}, **standin()}
    assert pyinfra(str(inventory(tmp_path, [spark], first))).code == 0
    assert "vllm@alpha.service" in spark.sh("systemctl show -p After --value vllm@standin")
    assert pyinfra(str(inventory(tmp_path, [spark], standin()))).code == 0
    assert spark.sh("ls /etc/sparkwright") == "standin"
    assert spark.unit("standin", "ActiveEnterTimestampMonotonic") == entered


def test_a_port_and_memory_that_move_in_one_run(spark: Spark, tmp_path: Path) -> None:
    """What one instance gives up, another takes in the same run, whatever their order."""
    pyinfra(str(inventory(tmp_path, [spark], standin(gpu_memory_utilization=0.7))))
    both = {
        "newer": {**STANDIN, "served_names": ["new"]},
        **standin(port=8001, gpu_memory_utilization=0.05),
    }
    run = pyinfra(str(inventory(tmp_path, [spark], both)))
    assert run.code == 0, run.output
    assert spark.complete("new") == 8 and spark.complete("tiny", port=8001) == 8
    assert pyinfra(str(inventory(tmp_path, [spark], standin()))).code == 0


def test_two_profiles_and_one_removed(spark: Spark, tmp_path: Path) -> None:
    both = {**standin(), "second": {**STANDIN, "port": 8001, "served_names": ["two"]}}
    run = pyinfra(str(inventory(tmp_path, [spark], both)))
    assert run.code == 0, run.output
    assert spark.complete("tiny") == 8 and spark.complete("two", port=8001) == 8
    order = spark.sh("systemctl show -p After --value vllm@second")
    assert "vllm@standin.service" in order.split()
    entered = spark.unit("standin", "ActiveEnterTimestampMonotonic")
    run = pyinfra(str(inventory(tmp_path, [spark], standin())))
    assert run.names("success") == {ACTIVATE}, run.output
    assert spark.unit("second", "ActiveState") == "inactive"
    assert spark.sh("find / -xdev -path '*second*' -not -path '/proc/*' | grep vllm || true") == ""
    assert spark.sh("ls /etc/sparkwright /var/lib/sparkwright/staged").split().count("second") == 0
    assert spark.unit("standin", "ActiveEnterTimestampMonotonic") == entered
    assert spark.complete("tiny") == 8


def test_releases_are_switched_and_pruned(spark: Spark, tmp_path: Path) -> None:
    pyinfra(str(inventory(tmp_path, [spark])))
    run = pyinfra(str(inventory(tmp_path, [spark], release=1)))
    assert run.code == 0, run.output
    assert spark.ask("/version")["version"] == "0.0.2+standin"
    releases = spark.sh("ls -d /opt/sparkwright/releases/*/").split()
    assert len(releases) == 2, "the one before is kept"
    spark.sh(f"cp -r {releases[0].rstrip('/')} /opt/sparkwright/releases/ancient")
    run = pyinfra(str(inventory(tmp_path, [spark], release=1)))
    assert run.names("success") == {"Remove old releases"}, run.output
    assert spark.sh("ls -d /opt/sparkwright/releases/*/").split() == releases
    run = pyinfra(str(inventory(tmp_path, [spark])))
    assert run.code == 0 and spark.ask("/version")["version"] == "0.0.1+standin"


FAILURES = [
    ({"env": {"STANDIN_DIE_AT": "load"}}, ("Error", "loading")),
    ({"extra_args": {"max-modl-len": 5}}, ("unrecognized arguments: --max-modl-len",)),
    ({"quantization": "nvfp5"}, ("nvfp5",)),
    ({"env": {"STANDIN_GENERATE": "empty"}}, ("a generation returned no token",)),
    ({"env": {"STANDIN_GENERATE": "error"}}, ("a generation returned no token: status 500",)),
    ({"env": {"STANDIN_HANG_AT": "load"}}, ("it was not ready in time", "result timeout")),
]


@pytest.mark.parametrize(("changes", "words"), FAILURES)
def test_engine_that_does_not_serve_is_reported(
    spark: Spark, tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    run = pyinfra(str(inventory(tmp_path, [spark], standin(**changes))))
    assert run.code != 0
    for word in words:
        assert word in run.output, run.output
    assert "Traceback" not in run.output
    assert spark.name in run.output
    assert spark.complete("tiny") == 8, "what was in service before serves again"
    run = pyinfra(str(inventory(tmp_path, [spark])))
    assert run.code == 0 and spark.complete("tiny") == 8, run.output


def test_a_unit_that_systemd_does_not_accept(spark: Spark, tmp_path: Path) -> None:
    """Nothing is stopped for a unit that could not run."""
    pyinfra(str(inventory(tmp_path, [spark])))
    staged = "/var/lib/sparkwright/staged/standin/vllm@.service"
    spark.sh(f"sed -i 's/^User=/Usre=/' {staged}")
    done = spark.sh("python3 /opt/sparkwright/host/activate.py apply standin 2>&1; echo $?")
    assert done.endswith("1") and "Usre" in done, done
    assert spark.complete("tiny") == 8
    assert pyinfra(str(inventory(tmp_path, [spark]))).code == 0


def test_busy_server_is_left_alone(spark: Spark, tmp_path: Path) -> None:
    """All its slots are taken: it generates for others, and a run changes nothing."""
    slow = standin(env={"STANDIN_TOKEN_SECONDS": "0.5"}, max_num_seqs=1)
    assert pyinfra(str(inventory(tmp_path, [spark], slow))).code == 0
    entered = spark.unit("standin", "ActiveEnterTimestampMonotonic")
    body = '{"model":"tiny","prompt":"x","max_tokens":200,"ignore_eos":true}'
    spark.sh(
        "systemd-run -q --unit=client curl -s -m 110 http://127.0.0.1:8000/v1/completions "
        f"-H 'Content-Type: application/json' -d '{body}'"
    )
    run = pyinfra(str(inventory(tmp_path, [spark], slow)))
    spark.sh("systemctl stop client; systemctl reset-failed client || true")
    assert run.code == 0 and not run.names("success"), run.output
    assert spark.unit("standin", "ActiveEnterTimestampMonotonic") == entered


def test_stranger_that_takes_the_port_late(spark: Spark, tmp_path: Path) -> None:
    """Preflight saw a free port; what answers /health later is not our engine."""
    pyinfra(str(inventory(tmp_path, [spark])))
    spark.sh(
        'systemctl stop vllm@standin; systemd-run -q --unit=stranger python3 -c "'
        "import http.server as h; H=h.BaseHTTPRequestHandler; "
        "H.do_GET=lambda s:(s.send_response(200),s.end_headers()); "
        "h.HTTPServer(('127.0.0.1',8000),H).serve_forever()\"; "
        "for i in 1 2 3 4 5 6 7 8 9; do curl -sf http://127.0.0.1:8000/health && break; "
        "sleep 0.3; done"
    )
    try:
        done = spark.sh("python3 /opt/sparkwright/host/activate.py apply standin 2>&1; echo $?")
        assert done.endswith("1") and "ddress already in use" in done, done
    finally:
        spark.sh("systemctl stop stranger")
    assert pyinfra(str(inventory(tmp_path, [spark]))).code == 0


def test_engine_killed_comes_back(spark: Spark, tmp_path: Path) -> None:
    """The engine process dies: vLLM ends with status 0, and the unit comes back by itself."""
    pyinfra(str(inventory(tmp_path, [spark])))
    old = spark.unit("standin", "MainPID")
    spark.sh("pkill -9 -f '^VLLM::EngineCore'")
    spark.wait_until(
        f"test $(systemctl show -p MainPID --value vllm@standin) != {old} && "
        "systemctl is-active vllm@standin"
    )
    assert spark.complete("tiny") == 8
    assert spark.unit("standin", "NRestarts") == "1"


def test_good_host_goes_on_beside_a_bad_one(sparks: dict[str, Spark], tmp_path: Path) -> None:
    good, bad = sparks["spark-2"], sparks["spark-1"]
    pyinfra(str(inventory(tmp_path, [good])))
    profile = standin(max_model_len=256)
    run = pyinfra(str(inventory(tmp_path, [good, bad], profile)))
    assert run.code == 0, run.output
    sparkwright("lab", "fault", "--name", LAB, bad.name, "clock-off")
    try:
        run = pyinfra(str(inventory(tmp_path, [good, bad], standin())))
    finally:
        sparkwright("lab", "clear", "--name", LAB, bad.name)
    assert run.code != 0 and "left untouched" in run.output
    assert good.ask("/v1/models")["data"][0]["max_model_len"] == 1024
    assert bad.ask("/v1/models")["data"][0]["max_model_len"] == 256, "the dropped host is as it was"
    bad.wipe()


# They do nothing on a host that is in no pair.
LINK = {"Set up the link of a pair", "Take down the link of a pair that is none any more"}


@pytest.mark.parametrize("step", sorted(OPERATIONS - LINK - {"Install system packages"}))
def test_killed_run_ends_like_one_that_was_not(spark: Spark, tmp_path: Path, step: str) -> None:
    file = inventory(tmp_path, [spark], standin(api_key="generate"))
    reference = _reference(spark, file)
    spark.wipe(keep_tools=step != "Install uv and hf")
    command = [BIN / "pyinfra", "-y", file, "deploy.py"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYINFRA_PROGRESS": "off"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if f"Starting operation: {step}" in line:
            break
    time.sleep(0.4)
    process.kill()
    process.communicate()
    process.stderr.close()
    run = pyinfra(str(file))
    assert run.code == 0, run.output
    assert spark.snapshot() == reference
    assert pyinfra(str(file)).names("success") == set()


_REFERENCES: dict[str, str] = {}


def _reference(spark: Spark, file: Path) -> str:
    """What one undisturbed run leaves on the host."""
    if spark.name not in _REFERENCES:
        spark.wipe()
        assert pyinfra(str(file)).code == 0
        _REFERENCES[spark.name] = spark.snapshot()
    return _REFERENCES[spark.name]

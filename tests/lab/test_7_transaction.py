"""Faults of the host while an activation runs: it ends with all of the new or all of the old.

The host keeps one good configuration; a test changes what is staged, on the host itself (a run of
pyinfra would only add time), breaks something, and looks who serves. docs/recovery.md lists where
each other fault is tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.lab.helpers import BIN, LAB, ROOT, STANDIN, Run, Spark, inventory, pyinfra, sparkwright

pytestmark = pytest.mark.lab

STAGED = "/var/lib/sparkwright/staged/standin"
ACTIVATE = "python3 /opt/sparkwright/host/activate.py"
SERVED = "/etc/sparkwright/standin/serve.yaml"
SLOW = "STANDIN_START_SECONDS=12"
UNIT = "sparkwright-activation.service"
Good = dict[str, str]


@pytest.fixture(scope="module")
def good(sparks: dict[str, Spark], tmp_path_factory: pytest.TempPathFactory) -> Good:
    """The release in service, and where a copy of the good staging folder is."""
    spark = sparks["spark-2"]
    spark.wipe()
    run = pyinfra(str(inventory(tmp_path_factory.mktemp("good"), [spark])))
    assert run.code == 0, run.output
    spark.sh(f"rm -rf /root/good; cp -a {STAGED} /root/good")
    return {"release": spark.sh("cat /root/good/release")}


@pytest.fixture
def host(spark: Spark, good: Good) -> Iterator[Spark]:
    """The host with the good configuration in service; afterwards too, by one more apply."""
    yield spark
    spark.wait_until(f"! systemctl is-active {UNIT}", 120)
    spark.sh(f"rm -rf {STAGED}; cp -a /root/good {STAGED}")
    said = apply(spark)
    assert said.endswith("status 0"), said
    assert spark.complete("tiny") == 8


def stage(spark: Spark, *env: str, length: int = 512) -> None:
    """Stage a longer context and variables for the stand-in."""
    lines = "".join(f"{line}\\n" for line in env)
    spark.sh(
        f"sed -i 's/^max-model-len:.*/max-model-len: {length}/' {STAGED}/serve.yaml; "
        f"printf '{lines}' >> {STAGED}/env"
    )


def apply(spark: Spark, command: str = "apply standin") -> str:
    return spark.sh(f"{ACTIVATE} {command} 2>&1; echo status $?")


def begin(spark: Spark) -> threading.Thread:
    """An apply that goes on; returns when the new engine is starting."""
    thread = threading.Thread(target=apply, args=(spark,), daemon=True)
    thread.start()
    spark.wait_until(
        f"(systemctl is-active {UNIT} && grep 'max-model-len: 512' {SERVED}"
        " && systemctl is-active vllm@standin | grep -x activating)",
        60,
    )
    return thread


def length(spark: Spark) -> int:
    """Which configuration really answers: 1024 is the good one, 512 the new."""
    return int(spark.ask("/v1/models")["data"][0]["max_model_len"])


def status(spark: Spark) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(spark.sh(f"{ACTIVATE} status"))
    assert answer["transaction"] is None
    entry: dict[str, Any] = answer["instances"]["standin"]
    return entry


def assert_rolled_back(spark: Spark, *words: str) -> dict[str, Any]:
    assert length(spark) == 1024 and spark.complete("tiny") == 8
    seen = status(spark)
    assert seen["last"]["result"] == "rolled back" and seen["health"] and not seen["problem"], seen
    for word in words:
        assert word in seen["last"]["reason"], seen
    assert spark.unit("standin", "UnitFileState") == "enabled"
    last: dict[str, Any] = seen["last"]
    return last


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("STANDIN_DIE_AT=load", ("did not start", "while ", "exit status 1")),
        ("STANDIN_GENERATE=empty", ("started, but does not serve: a generation returned no",)),
    ],
)
def test_a_new_one_that_does_not_serve(host: Spark, fault: str, words: tuple[str, ...]) -> None:
    stage(host, fault)
    said = apply(host)
    assert said.endswith("status 1") and "what was in service before" in said, said
    last = assert_rolled_back(host, *words)
    assert last["detail"]["exception"] and last["detail"]["elapsed_s"] >= 0
    assert host.sh("wc -l < /var/lib/sparkwright/failures/standin/new.log") > "1"


def test_a_model_folder_that_is_gone(host: Spark) -> None:
    host.sh(f"sed -i 's#^model:.*#model: /srv/models/gone#' {STAGED}/serve.yaml")
    assert "Repo id must be in the form" in apply(host)
    assert_rolled_back(host)


def test_engine_killed_during_its_start(host: Spark) -> None:
    stage(host, SLOW)
    thread = begin(host)
    host.sh("kill -9 $(systemctl show -p MainPID --value vllm@standin)")
    thread.join(60)
    assert_rolled_back(host, "exit status 9")


def test_the_program_is_killed_and_goes_on(host: Spark) -> None:
    """systemd starts it again, and it finds in its record what it was doing."""
    stage(host, SLOW)
    thread = begin(host)
    host.sh(f"systemctl kill --signal=SIGKILL {UNIT}")
    thread.join(90)
    assert length(host) == 512 and status(host)["last"]["result"] == "serving"
    assert "was cut off while starting" in host.sh(f"journalctl -q -o cat -u {UNIT} | tail -30")


def test_the_unit_is_stopped(host: Spark) -> None:
    stage(host, SLOW)
    begin(host)
    host.sh(f"systemctl stop {UNIT}")
    assert_rolled_back(host, "SIGTERM")


def test_reboot_during_the_start(host: Spark) -> None:
    """The boot starts the new one again; it fails its proof there, so the old one comes back."""
    stage(host, SLOW, "STANDIN_GENERATE=empty")
    begin(host)
    sparkwright("lab", "reboot", "--name", LAB, host.name)
    host.wait_until("test ! -e /var/lib/sparkwright/transaction.json", 120)
    assert_rolled_back(host, "a generation returned no token")


def test_reboot_in_the_middle_of_the_switch(host: Spark) -> None:
    """One file is new, the others old: no engine may start with such a mixture."""
    stage(host, "STANDIN_DIE_AT=load")
    host.sh(
        'cd /opt/sparkwright/host && python3 -c "import transaction as t; '
        "d = t._Transaction.prepare([t.instance_of('apply', 'standin')]); d.note('switching')\"; "
        f"cp {STAGED}/env /etc/sparkwright/standin/env"
    )
    assert json.loads(host.sh(f"{ACTIVATE} status"))["transaction"] == {
        "phase": "switching", "names": ["standin"], "running": False,
    }  # fmt: skip
    sparkwright("lab", "reboot", "--name", LAB, host.name)
    host.wait_until("test ! -e /var/lib/sparkwright/transaction.json", 120)
    assert_rolled_back(host, "cut off by a reboot while switching")
    assert "told to die" not in host.sh("journalctl -b -q -o cat -u vllm@standin; true")


def _begin_run(file: Path) -> subprocess.Popen[str]:
    """A run of pyinfra, as far as the start of the engine."""
    process = subprocess.Popen(
        [BIN / "pyinfra", "-y", file, "deploy.py"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYINFRA_PROGRESS": "off"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "starting vllm@" in line:
            break
    return process


def test_controller_killed_and_connection_cut(host: Spark, tmp_path: Path) -> None:
    """Each run only watches: the third one sees the end of what the first began."""
    profile = {**STANDIN, "max_model_len": 512, "env": {"STANDIN_START_SECONDS": "30"}}
    file = inventory(tmp_path, [host], {"standin": {**profile, "ready_timeout_s": 60}})
    first = _begin_run(file)
    first.kill()
    first.communicate()
    entered = host.unit("standin", "ExecMainStartTimestampMonotonic")
    second = _begin_run(file)
    host.sh("pkill -f '^sshd.*nvidia'")
    _, said = second.communicate(timeout=60)
    assert second.returncode != 0 and "the connection was lost" in said, said
    third = pyinfra(str(file))
    assert third.code == 0, third.output
    assert host.unit("standin", "ExecMainStartTimestampMonotonic") == entered, "started once"
    assert length(host) == 512


def test_two_controllers_at_once(host: Spark, tmp_path: Path) -> None:
    runs: list[Run] = []

    def deploy(wanted: int) -> None:
        profile = {**STANDIN, "max_model_len": wanted, "env": {"STANDIN_START_SECONDS": "3"}}
        file = inventory(tmp_path / str(wanted), [host], {"standin": profile})
        runs.append(pyinfra(str(file)))

    threads = [threading.Thread(target=deploy, args=(wanted,)) for wanted in (256, 768)]
    for thread in threads:
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join()
    assert [run.code for run in runs] == [0, 0], [run.output for run in runs]
    assert f"max-model-len: {length(host)}" in host.sh(f"cat {STAGED}/serve.yaml")
    assert host.sh(f"diff {STAGED}/serve.yaml /etc/sparkwright/standin/serve.yaml") == ""


def test_no_way_back(host: Spark, good: Good) -> None:
    """The release in service was deleted by hand, and the new one does not start."""
    releases = "/opt/sparkwright/releases"
    host.sh(
        f"cp -a {releases}/{good['release']} {releases}/other; mv {releases}/{good['release']} "
        f"/opt/sparkwright/hidden; echo other > {STAGED}/release; "
        f"sed -i 's#{good['release']}#other#' {releases}/other/bin/vllm"
    )
    try:
        stage(host, "STANDIN_DIE_AT=load")
        said = apply(host)
        assert said.endswith("status 1"), said
        assert "there is no way back, its release in service was deleted" in said
        assert "vllm@standin.service is stopped, nothing serves: there is no way back" in said
        assert host.unit("standin", "ActiveState") == "inactive"
        assert status(host)["last"]["result"] == "failed"
        host.sh(f"sed -i /STANDIN_DIE/d {STAGED}/env")
        assert apply(host).endswith("status 0") and length(host) == 512
        assert "there is no way back: release" in apply(host, "rollback standin")
        assert length(host) == 512, "nothing was stopped for it"
    finally:
        host.sh(f"mv /opt/sparkwright/hidden {releases}/{good['release']}")


def test_out_of_disk_while_a_release_is_built(host: Spark, tmp_path: Path) -> None:
    """Something fills it after preflight; the next run builds from nothing what is half there."""
    small = replace(host, standin=[{**host.standin[1], "disk_gib": 0.0001}])
    file = inventory(tmp_path, [small])
    releases = "/opt/sparkwright/releases"
    pid = host.unit("standin", "MainPID")
    host.sh(
        f"cp -a {releases} /root/releases; mount -t tmpfs -o mode=755,"
        f"size=$(($(du -sm {releases} | cut -f1) + 200))m none {releases}; "
        f"cp -a /root/releases/. {releases}; rm -rf /root/releases; "
        f"systemd-run -q --collect sh -c 'until ls -d {releases}/standin2*/; do sleep 0.05; done; "
        f"cat /dev/zero > {releases}/filler.txt'"
    )
    try:
        run = pyinfra(str(file))
        assert run.code != 0 and "No space left on device" in run.output, run.output
        assert "Traceback" not in run.output
        assert "Build the engine release" in run.names("error")
        assert host.unit("standin", "MainPID") == pid and length(host) == 1024
    finally:
        host.sh(f"umount {releases}")
    run = pyinfra(str(file))
    assert run.code == 0 and host.ask("/version")["version"] == "0.0.2+standin", run.output


def test_another_profile_that_fails(host: Spark, tmp_path: Path) -> None:
    """It takes the place of the one in service, which comes back; later it really does."""
    die = {**STANDIN, "max_model_len": 512, "env": {"STANDIN_DIE_AT": "load"}}
    run = pyinfra(str(inventory(tmp_path, [host], {"other": die})))
    try:
        assert run.code != 0 and "other: nothing of it is left in service" in run.output
        assert "    1 rolled back" in run.output, run.output
        assert_rolled_back(host, "other did not start")
        assert host.unit("other", "UnitFileState") == "disabled"
        host.sh("sed -i /STANDIN_DIE/d /var/lib/sparkwright/staged/other/env")
        said = apply(host, "apply other --without standin")
        assert said.endswith("status 0") and "standin is stopped and removed" in said, said
        assert length(host) == 512 and host.complete("tiny") == 8
        where = "/etc /opt/sparkwright/active /var/lib/sparkwright"
        assert host.sh(f"find {where} -name standin -o -name 'vllm@standin*'") == ""
    finally:
        apply(host, "remove other")


def test_a_rollback_said_twice(host: Spark) -> None:
    """It is no toggle; and what was before is for root only."""
    stage(host)
    host.sh(f"echo VLLM_API_KEY=secret > {STAGED}/api-key.env")
    assert apply(host).endswith("status 0")
    stage(host, length=256)
    assert apply(host).endswith("status 0")
    kept = "/var/lib/sparkwright/previous/standin"
    assert host.sh(f"stat -c %a {kept} {kept}/api-key.env").split() == ["700", "600"]
    assert apply(host, "rollback standin").endswith("status 0")
    assert "max-model-len: 512" in host.sh(f"cat {SERVED}")
    pid = host.unit("standin", "MainPID")
    said = apply(host, "rollback standin")
    assert said.endswith("status 0") and "standin already went back" in said, said
    assert host.unit("standin", "MainPID") == pid and "512" in host.sh(f"grep max-model {SERVED}")


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    long ahead = 0;
    FILE *file = id == CLOCK_REALTIME ? fopen("/run/clock", "r") : NULL;
    if (file) {
        if (fscanf(file, "%ld", &ahead) == 1) now->tv_sec += ahead;
        fclose(file);
    }
    return status;
}
"""


def test_a_clock_that_jumps(host: Spark) -> None:
    """For all that systemd starts, a day ahead and then a day back: a container has no clock of its
    own that could be set, so a library takes its place."""
    library = "/usr/local/lib/clock.so"
    host.sh(
        f"cat > /root/clock.c <<'END'{CLOCK}END\ngcc -shared -fPIC -o {library} /root/clock.c; "
        f"echo 0 > /run/clock; systemctl set-environment LD_PRELOAD={library}"
    )
    try:
        stage(host, SLOW)
        thread = begin(host)
        host.sh("echo 86400 > /run/clock; sleep 3; echo -86400 > /run/clock")
        thread.join(60)
        assert length(host) == 512 and host.complete("tiny") == 8
        seen = status(host)
        assert seen["last"]["result"] == "serving" and seen["health"], seen
        assert time.time() - seen["last"]["at"] > 80000, "the clock did jump"
    finally:
        host.sh("systemctl unset-environment LD_PRELOAD; rm /run/clock")


@pytest.mark.parametrize("text", ["", "{"])
def test_state_that_is_lost(host: Spark, text: str) -> None:
    pid = host.unit("standin", "MainPID")
    host.sh(f"printf '%s' '{text}' > /var/lib/sparkwright/state.json")
    assert status(host)["last"] is None and status(host)["health"]
    assert "it was not proven yet" in host.sh(f"{ACTIVATE} check standin")
    assert apply(host).endswith("status 0")
    assert '"missing": null' in host.sh(f"{ACTIVATE} check standin")
    assert host.unit("standin", "MainPID") == pid, "nothing was restarted for it"


def test_edited_by_hand(host: Spark) -> None:
    unit = "/etc/systemd/system/vllm@.service"
    host.sh(f"sed -i 's/^RestartSec=.*/RestartSec=99/' {unit}")
    assert status(host)["problem"] == f"changed by hand: {unit}"
    said = apply(host)
    assert f"standin: {unit} was changed by hand; it is put back" in said, said
    assert host.sh(f"grep RestartSec {unit}") == "RestartSec=10"
    assert status(host)["problem"] is None


def test_a_first_installation_that_fails(host: Spark) -> None:
    """Nothing is left that could start, and the one beside it is as it was."""
    host.sh(
        f"cp -a {STAGED} /var/lib/sparkwright/staged/second; cd /var/lib/sparkwright/staged/second;"
        " sed -i 's/8000/8001/; s#cache/standin#cache/second#' serve.yaml env start.json; "
        "echo STANDIN_DIE_AT=load >> env"
    )
    pid = host.unit("standin", "MainPID")
    said = apply(host, "apply standin second")
    try:
        assert said.endswith("status 1") and "nothing of it is left in service" in said, said
        assert host.sh("find /etc -name '*second*'") == ""
        assert host.unit("second", "LoadState") == "loaded", "by the template alone"
        assert host.unit("second", "UnitFileState") == "disabled"
        assert host.unit("standin", "MainPID") == pid
    finally:
        apply(host, "remove second")

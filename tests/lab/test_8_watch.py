"""The watch over an engine that runs: what it restarts, how often, and what it leaves alone.

Its times are made short by drop-ins; the stand-in engine misbehaves by a file, while it runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.lab.helpers import STANDIN, Spark, inventory, pyinfra

pytestmark = pytest.mark.lab

UNITS = "/etc/systemd/system"
SWITCH = "/var/lib/sparkwright/cache/standin/switch"
MEMORY = "/run/sparkwright/watch-standin.json"
PAUSE_S = 20
TIMES = {
    "FAILURES": 2,
    "TIMEOUT_S": 2,
    "SETTLE_S": 2,
    "PAUSE_S": PAUSE_S,
    "LONGEST_PAUSE_S": PAUSE_S,
    "LIMIT": 2,
}
DROP_INS = {
    "sparkwright-watch@standin.service": "[Service]\n"
    + "".join(f"Environment=SPARKWRIGHT_WATCH_{k}={v}\n" for k, v in TIMES.items()),
    "sparkwright-watch@standin.timer": "[Timer]\nOnActiveSec=\nOnUnitInactiveSec=\n"
    "OnActiveSec=1s\nOnUnitInactiveSec=1s\nAccuracySec=100ms\n",
    "vllm@standin.service": "[Service]\nTimeoutStopSec=3\nRestartSec=1\n",
}


@pytest.fixture(scope="module")
def watched(sparks: dict[str, Spark], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    spark = sparks["spark-2"]
    env = {"STANDIN_SWITCH": SWITCH, "STANDIN_TOKEN_SECONDS": "0.05"}
    file = inventory(
        tmp_path_factory.mktemp("watch"), [spark], {"standin": {**STANDIN, "env": env}}
    )
    run = pyinfra(str(file))
    assert run.code == 0, run.output
    assert spark.sh("systemctl is-active sparkwright-watch@standin.timer") == "active"
    for unit, text in DROP_INS.items():
        spark.sh(f"mkdir -p {UNITS}/{unit}.d; cat > {UNITS}/{unit}.d/test.conf <<'X'\n{text}X")
    spark.sh("systemctl daemon-reload; systemctl restart sparkwright-watch@standin.timer")
    yield spark
    spark.sh(f"rm -f {UNITS}/*standin*.d/test.conf {MEMORY}; systemctl daemon-reload")


@pytest.fixture
def spark(watched: Spark) -> Spark:
    """The host, its engine well and freshly started, nothing remembered and nothing in the log."""
    watched.sh(
        f"rm -f {SWITCH}; systemctl kill -s SIGCONT vllm@standin 2>/dev/null; "
        f"systemctl restart vllm@standin; rm -f {MEMORY}; journalctl -q --rotate --vacuum-time=1s"
    )
    watched.wait_until(f"grep -q invocation {MEMORY}")
    return watched


def misbehave(spark: Spark, how: str) -> None:
    spark.sh(f"echo {how} > {SWITCH}; chmod 644 {SWITCH}")


def said(spark: Spark) -> list[str]:
    return spark.sh("journalctl -q -o cat -t sparkwright-watch-standin").splitlines()


def wait_for(spark: Spark, text: str, timeout: float = 60) -> float:
    journal = "journalctl -q -o cat -t sparkwright-watch-standin"
    return spark.wait_until(f"{journal} | grep -qF '{text}'", timeout)


def test_a_generation_that_never_ends(spark: Spark) -> None:
    before = spark.unit("standin", "InvocationID")
    assert said(spark) == []
    misbehave(spark, "hang")
    wait_for(spark, "restarting it")
    spark.sh(f"rm {SWITCH}")
    spark.wait_until("curl -sf http://127.0.0.1:8000/health")
    assert spark.unit("standin", "InvocationID") != before
    failure = "the server is healthy, but a generation gave nothing in 2 s"
    assert said(spark)[:2] == [
        f"look 1 of 2 that fails: {failure}",
        f"restarting it, 2 looks in a row failed: {failure}; this is restart 1 of at most 2 in "
        f"6 h, another one not before {PAUSE_S} s",
    ]
    assert spark.complete("tiny") == 8


def test_pauses_a_limit_and_a_new_beginning(spark: Spark) -> None:
    misbehave(spark, "unhealthy")
    # A start waits for /health, so it is made well until it is active.
    for number in (1, 2):
        wait_for(spark, f"this is restart {number} of at most 2")
        spark.sh(f"rm {SWITCH}")
        spark.wait_until("systemctl is-active vllm@standin")
        misbehave(spark, "unhealthy")
    wait_for(spark, "given up: 2 restarts in 6 h did not help")
    first, second = json.loads(spark.sh(f"cat {MEMORY}"))["restarts"]
    assert PAUSE_S <= second - first < PAUSE_S + 10
    assert f"/health says 503; the next restart is {PAUSE_S} s after the last one" in said(spark)
    before, lines = spark.unit("standin", "InvocationID"), len(said(spark))
    time.sleep(5)
    assert spark.unit("standin", "InvocationID") == before
    assert len(said(spark)) == lines
    spark.sh(f"rm {SWITCH}")
    wait_for(spark, "it serves again: tiny generated 16 tokens")
    # A good look long enough after the last restart makes all restarts forgotten.
    spark.wait_until(f"grep -F '\"restarts\": []' {MEMORY}", 2 * PAUSE_S)


def test_an_engine_that_hears_nothing_any_more(spark: Spark) -> None:
    before = spark.unit("standin", "InvocationID")
    # systemd wakes with SIGCONT what it stops, so it is put to sleep until SIGKILL ends it.
    asleep = "pid=$(systemctl show -p MainPID --value vllm@standin); while kill -STOP $pid; do "
    spark.sh(f"{asleep} sleep 0.05; done 2>/dev/null", timeout=60)
    (_, line) = said(spark)
    shown = "the server does not answer: /v1/models gave nothing in 2 s"
    assert line.startswith(f"restarting it, 2 looks in a row failed: {shown}")
    spark.wait_until("systemctl is-active vllm@standin")
    assert spark.unit("standin", "InvocationID") != before
    assert spark.complete("tiny") == 8


def test_a_busy_server_is_left_alone(spark: Spark) -> None:
    before = spark.unit("standin", "InvocationID")
    misbehave(spark, "queue")
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 900})
    spark.sh(f"curl -s -m 18 http://127.0.0.1:8000/v1/completions -d '{body}' || true")
    assert said(spark) == []
    assert spark.unit("standin", "InvocationID") == before


def test_what_is_left_alone(spark: Spark) -> None:
    before = spark.unit("standin", "InvocationID")
    # A transaction holds this lock; only while it is held does the engine look ill.
    spark.sh(
        "while ! flock -n /var/lib/sparkwright/locks/activation "
        f"sh -c 'echo unhealthy > {SWITCH}; chmod 644 {SWITCH}; rm -f {MEMORY}; sleep 6; "
        f"rm {SWITCH}; ! test -e {MEMORY}'; do sleep 0.3; done"
    )
    assert spark.unit("standin", "InvocationID") == before
    spark.sh("systemctl stop vllm@standin")
    assert spark.sh("systemctl is-active sparkwright-watch@standin.timer", check=False) != "active"
    misbehave(spark, "unhealthy")
    # The timer of this test starts it so often that systemd may have had enough.
    look = "sparkwright-watch@standin.service"
    spark.sh(f"systemctl reset-failed {look}; systemctl start {look}")
    assert spark.unit("standin", "ActiveState") == "inactive"


def test_little_work(spark: Spark) -> None:
    used = spark.sh(
        "systemctl stop sparkwright-watch@standin.timer; python3 - <<'X'\n"
        "import resource, subprocess\n"
        "subprocess.run(['python3', '/opt/sparkwright/host/watch.py', 'standin'], check=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)\nX"
    )
    assert float(used) < 1


def test_it_goes_with_its_instance(spark: Spark) -> None:
    spark.sh("python3 /opt/sparkwright/host/activate.py remove standin")
    assert spark.sh("systemctl list-units -q --plain 'sparkwright-watch@standin.timer'") == ""

"""Three Sparks: a release that fails on the canary, then the mended one; status; going back."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.record import require
from tests.lab.helpers import BIN, LAB, ROOT, STANDIN, Run, Spark, inventory, pyinfra, sparkwright

pytestmark = pytest.mark.lab

ACTIVATE = "Activate, and prove by a generation"
BROKEN = {"standin": {**STANDIN, "env": {"STANDIN_DIE_AT": "load"}}}


@pytest.fixture(scope="module")
def fleet(sparks: dict[str, Spark], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three hosts that serve with the first release, and a folder for inventories."""
    sparkwright("lab", "up", "--sparks", "3", "--name", LAB)
    record = require(LAB)
    model = sparks["spark-2"]
    hosts = []
    for host in record.hosts:
        data = {**model.data, "ssh_hostname": host.address, "ssh_user": record.user}
        hosts.append(Spark(host.name, host.container, data, model.standin))
    folder = tmp_path_factory.mktemp("fleet")
    for spark in hosts:
        spark.wipe()
    run = pyinfra(str(inventory(folder, hosts)))
    assert run.code == 0, run.output
    assert served(hosts) == ["0.0.1+standin"] * 3
    yield hosts, folder


def served(hosts: list[Spark]) -> list[str]:
    """The release that each host's own endpoint says it is."""
    return [spark.ask("/version")["version"] for spark in hosts]


def entered(hosts: list[Spark]) -> list[str]:
    return [spark.unit("standin", "ActiveEnterTimestampMonotonic") for spark in hosts]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "sparkwright", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def summary(run: Run | subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of the table at the end."""
    text = run.output if isinstance(run, Run) else run.stderr + run.stdout
    table = text.split("--> Who serves what now:\n")[1].splitlines()[1:]
    return [line.strip() for line in table if line.startswith("    spark-")]


def test_second_run_changes_nothing(fleet: tuple[list[Spark], Path]) -> None:
    hosts, folder = fleet
    before, started = [spark.ssh_commands() for spark in hosts], entered(hosts)
    run = pyinfra(str(inventory(folder, hosts)))
    assert run.code == 0 and not run.names("success"), run.output
    assert all(spark.ssh_commands() - n <= 15 for spark, n in zip(hosts, before, strict=True))
    assert entered(hosts) == started


def test_canary_fails_and_nobody_else_is_touched(fleet: tuple[list[Spark], Path]) -> None:
    hosts, folder = fleet
    started = entered(hosts)
    run = pyinfra(str(inventory(folder, hosts, BROKEN, release=1)))
    assert run.code == 1, run.output
    canary, *others = summary(run)
    assert "rolled back: standin did not start: RuntimeError" in canary, run.output
    for line in others:
        assert line.endswith("held back: canary spark-1 failed"), run.output
    assert served(hosts) == ["0.0.1+standin"] * 3
    assert entered(hosts)[1:] == started[1:]
    assert [spark.complete("tiny") for spark in hosts] == [8, 8, 8]


def test_status_tells_why(fleet: tuple[list[Spark], Path]) -> None:
    hosts, folder = fleet
    file = str(inventory(folder, hosts, release=1))
    seen = command("status", file, "--json")
    canary, *others = (entry["status"]["instances"]["standin"] for entry in json.loads(seen.stdout))
    assert seen.returncode == 0, seen.stdout + seen.stderr
    assert canary["last"]["result"] == "rolled back" and canary["health"]
    assert all(other["last"]["result"] == "serving" for other in others)
    table = command("status", file, "--limit", "spark-1").stdout
    assert "rolled back: " in table and "(to be standin2" in table and "spark-2" not in table


def test_mended_release_goes_through(fleet: tuple[list[Spark], Path]) -> None:
    hosts, folder = fleet
    run = pyinfra(str(inventory(folder, hosts, release=1)))
    assert run.code == 0, run.output
    assert [line.split()[-1] for line in summary(run)] == ["updated"] * 3
    order = [run.output.index(f"[{spark.name}]    0 s  starting") for spark in hosts]
    assert order == sorted(order)
    assert served(hosts) == ["0.0.2+standin"] * 3


def test_rollback_needs_to_know_whom(fleet: tuple[list[Spark], Path]) -> None:
    hosts, folder = fleet
    file = str(inventory(folder, hosts, release=1))
    done = command("rollback", file)
    assert done.returncode == 1
    assert "the inventory has 3 hosts: name those that are to go back" in done.stderr
    done = command("rollback", file, "standn", "--limit", "spark-3")
    assert done.returncode == 1 and "did you mean 'standin'?" in done.stderr
    assert served(hosts) == ["0.0.2+standin"] * 3


def test_one_goes_back_and_the_next_deploy_brings_it_forward(
    fleet: tuple[list[Spark], Path],
) -> None:
    hosts, folder = fleet
    file = str(inventory(folder, hosts, release=1))
    done = command("rollback", file, "--limit", "spark-3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(done)[0].endswith("went back"), done.stderr
    assert served(hosts) == ["0.0.2+standin", "0.0.2+standin", "0.0.1+standin"]
    run = pyinfra(file)
    assert run.code == 0, run.output
    assert [line.split()[-1] for line in summary(run)] == ["unchanged", "unchanged", "updated"]
    assert served(hosts) == ["0.0.2+standin"] * 3


def test_status_of_a_host_that_is_off(fleet: tuple[list[Spark], Path]) -> None:
    hosts, folder = fleet
    file = inventory(folder, hosts, release=1)
    file.write_text(file.read_text().replace(f"'{hosts[1].data['ssh_hostname']}'", "'127.0.0.2'"))
    seen = command("status", str(file))
    assert seen.returncode == 1
    assert "spark-2  standin" in seen.stdout and "NO ANSWER: " in seen.stdout
    assert "Traceback" not in seen.stderr


def test_a_host_that_vanishes(fleet: tuple[list[Spark], Path]) -> None:
    """Without power or network it says no goodbye: the run ends all the same, and says so."""
    hosts, folder = fleet
    canary = hosts[0]
    network = require(LAB).network
    slow = {"standin": {**STANDIN, "max_model_len": 512, "env": {"STANDIN_START_SECONDS": "15"}}}
    file = str(inventory(folder, hosts, slow, release=1))
    started = entered(hosts)

    def vanish() -> None:
        canary.wait_until("systemctl is-active vllm@standin | grep -x activating")
        docker("network", "disconnect", network, canary.container)

    thread = threading.Thread(target=vanish)
    thread.start()
    try:
        run = pyinfra(file)
        thread.join()
        assert run.code == 1 and "[spark-1] the connection was lost" in run.output, run.output
        first, *others = summary(run)
        assert "unknown" in first and "failed: " in first, run.output
        assert all(line.endswith("held back: canary spark-1 failed") for line in others)
        assert entered(hosts)[1:] == started[1:]
    finally:
        address = canary.data["ssh_hostname"]
        docker("network", "connect", "--ip", address, network, canary.container)
    run = pyinfra(file)
    assert run.code == 0, run.output
    assert [line.split()[-1] for line in summary(run)] == ["unchanged", "updated", "updated"]


def docker(*words: str) -> None:
    subprocess.run(["docker", *words], check=True, capture_output=True)

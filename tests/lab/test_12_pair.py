"""Two Sparks that serve as one: deployed, upgraded, undone, back by themselves after each fault.

The stand-in engine joins its ranks as vLLM does, and notices as little (docs/lab.md); the real one
is at the end. The time that each way back took is printed (pytest -s), and asserted nowhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.helpers import LAB, STANDIN, Run, Spark, inventory, pyinfra, sparkwright
from tests.lab.test_8_watch import DROP_INS

pytestmark = pytest.mark.lab

PROFILE = {**STANDIN, "tensor_parallel_size": 2, "ready_timeout_s": 60, "api_key": "env:PAIR_KEY"}
KEY = "key-of-the-pair"
UNIT = "vllm@standin.service"
BACK_S = 240
"""Longer than any way back takes; a test that needs it has failed."""


class Pair:
    """Both hosts, and how their users see them: by the head's endpoint."""

    def __init__(self, head: Spark, worker: Spark, folder: Path) -> None:
        self.head, self.worker, self.folder = head, worker, folder
        self.hosts = [head, worker]

    def deploy(self, release: int = 0, **profile: Any) -> Run:
        file = inventory(
            self.folder, self.hosts, {"standin": PROFILE | profile}, release, pair="desk"
        )
        return pyinfra(str(file), env={"PAIR_KEY": KEY})

    def ask(self, limit: int = 5) -> str:
        """HTTP status of a generation; 000: no connection, hangs: no answer for `limit` s."""
        body = '{"model": "tiny", "prompt": "a", "max_tokens": 8, "ignore_eos": true}'
        return self.head.sh(
            f"curl -s -o /tmp/answer -w '%{{http_code}}' -m {limit} -H 'Content-Type: "
            f"application/json' -H 'Authorization: Bearer {KEY}' -d '{body}' "
            "http://127.0.0.1:8000/v1/completions; test $? != 28 || echo hangs",
            check=False,
        )

    def serves(self) -> bool:
        """A real generation of 8 tokens by both ranks."""
        answers = self.ask() == "200"
        return answers and '"completion_tokens": 8' in self.head.sh("cat /tmp/answer").replace(
            '":8', '": 8'
        )

    def back(self, what: str, since: float | None = None) -> float:
        """Wait until it serves again, and say how long that took, since the fault."""
        begun = since or time.monotonic()
        while not self.joined():
            if time.monotonic() - begun > BACK_S:
                raise AssertionError(f"{what}: not back after {BACK_S} s\n{self.journals()}")
            time.sleep(1)
        took = time.monotonic() - begun
        print(f"\n{what}: a generation again after {took:.0f} s")
        return took

    def starts(self) -> list[str]:
        """Changes whenever a rank is started."""
        return [host.unit("standin", "InvocationID") for host in self.hosts]

    def lengths(self) -> set[str]:
        """The context length that each host has in service."""
        show = "grep -h max-model-len /etc/sparkwright/standin/serve.yaml"
        return {host.sh(show).split()[-1] for host in self.hosts}

    def journals(self) -> str:
        units = f"-u {UNIT} -u sparkwright-pair -u sparkwright-activation"
        return "\n".join(
            f"{host.name}\n" + host.sh(f"journalctl -q -o short -n 25 {units}", check=False)
            for host in self.hosts
        )

    def joined(self) -> bool:
        """Both ranks active, each with the start of the other."""
        states = [host.unit("standin", "ActiveState") for host in self.hosts]
        return states == ["active", "active"] and self.serves()


@pytest.fixture(scope="module")
def pair(sparks: dict[str, Spark], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """spark-1 and spark-2, which serve one model after their first deploy."""
    made = Pair(sparks["spark-1"], sparks["spark-2"], tmp_path_factory.mktemp("pair"))
    for host in made.hosts:
        sparkwright("lab", "clear", host.name, "--name", LAB)
        host.wipe()
    begun = time.monotonic()
    run = made.deploy()
    assert run.code == 0, run.output
    print(f"\na pair is deployed and proven: {time.monotonic() - begun:.0f} s")
    yield made
    for host in made.hosts:
        host.wipe()


@pytest.fixture
def serving(pair: Pair) -> Iterator[Pair]:
    """The pair, which serves before a test and after it."""
    pair.back("before")
    yield pair
    for host in pair.hosts:
        sparkwright("lab", "clear", host.name, "--name", LAB)
    pair.back("afterwards")


def test_one_endpoint_two_ranks(serving: Pair) -> None:
    head, worker = serving.hosts
    assert serving.joined()
    assert not worker.sh("ss -Hltn 'sport = :8000'"), "a worker answers nobody"
    assert worker.sh("test -e /etc/sparkwright/standin/api-key.env && echo key || true") == ""
    assert "headless: true" in worker.sh("cat /etc/sparkwright/standin/serve.yaml")
    for host, rank in ((head, 0), (worker, 1)):
        assert f"node-rank: {rank}" in host.sh("cat /etc/sparkwright/standin/serve.yaml")
        timer = host.sh("systemctl is-active sparkwright-watch@standin.timer || true")
        assert (timer == "active") == (rank == 0), "the watch is the head's"


def test_the_engines_ports_listen_on_the_fabric_only(serving: Pair) -> None:
    """vLLM's traffic between ranks is not authenticated: who reaches it may run code."""
    head, worker = serving.hosts
    management = head.data["ssh_hostname"]
    # A neighbour that sends to an address of a rail by way of the management network.
    device = worker.sh("ip -4 route show default").split(" dev ")[1].split()[0]
    worker.sh(
        f"ip rule add oif {device} to 192.168.100.10 lookup 99; "
        f"ip route replace 192.168.100.10 via {management} dev {device} table 99"
    )

    def reached(address: str, port: int) -> bool:
        asked = f"curl -s -m 2 --interface {device} http://{address}:{port}/; echo $?"
        return worker.sh(asked, check=False).splitlines()[-1] not in ("7", "28")

    everywhere = [(a, p) for a in (management, "192.168.100.10") for p in (29400, 29501)]
    head.sh("systemd-run --unit=listens python3 -m http.server 29501")
    try:
        head.wait_until("ss -Hltn sport = :29501 | grep -q 29501", every=0.2)
        assert not any(reached(address, port) for address, port in everywhere)
        assert '"driver"' in worker.sh("curl -s -m 5 http://192.168.100.10:29400/"), "on the rail"
        head.sh("nft delete table inet sparkwright_fabric")
        assert reached(management, 29501) and reached("192.168.100.10", 29400), "without the rules"
        head.sh("nft -f /etc/sparkwright/fabric.nft")
        assert not any(reached(address, port) for address, port in everywhere)
    finally:
        head.sh("systemctl stop listens; nft -f /etc/sparkwright/fabric.nft")
        worker.sh("ip rule del lookup 99; ip route flush table 99")


def test_second_run_changes_nothing(serving: Pair) -> None:
    started = serving.starts()
    kept = [host.snapshot() for host in serving.hosts]
    asked = [host.ssh_commands() for host in serving.hosts]
    run = serving.deploy()
    assert run.code == 0 and not run.names("success") and not run.names("error"), run.output
    assert serving.starts() == started
    assert [host.snapshot() for host in serving.hosts] == kept
    more = [host.ssh_commands() - n for host, n in zip(serving.hosts, asked, strict=True)]
    print(f"\nround trips of a second run: {more}")
    assert max(more) <= 20


def test_the_link_is_set_up_anew_below_a_pair_that_serves(serving: Pair) -> None:
    """As by the first deploy after a boot, which measures again."""
    started = serving.starts()
    for host in serving.hosts:
        host.sh(
            "rm /var/lib/sparkwright/fabric-measured.json; nft delete table inet sparkwright_fabric"
        )
    run = serving.deploy()
    assert run.code == 0 and run.names("success") == {"Set up the link of a pair"}, run.output
    assert serving.starts() == started, "no rank was restarted"
    for host in serving.hosts:
        host.sh("nft list table inet sparkwright_fabric")


def test_status_tells_of_both(serving: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIR_KEY", KEY)
    said = sparkwright("status", str(serving.folder / "sparks.py"))
    lines = [line for line in said.splitlines() if line.strip().startswith("spark-")]
    assert len(lines) == 2 and all("not deployed" not in line for line in lines), said
    assert "generated 16 tokens on 127.0.0.1:8000, by the head on spark-1" in lines[1], said


def test_an_upgrade_and_the_way_back(serving: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    run = serving.deploy(release=1, max_model_len=512)
    assert run.code == 0, run.output
    assert serving.lengths() == {"512"} and serving.joined()
    version = serving.head.ask("/version")["version"]
    assert version == "0.0.2+standin"
    monkeypatch.setenv("PAIR_KEY", KEY)
    sparkwright("rollback", str(serving.folder / "sparks.py"), "--limit", "standin")
    assert serving.lengths() == {"1024"}
    assert serving.joined() and serving.head.ask("/version")["version"] == "0.0.1+standin"
    run = serving.deploy()
    assert run.code == 0 and serving.lengths() == {"1024"}, run.output


# What keeps which rank from starting with the new configuration, though the old one starts.
TAKES_ONLY_OLD = (
    '[Service]\nExecStartPre=/bin/sh -c \'! grep -q "max-model-len: 512" '
    "/etc/sparkwright/standin/serve.yaml'\n"
)
DROP_IN = f"/etc/systemd/system/{UNIT}.d/{{}}.conf"


@pytest.mark.parametrize("failing", ["worker", "head"])
def test_an_upgrade_that_fails_on_one_goes_back_on_both(serving: Pair, failing: str) -> None:
    host: Spark = getattr(serving, failing)
    # Before the handshake on the one, after it on the other.
    drop_in = DROP_IN.format("00-test" if failing == "head" else "zz-test")
    host.sh(f"cat > {drop_in} <<'END'\n{TAKES_ONLY_OLD}END\nsystemctl daemon-reload")
    try:
        run = serving.deploy(max_model_len=512)
    finally:
        host.sh(f"rm -f {drop_in}; systemctl daemon-reload")
    assert run.code == 1, run.output
    assert "the other half of the pair" in run.output, run.output
    assert serving.lengths() == {"1024"}
    serving.back("after a failed upgrade")
    assert all("transaction.json" not in h.sh("ls /var/lib/sparkwright") for h in serving.hosts)


def test_an_upgrade_that_neither_can_start(serving: Pair) -> None:
    run = serving.deploy(release=1, env={"STANDIN_DIE_AT": "load"})
    assert run.code == 1 and "did not start" in run.output, run.output
    assert serving.head.ask("/version")["version"] == "0.0.1+standin"
    assert serving.joined()


def test_one_host_alone_changes_nothing(serving: Pair) -> None:
    started = serving.starts()
    file = str(serving.folder / "sparks.py")
    inventory(
        serving.folder,
        serving.hosts,
        {"standin": {**PROFILE, "max_model_len": 512}},
        pair="desk",
    )
    run = pyinfra("--limit", "spark-2", file, env={"PAIR_KEY": KEY})
    assert run.code != 0, run.output
    assert serving.starts() == started and serving.lengths() == {"1024"}, run.output


@pytest.mark.parametrize("rank", ["worker", "head"])
@pytest.mark.parametrize("process", ["main", "engine"])
def test_a_rank_is_killed(serving: Pair, rank: str, process: str) -> None:
    host: Spark = getattr(serving, rank)
    started, begun = serving.starts(), time.monotonic()
    if process == "main":
        host.sh(f"systemctl kill --signal=SIGKILL {UNIT}")
    else:
        host.sh("pkill -9 -f 'VLLM::EngineCor[e]' || pkill -9 -f 'VLLM::Worke[r]'")
    changed(serving, started)
    serving.back(f"{rank}: {process} killed", begun)
    assert all(new != old for new, old in zip(serving.starts(), started, strict=True))


# The watch as in test_8_watch.py: its times are made short.
QUICK = {
    "sparkwright-watch@standin.service": "[Service]\n"
    + "".join(
        f"Environment=SPARKWRIGHT_WATCH_{name}={value}\n"
        for name, value in {"FAILURES": 2, "TIMEOUT_S": 3, "SETTLE_S": 2}.items()
    ),
    "sparkwright-watch@standin.timer": DROP_INS["sparkwright-watch@standin.timer"],
}


def test_a_worker_that_hangs(serving: Pair) -> None:
    """Stopped, not dead: its connections stay open, nobody answers, and all looks well."""
    units = "/etc/systemd/system"
    for unit, text in QUICK.items():
        serving.head.sh(
            f"mkdir -p {units}/{unit}.d; cat > {units}/{unit}.d/test.conf <<'X'\n{text}X"
        )
    serving.head.sh("systemctl daemon-reload; systemctl restart sparkwright-watch@standin.timer")
    started, begun = serving.starts(), time.monotonic()
    serving.worker.sh(f"systemctl kill --signal=SIGSTOP {UNIT}")
    try:
        assert "hangs" in serving.ask(3) and serving.head.ask("/health") == ""
        changed(serving, started)
    finally:
        serving.head.sh(f"rm -f {units}/*standin*.d/test.conf; systemctl daemon-reload")
        serving.head.sh("systemctl restart sparkwright-watch@standin.timer")
    serving.back("the worker hung, with a watch that looks every second", begun)


def reboot(*hosts: Spark) -> Callable[[], None]:
    def run() -> None:
        threads = [
            threading.Thread(
                target=sparkwright, args=("lab", "reboot", host.name, "--name", LAB), daemon=True
            )
            for host in hosts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


@pytest.mark.parametrize("which", ["worker", "head", "both"])
def test_a_reboot(serving: Pair, which: str) -> None:
    started, begun = serving.starts(), time.monotonic()
    hosts = serving.hosts if which == "both" else [getattr(serving, which)]
    reboot(*hosts)()
    changed(serving, started)
    serving.back(f"reboot of {which}, nobody logged in", begun)


@pytest.mark.parametrize("fault", ["fabric-cut", "rail-down"])
def test_a_rail_is_cut_and_restored(serving: Pair, fault: str) -> None:
    sparkwright("lab", "fault", "spark-2", fault, "--name", LAB)
    begun = time.monotonic()
    # Neither for ever: a generation that hangs, and a server that looks well.
    while "hangs" in (said := serving.ask(60)) or said == "200":
        assert time.monotonic() - begun < BACK_S, said
        time.sleep(1)
    print(f"\n{fault}: the head answers {said} after {time.monotonic() - begun:.0f} s")
    waits = f"journalctl -q -u {UNIT} --since -60s | grep 'waiting for the other rank.* rail '"
    assert "rail" in serving.head.sh(f"for i in $(seq 60); do {waits} && break; sleep 1; done")
    sparkwright("lab", "clear", "spark-2", fault, "--name", LAB)
    serving.back(f"{fault}, and restored")


def changed(pair: Pair, started: list[str], limit: float = BACK_S) -> None:
    """Wait until both ranks were started anew: one alone can't serve."""
    begun = time.monotonic()
    while any(new == old for new, old in zip(pair.starts(), started, strict=True)):
        assert time.monotonic() - begun < limit, pair.journals()
        time.sleep(0.5)


def test_a_pair_that_parts(serving: Pair) -> None:
    """Each serves alone; then the link is taken down."""
    alone = {"standin": {**STANDIN, "max_model_len": 512}}
    run = pyinfra(str(inventory(serving.folder, serving.hosts, alone)))
    assert run.code == 0, run.output
    assert "Take down the link of a pair that is none any more" in run.names("success")
    for host in serving.hosts:
        assert host.complete("tiny") == 8
        assert not host.sh("ls /etc/netplan") and "192.168." not in host.sh("ip -br addr")
        host.sh("test ! -e /etc/sparkwright/standin/pair.json")
        host.sh("! nft list table inet sparkwright_fabric 2>/dev/null")
    again = pyinfra(str(inventory(serving.folder, serving.hosts, alone)))
    assert again.code == 0 and not again.names("success"), again.output
    run = serving.deploy()  # and together again
    assert run.code == 0, run.output


def test_the_real_engine(pair: Pair) -> None:
    """inventory/lab_pair.py, as docs/two-sparks.md says; then the worker is killed."""
    for host in pair.hosts:
        host.wipe()
    begun = time.monotonic()
    run = pyinfra("inventory/lab_pair.py", timeout=1500)
    assert run.code == 0, run.output
    print(f"\nthe real vLLM over two ranks: {time.monotonic() - begun:.0f} s")
    assert run.silence < 60
    assert pair.head.complete("tiny-qwen3", tokens=4) == 4
    again = pyinfra("inventory/lab_pair.py")
    assert again.code == 0 and not again.names("success"), again.output
    unit = "vllm@lab_tiny_pair.service"
    began = [host.unit("lab_tiny_pair", "InvocationID") for host in pair.hosts]
    pair.worker.sh(f"systemctl kill --signal=SIGKILL {unit}")
    begun = time.monotonic()
    for host, old in zip(pair.hosts, began, strict=True):
        host.wait_until(
            f"test $(systemctl show -p InvocationID --value {unit}) != {old}", 120, every=0.5
        )
        host.wait_until(f"systemctl is-active {unit} | grep -x active", 400)
    assert pair.head.complete("tiny-qwen3", tokens=4) == 4
    print(f"\nits worker killed: a generation again after {time.monotonic() - begun:.0f} s")

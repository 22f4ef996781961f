"""What two hosts of a pair tell each other, the handshake of a start, and who is ended when."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import alike
import fabric
import pair
import pair_agent
import pairing
import pytest
import rails
import ready
import service
from common import Refusal
from pairing import Pair, Peer, UnreachableError

from tests.unit.fake_systemd import STOPPED, Spark

UNIT = "vllm@m.service"
RUNS = replace(STOPPED, active="active", sub="running", main_pid=7)
HEAD = {
    "pair": "p",
    "rank": 0,
    "key": "k",
    "own": ["127.0.0.1", "127.0.0.2"],
    "peer": ["127.0.0.3", "127.0.0.4"],
    "peer_host": "spark-2",
}
WORKER = {**HEAD, "rank": 1, "own": HEAD["peer"], "peer": HEAD["own"], "peer_host": "spark-1"}
Said = pytest.CaptureFixture[str]


def put(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def load(data: dict[str, Any], tmp_path: Path) -> Pair:
    put(tmp_path / f"rank{data['rank']}/pair.json", data)
    made = Pair.load("m", str(tmp_path / f"rank{data['rank']}"))
    assert made
    return made


@pytest.fixture
def agent(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    """The head's host, whose agent answers on loopback, as long as the test lasts."""
    servers = [pair_agent.Server((address, 0), pair_agent.Handler) for address in ["127.0.0.1"]]
    port = servers[0].server_address[1]
    servers.append(pair_agent.Server(("127.0.0.2", port), pair_agent.Handler))
    monkeypatch.setattr(pairing, "PORT", port)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    put(spark.etc / "m/pair.json", HEAD)
    yield spark
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_other_host_is_told_of_a_rank_and_of_a_transaction(
    agent: Spark, tmp_path: Path
) -> None:
    worker = load(WORKER, tmp_path)
    assert pairing.look(worker) == Peer(key="k", unit="inactive", ended=NOTHING)
    put(tmp_path / "run/m/start.json", {"id": "a1", "partner": "b1", "met": True})
    agent.systemd.units[UNIT] = RUNS
    record = {"phase": "starting", "names": ["m"], "changed": ["m"], "stopped": ["m"], "new": []}
    put(agent.var / "transaction.json", {**record, "proven": ["m"], "reason": "a secret"})
    put(agent.var / "transaction/m/next/pair.json", {**HEAD, "key": "k2"})
    put(agent.var / "transaction-result.json", {"error": "a secret", "id": "x", "keys": {"m": "k"}})
    seen = pairing.look(worker)
    assert (seen.key, seen.start, seen.partner, seen.unit) == ("k", "a1", "b1", "active")
    assert (seen.phase, seen.target, seen.stops, seen.proven) == ("starting", "k2", True, True)
    assert seen.ended == {"id": "x", "error": True, "keys": {"m": "k"}}
    assert "secret" not in json.dumps(pairing.ask(worker, "/m"))


NOTHING = {"id": None, "error": False, "keys": {}}


@pytest.mark.parametrize("path", ["/other", "/prove/../m/x", "/m/../../etc/passwd", "/%2e%2e"])
def test_only_a_pairs_profile_is_told_of(agent: Spark, tmp_path: Path, path: str) -> None:
    status, answer = pairing.ask(load(WORKER, tmp_path), path)
    assert status == 404 and "is no pair's profile here" in str(answer)


def test_each_rail_is_asked_and_one_that_is_silent_is_named(agent: Spark, tmp_path: Path) -> None:
    worker = load({**WORKER, "peer": ["127.0.0.1", "127.0.0.9"]}, tmp_path)
    with pytest.raises(UnreachableError) as caught:
        pairing.look(worker)
    assert str(caught.value).startswith(
        "spark-1 does not answer on rail 2 (127.0.0.4 to 127.0.0.9): "
    )
    assert pairing.look_on_any(worker).key == "k"
    other = load({**WORKER, "peer": ["127.0.0.9", "127.0.0.2"]}, tmp_path)
    assert pairing.look_on_any(other).key == "k"


def test_a_worker_is_proven_by_its_head(
    agent: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = service.Endpoint("127.0.0.1", 8000, "m", None)
    put(agent.etc / "m/start.json", {"endpoint": {"host": "::1", "port": 1, "name": "m"}})
    put(tmp_path / "run/m/start.json", {"id": "a1", "partner": "b1"})
    agent.systemd.units[UNIT] = RUNS
    monkeypatch.setattr(pairing, "start_of", lambda _: {"id": "b1"})
    worker = load(WORKER, tmp_path)
    monkeypatch.setattr(pairing.Pair, "load", lambda *_: worker)
    monkeypatch.setattr(pair_agent, "start_of", lambda _: {"id": "a1", "partner": "b1"})
    said = pairing.prove("m", server, patient=False)
    assert said == "m generated 8 tokens, by the head on spark-1"
    agent.systemd.proofs[UNIT] = [Refusal("/health says 503")]
    with pytest.raises(Refusal, match="the head on spark-1: /health says 503"):
        pairing.prove("m", server, patient=False)
    monkeypatch.setattr(pairing, "start_of", lambda _: {"id": "b2"})
    with pytest.raises(Refusal, match="the head on spark-1 is active, without this rank"):
        pairing.prove("m", server, patient=False)


def test_a_worker_is_ready_when_the_head_that_it_joined_is(
    agent: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = load(WORKER, tmp_path)
    monkeypatch.setenv("SPARKWRIGHT_START_ID", "b1")
    put(tmp_path / "run/m/start.json", {"id": "a1", "partner": "b1", "met": True})
    agent.systemd.units[UNIT] = replace(RUNS, active="activating")
    assert not ready.joined(worker)
    agent.systemd.units[UNIT] = RUNS
    assert ready.joined(worker)
    put(tmp_path / "run/m/start.json", {"id": "a2", "partner": "b0", "met": True})
    assert not ready.joined(worker), "a head that runs with another start of this rank"


@pytest.fixture
def two(tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two ranks that see each other's start files, and keys that a test may change."""
    world: dict[str, Any] = {"keys": {"spark-1": "k", "spark-2": "k"}}
    folders = {"spark-1": tmp_path / "one", "spark-2": tmp_path / "two"}

    def look(other: Pair) -> Peer:
        try:
            start = json.loads((folders[other.peer_host] / "m/start.json").read_text())
        except FileNotFoundError:
            raise UnreachableError(f"{other.peer_host} does not answer") from None
        key = world["keys"][other.peer_host]
        return Peer(key, start["id"], start["partner"], "activating")

    def begin(data: dict[str, Any], host: str) -> pair.Handshake:
        monkeypatch.setattr(pair, "RUN", str(folders[host]))
        return pair.Handshake(load(data, tmp_path))

    monkeypatch.setattr(pair, "look", look)
    monkeypatch.setattr(fabric, "firewall_is_up", lambda: True)
    monkeypatch.setattr(rails, "environment", lambda _: {"VLLM_HOST_IP": "10.0.0.1"})
    world["head"] = lambda: begin(HEAD, "spark-1")
    world["worker"] = lambda: begin(WORKER, "spark-2")
    return world


def test_both_ranks_start_when_they_have_named_each_other(
    two: dict[str, Any], tmp_path: Path
) -> None:
    head = two["head"]()
    assert head.step() == "spark-2 does not answer"
    worker = two["worker"]()
    assert head.step() == "the rank on spark-2 is activating"
    assert worker.step() == "" and head.step() == ""
    worker.finish()
    head.finish()
    assert json.loads((tmp_path / "one/m/start.json").read_text())["met"]
    assert (tmp_path / "one/m/rank.env").read_text() == (
        f'SPARKWRIGHT_START_ID="{head.own}"\nVLLM_HOST_IP="10.0.0.1"\n'
    )


def test_a_start_that_is_over_is_not_joined(two: dict[str, Any]) -> None:
    two["head"]().step()
    worker = two["worker"]()
    assert worker.step() == "the rank on spark-1 is activating"
    head = two["head"]()
    assert worker.step() != "" and head.step() == "" and worker.step() == ""


def test_ranks_with_other_settings_wait(two: dict[str, Any]) -> None:
    head, worker = two["head"](), two["worker"]()
    two["keys"]["spark-2"] = "other"
    assert head.step() == "spark-2 has other settings in service; a deploy makes them equal"
    two["keys"]["spark-2"] = ""
    assert head.step() == "nothing of m is in service on spark-2"
    two["keys"]["spark-2"] = "k"
    head.step()
    assert worker.step() == ""


class Looks:
    """A guard over one rank, whose partner answers what a test says; looks two seconds apart."""

    def __init__(self, spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.tmp_path, self.now = spark, tmp_path, 0.0
        self.guard = pair_agent.Guard(lambda: self.now)
        self.pair = load(HEAD, tmp_path)
        self.other: Peer | str = Peer("k", "b1", "a1", "active")
        monkeypatch.setattr(pair_agent, "look", self._look)
        self.start("a1")

    def start(self, own: str, met: bool = True) -> None:
        put(self.tmp_path / "run/m/start.json", {"id": own, "partner": "b1", "met": met})
        self.spark.systemd.units[UNIT] = RUNS

    def _look(self, _: Pair) -> Peer:
        if isinstance(self.other, str):
            raise UnreachableError(self.other)
        return self.other

    def kills(self, looks: int = 1) -> int:
        for _ in range(looks):
            self.guard.tend(self.pair)
            self.now += pair_agent.LOOK_EVERY_S
        asked, self.spark.systemd.asked = self.spark.systemd.asked, []
        assert asked.count(f"reset-failed {UNIT}") == asked.count(f"kill {UNIT}")
        return asked.count(f"kill {UNIT}")


@pytest.fixture
def looks(spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(spark, tmp_path, monkeypatch)


@pytest.mark.parametrize("state", ["active", "activating", "deactivating"])
def test_a_partner_that_is_there_is_left_alone(looks: Looks, state: str) -> None:
    looks.other = Peer("k", "b1", "a1", state)
    assert looks.kills(1000) == 0


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Peer("k", "b2", "", "activating"), "the rank on spark-2 was started anew"),
        (Peer("k", "b1", "a1", "failed"), "the rank on spark-2 is failed"),
        (Peer("k", "b1", "a1", "inactive"), "the rank on spark-2 is inactive"),
        (Peer(), "the rank on spark-2 was started anew"),
    ],
)
def test_a_rank_whose_partner_is_gone_is_ended(
    looks: Looks, other: Peer, why: str, capsys: Said
) -> None:
    looks.other = other
    assert looks.kills() == 1
    assert capsys.readouterr().out == (
        f"ending vllm@m.service, it starts again with the other rank: {why}\n"
    )


def test_a_partner_that_can_not_be_reached_is_gone_after_a_while(looks: Looks) -> None:
    assert looks.kills(3) == 0
    looks.other = "spark-2 does not answer on rail 2"
    assert looks.kills(7) == 0
    looks.other = Peer("k", "b1", "a1", "active")
    assert looks.kills() == 0
    looks.other = "spark-2 does not answer on rail 2"
    assert looks.kills(7) == 0 and looks.kills(2) == 1
    # The start after it waits for the other by itself.
    looks.start("a2", met=False)
    assert looks.kills(100) == 0
    # And has its own time when it has met it.
    looks.start("a2")
    assert looks.kills(8) == 0


@pytest.mark.parametrize("phase", ["stopping", "switching", "undoing"])
def test_a_transaction_ends_ranks_by_itself(looks: Looks, phase: str) -> None:
    record = {"phase": phase, "names": ["m"], "changed": [], "stopped": [], "new": []}
    put(looks.spark.var / "transaction.json", record)
    looks.other = Peer("k", "b2", "", "activating")
    assert looks.kills(50) == 0
    put(looks.spark.var / "transaction.json", {**record, "phase": "starting"})
    assert looks.kills() == 1


def test_a_rank_that_does_not_run_is_not_ended(looks: Looks) -> None:
    looks.other = Peer()
    looks.spark.systemd.units[UNIT] = replace(RUNS, main_pid=0, active="activating")
    assert looks.kills(50) == 0


def test_a_host_tells_its_driver_and_port(
    agent: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [rails.Rail("enp1s0f1np1", "rocep1s0f1", 1, True)]
    monkeypatch.setattr(rails, "devices", lambda: both)
    monkeypatch.setattr(rails, "driver", lambda: "580.1.2")
    put(agent.etc / "fabric.json", {"rails": [{"device": "enp1s0f1np1", "hca": "rocep1s0f1"}]})
    assert pairing.ask(load(WORKER, tmp_path), "/") == (200, {"driver": "580.1.2", "port": 1})
    for path in ("/bandwidth/2", "/bandwidth/0"):  # there is but one rail
        assert pairing.ask(load(WORKER, tmp_path), path) == (503, {})


def test_a_start_waits_while_drivers_or_weights_differ(
    agent: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    here = replace(load(WORKER, tmp_path), model=str(model))
    monkeypatch.setattr(rails, "driver", lambda: "580.1")
    same = Peer(driver="580.1", weights=alike.weights(str(model)))
    assert alike.difference(here, same) == ""
    assert alike.difference(here, Peer()) == "", "nothing was told yet"
    other = alike.difference(here, replace(same, driver="580.2"))
    assert "driver is 580.1 here and 580.2 on spark-1" in other
    monkeypatch.setattr(alike, "_known", {})
    (model / "more.safetensors").write_text("x")
    assert f"{model} differs from the one on spark-1" in alike.difference(here, same)

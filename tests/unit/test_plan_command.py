"""`sparkwright plan`: the table, JSON for machines, exit status; and that it is quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparkwright.plan import RawHost, make_plan
from tests.unit.plan_files import ROOT, Case, Ran, plan_all

ONE = 'tiny = ["spark-1"]\n'
LLAMA = (
    'dict(model_type="llama", num_hidden_layers=80, num_attention_heads=64, '
    "num_key_value_heads=8, head_dim=128, hidden_size=8192)"
)
KNOWN = (
    'profile = dict(model="/srv/models/tiny", expects=dict(weights_gib=40), max_model_len="64K", '
    f"config={LLAMA})\n"
)
TWO = 'profile = dict(model="/srv/models/two", tensor_parallel_size=2, port=8002)\n'
PAIR = 'two = [("spark-2", {"pair": "left"}), ("spark-3", {"pair": "left"})]\n'
BROKEN = 'profile = dict(model="/srv/models/tiny", prot=1, port=80)\n'
FLOATING = 'release = dict(floating="vllm")\n'

CASES = {
    "one": Case(ONE, {"tiny": KNOWN}),
    "one as json": Case(ONE, {"tiny": KNOWN}, ("--json",)),
    "unknown": Case(ONE),
    "unknown as json": Case(ONE, options=("--json",)),
    "pair": Case(ONE + PAIR, {"two": TWO}),
    "pair as json": Case(PAIR, {"two": TWO}, ("--json",)),
    "broken": Case(ONE + 'tinny = ["spark-9"]\n', {"tiny": BROKEN}),
    "broken as json": Case(ONE, {"tiny": BROKEN}, ("--json",)),
    "many hosts": Case(f"tiny = [f'spark-{{n}}' for n in range(8)]\n{PAIR}", {"all": ""}),
    "idle": Case(ONE + 'rack_1 = ["spark-1", "spark-2"]\n', {"rack_1": "ssh_user = 'me'\n"}),
    "floating": Case(ONE, {"all": FLOATING}),
    "option": Case(ONE, options=("--jsn",)),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return plan_all(CASES, tmp_path_factory.mktemp("plans"))


def answer(run: Ran) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found: dict[str, Any] = json.loads(run.out, parse_constant=refuse)
    return found


def test_the_table_of_one(ran: dict[str, Ran]) -> None:
    run = ran["one"]
    assert (run.status, run.err) == (0, "")
    head, line, *_, last = run.out.splitlines()
    assert head.split()[:6] == ["HOST", "RANK", "PROFILE", "RELEASE", "PORT", "MEMORY"]
    assert line.split("  ")[0] == "spark-1"
    for part in ("tiny", "vLLM 0.27.1", "8000", "[########", " x 65,536"):
        assert part in line
    assert last == "No problem found in 1 host."


def test_what_is_unknown_is_said(ran: dict[str, Ran]) -> None:
    run = ran["unknown"]
    assert run.status == 0
    assert "unknown" in run.out.splitlines()[1]
    assert "can't be told: the profile has no expects.weights_gib" in run.out
    (host,) = answer(ran["unknown as json"])["hosts"]
    (instance,) = host["instances"]
    assert instance["memory"]["kv_tokens"] is None
    assert "weights_gib" in instance["memory"]["unknown"]


def test_the_ranks_of_a_pair(ran: dict[str, Ran]) -> None:
    run = ran["pair"]
    assert run.status == 0
    lines = run.out.splitlines()
    assert [line.split()[:5] for line in lines[2:4]] == [
        ["spark-2", "0", "of", "left", "two"],
        ["spark-3", "1", "of", "left", "two"],
    ]
    hosts = answer(ran["pair as json"])["hosts"]
    assert [(i["pair"], i["rank"]) for h in hosts for i in h["instances"]] == [
        ("left", 0),
        ("left", 1),
    ]


def test_json_holds_what_the_table_does(ran: dict[str, Ran]) -> None:
    run = ran["one as json"]
    assert (run.status, run.err) == (0, "")
    found = answer(run)
    assert set(found) == {"hosts", "warnings", "problems"}
    (host,) = found["hosts"]
    (instance,) = host["instances"]
    assert (host["host"], instance["profile"], instance["port"]) == ("spark-1", "tiny", 8000)
    assert instance["engine_version"] == "0.27.1"
    assert instance["memory"]["weights_gib"] == 40
    assert instance["memory"]["kv_bytes_per_token"] == 2 * 2 * 8 * 128 * 80
    assert f"{instance['memory']['kv_tokens'] // 1000}k" in ran["one"].out


def test_every_problem_is_told_and_the_status_is_one(ran: dict[str, Ran]) -> None:
    run = ran["broken"]
    assert run.status == 1
    assert run.out.split("3 problems:\n")[1].splitlines() == [
        "  group_data/tiny.py: port = 80: input should be greater than or equal to 1024",
        "  group_data/tiny.py: prot = 1: no such field; did you mean 'port'?",
        "  host spark-9: group = 'tinny': no such file group_data/tinny.py with a profile; did you "
        "mean 'tiny'?",
    ]
    assert "No problem" not in run.out


def test_problems_as_json(ran: dict[str, Ran]) -> None:
    run = ran["broken as json"]
    assert run.status == 1
    assert [(p["where"], p["field"], p["found"]) for p in answer(run)["problems"]] == [
        ("group_data/tiny.py", "port", "80"),
        ("group_data/tiny.py", "prot", "1"),
    ]


def test_what_many_hosts_have_in_common_is_said_once(ran: dict[str, Ran]) -> None:
    said = [line for line in ran["many hosts"].out.splitlines() if "release: write" in line]
    assert len(said) == 1
    assert said[0].startswith("  hosts spark-0, spark-1, spark-2 and 5 more: release: ")


def test_a_host_that_serves_nothing_is_in_the_table(ran: dict[str, Ran]) -> None:
    run = ran["idle"]
    assert run.status == 0, run.out
    assert "serves nothing" in run.out
    assert run.out.endswith("No problem found in 2 hosts.\n")


def test_a_release_without_a_lock_is_a_warning(ran: dict[str, Ran]) -> None:
    run = ran["floating"]
    assert run.status == 0
    assert "it can't be reproduced" in run.out
    assert "vllm-floating-" in run.out.splitlines()[1]


def test_an_option_that_is_none(ran: dict[str, Ran]) -> None:
    run = ran["option"]
    assert run.status == 2
    assert "unrecognized arguments: --jsn" in run.err


def plan(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparkwright.cli", "plan", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("inventory", "inventory: is a folder, name a file in it"),
        ("inventory/nosuch.py", "inventory/nosuch.py: no such file"),
        ("spark-1,spark-2", "spark-1,spark-2: no such file"),
    ],
)
def test_an_inventory_that_is_no_file(name: str, said: str) -> None:
    run = plan(name)
    assert (run.returncode, run.stdout, run.stderr) == (2, "", f"sparkwright plan: {said}\n")


def test_the_example_of_the_project_is_right_and_what_the_readme_shows() -> None:
    run = plan("inventory/sparks.py")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    assert "\n".join(run.stdout.splitlines()[:7]) in (ROOT / "README.md").read_text()


def test_a_hundred_hosts_cost_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast it is is measured by bench/plan.py; what would make it slow is counted here."""
    read: Counter[str] = Counter()
    text = Path.read_text

    def counted(path: Path, *args: Any, **options: Any) -> str:
        read[path.name] += 1
        return text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    hosts = [
        RawHost(f"spark-{n}", ("tiny",), {"release": {"lock": "releases/vllm-0.33.0-aarch64.txt"}})
        for n in range(100)
    ]
    plan = make_plan(hosts, {"tiny": {"profile": {"model": "/srv/models/tiny"}}})
    assert len(plan.hosts) == 100
    assert read and max(read.values()) == 1
    assert len({id(host.instances[0].release) for host in plan.hosts.values()}) == 1

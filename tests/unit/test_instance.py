"""One engine instance as files: what counts as a change, and what is put where."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import instance
import pytest
from common import Refusal
from instance import Instance, essence

from tests.unit.fake_systemd import Spark

# Files whose value an engine is started with.
MATTER = ("serve.yaml", "env", "vllm@.service", "release", "api-key.env")


@pytest.fixture
def one(spark: Spark) -> Instance:
    """The instance `a`, in service."""
    spark.serve(a={})
    return Instance("a")


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


@pytest.mark.parametrize("file", ["serve.yaml", "env", "vllm@.service"])
@pytest.mark.parametrize("text", ["\n\n", "# a comment\n"])
def test_comments_and_empty_lines_are_no_change(
    one: Instance, spark: Spark, file: str, text: str
) -> None:
    before = one.fingerprint()
    append(spark.staged("a", file), text)
    assert one.fingerprint() == before
    assert not one.in_place(), "but the file is another one"
    assert not one.must_restart(spark.state("a"))


@pytest.mark.parametrize("file", ["start.json", "instance.conf"])
def test_how_a_start_is_followed_is_in_the_whole_one(
    one: Instance, spark: Spark, file: str
) -> None:
    before, whole = one.fingerprint(), one.fingerprint(whole=True)
    append(spark.staged("a", file), "x=1\n")
    assert one.fingerprint() == before and one.fingerprint(whole=True) != whole


def test_a_cache_that_can_not_be_given_away(one: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "ENGINE_USER", "nobody-of-that-name")
    with pytest.raises(Refusal, match="cache/a can't be given to the engine's account: chown: inv"):
        one.install()


def test_what_systemd_reloads_is_in_no_fingerprint(one: Instance, spark: Spark) -> None:
    before = one.fingerprint()
    append(spark.staged("a", "instance.conf"), "TimeoutStopSec=1\n")
    assert one.fingerprint() == before
    assert not one.in_place()
    assert not one.must_restart(spark.state("a"))


@pytest.mark.parametrize("file", MATTER)
def test_a_value_is_a_change(one: Instance, spark: Spark, file: str) -> None:
    before = one.fingerprint()
    path = spark.staged("a", file)
    path.write_text((path.read_text() if path.exists() else "") + "x: 1 # no comment\n")
    assert one.fingerprint() != before
    assert not one.in_place()
    assert one.must_restart(spark.state("a"))


def test_a_line_that_moves_to_another_file_is_a_change(one: Instance, spark: Spark) -> None:
    spark.staged("a", "serve.yaml").write_text("a\n")
    spark.staged("a", "env").write_text("b\nc\n")
    before = one.fingerprint()
    spark.staged("a", "serve.yaml").write_text("a\nb\n")
    spark.staged("a", "env").write_text("c\n")
    assert one.fingerprint() != before


def test_no_key_and_an_empty_one_differ(one: Instance, spark: Spark) -> None:
    before = one.fingerprint()
    spark.staged("a", "api-key.env").touch()
    assert one.fingerprint() != before


def test_essence() -> None:
    assert essence(b"# x\n\na\n  \n  b # c\n#\n") == b"a\n  b # c"
    assert essence(b"") == b"" and essence(None) is None


@pytest.mark.parametrize("file", ["etc/a/serve.yaml", "etc/a/env", "units/vllm@.service"])
def test_what_was_edited_by_hand_is_put_back(one: Instance, spark: Spark, file: str) -> None:
    append(spark.root / file, "edited: by hand\n")
    assert not one.in_place()
    assert one.must_restart(spark.state("a"))
    one.switch()
    assert one.in_place()


def test_a_link_that_points_elsewhere(one: Instance, spark: Spark) -> None:
    os.unlink(one.link)
    assert not one.in_place() and one.must_restart(spark.state("a"))
    os.symlink("/opt/other", one.link)
    assert not one.in_place() and one.must_restart(spark.state("a"))


def test_an_engine_that_runs_since_before_the_switch(one: Instance, spark: Spark) -> None:
    """A run that was killed between the switch and the start, or somebody who started it early."""
    early = replace(spark.state("a"), started_us=int(time.monotonic() * 1e6) - 10**7)
    assert one.must_restart(early)
    assert not one.must_restart(replace(early, main_pid=0)), "nothing runs: it is just started"
    one.remember(boot="another")
    assert not one.must_restart(early), "the clock began anew with the boot"


@pytest.mark.parametrize("text", ["{", "", "[]", '{"a": 3}', '{"a": {"switched_us": "x"}}', None])
def test_lost_memory_is_no_reason_to_restart(one: Instance, spark: Spark, text: str | None) -> None:
    """Files, link and transaction record say what runs; state.json only what was."""
    state = spark.var / "state.json"
    state.unlink()
    if text is not None:
        state.write_text(text)
    assert one.in_place() and not one.must_restart(spark.state("a"))
    assert one.drift() == []
    one.remember(status="serving")
    assert one.remembered()["status"] == "serving"


def test_drift_is_told_by_path(one: Instance, spark: Spark) -> None:
    assert one.drift() == []
    append(spark.units / "vllm@.service", "# by hand\n")
    (spark.etc / "a/env").unlink()
    os.unlink(one.link)
    assert one.drift() == [f"{spark.etc}/a/env", f"{spark.units}/vllm@.service", one.link]
    one.switch()
    assert one.drift() == []


def test_what_is_kept_has_the_form_of_what_is_staged(one: Instance, spark: Spark) -> None:
    (spark.etc / "a/serve.yaml").write_bytes(b"edited: \xff\n")
    kept = spark.var / "kept"
    assert one.keep(str(kept))
    back = Instance("a", str(kept))
    assert back.in_place() and back.release() == one.release() and back.start == one.start
    one.switch()
    assert not back.in_place()
    back.switch()
    assert (spark.etc / "a/serve.yaml").read_bytes() == b"edited: \xff\n"


def test_nothing_is_kept_of_what_is_not_in_service(spark: Spark) -> None:
    spark.stage(a={})
    assert not Instance("a").keep(str(spark.var / "kept"))
    assert not (spark.var / "kept").exists()


def test_modes_are_those_of_the_staged_files(one: Instance, spark: Spark) -> None:
    modes = {path.name: path.stat().st_mode & 0o777 for path in (spark.etc / "a").iterdir()}
    assert modes == {"serve.yaml": 0o644, "env": 0o640, "start.json": 0o644}
    assert (spark.var / "state.json").stat().st_mode & 0o777 == 0o600
    assert not [path for path in spark.root.rglob("*.new")]


def test_instances_remember_side_by_side(spark: Spark) -> None:
    spark.serve(a={}, b={})
    Instance("a").remember(status="odd")
    state = json.loads((spark.var / "state.json").read_text())
    assert (state["a"]["status"], state["b"]["status"]) == ("odd", "serving")


needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="no systemd-analyze here"
)


@needs_systemd
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("vllm@.service", "[Service]\nRestrt=always\n"),
        ("vllm@.service", "[Service]\nType=exce\n"),
        ("instance.conf", "[Service]\nTimeoutStartSec=soon\n"),
    ],
)
def test_systemd_reads_the_staged_unit_first(spark: Spark, file: str, line: str) -> None:
    spark.stage(a={})
    # The account is there on a Spark only.
    unit = spark.staged("a", "vllm@.service")
    text = unit.read_text().replace("User=vllm\n", "").replace("Group=vllm\n", "")
    text = text.replace("ExecStartPost=/usr/bin/python3 /opt", "ExecStartPost=/bin/echo /opt")
    unit.write_text(text)
    spark.verify(Instance("a"))
    append(spark.staged("a", file), line)
    with pytest.raises(Refusal, match="systemd does not accept the staged unit: "):
        spark.verify(Instance("a"))
    assert not spark.units.exists(), "nothing was installed for it"

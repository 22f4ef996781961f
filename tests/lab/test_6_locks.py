"""Releases as they are installed: each shipped lock for a Spark, wrong hashes, floating, nightly.

The first tests need a package index and no lab.
"""

from __future__ import annotations

import dataclasses
import http.server
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.engine import standin_wheel
from sparkwright.lockfile import pins_of
from sparkwright.releases import EngineRelease
from tests.lab.helpers import BIN, ROOT, Run, Spark, inventory, pyinfra

SPARK = ["--python-platform", "aarch64-manylinux_2_39", "--python-version", "3.12"]
LOCKS = sorted(ROOT.glob("releases/vllm-*-aarch64.txt"))
RELEASES = "/opt/sparkwright/releases"


def uv(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "uv", "pip", *words], capture_output=True, text=True, timeout=300)


# What a Spark would install. `--no-build`, as on the host: no source is ever compiled there.


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_the_index_has_every_file_of_a_lock_for_a_spark(lock: Path, tmp_path: Path) -> None:
    done = uv(
        *("sync", "--dry-run", "--require-hashes", "--no-build", *SPARK),
        *("--target", tmp_path / "release", lock),
    )
    assert done.returncode == 0, done.stderr
    count = len(pins_of(lock.read_text()))
    assert count > 190
    assert f"Would install {count} packages" in done.stderr


def block(lock: Path, package: str) -> str:
    """A package's line of a lock, with its hashes."""
    found = re.search(rf"^{package}==(?:.*\\\n)+.*\n", lock.read_text(), re.M)
    assert found, package
    return found[0]


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    wanted = block(LOCKS[-1], "idna")
    for name, text in (
        ("right", wanted),
        ("wrong", re.sub(r"sha256:\w{8}", "sha256:" + 8 * "0", wanted)),
    ):
        (tmp_path / name).write_text(text)
    install = ["install", "--require-hashes", "--no-build", "--no-deps", "--no-cache", *SPARK]
    done = uv(*install, "--target", tmp_path / "bad", "-r", tmp_path / "wrong")
    assert done.returncode != 0
    assert "Hash mismatch" in done.stderr and "Expected:" in done.stderr
    assert not (tmp_path / "bad/idna").exists()
    done = uv(*install, "--target", tmp_path / "good", "-r", tmp_path / "right")
    assert done.returncode == 0 and (tmp_path / "good/idna").is_dir(), done.stderr


@pytest.fixture
def nightly_index(tmp_path: Path) -> Iterator[str]:
    """Address of an index that holds two development builds of the stand-in."""
    folder = tmp_path / "index/vllm"
    folder.mkdir(parents=True)
    names = []
    for version in ("0.99.1.dev7+g1234567", "0.99.1.dev12+g89abcde"):
        names.append(f"vllm-{version}-py3-none-any.whl")
        (folder / names[-1]).write_bytes(standin_wheel(version))
    links = [f'<a href="{name.replace("+", "%2B")}">{name}</a>' for name in names]
    (folder / "index.html").write_text("<!DOCTYPE html><html><body>" + "".join(links))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "index"))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_nightly_takes_the_newest_development_build_of_its_index(
    nightly_index: str, tmp_path: Path
) -> None:
    settings = EngineRelease.model_validate(
        {"nightly": True, "extra_index_url": f"https://{nightly_index}"}
    )
    # Only the test's own index is without TLS.
    file = tmp_path / "nightly.txt"
    file.write_text(settings.unlocked_text.replace("https://", "http://"))
    done = uv("install", "--no-build", *SPARK, "--target", tmp_path / "release", "-r", file)
    assert done.returncode == 0, done.stderr
    assert " + vllm==0.99.1.dev12+g89abcde" in done.stderr


# On a host, with the stand-in engine.


def deploy(spark: Spark, folder: Path, **release: Any) -> Run:
    """Deploy the stand-in's profile with that release."""
    settings = {key: value for key, value in spark.standin[0].items() if key != "lock"}
    changed = dataclasses.replace(spark, standin=[settings | release])
    return pyinfra(str(inventory(folder, [changed])))


def stamps(spark: Spark) -> set[str]:
    return set(spark.sh(f"cd {RELEASES} && ls */.complete 2>/dev/null || true").split())


@pytest.mark.lab
def test_a_floating_release_is_resolved_once(spark: Spark, tmp_path: Path) -> None:
    spark.wipe()
    first = deploy(spark, tmp_path, floating="vllm==0.0.1+standin")
    assert first.code == 0, first.output
    assert "complete: vllm 0.0.1+standin" in first.output
    assert "not locked: another host or a later day may get other versions" in first.output
    assert spark.complete("tiny") == 8
    (stamp,) = stamps(spark)
    assert re.fullmatch(r"vllm-floating-[0-9a-f]{10}/\.complete", stamp)
    assert '"vllm": "0.0.1+standin"' in spark.sh(f"cat {RELEASES}/{stamp}")

    second = deploy(spark, tmp_path, floating="vllm==0.0.1+standin")
    assert second.code == 0 and not second.names("success"), second.output

    third = deploy(spark, tmp_path, floating="vllm==0.0.1+standin", refresh="2026-11-30")
    assert third.code == 0, third.output
    assert "Build the engine release" in third.names("success")
    assert len(stamps(spark)) == 2 and stamp in stamps(spark), "the one before is kept"


@pytest.mark.lab
def test_a_lock_with_a_wrong_hash_never_becomes_a_release(spark: Spark, tmp_path: Path) -> None:
    good = Path(spark.standin[1]["lock"]).read_text()
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(re.sub(r"sha256:\w{8}", "sha256:" + 8 * "0", good))
    before = stamps(spark)
    run = deploy(spark, tmp_path, lock=str(wrong))
    assert run.code != 0
    assert "Hash mismatch" in run.output, run.output
    assert "a file is not the one that was locked" in run.output
    assert stamps(spark) == before
    assert spark.complete("tiny") == 8, "what was in service is"
    run = deploy(spark, tmp_path, lock=spark.standin[1]["lock"])
    assert run.code == 0, run.output


@pytest.mark.lab
def test_a_requirement_that_no_index_meets_says_so(spark: Spark, tmp_path: Path) -> None:
    run = deploy(spark, tmp_path, floating="vllm==0.0.7+standin")
    assert run.code != 0
    assert "no version of vllm==0.0.7+standin" in run.output, run.output
    assert spark.complete("tiny") == 8

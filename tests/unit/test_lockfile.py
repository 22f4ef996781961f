"""What locks say of themselves, and how their files are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkwright.lockfile import (
    Recipe,
    body_of,
    changes,
    pins_of,
    recipe_of,
    requirement_of,
    text_of,
)
from sparkwright.plan import ROOT
from tests.unit.fake_uv import HASH

LOCKS = [f for f in sorted(ROOT.glob("releases/*.txt")) if "overrides" not in f.name]


@pytest.mark.parametrize("file", LOCKS, ids=lambda f: f.name)
def test_every_shipped_lock_says_how_to_make_it_again(file: Path) -> None:
    text = file.read_text()
    recipe = recipe_of(text)
    assert recipe is not None
    assert recipe_of(recipe.header("1") + body_of(text)) == recipe
    assert "://" not in text
    assert text.count("--hash=sha256:") > len(pins_of(text)) > 10
    for override in recipe.overrides:
        assert (ROOT / override).is_file()


def test_the_older_release_was_made_with_the_dependencies_of_its_day() -> None:
    recipe = recipe_of((ROOT / "releases/vllm-0.27.1-aarch64.txt").read_text())
    assert recipe == Recipe(("vllm==0.27.1",), "3.12", "aarch64-manylinux_2_39", "2026-08-15")


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(("vllm==1",), "3.12", "aarch64-manylinux_2_39"),
        Recipe(("a[x,y]>=1", "b!=2"), "3.11", None, "2026-01-02"),
        Recipe(("a==1",), "3.12", None, None, ("o one.txt", "two.txt"), ("LAB_WHEELS", "/srv/w")),
    ],
)
def test_a_header_is_read_as_it_was_written(recipe: Recipe) -> None:
    assert recipe_of(recipe.header("0.13.9") + f"a==1{HASH}") == recipe


def test_what_is_no_lock_has_no_recipe() -> None:
    assert recipe_of("") is None
    assert recipe_of(f"a==1{HASH}") is None
    assert recipe_of("# Made by x from: a\n# uv pip compile - --surprise\n") is None


def test_pins_and_changes() -> None:
    text = f"# c\na==1{HASH}b[x]==2+cpu ; sys_platform == 'linux'{HASH}c==1{HASH}c==2 ; x{HASH}"
    assert pins_of(text) == {"a": "1", "b": "2+cpu", "c": "1 or 2"}
    before, after = {"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}
    assert changes(before, after) == ["  b 1 -> 2", "- c 1", "+ d 1"]


FIXED = "--generate-hashes --only-binary :all: --no-header --no-annotate --no-emit-index-url"
SPARK = "--python-version 3.12 --python-platform aarch64-manylinux_2_39"


@pytest.mark.parametrize(
    ("wants", "told"),
    [
        ("'vllm==1", SPARK),
        ("vllm==abc", SPARK),
        ("''", SPARK),
        ("vllm==1", "--python-version 3.12 --python-platform windows"),
        ("vllm==1", "--python-platform aarch64-manylinux_2_39"),
        ("vllm==1", f"{SPARK} --exclude-newer soon"),
        ("vllm==1", f"{SPARK} --python-version"),
        ("vllm==1", f"{SPARK} --find-links 'a"),
        ("vllm==1", f"{SPARK} --find-links"),
        ("vllm==1", f"{SPARK} --surprise"),
    ],
)
def test_a_broken_header_is_no_recipe(wants: str, told: str) -> None:
    assert recipe_of(f"# Made by x from: vllm==1\n# uv pip compile - {FIXED} {SPARK}\n")
    assert recipe_of(f"# Made by x from: {wants}\n# uv pip compile - {FIXED} {told}\n") is None


def test_names_are_written_as_indexes_do() -> None:
    assert requirement_of("VLLM[B,a]==0.33.0") == "vllm[a,b]==0.33.0"
    assert requirement_of("Hugging_Face.hub") == "hugging-face-hub"


def test_what_can_not_be_read_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    for name in ("folder", "pipe", "loop", "bytes", "none", "n" * 300):
        assert text_of(tmp_path / name) == ""

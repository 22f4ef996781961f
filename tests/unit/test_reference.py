"""The tables of fields and profiles in docs/ are what the models and files say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from sparkwright import reference
from sparkwright.plan import ROOT
from sparkwright.settings import Setting

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_current(page: Path) -> None:
    text = page.read_text()
    made = without_own_profiles(reference.rewritten(text), text)
    assert made == text, "run: python -m sparkwright.reference"


def without_own_profiles(made: str, written: str) -> str:
    """A page made anew, without the lines of profiles that the written one does not name.

    A profile of your own need not be in the page; test_profiles.py knows which must be.
    """
    profiles = {file.stem for file in (ROOT / "group_data").glob("*.py")}
    own = [f"| `{name}` | " for name in profiles if f"| `{name}` | " not in written]
    return "".join(
        line for line in made.splitlines(keepends=True) if not line.startswith(tuple(own))
    )


def test_only_profiles_that_a_page_does_not_name_may_be_missing_in_it() -> None:
    written = "| `tiny_qwen3` | old |\n| `port` | kept |\n"
    made = "| `tiny_qwen3` | new |\n| `qwen3_6_27b` | own |\n| `port` | kept |\n"
    assert without_own_profiles(made, written) == "| `tiny_qwen3` | new |\n| `port` | kept |\n"


def test_the_page_of_profiles_has_the_tables_that_it_promises() -> None:
    written = (ROOT / "docs/profiles.md").read_text()
    assert "<!-- profiles -->\n| profile |" in written
    for name in ("profile", "expects", "platform"):
        assert f"<!-- fields: {name} -->\n| field |" in written


@pytest.mark.parametrize("model", reference.MODELS.values(), ids=lambda model: model.__name__)
def test_a_table_has_a_line_for_every_field(model: type[Setting]) -> None:
    head, rule, *lines = reference.table(model).splitlines()
    assert [line.split("`")[1] for line in lines] == list(model.model_fields)
    assert {line.count(" | ") for line in (head, *lines)} == {3}, "a | in a description"
    assert rule == "|---|---|---|---|"


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("profile", "| `model` | text | **required** | "),
        ("profile", "| `port` | whole number ≥ 1024 ≤ 65535 | `8000` | "),
        ("profile", "| `served_names` | list of texts |  | "),
        ("profile", "| `max_model_len` | whole number ≥ 1 |  | "),
        ("profile", "| `gpu_memory_utilization` | number > 0 ≤ 1 | `0.85` | "),
        ("profile", "| `ready_timeout_s` | whole number ≥ 30 ≤ 86400 | `3600` | "),
        ("profile", "| `enforce_eager` | True or False | `False` | "),
        ("profile", "| `extra_args` | dict |  | "),
        ("profile", "| `expects` | dict, see below |  | "),
        ("expects", "| `weights_gib` | number > 0 ≤ 10000 |  | "),
        ("release", "| `lock` | text |  | "),
        ("release", "| `python` | text | `'3.12'` | "),
        ("platform", "| `architecture` | text | `'aarch64'` | "),
    ],
)
def test_a_line_says_type_limits_and_default(name: str, start: str) -> None:
    lines = reference.table(reference.MODELS[name]).splitlines()
    assert len([line for line in lines if line.startswith(start)]) == 1


def test_rewriting_makes_a_table_anew_and_leaves_the_rest() -> None:
    page = "# A\n<!-- fields: expects -->\nstale\n<!-- end -->\nB\n"
    made = reference.rewritten(page)
    assert made.startswith("# A\n<!-- fields: expects -->\n| field | type |")
    assert made.endswith("|\n<!-- end -->\nB\n")
    assert "stale" not in made
    assert reference.rewritten(made) == made
    assert reference.rewritten("no table\n") == "no table\n"


def test_the_table_of_profiles_has_a_line_for_every_profile() -> None:
    lines = reference.profiles().splitlines()[2:]
    named = [line.split("`")[1] for line in lines]
    files = sorted((ROOT / "group_data").glob("*.py"))
    assert named == [file.stem for file in files if "profile" in runpy.run_path(str(file))]

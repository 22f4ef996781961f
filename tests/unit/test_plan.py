"""From an inventory's data to what each host must hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import PlanError
from sparkwright.plan import HostPlan, RawHost, build_plan
from sparkwright.releases import EngineRelease, Release

LOCK = "releases/vllm-0.27.1-aarch64.txt"
RELEASE = {"release": {"lock": LOCK}}
GROUPS: dict[str, dict[str, Any]] = {
    "all": {},
    "big": {"profile": {"model": "/m/big", "gpu_memory_utilization": 0.5}},
    "small": {"profile": {"model": "/m/small", "port": 8001, "gpu_memory_utilization": 0.3}},
    "rack_1": {},
}


def plan(
    *groups: str, group_data: dict[str, dict[str, Any]] | None = None, **data: Any
) -> HostPlan:
    host = RawHost("spark-1", ("all", *groups), RELEASE | data)
    return build_plan([host], group_data or GROUPS)["spark-1"]


def said(*groups: str, group_data: dict[str, dict[str, Any]] | None = None, **data: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(*groups, group_data=group_data, **data)
    return str(caught.value)


def test_one_profile() -> None:
    (instance,) = plan("big").instances
    assert instance.name == "big"
    assert instance.model_path == "/m/big"
    assert instance.after is None


def test_hub_model_has_a_folder_for_its_revision() -> None:
    commit = "a" * 40
    data = {"hub": {"profile": {"model": "org/name", "revision": commit}}}
    (instance,) = plan("hub", group_data=data).instances
    assert instance.model_path == f"/var/lib/sparkwright/models/org--name/{commit}"


def test_two_profiles_start_one_after_the_other_in_the_order_of_groups() -> None:
    assert [(i.name, i.after) for i in plan("small", "big").instances] == [
        ("small", None),
        ("big", "small"),
    ]
    assert len(plan("small", "big").releases) == 1


def test_a_group_named_twice_is_one_instance() -> None:
    assert len(plan("big", "big").instances) == 1


def test_a_host_without_a_profile_serves_nothing_and_needs_no_release() -> None:
    idle = build_plan([RawHost("spark-2", ("all",), {})], GROUPS)["spark-2"]
    assert idle.instances == idle.releases == ()


def test_ports_must_differ() -> None:
    data = GROUPS | {"other": {"profile": {"model": "/m/o", "gpu_memory_utilization": 0.3}}}
    text = said("big", "other", group_data=data)
    assert "host spark-1: port = 8000: profiles big and other both use it: give one" in text


def test_a_misspelt_setting_in_a_data_file_does_not_read_as_serves_nothing() -> None:
    text = said("big", group_data=GROUPS | {"rack_1": {"profle": {}, "_sudo": True, "ssh_user": 1}})
    assert text.splitlines()[1:] == [
        "  group_data/rack_1.py: profle: no such setting; did you mean 'profile'?"
    ]


def test_a_misspelt_setting_of_a_host() -> None:
    own = {"relase": {}, "ssh_hostname": "192.0.2.7", "platform": {}}
    host = RawHost("spark-1", ("big",), RELEASE | own, own)
    with pytest.raises(PlanError) as caught:
        build_plan([host], GROUPS)
    (problem,) = caught.value.problems
    assert str(problem) == "host spark-1: relase: no such setting; did you mean 'release'?"


def test_the_value_of_a_misspelt_setting_is_not_repeated() -> None:
    assert "s3cret" not in said("big", group_data=GROUPS | {"all": {"hf_token": "s3cret"}})


def test_the_release_file_must_be_there() -> None:
    text = said("big", release={"lock": "releases/nothing-like-it"})
    assert "host spark-1: release.lock = 'releases/nothing-like-it': no such file; " in text
    assert LOCK in text


def test_group_that_looks_like_a_profile() -> None:
    text = said("big", "smal")
    assert "host spark-1: group = 'smal': no such file group_data/smal.py" in text
    assert "did you mean 'small'?" in text


def test_group_without_a_profile_is_fine_beside_one_but_not_alone() -> None:
    assert len(plan("big", "upstairs").instances) == 1
    assert "group = 'upstairs'" in said("upstairs")
    assert "known: big, small" in said("upstairs")


def test_every_problem_of_every_host_at_once() -> None:
    data = GROUPS | {"bad": {"profile": {"port": 1, "modell": "/m"}}}
    hosts = [
        RawHost("a", ("bad", "big"), {"release": {"lock": "none"}}),
        RawHost("b", ("bog",), RELEASE | {"platform": {"memory_gib": 0}}),
    ]
    with pytest.raises(PlanError) as caught:
        build_plan(hosts, data)
    assert [(p.where, p.field) for p in caught.value.problems] == [
        ("group_data/bad.py", "model"),
        ("group_data/bad.py", "modell"),
        ("group_data/bad.py", "port"),
        ("host a", "release.lock"),
        ("host b", "group"),
        ("host b: platform", "memory_gib"),
    ]


def test_a_broken_profile_that_no_host_uses_is_reported_too() -> None:
    text = said("big", group_data=GROUPS | {"spare": {"profile": {}}})
    assert "group_data/spare.py: model: is required" in text


def test_release_id_names_what_it_is_made_of() -> None:
    def name(text: str, **settings: Any) -> str:
        return Release(EngineRelease(lock=LOCK, **settings), text).id

    one = name("vllm==1\n")
    assert one.startswith("vllm-0.27.1-aarch64-")
    assert len(one.rsplit("-", 1)[1]) == 10
    assert name("vllm==1\n") == one
    assert name("vllm==2\n") != one
    assert name("vllm==1\n", python="3.13") != one
    assert len({one, name("vllm==1\n", cuda="14"), name("vllm==1\n", cuda=None)}) == 3
    assert name("vllm==1\n", packages=("libnuma1",), disk_gib=1) == one


def test_lock_files_are_relative_to_the_root(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("vllm==9\n")
    host = RawHost("a", ("big",), {"release": {"lock": "mine.txt"}})
    (instance,) = build_plan([host], GROUPS, root=tmp_path)["a"].instances
    assert instance.release.lock_text == "vllm==9\n"
    assert instance.release.path == f"/opt/sparkwright/releases/{instance.release.id}"
    assert "vllm==9" not in repr(instance)

"""What is written in the wrong place and may be a secret appears in nothing that a plan says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparkwright import report
from sparkwright.errors import Problem
from sparkwright.plan import RawHost, make_plan

LOCK = {"release": {"lock": "releases/vllm-0.27.1-aarch64.txt"}}
KEY, TOKEN, PASSWORD = "sk-SECRET0123", "hf_SECRET0123", "hunt/er2SECRET"
URL = f"https://user:{PASSWORD}@mirror.example/simple"


@pytest.mark.parametrize(
    ("profile", "data"),
    [
        ({"api_key": KEY}, {}),
        ({"revision": TOKEN}, {}),
        ({"model": URL}, {}),
        ({"tokens": TOKEN}, {}),
        ({"speculative_config": {"hf_token": TOKEN}}, {}),
        ({"speculative_config": {"api_key": "SECRET"}}, {}),
        ({"speculative_config": [TOKEN]}, {}),
        ({"extra_args": {"tokenizer": {"api_key": "SECRET"}}}, {}),
        ({"extra_args": {"foo": KEY}}, {}),
        ({"extra_args": {"hf-tokens": "SECRET"}}, {}),
        ({"env": {"VLLM_FOO": "SECRET"}}, {}),
        ({"env": {"VLLM_API_KEY": "SECRET"}}, {}),
        ({}, {"release": URL}),
        ({}, {"release": {"lock": URL}}),
        ({}, {"release": {"nightly": True, "extra_index_url": URL}}),
        ({}, {"platform": KEY}),
        ({}, {"platform": {"password": "SECRET"}}),
        ({}, {"pair": {"token": "SECRET"}}),
        ({}, {"ssh_user": {"password": "SECRET"}}),
        ({}, {"ssh_hostname": [URL]}),
    ],
    ids=str,
)
def test_no_secret_is_said(profile: dict[str, Any], data: dict[str, Any]) -> None:
    groups = {"tiny": {"profile": {"model": "/srv/models/tiny", **profile}}}
    plan = make_plan([RawHost("a", ("tiny",), LOCK | data, data)], groups)
    assert plan.problems
    said = report.table(plan) + json.dumps(report.as_json(plan))
    assert "SECRET" not in said


def test_what_is_no_secret_is_said_as_it_was() -> None:
    for text in ("https://host/path@1", "max_num_batched_tokens = 16", "sk-8", "hf_transfer"):
        assert str(Problem("a", "f", "1", text)).endswith(text), text
    assert Problem("host \x1b[31m", "", "", "x").where == "host \\x1b[31m"

"""Fetching weights, with a client that writes, fails and verifies as told."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import common
import pytest
import weights
from common import Refusal

TOKEN = "hf_s3cret"
CLIENT = """#!/bin/sh
echo "$HF_ENDPOINT|$HF_TOKEN|$HF_HOME|$*" >> "$CLIENT/asked"
for word; do [ "$before" = --local-dir ] && folder=$word; before=$word; done
case "$1" in
download)
    mkdir -p "$folder/.cache/huggingface/download"
    for file in config.json shard-1 shard-2; do
        [ -e "$CLIENT/lacks-$file" ] && continue
        # Like hf: what has its metadata is taken for complete.
        meta="$folder/.cache/huggingface/download/$file.metadata"
        [ -e "$meta" ] || { echo good > "$folder/$file"; touch "$meta"; }
    done
    ;;
cache)
    bad=$(cd "$folder" && grep -lx bad shard-*)
    for file in $bad; do echo "  - $file: expected aa, got bb"; done
    [ -z "$bad" ] || exit 1
    ;;
esac
[ -e "$CLIENT/$1-fails" ] || exit 0
cat "$CLIENT/$1-fails"
exit 1
"""


class Hub:
    """The client's notes, and a model's folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes, self.folder = root / "client", root / "models/org--name/c0ffee"
        self.partial = Path(f"{self.folder}.partial")
        self.monkeypatch = monkeypatch
        self.notes.mkdir()
        client = self.notes / "hf"
        client.write_text(CLIENT)
        client.chmod(0o755)
        monkeypatch.setenv("CLIENT", str(self.notes))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_ENDPOINT", raising=False)
        monkeypatch.setattr(weights, "HF", str(client))
        monkeypatch.setattr(common, "VAR", str(root / "var"))
        monkeypatch.setattr(weights.os, "sync", lambda: None)

    def fetch(self, token: str = "", endpoint: str = "") -> None:
        request = {
            "model": "org/name",
            "revision": "c0ffee",
            "path": str(self.folder),
            "endpoint": endpoint,
            "token": token,
        }
        self.monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
        weights.program()

    def refusal(self, token: str = "") -> str:
        with pytest.raises(Refusal) as caught:
            self.fetch(token)
        return str(caught.value)

    def asked(self) -> list[str]:
        """Subcommands that the client was called with."""
        lines = (self.notes / "asked").read_text().splitlines()
        return [line.split("|")[3].split()[0] for line in lines]

    def fails(self, command: str, says: str) -> None:
        (self.notes / f"{command}-fails").write_text(f"{says}\n")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(tmp_path, monkeypatch)


def test_fetched_verified_and_put_in_place(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.fetch(TOKEN, "http://me:p4ss@mirror")
    assert hub.asked() == ["download", "cache"]
    assert (hub.folder / "shard-2").read_text() == "good\n"
    assert not hub.partial.exists()
    first = (hub.notes / "asked").read_text().splitlines()[0].split("|")
    assert first[:3] == ["http://me:p4ss@mirror", TOKEN, f"{hub.folder.parent}/.hf"]
    said = capsys.readouterr().out
    for secret in (TOKEN, "p4ss"):
        assert secret not in said and secret not in first[3]
    assert "fetching org/name (normal: " in said


def test_neither_token_nor_endpoint_is_set_when_none_was_sent(hub: Hub) -> None:
    hub.fetch()
    assert (hub.notes / "asked").read_text().startswith("||")


def test_what_is_there_is_left_alone(hub: Hub) -> None:
    hub.folder.mkdir(parents=True)
    (hub.folder / "config.json").touch()
    hub.fetch()
    assert not (hub.notes / "asked").exists()


def test_a_folder_without_a_config_is_an_unfinished_one(hub: Hub) -> None:
    hub.folder.mkdir(parents=True)
    (hub.folder / "shard-9").touch()
    hub.fetch()
    assert {"config.json", "shard-9"} <= set(os.listdir(hub.folder))


def interrupted(hub: Hub, *bad: str) -> None:
    """A download that was broken off, with files that look complete and are not."""
    meta = hub.partial / ".cache/huggingface/download"
    meta.mkdir(parents=True)
    for name in bad:
        (hub.partial / name).write_text("bad\n")
        (meta / f"{name}.metadata").touch()


def test_what_the_check_refuses_is_fetched_again(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(hub, "shard-1", "shard-2")
    hub.fetch()
    assert hub.asked() == ["download", "cache", "download", "cache"]
    assert [(hub.folder / f"shard-{n}").read_text() for n in (1, 2)] == ["good\n"] * 2
    assert "they are removed and fetched again" in capsys.readouterr().out


def test_a_check_that_fails_for_another_reason_removes_nothing(hub: Hub) -> None:
    hub.fails("cache", "Connection timed out")
    assert "the hub can't be reached from this host" in hub.refusal()
    assert hub.asked() == ["download", "cache"]
    assert (hub.partial / "shard-1").exists() and not hub.folder.exists()


@pytest.mark.parametrize(
    ("says", "token", "explained"),
    [
        ("Error: Access denied. This repository requires approval.", TOKEN, "was sent and refused"),
        ("Error: 401 Unauthorized", "", "no HF_TOKEN is set where you run this"),
        ("Error: Model 'org/name' not found.", "", "the hub shows no org/name at revision c0ffee"),
        ("Error: Revision not found: c0ffee", "", "correct `model` or `revision` in the profile"),
        ("Could not resolve host", "", "the hub can't be reached from this host"),
        ("No space left on device", "", "what was fetched is kept, the next run goes on"),
    ],
)
def test_a_download_that_fails_is_explained(
    hub: Hub, says: str, token: str, explained: str
) -> None:
    hub.fails("download", says)
    said = hub.refusal(token)
    assert said.startswith("fetching weights failed with status 1\n")
    assert explained in said
    assert TOKEN not in said
    assert hub.partial.exists() and not hub.folder.exists()


def test_a_repository_without_a_config_is_no_model(hub: Hub) -> None:
    (hub.notes / "lacks-config.json").touch()
    assert hub.refusal() == "org/name has no config.json: it is no model that vLLM serves"

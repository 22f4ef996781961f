"""Fetch a model's weights at a pinned revision with the `hf` client; resumable, checked.

usage: weights.py  < '{"model": ..., "revision": ..., "path": ..., "endpoint": "", "token": ""}'

Token and endpoint (which may hold a password) come by the standard input: they never are in an
argument or in a file, and reach `hf` by its environment, which only root can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys

from common import (
    OPT,
    CommandFailedError,
    Refusal,
    download_environment,
    lock,
    main,
    run_long,
    say,
    settle,
)

HF = f"{OPT}/tools/bin/hf"


def program() -> None:
    request = json.load(sys.stdin)
    token = request["token"]
    path, name = request["path"], os.path.basename(os.path.dirname(request["path"]))
    partial = f"{path}.partial"
    with lock(f"weights-{name}", "fetching these weights"):
        if os.path.isfile(f"{path}/config.json"):
            return
        if os.path.isdir(path):
            os.rename(path, partial)
        os.makedirs(partial, exist_ok=True)
        say(f"   0 s  fetching {request['model']} (normal: 70 GB take 10 min at 1 Gb/s)")
        try:
            _fetch(request, partial, _environment(request))
        except CommandFailedError as failure:
            text = "\n".join(failure.output)
            raise Refusal(f"{failure}{_explained(text, request, bool(token))}") from None
        if not os.path.isfile(f"{partial}/config.json"):
            raise Refusal(f"{request['model']} has no config.json: it is no model that vLLM serves")
        settle()
        os.replace(partial, path)


def _environment(request: dict[str, str]) -> dict[str, str]:
    env = download_environment()
    env["HF_HOME"] = f"{os.path.dirname(request['path'])}/.hf"
    env["NO_COLOR"] = env["HF_HUB_DISABLE_TELEMETRY"] = env["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if request["token"]:
        env["HF_TOKEN"] = request["token"]
    if request["endpoint"]:
        env["HF_ENDPOINT"] = request["endpoint"]
    return env


def _fetch(request: dict[str, str], folder: str, env: dict[str, str]) -> None:
    """Download and check; what the check refuses is fetched once more."""
    pinned = [request["model"], "--revision", request["revision"], "--local-dir", folder]
    download = [HF, "download", *pinned, "--quiet"]
    verify = [HF, "cache", "verify", *pinned, "--fail-on-missing-files"]
    checking = "checking the weights against the hub's hashes"
    run_long(download, "fetching weights", env, grows=folder)
    try:
        run_long(verify, checking, env)
    except CommandFailedError as failure:
        bad = re.findall(r"^\s*- (.+): expected ", "\n".join(failure.output), re.M)
        if not bad:
            raise
        say("      they are removed and fetched again")
        for name in bad:
            # With its metadata, or `hf` takes the file for complete.
            for file in (name, f".cache/huggingface/download/{name}.metadata"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{file}")
        run_long(download, "fetching weights", env, grows=folder)
        run_long(verify, checking, env)


def _explained(text: str, request: dict[str, str], token: bool) -> str:
    model = request["model"]
    sent = "the token was sent and refused" if token else "no HF_TOKEN is set where you run this"
    kept = "\nwhat was fetched is kept, the next run goes on from there"
    if re.search(r"access denied|requires approval|\b40[13]\b", text, re.I):
        return (
            f"\n{model} needs a token that may read it ({sent}): accept the model's terms on its "
            "page, then run the deploy with HF_TOKEN set"
        )
    if re.search(r"\bmodel .* not found|revision not found|\b404\b", text, re.I):
        return (
            f"\nthe hub shows no {model} at revision {request['revision']}: correct `model` or "
            f"`revision` in the profile; a private one needs HF_TOKEN ({sent})"
        )
    if re.search(r"connection|resolve|timed? ?out|unreachable", text, re.I):
        return f"\nthe hub can't be reached from this host, or the line broke{kept}"
    return kept


if __name__ == "__main__":
    main(program)

"""Fetch a model's weights at a pinned revision with the `hf` client; resumable, checked.

usage: weights.py '{"model": ..., "revision": ..., "path": ..., "endpoint": null}'  < TOKEN

A token, when there is one, is the first line of the standard input: it never is in an argument or
in a file, and reaches `hf` by its environment, which only root can read.
"""

from __future__ import annotations

import json
import os
import sys

from common import OPT, Refusal, download_environment, lock, main, run_long, say

HF = f"{OPT}/tools/bin/hf"


def program() -> None:
    request = json.loads(sys.argv[1])
    token = sys.stdin.readline().strip()
    path, name = request["path"], os.path.basename(os.path.dirname(request["path"]))
    partial = f"{path}.partial"
    env = download_environment()
    if token:
        env["HF_TOKEN"] = token
    if request["endpoint"]:
        env["HF_ENDPOINT"] = request["endpoint"]
    env["HF_HUB_DISABLE_TELEMETRY"] = "1"
    env["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    env["HF_HOME"] = f"{os.path.dirname(path)}/.hf"
    with lock(f"weights-{name}", "fetching these weights"):
        if os.path.isdir(path):
            return
        os.makedirs(partial, exist_ok=True)
        say(f"   0 s  fetching {request['model']} (normal: 70 GB take 10 min at 1 Gb/s)")
        pinned = [request["model"], "--revision", request["revision"], "--local-dir", partial]
        try:
            run_long([HF, "download", *pinned], "fetching weights", env, grows=partial)
            run_long(
                [HF, "cache", "verify", *pinned, "--fail-on-missing-files"],
                "checking the weights against the hub's hashes",
                env,
            )
        except Refusal as refusal:
            raise Refusal(_explained(str(refusal), request, bool(token))) from None
        if not os.path.isfile(f"{partial}/config.json"):
            raise Refusal(f"{request['model']} has no config.json: it is no model that vLLM serves")
        os.replace(partial, path)


def _explained(text: str, request: dict[str, str], token: bool) -> str:
    model = request["model"]
    if "401" in text or "403" in text or "gated" in text.lower():
        sent = "the token was sent and refused" if token else "no token was sent"
        text += (
            f"\n{model} needs a Hugging Face token that may read it ({sent}): accept the model's "
            "terms on its page, then run the deploy with HF_TOKEN set"
        )
    elif "404" in text:
        text += f"\nthe hub has no {model} at revision {request['revision']}: check both"
    return text + "\nwhat was fetched is kept, the next run goes on from there"


if __name__ == "__main__":
    main(program)

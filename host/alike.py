"""What must be the same on both Sparks of a pair beside what the deploy brings: driver, weights."""

from __future__ import annotations

import glob
import hashlib
import os
import time

import rails
from pairing import Pair, Peer

_KEEP_S = 60
_known: dict[str, tuple[float, str]] = {}


def weights(folder: str) -> str:
    """Changes with any file's name or size, and with what the model's JSON files say. Two Sparks
    get their weights at one pinned commit; a folder that somebody copied may differ."""
    now = time.monotonic()
    if folder in _known and now - _known[folder][0] < _KEEP_S:
        return _known[folder][1]
    digest = hashlib.sha256()
    for path in sorted(glob.glob(f"{glob.escape(folder)}/**", recursive=True)):
        try:
            if not os.path.isfile(path):
                continue
            digest.update(f"{path[len(folder) :]} {os.path.getsize(path)}\n".encode())
            if path.endswith(".json"):
                with open(path, "rb") as file:
                    digest.update(file.read())
        except OSError:
            continue
    _known[folder] = now, digest.hexdigest()[:16]
    return _known[folder][1]


def difference(pair: Pair, peer: Peer) -> str:
    """What differs between both hosts, as a sentence; "" when nothing does. A host that has not
    told (yet) is not judged."""
    if peer.driver:
        wrong = driver_difference(rails.driver(), pair.peer_host, peer.driver)
        if wrong:
            return wrong
    if peer.weights and pair.model and weights(pair.model) != peer.weights:
        return f"{pair.model} differs from the one on {pair.peer_host}: copy it again"
    return ""


def driver_difference(own: str, peer_host: str, its: str) -> str:
    """Both must run the same one; "" when they do."""
    if own == its:
        return ""
    return (
        f"the NVIDIA driver is {own or 'not loaded'} here and {its or 'not loaded'} on "
        f"{peer_host}: both Sparks of a pair need the same; update both (DGX Dashboard), reboot"
    )

"""Where things live on a Spark (docs/architecture.md has the table)."""

from __future__ import annotations

OPT = "/opt/sparkwright"
HOST_PROGRAMS = f"{OPT}/host"
TOOLS = f"{OPT}/tools"
RELEASES = f"{OPT}/releases"
ACTIVE = f"{OPT}/active"

ETC = "/etc/sparkwright"
VAR = "/var/lib/sparkwright"
LOCKS = f"{VAR}/locks"
MODELS = f"{VAR}/models"
CACHES = f"{VAR}/cache"
STAGED = f"{VAR}/staged"
STATE = f"{VAR}/state.json"

DOWNLOADS = "/var/cache/sparkwright"
"""Download caches of uv and pip: may be deleted at any time."""

CUDA_HOME = "/usr/local/cuda"
USER = "vllm"

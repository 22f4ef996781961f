"""The programs in host/ import each other by bare name, as they do on a Spark."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "host"))

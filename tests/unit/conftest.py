"""The programs in host/ import each other by bare name, as they do on a Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "host"))

if TYPE_CHECKING:
    from tests.unit.fake_systemd import Spark


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    """A host with nothing in service, below a temporary folder."""
    from tests.unit.fake_systemd import Spark

    return Spark(tmp_path, monkeypatch)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a uv that answers from files."""
    from tests.unit import fake_uv

    return fake_uv.make(tmp_path, monkeypatch)

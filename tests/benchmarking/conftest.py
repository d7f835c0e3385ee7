"""What is timed: the shipped road signs, some 20 ms a frame on one core."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def artifact_path(roadsigns: Path) -> Path:
    return roadsigns

"""The photograph, the reference values and the script that made them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def photo() -> Any:
    """(224, 224, 3) uint8 RGB, read-only."""
    with Image.open(HERE / "photo.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    pixels.flags.writeable = False
    return pixels


@pytest.fixture(scope="session")
def reference() -> Mapping[str, Any]:
    """What `imagecorruptions` 1.1.2 makes of the photograph."""
    with np.load(HERE / "reference.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def make_reference() -> ModuleType:
    """The script, for its constants and its `statistics`."""
    path = HERE / "make_reference.py"
    spec = importlib.util.spec_from_file_location("corruptions_make_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The core needs NumPy and array_api_compat only, whatever else is or is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gain_core

OPTIONAL = (
    "torch",
    "torchvision",
    "timm",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "cv2",
    "cupy",
    "PIL",
    "safetensors",
    "rich",
    "scipy",
    "matplotlib",
    "tensorrt",
    "tensorrt_rtx",
)

EVERY_MODULE = """
    import importlib, pkgutil, gain_core
    names = ["gain_core"] + [
        module.name for module in pkgutil.walk_packages(gain_core.__path__, "gain_core.")
    ]
    for name in names:
        importlib.import_module(name)
"""

BLOCK = f"""
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {OPTIONAL!r}:
                raise ImportError(f"{{name}} is blocked")
            return None

    sys.meta_path.insert(0, Blocker())
"""

ONE_STEP = """
    import numpy as np
    rng = np.random.default_rng(0)
    for config in gain_core.PRESETS.values():
        gain = gain_core.Gain(rng.normal(size=(5, 4)).astype(np.float32), config)
        for _ in range(3):
            features = rng.normal(size=(8, 4)).astype(np.float32)
            prediction = gain.step(features, rng.normal(size=(8, 5)).astype(np.float32))
        assert abs(prediction.probs.sum(axis=1) - 1.0).max() < 1e-5
    print("stepped")
"""


def run_python(*parts: str) -> subprocess.CompletedProcess[str]:
    """Run the parts as one script in a fresh interpreter, on the package under test."""
    root = Path(gain_core.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(textwrap.dedent(part) for part in parts)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_module_imports_and_steps_with_optional_libraries_blocked():
    result = run_python(BLOCK, EVERY_MODULE, 'print(len(names), "modules")', ONE_STEP)
    assert result.returncode == 0, result.stderr
    count, _ = result.stdout.split(maxsplit=1)
    assert int(count) >= 5
    assert "stepped" in result.stdout


@pytest.mark.parametrize("name", ["torch", "cv2", "tensorrt"])
def test_the_blocker_blocks(name):
    result = run_python(BLOCK, f"import {name}")
    assert result.returncode != 0
    assert f"{name} is blocked" in result.stderr


def test_no_optional_library_is_imported_where_it_is_installed():
    report = f"print('loaded:', sorted(set({OPTIONAL!r}) & set(sys.modules)))"
    result = run_python("import sys", EVERY_MODULE, ONE_STEP, report)
    assert result.returncode == 0, result.stderr
    assert "loaded: []" in result.stdout

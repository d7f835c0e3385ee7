"""The core needs NumPy and array_api_compat only, whatever else is or is not installed."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gain_core

OPTIONAL = (
    *("torch", "torchvision", "timm", "onnx", "onnxruntime", "onnxscript", "cv2", "cupy", "PIL"),
    *("safetensors", "rich", "scipy", "matplotlib", "tensorrt", "tensorrt_rtx"),
)

BLOCKED = f"""
    import importlib, pkgutil, sys

    class Blocker:
        asked = set()

        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {OPTIONAL!r}:
                self.asked.add(name)
                raise ImportError(f"{{name}} is blocked")
            return None

    sys.meta_path.insert(0, Blocker())
    import gain_core
    modules = [m.name for m in pkgutil.walk_packages(gain_core.__path__, "gain_core.")]
    for name in modules:
        importlib.import_module(name)
    import numpy as np
    rng = np.random.default_rng(0)
    for config in gain_core.PRESETS.values():
        gain = gain_core.Gain(rng.normal(size=(5, 4)).astype(np.float32), config, warmup_frames=1)
        for _ in range(6):
            features = rng.normal(size=(8, 4)).astype(np.float32)
            prediction = gain.step(features, rng.normal(size=(8, 5)).astype(np.float32))
        assert gain.frames == 48
        assert abs(prediction.probs.sum(axis=1) - 1.0).max() < 1e-5
    print(len(modules), "modules;", "asked for:", sorted(Blocker.asked))
    try:
        import onnx
    except ImportError as error:
        print(error)
"""


def test_every_module_imports_and_steps_with_optional_libraries_blocked():
    root = Path(gain_core.__file__).parents[1]
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(BLOCKED)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    count, _ = result.stdout.split(maxsplit=1)
    assert int(count) >= 15
    assert "asked for: []" in result.stdout
    assert "onnx is blocked" in result.stdout

"""The runtime imports with the libraries of every extra absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gain_runtime

EXTRAS = ("torch", "torchvision", "timm", "onnxscript", "cupy", "tensorrt", "tensorrt_rtx")
WRAPPERS = ("tensorrt_",)  # modules whose one purpose is an optional library
PACKAGE = Path(gain_runtime.__file__).parent
MODULES = sorted(
    path.stem
    for path in PACKAGE.glob("*.py")
    if path.stem != "__init__" and not path.stem.startswith(WRAPPERS)
)
# What a command line imports before it has parsed its flags.
LIGHT = ("frame", "manifest", "result", "session", "artifact", "open_session", "models_dir")


def import_with_blocked(modules: tuple[str, ...], blocked: tuple[str, ...]) -> None:
    script = "\n".join(
        [
            "import sys",
            *(f"sys.modules[{name!r}] = None" for name in blocked),
            *(f"import gain_runtime.{name}" for name in modules),
        ]
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_modules_are_found():
    assert set(LIGHT) < set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_without_extras(module):
    import_with_blocked((module,), EXTRAS)


def test_light_modules_import_without_onnx_runtime():
    import_with_blocked(LIGHT, (*EXTRAS, "onnxruntime"))


def test_broken_onnx_runtime_is_one_clear_error():
    script = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from gain_core.errors import BackendUnavailableError\n"
        "try:\n    import gain_runtime.sessions.onnx\n"
        "except BackendUnavailableError as err:\n    print(err)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("onnxruntime: cannot be imported")
    assert done.stdout.count("\n") == 1

"""The runtime imports with the libraries of every extra absent."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

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


# Each by itself, as if it were the first of the package, so that no order hides a circle.
SCRIPT = """
import importlib, sys, traceback
modules, blocked = (text.split(",") for text in sys.argv[1:])
sys.modules.update(dict.fromkeys(blocked))
for module in modules:
    for name in [name for name in sys.modules if name.split(".")[0] == "gain_runtime"]:
        del sys.modules[name]
    try:
        importlib.import_module(f"gain_runtime.{module}")
    except Exception:
        print(module, traceback.format_exc())
"""


def import_with_blocked(modules: Sequence[str], blocked: Sequence[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, ",".join(modules), ",".join(blocked)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_modules_are_found():
    assert set(LIGHT) < set(MODULES)


def test_modules_import_without_extras():
    import_with_blocked(MODULES, EXTRAS)


def test_light_modules_import_without_onnx_runtime():
    import_with_blocked(LIGHT, (*EXTRAS, "onnxruntime"))


def test_broken_onnx_runtime_is_one_clear_error():
    script = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from gain_core.errors import BackendUnavailableError\n"
        "try:\n    import gain_runtime.onnx_session\n"
        "except BackendUnavailableError as err:\n    print(err)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("onnxruntime: cannot be imported")
    assert done.stdout.count("\n") == 1

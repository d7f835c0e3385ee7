"""The runtime imports with the libraries of every extra absent."""

from __future__ import annotations

from pathlib import Path

import pytest
from without import run_without

import gain_runtime

EXTRAS = ("torch", "torchvision", "timm", "onnxscript", "cupy", "tensorrt", "tensorrt_rtx")
# Modules whose one purpose is an optional library.
WRAPPERS = {"sessions.tensorrt", "sessions.tensorrt_library"}
PACKAGE = Path(gain_runtime.__file__).parent
MODULES = sorted(
    {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for path in PACKAGE.rglob("*.py")
    }
    - WRAPPERS
    - {"__init__"}
)
LIGHT = ("frames", "files.manifest", "files.paths", "files.artifact", "sessions.session")

# Each by itself, as if it were the first of the package, so that no order hides a circle.
SCRIPT = """
import importlib, sys, traceback
for module in sys.argv[1:]:
    for name in [name for name in sys.modules if name.split(".")[0] == "gain_runtime"]:
        del sys.modules[name]
    try:
        importlib.import_module(f"gain_runtime.{module}")
    except Exception:
        print(module, traceback.format_exc())
"""


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [
        pytest.param(MODULES, EXTRAS, id="all, without the extras"),
        # What a command line imports before it has parsed its flags.
        pytest.param(LIGHT, (*EXTRAS, "onnxruntime"), id="light, without ONNX Runtime"),
    ],
)
def test_modules_import_without(modules, blocked):
    done = run_without(blocked, SCRIPT, *modules)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_broken_onnx_runtime_is_one_clear_error():
    script = (
        "from gain_core.errors import BackendUnavailableError\n"
        "try:\n    import gain_runtime.sessions.onnx\n"
        "except BackendUnavailableError as err:\n    print(err)\n"
    )
    done = run_without(["onnxruntime"], script)
    assert done.stdout.startswith("onnxruntime: cannot be imported")
    assert done.stdout.count("\n") == 1

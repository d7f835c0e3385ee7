"""Python without some of its libraries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

# Libraries of the extras, and those of the base installation that no `--help` needs.
OPTIONAL = ("torch", "torchvision", "timm", "onnxscript", "cupy", "tensorrt", "tensorrt_rtx")
OPTIONAL += ("matplotlib", "scipy", "cmaes", "datasets", "pyarrow", "webdataset", "zstandard")
HEAVY = (*OPTIONAL, "onnx", "onnxruntime", "cv2", "PIL", "rich", "safetensors")


def run_without(
    libraries: Iterable[str], code: str, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Run code in a process that cannot import these; a warning is an error."""
    code = f"import sys\nsys.modules.update(dict.fromkeys({tuple(libraries)}))\n{code}"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

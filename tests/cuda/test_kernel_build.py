"""The kernels' source as the CUDA compiler sees it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gain_runtime.cuda import kernel_source

KERNELS = {
    "all_true",
    "gaussian_rows",
    "gaussian_sums",
    "predict_gaussian",
    "predict_shift",
    "revise_shift",
    "shift_estimate",
    "shift_explain",
    "shift_forget",
    "shift_gather",
    "shift_labels",
    "shift_project",
    "shift_rows",
    "shift_sums",
}


@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_87", "sm_90"])
def test_source_compiles_to_ptx(tmp_path: Path, architecture: str, real: str) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("nvcc is not installed")
    source, target = tmp_path / "step.cu", tmp_path / "step.ptx"
    source.write_text(kernel_source(), encoding="utf-8")
    command = [compiler, "-ptx", f"-arch={architecture}", "-std=c++17", f"-DREAL={real}"]
    command += ["-Werror", "all-warnings", "-o", str(target), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    ptx = target.read_text(encoding="utf-8")
    assert {line.split()[2].rstrip("(") for line in ptx.splitlines() if ".entry" in line} == KERNELS
    # A generic fallback to double would be 32 times slower on a consumer's card.
    if real == "float":
        assert not [line for line in ptx.splitlines() if "add.f64" in line or "fma.rn.f64" in line]


def test_package_imports_without_cupy() -> None:
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "import numpy as np\n"
        "from gain_core import BackendUnavailableError\n"
        "from gain_runtime.cuda import CudaGain\n"
        "try:\n"
        "    CudaGain(np.eye(3, dtype=np.float32))\n"
        "except BackendUnavailableError as err:\n"
        "    print(err)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert "cupy: needed here" in result.stdout
    assert "gain-edge[cuda12]" in result.stdout

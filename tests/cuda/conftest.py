"""The kernels compiled as host C++ and launched on NumPy arrays; and a card, where there is one."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gain_export import PreprocessOverrides, export_onnx
from gain_runtime.onnx_native import CUDA_PROVIDER, native

SHIM = Path(__file__).with_name("host_shim.cpp")


class HostKernels:
    """`Kernels` on the host: every block is `width` real threads around a barrier."""

    BY_BLOCK = (
        "predict_gaussian",
        "predict_shift",
        "revise_shift",
        "gaussian_rows",
        "shift_rows",
        "all_true",
        "shift_estimate",
        "shift_labels",
    )

    def __init__(self, libraries: dict[str, ctypes.CDLL], width: int) -> None:
        self._libraries, self._width = libraries, width
        self.launched: list[str] = []

    def launch(
        self, name: str, arguments: Sequence[Any], /, *, blocks: int, threads: int, dtype: Any
    ) -> None:
        """Run one kernel to its end."""
        holders = [self._holder(argument, dtype) for argument in arguments]
        packed = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(item) for item in holders))
        width = min(self._width, threads)
        function = getattr(self._libraries[str(dtype)], f"host_{name}")
        # As many threads as asked for in narrower blocks; a row's block and a single one stay one.
        function(blocks if name in self.BY_BLOCK else blocks * threads // width, width, packed)
        self.launched.append(name)

    def copy(self, source: np.ndarray, target: np.ndarray, /) -> None:
        """Copy now."""
        assert source.shape == target.shape
        assert source.dtype == target.dtype
        assert source.flags.c_contiguous
        target[...] = source
        self.launched.append("copy")

    def record(self, enqueue: Callable[[], None], /) -> Callable[[], None]:
        """What was enqueued is enqueued again."""
        return enqueue

    @staticmethod
    def _holder(argument: Any, dtype: Any) -> Any:
        """The argument by value: a pointer, an int or a real, and nothing else."""
        if isinstance(argument, np.ndarray):
            assert argument.flags.c_contiguous
            assert argument.dtype in (dtype, np.bool_)
            return ctypes.c_void_p(argument.ctypes.data)
        if isinstance(argument, np.int32):
            return ctypes.c_int(int(argument))
        assert argument.dtype == dtype
        kind = ctypes.c_double if dtype == np.float64 else ctypes.c_float
        return kind(float(argument))


ROADSIGNS = Path(__file__).resolve().parents[2] / "models" / "roadsigns" / "roadsigns.onnx"


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy with a device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other libraries' installations, while it is imported
        module = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as err:
        pytest.skip(f"no CUDA device: {err}")
    if count == 0:
        pytest.skip("CuPy finds no CUDA device")
    return module


@pytest.fixture(scope="session")
def cuda_provider(cupy: Any) -> str:
    """ONNX Runtime's provider on that device."""
    if CUDA_PROVIDER not in native.get_available_providers():
        pytest.skip("this ONNX Runtime was built without CUDA")
    return CUDA_PROVIDER


@pytest.fixture(scope="session")
def roadsigns_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The road-sign vision transformer as an artifact."""
    overrides = PreprocessOverrides(
        img_size=(64, 64),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        crop_fraction=1.0,
        interpolation="bicubic",
    )
    target = tmp_path_factory.mktemp("signs") / "signs.onnx"
    return export_onnx(ROADSIGNS, output=target, preprocess=overrides).path


@pytest.fixture(scope="session")
def host_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """The kernels for both dtypes."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    from gain_runtime.cuda import kernel_source

    folder = tmp_path_factory.mktemp("kernels")
    (folder / "step_kernels.cuh").write_text(kernel_source(), encoding="utf-8")
    libraries = {}
    for dtype, real in (("float32", "float"), ("float64", "double")):
        target = folder / f"step_{real}.so"
        command = [compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        command += [
            "-Wno-unknown-pragmas",
            "-pthread",
            f"-DREAL={real}",
            f"-I{folder}",
            "-o",
            str(target),
            str(SHIM),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        libraries[dtype] = ctypes.CDLL(str(target))
    return libraries


@pytest.fixture
def host_kernels(host_libraries: dict[str, ctypes.CDLL]) -> Callable[[int], HostKernels]:
    """Kernels whose blocks have that many threads."""
    return lambda width: HostKernels(host_libraries, width)

"""The machine a benchmark ran on, read from its files, and the most memory in use on its card."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnxruntime

from gain_apps.system import ThermalWatch, read_number, read_numbers, read_text, whole_number
from gain_core import __version__
from gain_core.errors import BackendUnavailableError
from gain_runtime.optional import require
from gain_runtime.preprocess import usable_cores
from gain_runtime.sessions.onnx import CPU_PROVIDER
from gain_runtime.sessions.tensorrt import cuda_failures

NOTE = (
    "largest of the readings after each batch, warm-up included; total less free memory of the "
    "device, so what other processes hold there is counted too"
)


class DevicePeak:
    """The largest of several readings of the memory of an execution provider's device.

    What is allocated and freed between two readings is not seen. Sessions and CuPy keep what they
    have allocated, so a reading after a batch shows what the batch needed. On the CPU, and without
    CuPy, nothing is read.
    """

    def __init__(self, provider: str, /) -> None:
        self._peak: int | None = None
        self._cupy: Any = None
        self._why = "the CPU has no memory of its own"
        if provider != CPU_PROVIDER:
            try:
                self._cupy = require("cupy", extra="cuda12")
            except BackendUnavailableError as err:
                self._why = f"cannot be read: {err}"

    def read(self) -> None:
        """Read once, in some microseconds; for between two batches.

        A device that fails, be it over an earlier batch, is an `EngineError`.
        """
        if self._cupy is not None:
            with cuda_failures(self._cupy, "device memory"):
                free, total = self._cupy.cuda.runtime.memGetInfo()
            self._peak = max(self._peak or 0, int(total - free))

    def to_dict(self) -> dict[str, Any]:
        """`peak_used` in bytes, None where it was not read, and a `note`: what it counts or why."""
        return {"peak_used": self._peak, "note": self._why if self._peak is None else NOTE}


MODEL_FILES = ("sys/firmware/devicetree/base/model", "sys/class/dmi/id/product_name")
GPU_CARDS = "proc/driver/nvidia/gpus/*/information"
CPU_CLOCKS = "sys/devices/system/cpu/cpu[0-9]*/cpufreq"
# Jetson's GPU and memory controller, and other boards' alike.
OTHER_CLOCKS = "sys/class/devfreq/*"
# The daemon of Jetson's power modes keeps the one in use here.
JETSON_MODE = "var/lib/nvpmodel/status"
PROFILE = "sys/firmware/acpi/platform_profile"
VRAM_USED = "sys/class/drm/card*/device/mem_info_vram_used"
NVIDIA_DRIVER = "proc/driver/nvidia/version"
# What a module is called, and the distributions that bring it.
LIBRARIES = {
    "numpy": ("numpy",),
    "onnx": ("onnx",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "cv2": ("opencv-python-headless", "opencv-python"),
    "PIL": ("pillow",),
    "torch": ("torch",),
    "timm": ("timm",),
    "cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x"),
    "tensorrt": ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
    "tensorrt_rtx": ("tensorrt-rtx", "tensorrt-rtx-cu12", "tensorrt-rtx-cu13"),
}


class Machine:
    """What can be known of the device without asking its vendor's libraries.

    Whatever cannot be read is None or absent, never guessed; `sys`, `proc` and `var` lie in `root`.
    """

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root
        self._thermal = ThermalWatch(root=root / "sys")

    def facts(self) -> dict[str, Any]:
        """What does not change: board, processor, cores, memory, graphics cards."""
        proc = self._root / "proc"
        # Installed, as the kernel counts it.
        memory = _entry(read_text(proc / "meminfo"), "MemTotal")
        kib = whole_number((memory or "").partition(" ")[0])
        # ARM kernels give only the core's part number.
        keys, text = ("model name", "Model", "Hardware", "CPU part"), read_text(proc / "cpuinfo")
        cpu = next((name for key in keys if (name := _entry(text, key)) is not None), None)
        return {
            "board": self._first(MODEL_FILES),
            "cpu": cpu,
            "architecture": platform.machine(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            # A container may see more than it gets.
            "cores_allowed": usable_cores(),
            "memory_bytes": None if kib is None else kib * 1024,
            "gpus": [
                name
                for path in sorted(self._root.glob(GPU_CARDS))
                if (name := _entry(read_text(path), "Model")) is not None
            ],
        }

    def now(self) -> dict[str, Any]:
        """What does: clocks in MHz, power mode, temperature in degrees Celsius, throttling."""
        self._thermal.tick()
        used = read_numbers(self._root.glob(VRAM_USED))
        governors = {read_text(path / "scaling_governor") for path in self._root.glob(CPU_CLOCKS)}
        return {
            "cpu_clocks_mhz": self._cpu_clocks(),
            "other_clocks_mhz": self._other_clocks(),
            "governors": sorted(governors - {""}),
            "power_mode": self._first((JETSON_MODE, PROFILE)),
            "celsius": self._thermal.celsius,
            "throttled": self._thermal.throttled,
            # By every process, where the kernel tells.
            "device_memory_used_bytes": sum(used) if used else None,
        }

    def _first(self, names: Iterable[str]) -> str | None:
        """The text of the first file that says something."""
        return next((text for name in names if (text := read_text(self._root / name))), None)

    def _cpu_clocks(self) -> dict[str, float]:
        """Lowest and highest clock now, and the highest allowed."""
        folders = list(self._root.glob(CPU_CLOCKS))
        now = read_numbers(folder / "scaling_cur_freq" for folder in folders)
        limit = read_numbers(folder / "scaling_max_freq" for folder in folders)
        clocks = {"lowest": min(now), "highest": max(now)} if now else {}
        if limit:
            clocks["allowed"] = max(limit)
        return {name: khz / 1e3 for name, khz in clocks.items()}

    def _other_clocks(self) -> dict[str, float]:
        """Clocks of GPU and memory where the kernel manages them."""
        return {
            folder.name: hz / 1e6
            for folder in sorted(self._root.glob(OTHER_CLOCKS))
            if (hz := read_number(folder / "cur_freq")) is not None
        }


def tool_versions(*, root: Path = Path("/")) -> dict[str, str | None]:
    """Versions of what takes part in the measurement, None where it is not there.

    A library goes by its module's name. `nvidia_driver` is the kernel's; `cuda_driver` the newest
    CUDA that it runs; `onnxruntime_cuda`, `cupy_cuda` and `torch_cuda` the CUDA runtime each
    library was built for or has loaded. Of CuPy and torch they are known only where this process
    uses the library.
    """
    cupy, torch = (sys.modules.get(name) for name in ("cupy", "torch"))
    # The version in the kernel module's own line.
    line = r"NVRM version:.*?Kernel Module.*?\s(\d+\.[\d.]+)"
    driver = re.search(line, read_text(root / NVIDIA_DRIVER))
    return {
        "gain-edge": __version__,
        "python": platform.python_version(),
        **{name: _library_version(name, brought_by) for name, brought_by in LIBRARIES.items()},
        "onnxruntime_cuda": getattr(onnxruntime, "cuda_version", None) or None,
        "torch_cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "cupy_cuda": _cuda_version(cupy, "runtimeGetVersion"),
        "cuda_driver": _cuda_version(cupy, "driverGetVersion"),
        "nvidia_driver": None if driver is None else driver[1],
    }


def _library_version(name: str, brought_by: Iterable[str]) -> str | None:
    """Of a module in use what it says itself, else what its distribution does."""
    said = getattr(sys.modules.get(name), "__version__", None)
    if said is not None:
        return str(said)
    for distribution in brought_by:
        with contextlib.suppress(PackageNotFoundError):
            return version(distribution)
    return None


def _cuda_version(cupy: Any, function: str) -> str | None:
    """What CuPy tells of CUDA, 13000 as 13.0; None where it is not in use or finds no driver."""
    if cupy is None:
        return None
    try:
        number = int(getattr(cupy.cuda.runtime, function)())
    except RuntimeError:
        return None
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _entry(text: str, key: str) -> str | None:
    """The first value of `key : value` lines."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == key and value.strip():
            return value.strip()
    return None

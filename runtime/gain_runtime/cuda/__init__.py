"""GAIN on a CUDA device by fused kernels; CuPy is imported when a `CudaGain` is made."""

from __future__ import annotations

from gain_runtime.cuda.cuda_gain import CudaGain
from gain_runtime.cuda.kernels import CupyKernels, Kernels, kernel_source

__all__ = ["CudaGain", "CupyKernels", "Kernels", "kernel_source"]

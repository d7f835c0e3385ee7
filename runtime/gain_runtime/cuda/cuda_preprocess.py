"""`preprocess_batch` on a CUDA device: the same pixel values, without the host's arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gain_core.errors import ArrayError
from gain_runtime.cuda.frame_plan import FramePlan, cut_out, plan_frame
from gain_runtime.cuda.preprocess_module import CupyPreprocessKernels, PreprocessKernels
from gain_runtime.cuda.weight_cache import WeightCache
from gain_runtime.device_buffers import DeviceArray
from gain_runtime.manifest import Preprocess
from gain_runtime.preprocess import Region, normalised_levels, one_region_each

__all__ = ["CudaPreprocessor"]

# Members of `Frame` in preprocess_kernels.cuh, each 8 bytes.
_FRAME_MEMBERS = 9
# Uploads begin at multiples of it, of which a pointer is one.
_ALIGNMENT = 16
_WARP, _MAX_THREADS = 32, 256
# Beyond it a block takes more than one line: many frames of unequal heights leave blocks idle.
_MAX_BLOCKS_PER_FRAME = 2048


class CudaPreprocessor:
    """Resize, crop, scale and normalise frames on the device.

    Parameters
    ----------
    spec : Preprocess
        As the artifact's manifest states it.
    kernels : PreprocessKernels, optional
        By default CuPy's.

    Raises
    ------
    BackendUnavailableError
        If CuPy is not installed.

    Notes
    -----
    Equal to `preprocess_batch` to the last bit, whatever the version of Pillow: the weights are
    Pillow's fixed-point ones, both passes round to 8 bits, and the float of each level is looked up
    in the CPU's own table. Only pixels that the crop needs are copied and computed.
    """

    def __init__(self, spec: Preprocess, /, *, kernels: PreprocessKernels | None = None) -> None:
        self._spec = spec
        self._kernels = CupyPreprocessKernels() if kernels is None else kernels
        uploads = self._kernels.uploads
        self._weights = WeightCache(spec.interpolation, uploads.keep)
        self._levels = uploads.keep(normalised_levels(spec))

    def __call__(
        self,
        images: Sequence[Any],
        /,
        *,
        regions: Sequence[Region | None] | None = None,
        out: DeviceArray | None = None,
        began: Any | None = None,
    ) -> DeviceArray:
        """Enqueue the preprocessing of a batch on CuPy's current stream.

        Parameters
        ----------
        images : sequence of B arrays, (H, W, 3) uint8 RGB
            Of any sizes and memory layouts. NumPy arrays may change as soon as this returns. Arrays
            on the current device (anything with `__cuda_array_interface__`) are read where they
            lie, in the order of the current stream.
        regions : sequence of B regions or None, optional
            One per image, see `preprocess`.
        out : array, (B, 3, height_px, width_px) float32, C-contiguous, optional
            CuPy array to be written.
        began : cupy.cuda.Event, optional
            Recorded on the current stream once the host is done with the frames: what follows is
            the rest of their copies, and the kernels.

        Returns
        -------
        array, (B, 3, height_px, width_px) float32
            `out`, or a new CuPy array; B may be 0.

        Raises
        ------
        ArrayError
            As `preprocess_batch`, or if `out` does not fit. Nothing is enqueued then.

        Notes
        -----
        Nothing is read back and the device is not waited for, but for pinned memory whose last copy
        has not ended. Calls come from one thread at a time.
        """
        whole = one_region_each(images, regions)
        cuts = [cut_out(image, part, self._spec) for image, part in zip(images, whole, strict=True)]
        pixel_values = self._output(len(cuts), out)
        if cuts:
            self._kernels.uploads.begin()
            frames = [plan_frame(cut, self._spec, self._weights) for cut in cuts]
            self._run(frames, pixel_values, began)
            self._kernels.uploads.finish()
        return pixel_values

    def _output(self, batch_size: int, out: DeviceArray | None) -> DeviceArray:
        """Memory for the result."""
        shape = (batch_size, 3, self._spec.height_px, self._spec.width_px)
        if out is None:
            return self._kernels.empty(shape, np.float32)
        kind = self._kernels.array_type
        if not isinstance(out, kind):
            raise ArrayError(
                f"out: expected {kind.__module__}.{kind.__name__} {shape} float32, "
                f"got {type(out).__name__}; leave it out for a new array"
            )
        contiguous = out.flags.c_contiguous
        if out.shape != shape or out.dtype != np.float32 or not contiguous:
            raise ArrayError(
                f"out: expected {shape} float32, C-contiguous, got {out.shape} {out.dtype}"
                f"{'' if contiguous else ', not C-contiguous'}; leave it out for a new array"
            )
        return out

    def _run(self, frames: list[FramePlan], pixel_values: DeviceArray, began: Any | None) -> None:
        """Upload what is on the host, and launch both passes."""
        kernels = self._kernels
        narrowed = kernels.empty((sum(frame.narrowed_bytes for frame in frames),), np.uint8)
        table = self._upload(frames, kernels.address(narrowed))
        if began is not None:
            began.record()
        kernels.uploads.publish()
        size = (np.int32(self._spec.height_px), np.int32(self._spec.width_px))
        threads = _threads(max(frame.kept_places for frame in frames))
        num_lines = max(frame.lines.length for frame in frames)
        blocks = min(num_lines, _MAX_BLOCKS_PER_FRAME)
        kernels.launch(
            "resample_places",
            (table, *size, np.int32(blocks)),
            blocks=blocks * len(frames),
            threads=threads,
        )
        blocks = max(frame.kept_lines for frame in frames)
        kernels.launch(
            "resample_lines",
            (table, self._levels, *size, np.int32(blocks), pixel_values),
            blocks=3 * blocks * len(frames),
            threads=threads,
        )

    def _upload(self, frames: list[FramePlan], narrowed: int) -> DeviceArray:
        """Queue the copies of frames on the host, and of what the kernels must know of each."""
        kernels, uploads = self._kernels, self._kernels.uploads
        members = np.zeros((len(frames), _FRAME_MEMBERS), dtype=np.int64)
        sizes = [members.nbytes, *(frame.host_bytes for frame in frames)]
        ends = np.cumsum([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]).tolist()
        reserved = uploads.reserve(ends[-1])
        reverse = self._spec.channel_order == "BGR"
        for row, frame, offset in zip(members, frames, ends, strict=False):
            if frame.host is not None:
                uploads.upload(reserved, offset, frame.host)
            geometry = frame.geometry(kernels.address(reserved) + offset, reverse=reverse)
            tables = (kernels.address(axis.table) for axis in (frame.places, frame.lines))
            row[:] = (*geometry, frame.lines.length, narrowed, *tables, frame.transposed)
            narrowed += frame.narrowed_bytes
        uploads.upload(reserved, 0, members)
        return reserved


def _threads(places: int) -> int:
    """Width of a block whose threads take the places of a line in turns, none many more."""
    turns = -(-places // _MAX_THREADS)
    each = -(-places // turns)
    return -(-each // _WARP) * _WARP

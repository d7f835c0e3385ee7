"""The frozen source as a stream without the method would run it: the network and a softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from array_api_compat import to_device
from gain_runtime.device_slot import DeviceSlot, make_on_device, pinned_bytes

from gain_core._optional import require
from gain_core.errors import NumericsError
from gain_runtime.adapter import AdaptedBatch
from gain_runtime.batch_preprocess import BatchPreprocessor
from gain_runtime.closing import Closing
from gain_runtime.cuda_memory import cuda_failures
from gain_runtime.device_buffers import DeviceArray
from gain_runtime.frame import Frame
from gain_runtime.session import Session

__all__ = ["FrozenSource"]

Floats = npt.NDArray[np.float32]


class _Forward(NamedTuple):
    """Logits (B, K) float32 in host memory, and what the batch took so far, see `LaneResult`."""

    logits: Floats
    stage_ns: Mapping[str, int]


class FrozenSource(Closing):
    """A session with a softmax behind it, and in front of it all that an adapter has there.

    Frames are preprocessed where the adapter preprocesses them, in as many threads. On a device
    they go there as the adapter's do, the logits come back through pinned memory, and each stage
    lies between the same events. Closing it ends the threads that preprocess.

    Parameters
    ----------
    session : Session
        Not owned.
    device_preprocess : bool
        Resize, crop and normalise on the session's GPU; only for a session whose results stay
        there.
    preprocess_threads : int or None
        As for `Adapter`.

    Raises
    ------
    BackendUnavailableError
        If the session's results stay on a device and CuPy is not installed.
    ConfigError
        If `preprocess_threads` is below 1.
    EngineError
        If the session's device has no room, or fails.
    """

    def __init__(
        self, session: Session, /, *, device_preprocess: bool, preprocess_threads: int | None
    ) -> None:
        self._session = session
        spec = session.artifact.manifest.preprocess
        self._on_host = (
            None if device_preprocess else BatchPreprocessor(spec, threads=preprocess_threads)
        )
        self._preprocess: Callable[..., Any]
        self._forward: Callable[[Any], _Forward]
        if session.stream is None:
            assert self._on_host is not None
            self._preprocess, self._forward = self._on_host, self._host_forward
        else:
            on_device = _OnDevice(session, on_host=self._on_host)
            self._preprocess, self._forward = on_device.preprocess, on_device.forward

    def step(self, frames: Sequence[Frame], /) -> AdaptedBatch:
        """Classify a batch.

        Parameters
        ----------
        frames : sequence of B frames

        Returns
        -------
        AdaptedBatch
            Source and adapted prediction are the same; the stage `adapt` is the logits' way to the
            host, where they have one, and the softmax.

        Raises
        ------
        ArrayError
            If a frame cannot be preprocessed.
        EngineError
            If the forward pass fails.
        NumericsError
            If the network returned NaN or infinity.
        """
        started = perf_counter_ns()
        pixel_values = self._preprocess(
            [frame.image for frame in frames], regions=[frame.region for frame in frames]
        )
        preprocess_ns = perf_counter_ns() - started
        logits, spent = self._forward(pixel_values)
        started = perf_counter_ns()
        self._check(logits)
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        probs = np.exp(log_probs)
        nothing = np.zeros(len(frames), dtype=np.float32)
        return AdaptedBatch(
            source_probs=probs,
            source_log_probs=log_probs,
            probs=probs,
            log_probs=log_probs,
            strength=nothing,
            gain=nothing,
            stage_ns={
                "preprocess": preprocess_ns + spent["preprocess"],
                "forward": spent["forward"],
                "adapt": spent["adapt"] + perf_counter_ns() - started,
            },
        )

    def close(self) -> None:
        """End the threads that preprocess; may be called twice. The session stays open."""
        if self._on_host is not None:
            self._on_host.close()

    def _host_forward(self, pixel_values: Floats) -> _Forward:
        """A forward pass whose results are in host memory when it returns."""
        started = perf_counter_ns()
        logits = self._session.infer(pixel_values).logits
        inferred = perf_counter_ns()
        scores = np.asarray(to_device(logits, "cpu"))
        fetched = perf_counter_ns()
        spent = {"preprocess": 0, "forward": inferred - started, "adapt": fetched - inferred}
        return _Forward(scores, spent)

    def _check(self, logits: Floats) -> None:
        """The network returned numbers."""
        if not np.all(np.isfinite(logits)):
            raise NumericsError(
                f"{self._session.artifact.path}: logits: expected finite values, got NaN or "
                "infinity; export the model again"
            )


class _OnDevice:
    """A session whose results stay on its device, used as `DeviceLane` does, a batch at a time."""

    def __init__(self, session: Session, *, on_host: BatchPreprocessor | None) -> None:
        self._cupy: Any = require("cupy", extra="cuda12")
        self._session = session
        self._stream: Any = session.stream
        self._on_host = on_host
        self._pinned: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        with self._queue():
            self._copies = self._cupy.cuda.Stream(non_blocking=True)
            self._slot = DeviceSlot(self._cupy)
            self._kernels = None if on_host is not None else self._preprocessor()

    def preprocess(self, images: Any, *, regions: Any) -> Any:
        """Pixel values, on the host or by kernels on the session's stream."""
        if self._on_host is not None:
            return self._on_host(images, regions=regions)
        assert self._kernels is not None
        with self._queue():
            pixel_values, self._slot.kernels = make_on_device(
                self._kernels, images, regions=regions, cupy=self._cupy, stream=self._stream
            )
        return pixel_values

    def forward(self, pixel_values: Floats | DeviceArray) -> _Forward:
        """The forward pass, and the logits' way to the host."""
        slot = self._slot
        with self._queue():
            slot.free()
            pixel_values = slot.begin(pixel_values, copies=self._copies, stream=self._stream)
            logits: Any = self._session.infer(pixel_values).logits
            slot.inferred.record(self._stream)
            host = self._room(logits.shape)
            logits.get(stream=self._stream, out=host, blocking=False)
            slot.adapted.record(self._stream)
            slot.adapted.synchronize()
            return _Forward(host.copy(), slot.stage_ns())

    @contextmanager
    def _queue(self) -> Iterator[None]:
        """The session's stream is CuPy's current one, and CuPy's errors are ours."""
        with cuda_failures(self._cupy, str(self._session.artifact.path)), self._stream:
            yield

    def _preprocessor(self) -> Callable[..., DeviceArray]:
        """What preprocesses by kernels."""
        # Late: without a device there is no such module's library either.
        from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor

        return CudaPreprocessor(self._session.artifact.manifest.preprocess)

    def _room(self, shape: tuple[int, ...]) -> Floats:
        """Pinned memory for float32, the same for every batch that fits."""
        num_bytes = 4 * int(np.prod(shape))
        if self._pinned.nbytes < num_bytes:
            self._pinned = pinned_bytes(self._cupy, num_bytes)
        return self._pinned[:num_bytes].view(np.float32).reshape(shape)

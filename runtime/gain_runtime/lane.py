"""Where a batch is inferred and adapted: here on the host, or on a device (`device_lane`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from array_api_compat import to_device

from gain_core import Gain, GainConfig, GainState, Prediction
from gain_core._typing import Array
from gain_core.prototypes import Prototypes
from gain_runtime.batch_preprocess import BatchPreprocessor
from gain_runtime.preprocess import Region
from gain_runtime.session import Session

__all__ = ["AnyGain", "Awaited", "HostLane", "Lane", "LaneResult"]


class AnyGain(Protocol):
    """`Gain` and the runtime's `CudaGain`, as an adapter sees them."""

    update_every: int

    @property
    def config(self) -> GainConfig: ...

    @property
    def frozen(self) -> bool: ...

    @property
    def frames(self) -> int: ...

    @property
    def state(self) -> GainState: ...

    @property
    def guard_trips(self) -> Array | None: ...

    def predict(self, features: Array, logits: Array, /) -> Prediction: ...

    def update(self, features: Array, prediction: Prediction, /) -> None: ...

    def step(self, features: Array, logits: Array, /) -> Prediction: ...

    def flush(self) -> None: ...

    def reset(self) -> None: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def load_state(self, state: GainState, /, *, frames: int = 0) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneResult:
    """What became of a batch.

    Attributes
    ----------
    prediction : Prediction
        NumPy arrays of their own memory.
    trips : int or None
        How often the guard has tripped so far; None without a guard.
    stage_ns : mapping
        Nanoseconds the batch itself kept the device or, on the host, this thread busy, without
        what it waited for: in `preprocess` what a device had left to do when `prepare` returned, in
        `forward` with the copy of the pixel values to the device, in `adapt` with that of the
        prediction from it.
    """

    prediction: Prediction
    trips: int | None
    stage_ns: Mapping[str, int]


Awaited = Callable[[], LaneResult]


class Lane(Protocol):
    """A session with the method behind it, for one stream."""

    @property
    def gain(self) -> AnyGain: ...

    @property
    def prototypes(self) -> Prototypes:
        """On the device of `gain`'s state."""
        ...

    @property
    def ahead(self) -> int:
        """Batches worth submitting ahead of their results."""
        ...

    def queue(self) -> AbstractContextManager[Any]:
        """What touches `gain` but for `submit` happens inside, after the batches submitted."""
        ...

    def prepare(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None,
    ) -> Any:
        """A batch for `submit`: pixel values as `preprocess_batch` makes them.

        Raises
        ------
        ArrayError
            As `preprocess_batch`.
        EngineError
            If a device fails.
        """
        ...

    def submit(self, prepared: Any, /, *, learn: bool) -> Awaited:
        """Infer and predict a batch, and learn from it where asked.

        Parameters
        ----------
        prepared : object
            What `prepare` returned, or pixel values, (B, 3, height_px, width_px) float32; B may
            be 0.
        learn : bool

        Returns
        -------
        callable
            Waits for the result. Batches are worked on in the order of their submission, and a
            second one may be submitted before the first is waited for. Raises EngineError if the
            device fails meanwhile.

        Raises
        ------
        ArrayError, EngineError
            As the session's `infer`; the state is untouched. EngineError also where an earlier
            batch failed on the device.
        """
        ...

    def close(self) -> None:
        """End the threads that preprocess; may be called twice. The session stays open."""
        ...


class HostLane:
    """Everything at once, in this thread.

    Parameters
    ----------
    session : Session
    prototypes : Prototypes
    gain : Gain
    preprocessor : BatchPreprocessor
        Owned.
    """

    def __init__(
        self,
        session: Session,
        prototypes: Prototypes,
        gain: Gain,
        /,
        *,
        preprocessor: BatchPreprocessor,
    ) -> None:
        self._session, self._prototypes, self._gain = session, prototypes, gain
        self._preprocessor = preprocessor

    @property
    def gain(self) -> Gain:
        """See `Lane`."""
        return self._gain

    @property
    def prototypes(self) -> Prototypes:
        """See `Lane`."""
        return self._prototypes

    @property
    def ahead(self) -> int:
        """See `Lane`: a batch is done when `submit` returns."""
        return 0

    def queue(self) -> AbstractContextManager[None]:
        """See `Lane`; here everything is done when it returns."""
        return nullcontext()

    def prepare(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None,
    ) -> Any:
        """See `Lane`."""
        return self._preprocessor(images, regions=regions)

    def submit(self, prepared: Any, /, *, learn: bool) -> Awaited:
        """See `Lane`."""
        started = perf_counter_ns()
        features, logits = self._session.infer(prepared)
        assert features is not None
        inferred = perf_counter_ns()
        work = self._gain.step if learn else self._gain.predict
        prediction = _in_host_memory(work(features, logits))
        trips = self._gain.guard_trips
        adapted = perf_counter_ns()
        result = LaneResult(
            prediction=prediction,
            trips=None if trips is None else int(_to_host(trips)),
            stage_ns={
                "preprocess": 0,
                "forward": inferred - started,
                "adapt": adapted - inferred,
            },
        )
        return lambda: result

    def close(self) -> None:
        """See `Lane`."""
        self._preprocessor.close()


def _in_host_memory(prediction: Prediction) -> Prediction:
    """NumPy arrays of the same values; copies where they lie on another device."""
    names = Prediction.__dataclass_fields__
    return Prediction(**{name: _to_host(getattr(prediction, name)) for name in names})


def _to_host(array: Array) -> npt.NDArray[Any]:
    return np.asarray(to_device(array, "cpu"))

"""The frozen source as a stream without the method would run it: the network and a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from gain_core.errors import NumericsError
from gain_runtime.adapter import AdaptedBatch
from gain_runtime.batch_preprocess import BatchPreprocessor
from gain_runtime.closing import Closing
from gain_runtime.preprocess import Region
from gain_runtime.session import Session

__all__ = ["FrozenSource"]


class FrozenSource(Closing):
    """A session with a softmax behind it, and an adapter's preprocessing before it.

    Parameters
    ----------
    session : Session
        Not owned.
    preprocess_threads : int or None
        As for `Adapter`.

    Raises
    ------
    ConfigError
        If `preprocess_threads` is below 1.
    """

    def __init__(self, session: Session, /, *, preprocess_threads: int | None) -> None:
        self._session = session
        spec = session.artifact.manifest.preprocess
        self._preprocess = BatchPreprocessor(spec, threads=preprocess_threads)

    def step(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None = None,
    ) -> AdaptedBatch:
        """Classify a batch; see `Adapter.step`.

        Returns
        -------
        AdaptedBatch
            Source and adapted prediction are the same; the stage `adapt` is the softmax.

        Raises
        ------
        ArrayError
            If a frame cannot be preprocessed.
        EngineError
            If the forward pass fails.
        NumericsError
            If the network returned NaN or infinity.
        """
        stamps = [perf_counter_ns()]
        pixel_values = self._preprocess(images, regions=regions)
        stamps.append(perf_counter_ns())
        logits = self._session.infer(pixel_values).logits
        stamps.append(perf_counter_ns())
        if not np.all(np.isfinite(logits)):
            raise NumericsError(
                f"{self._session.artifact.path}: logits: expected finite values, got NaN or "
                "infinity; export the model again"
            )
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        probs, nothing = np.exp(log_probs), np.zeros(len(logits), dtype=np.float32)
        stamps.append(perf_counter_ns())
        preprocess, forward, adapt = (b - a for a, b in pairwise(stamps))
        return AdaptedBatch(
            source_probs=probs,
            source_log_probs=log_probs,
            probs=probs,
            log_probs=log_probs,
            strength=nothing,
            gain=nothing,
            stage_ns={"preprocess": preprocess, "forward": forward, "adapt": adapt},
        )

    def close(self) -> None:
        """End the threads that preprocess; may be called twice. The session stays open."""
        self._preprocess.close()

"""Batches handed to an adapter ahead of their results, so that no device waits for the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gain_core.errors import ArrayError, NumericsError
from gain_runtime.adapter import AdaptedBatch, Adapter
from gain_runtime.frame import Frame
from gain_runtime.stream_adapter import StreamAdapter

__all__ = ["BatchesAhead", "Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What became of some frames: a batch, or why they could not be one.

    Attributes
    ----------
    frames : sequence of Frame
    learn : bool
        Whether they were to be learned from.
    result : AdaptedBatch or ArrayError or NumericsError
    """

    frames: Sequence[Frame]
    learn: bool
    result: AdaptedBatch | ArrayError | NumericsError


class BatchesAhead:
    """Batches and their outcomes in the order of submission.

    Parameters
    ----------
    adapter : StreamAdapter
        One on the host works at once and is never ahead.
    """

    def __init__(self, adapter: StreamAdapter, /) -> None:
        self._adapter = adapter
        self._ahead = adapter.ahead if isinstance(adapter, Adapter) else 0
        self._under_way: deque[Callable[[], Outcome]] = deque()

    def submit(self, frames: Sequence[Frame], /, *, learn: bool) -> None:
        """Start on a batch.

        Parameters
        ----------
        frames : sequence of Frame
            At least one.
        learn : bool

        Raises
        ------
        EngineError
            If the forward pass fails; batches submitted before are still to be had.
        """
        images = [frame.image for frame in frames]
        regions = [frame.region for frame in frames]
        result: Callable[[], AdaptedBatch]
        try:
            if isinstance(self._adapter, Adapter):
                result = self._adapter.submit(images, regions=regions, learn=learn)
            else:
                batch = self._adapter.step(images, regions=regions, learn=learn)
                result = lambda: batch  # noqa: E731
        except (ArrayError, NumericsError) as err:
            outcome = Outcome(frames=frames, learn=learn, result=err)
            self._under_way.append(lambda: outcome)
            return
        self._under_way.append(lambda: _outcome_of(result, frames, learn))

    def outcomes(self, *, everything: bool) -> Iterator[Outcome]:
        """Those that are due.

        Parameters
        ----------
        everything : bool
            All of them, because no further batch is at hand; else as many as are not needed to
            keep a device busy.

        Yields
        ------
        Outcome
        """
        while len(self._under_way) > (0 if everything else self._ahead):
            yield self._under_way.popleft()()


def _outcome_of(
    result: Callable[[], AdaptedBatch], frames: Sequence[Frame], learn: bool
) -> Outcome:
    """Wait for a batch."""
    try:
        return Outcome(frames=frames, learn=learn, result=result())
    except NumericsError as err:
        return Outcome(frames=frames, learn=learn, result=err)

"""The record a sink receives, and the protocol sinks fulfil."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gain_runtime.frame import Frame

__all__ = ["FrameResult", "Ranked", "Sink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One entry of a top-k list: class index, label and probability in [0, 1]."""

    index: int
    label: str
    prob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameResult:
    """What was found out about one frame, as plain host values.

    Attributes
    ----------
    frame : Frame
    source_top, adapted_top : tuple of Ranked
        Most probable classes of the frozen source and of the adapted prediction, best first.
    strength, gain : float
        lambda* in [0, 1] and the expected gain G in nats; both 0 when frozen from the start.
    rate_hz : float
        Frames per second over the recent past.
    stage_ms : mapping
        Milliseconds this frame spent per stage (`preprocess`, `forward`, `adapt`).
    utc_ns : int
        Nanoseconds since 1970 by the system's clock: when a live frame was captured, when another
        one was classified.
    latency_ms : float or None
        From the capture of a live frame to its prediction; None for other sources.
    """

    frame: Frame
    source_top: tuple[Ranked, ...]
    adapted_top: tuple[Ranked, ...]
    strength: float
    gain: float
    rate_hz: float = 0.0
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    utc_ns: int = field(default_factory=time.time_ns)
    latency_ms: float | None = None

    @property
    def changed(self) -> bool:
        """Whether adaptation changed the predicted class."""
        return self.source_top[0].index != self.adapted_top[0].index


class Sink(Protocol):
    """Receives every result in order; `close` finishes what it writes and may be called twice."""

    def write(self, result: FrameResult, /) -> None: ...

    def close(self) -> None: ...

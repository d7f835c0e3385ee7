"""The `test://` sources that are drawn, and any source at the pace of a camera."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gain_core.errors import ConfigError
from gain_runtime.frames import Closing, Frame, FrameSource, SourceInfo
from gain_runtime.sources.opening import SourceFactory
from gain_runtime.sources.pattern import open_pattern
from gain_runtime.sources.uri import record_from_params

__all__ = [
    "LiveSource",
    "app_schemes",
]


class LiveSource(Closing):
    """Gives the frames of another source at that source's rate, stamped with the clock.

    Its reader drops what nobody takes in time, as it does with a camera. Where the other source is
    slower than its own rate, frames come late and none is left out here.

    Parameters
    ----------
    source : FrameSource
        Owned.

    Raises
    ------
    ConfigError
        If the source has no rate.
    """

    def __init__(self, source: FrameSource, /) -> None:
        rate_hz = source.info.rate_hz
        if rate_hz is None:
            raise ConfigError(f"{source.info.source_id}: expected a rate to play it at, got none")
        self._source = source
        self._period_s = 1.0 / rate_hz
        self._closed = threading.Event()

    @property
    def info(self) -> SourceInfo:
        """The other source's, live."""
        return replace(self._source.info, live=True)

    @property
    def skipped(self) -> int:
        """As the other source counts them."""
        return self._source.skipped

    def __iter__(self) -> Iterator[Frame]:
        due_s = time.monotonic()
        for frame in self._source:
            if self._closed.wait(max(due_s - time.monotonic(), 0.0)):
                return
            now_ns = time.monotonic_ns()
            yield replace(frame, timestamp_ns=now_ns)
            # A frame that came late moves those after it: a camera does not catch up.
            due_s = max(due_s, 1e-9 * now_ns) + self._period_s

    def close(self) -> None:
        """End the iteration, also one that waits; may be called twice."""
        self._closed.set()
        self._source.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveParams:
    """`live`: play a test source at its rate, as a camera would, and not as fast as it is read."""

    live: bool = False


def app_schemes() -> Mapping[str, SourceFactory]:
    """Name after `test://` to the factory that opens it."""
    return {
        "drive": _playable("drive", _open_drive),
        "pattern": _playable("pattern", open_pattern),
        "signs": _open_signs,
    }


def _playable(name: str, factory: SourceFactory, /) -> SourceFactory:
    """A factory that also takes `live=1`."""

    def opened(params: dict[str, str], seed: int) -> FrameSource:
        others = {key: value for key, value in params.items() if key != "live"}
        asked = {key: value for key, value in params.items() if key == "live"}
        live = record_from_params(_LiveParams, asked, owner=f"test://{name}").live
        source = factory(others, seed)
        return LiveSource(source) if live else source

    return opened


def _open_drive(params: dict[str, str], seed: int) -> FrameSource:
    """A drive past rendered road signs; its module is imported when it is asked for."""
    from gain_scenes.roadsigns.sources import drive_source

    return drive_source(params, seed)


def _open_signs(params: dict[str, str], seed: int) -> FrameSource:
    """Clean pictures of the same signs."""
    from gain_scenes.roadsigns.sources import stills_source

    return stills_source(params, seed)

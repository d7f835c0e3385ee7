"""A camera that goes away and comes back: a real HTTP server that dies, and scripted ones."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from results import make_info

from gain_core.errors import StreamError
from gain_runtime.frames import Frame
from gain_runtime.sources.reader import FrameReader
from gain_runtime.sources.reconnecting import (
    Connection,
    ConnectionWatch,
    ReconnectingSource,
    SignalLostError,
)


class ShortSource:
    """A few frames, then a lost signal."""

    def __init__(self, count: int, *, skipped: int = 0) -> None:
        self._count = count
        self.skipped = skipped
        self.closed = False
        self.info = make_info(width_px=4, height_px=4, live=True)

    def __iter__(self) -> Iterator[Frame]:
        for index in range(self._count):
            image = np.full((4, 4, 3), index, dtype=np.uint8)
            yield Frame(image=image, index=index, timestamp_ns=index, source_id="cam")
        raise StreamError("cam: signal lost")

    def close(self) -> None:
        self.closed = True


def scripted(*connections: ShortSource | Exception) -> Callable[[], ShortSource]:
    """Opens one after another; raises what is an exception, and at the end for ever."""
    waiting = list(connections)

    def open_next() -> ShortSource:
        item = waiting.pop(0) if waiting else StreamError("cam: cannot be opened")
        if isinstance(item, Exception):
            raise item
        return item

    return open_next


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gain_runtime.sources.reconnecting.FIRST_PAUSE_S", 0.001)


def test_indices_go_on_and_every_connection_is_closed(caplog):
    connections = [ShortSource(3, skipped=2), ShortSource(2, skipped=1), ShortSource(1)]
    fault = StreamError("cam: not yet")
    source = ReconnectingSource(
        scripted(connections[0], fault, fault, *connections[1:]), patience_s=2.0
    )
    frames: list[Frame] = []
    lost = pytest.raises(SignalLostError, match=r"after 6 frames and not back within 2 s")
    with caplog.at_level(logging.WARNING), source, lost:
        frames.extend(source)
    assert [frame.index for frame in frames] == list(range(6))
    assert source.reconnects == 2
    assert source.skipped == 3
    assert all(connection.closed for connection in connections)
    assert sum("the signal is back" in record.message for record in caplog.records) == 2


def test_a_first_failure_is_raised_at_once():
    with pytest.raises(StreamError, match="cannot be opened"):
        ReconnectingSource(scripted(), patience_s=60.0)


def test_the_pauses_double_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.reconnecting.LONGEST_PAUSE_S", 0.004)
    told: list[Connection] = []
    source = ReconnectingSource(
        scripted(ShortSource(1)), patience_s=0.2, watch=ConnectionWatch(changed=told.append)
    )
    pauses: list[float] = []
    pause = source._pause
    monkeypatch.setattr(source, "_pause", lambda s, why: (pauses.append(s), pause(s, why)))
    with pytest.raises(SignalLostError):
        list(source)
    assert pauses[:4] == [0.001, 0.002, 0.004, 0.004]
    waiting = [item for item in told if item.next_try_s is not None]
    assert [item.attempt for item in waiting[:3]] == [0, 1, 2]
    assert {item.state for item in waiting} == {"reconnecting"}
    assert waiting[0].reason == "signal lost"
    assert waiting[-1].reason == "cannot be opened"


def test_a_source_that_is_away_at_the_start_is_waited_for():
    told: list[Connection] = []
    away = StreamError("cam: connection refused")
    source = ReconnectingSource(
        scripted(away, away, ShortSource(2)),
        patience_s=math.inf,
        watch=ConnectionWatch(changed=told.append, waits_at_start=True),
    )
    stream = iter(source)
    assert [next(stream).index, next(stream).index] == [0, 1]
    states = [(item.state, item.attempt, item.reason) for item in told]
    assert states[0] == ("connecting", 1, None)
    assert ("connecting", 1, "cam: connection refused") in states
    assert states[-1] == ("connected", 0, None)
    source.close()


@pytest.mark.parametrize("at_start", [True, False], ids=["at the start", "later"])
def test_a_try_that_hangs_does_not_delay_the_end(at_start):
    hangs, stopping = threading.Event(), threading.Event()
    late = ShortSource(1)
    waiting = [] if at_start else [ShortSource(1)]

    def open_next() -> ShortSource:
        if waiting:
            return waiting.pop()
        hangs.wait(240.0)
        return late

    watch = ConnectionWatch(stopping=stopping.is_set, waits_at_start=True)
    threading.Timer(0.3, stopping.set).start()
    started = time.monotonic()
    if at_start:
        with pytest.raises(SignalLostError, match="stopped before it could be opened"):
            ReconnectingSource(open_next, patience_s=math.inf, watch=watch)
    else:
        with ReconnectingSource(open_next, patience_s=math.inf, watch=watch) as source:
            assert len(list(source)) == 1
    assert time.monotonic() - started < 60.0
    # What comes after all is closed again.
    hangs.set()
    deadline = time.monotonic() + 120.0
    while not late.closed:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_connection_that_cannot_be_released_is_an_error_once():
    class StuckSource(ShortSource):
        def close(self) -> None:
            raise StreamError("cam: cannot be released")

    source = ReconnectingSource(scripted(StuckSource(1), ShortSource(1)), patience_s=60.0)
    with pytest.raises(StreamError, match="cannot be released"):
        list(source)
    source.close()


def test_close_ends_the_waiting():
    source = ReconnectingSource(scripted(ShortSource(1)), patience_s=600.0)
    with FrameReader(source) as reader:
        assert isinstance(reader.get(timeout_s=120.0), Frame)
        started = time.monotonic()
        source.close()
    assert time.monotonic() - started < 20.0

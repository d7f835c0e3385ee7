"""Batches submitted ahead of their results: same results, same order, nothing lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gain_apps.batches_ahead import BatchesAhead
from gain_apps.outputs import Outputs
from gain_apps.stop_request import StopRequest
from gain_apps.stream_loop import StreamLoop
from gain_apps.summary import RunRecord
from gain_core import GainConfig
from gain_core.errors import ArrayError, StreamError
from gain_runtime.adapter import Adapter
from gain_runtime.frame import Frame, SourceInfo
from gain_runtime.lane import HostLane
from gain_runtime.onnx_session import OnnxSession
from gain_runtime.reader import FrameReader

NUM_FRAMES = 7


def frame(index, image=None):
    rng = np.random.default_rng(index)
    made = rng.integers(0, 256, size=(20, 20, 3), dtype=np.uint8)
    return Frame(image=made if image is None else image, index=index, timestamp_ns=0, source_id="s")


class Frames:
    """A source of given frames that may fail behind the last."""

    info = SourceInfo(
        source_id="s", width_px=20, height_px=20, rate_hz=None, num_frames=None, live=False
    )
    skipped = 0

    def __init__(self, frames, error=None):
        self._frames, self._error = frames, error

    def __iter__(self):
        yield from self._frames
        if self._error is not None:
            raise self._error

    def close(self):
        pass


class Rows:
    """A sink that keeps what it gets."""

    def __init__(self):
        self.rows = []

    def write(self, result):
        self.rows.append((result.frame.index, result.adapted_top[0].prob))

    def close(self):
        pass


@pytest.fixture
def session(artifact_path: Path):
    with OnnxSession(artifact_path) as opened:
        yield opened


def run(session, frames, *, batch=2, error=None):
    """What a loop writes, and its record."""
    rows, outputs, record = Rows(), Outputs(), RunRecord()
    outputs.add("rows", rows)
    adapter = Adapter(session, GainConfig())
    loop = StreamLoop(adapter, outputs, record, stop=StopRequest(), batch=batch)
    with FrameReader(Frames(frames, error)) as reader:
        loop.run(reader)
    return rows.rows, record


@pytest.fixture
def one_ahead(monkeypatch):
    """Host lanes that want a batch ahead, as a device's do."""
    monkeypatch.setattr(HostLane, "ahead", 1)


def test_the_host_is_never_ahead(session):
    ahead = BatchesAhead(Adapter(session, GainConfig()))
    ahead.submit([frame(0)], learn=True)
    assert [len(outcome.frames) for outcome in ahead.outcomes(everything=False)] == [1]


def test_one_batch_stays_under_way_until_everything_is_asked_for(session, one_ahead):
    ahead = BatchesAhead(Adapter(session, GainConfig()))
    for index in range(3):
        ahead.submit([frame(index)], learn=True)
    indices = [outcome.frames[0].index for outcome in ahead.outcomes(everything=False)]
    rest = [outcome.frames[0].index for outcome in ahead.outcomes(everything=True)]
    assert (indices, rest) == ([0, 1], [2])


def test_refused_frames_keep_their_turn(session, one_ahead):
    ahead = BatchesAhead(Adapter(session, GainConfig()))
    ahead.submit([frame(0)], learn=True)
    ahead.submit([frame(1, np.zeros((0, 5, 3), np.uint8))], learn=True)
    ahead.submit([frame(2)], learn=True)
    kinds = [isinstance(outcome.result, ArrayError) for outcome in ahead.outcomes(everything=True)]
    assert kinds == [False, True, False]


def test_same_rows_in_the_same_order(session, monkeypatch):
    frames = [frame(index) for index in range(NUM_FRAMES)]
    expected, _ = run(session, frames)
    monkeypatch.setattr(HostLane, "ahead", 1)
    result, record = run(session, frames)
    assert result == expected
    assert [index for index, _ in result] == list(range(NUM_FRAMES))
    assert record.frames == NUM_FRAMES


def test_a_broken_frame_costs_no_other(session, one_ahead):
    frames = [frame(index) for index in range(NUM_FRAMES)]
    frames[2] = frame(2, np.zeros((0, 5, 3), np.uint8))
    rows, record = run(session, frames)
    assert sorted(index for index, _ in rows) == [0, 1, 3, 4, 5, 6]
    assert record.rejected == 1


def test_what_was_under_way_is_written_when_the_source_fails(session, one_ahead):
    rows = Rows()
    outputs, record = Outputs(), RunRecord()
    outputs.add("rows", rows)
    loop = StreamLoop(Adapter(session, GainConfig()), outputs, record, stop=StopRequest(), batch=1)
    source = Frames([frame(index) for index in range(3)], StreamError("signal lost"))
    with FrameReader(source) as reader, pytest.raises(StreamError, match="signal lost"):
        loop.run(reader)
    assert [index for index, _ in rows.rows] == [0, 1, 2]

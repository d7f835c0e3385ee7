"""The small parts: scores, several outputs as one, times, the loop's own decisions."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

import numpy as np
import pytest
from recording_sink import RecordingSink

from gain_apps.streaming.input import TruthSource
from gain_apps.streaming.loop import rank
from gain_apps.streaming.outputs import Outputs
from gain_apps.streaming.summary import (
    RunRecord,
    Score,
    ScoreBoard,
    stage_percentiles,
)
from gain_core.errors import StreamError
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.reconnecting import ReconnectingSource
from gain_scenes.sources import CorruptingSource, LiveSource, parse_schedule


def test_scores_without_frames_or_with_impossible_labels_are_null():
    assert set(Score().to_dict().values()) == {None}
    score = Score()
    score.add(np.array([[0.0, -np.inf]]), np.array([1]))
    assert score.to_dict()["nll_nats"] is None
    assert score.to_dict()["accuracy_percent"] == 0.0


def test_conditions_are_scored_apart_and_together():
    board = ScoreBoard()
    right, wrong = np.log([0.9, 0.1]), np.log([0.2, 0.8])
    board.add(wrong, right, truth=0, condition="fog")
    board.add(wrong, wrong, truth=0, condition="rain")
    board.add(right, right, truth=0, condition=None)
    record = board.to_dict()
    assert record["frames"] == 3
    assert record["source"]["accuracy_percent"] == pytest.approx(100 / 3)
    assert record["adapted"]["accuracy_percent"] == pytest.approx(200 / 3)
    assert record["conditions"]["fog"]["adapted"]["accuracy_percent"] == 100.0
    assert record["conditions"]["rain"]["adapted"]["accuracy_percent"] == 0.0


def test_one_failing_output_does_not_keep_the_others_from_their_frame(caplog, result):
    outputs = Outputs()
    sinks = [RecordingSink(fails_from=at) for at in (9, 1, 1, 9)]
    for number, sink in enumerate(sinks):
        outputs.add(f"sink {number}", sink)
    outputs.write(result(0))
    with pytest.raises(StreamError, match=r"^sink 1: no room$"):
        outputs.write(result(1))
    assert [sink.indices for sink in sinks] == [[0, 1], [0], [0], [0, 1]]
    assert "sink 2: no room" in caplog.text


@pytest.mark.parametrize(
    ("errors", "raised", "words"),
    [
        ([OSError(28, "No space left"), None], StreamError, "sink 0: .*No space left"),
        ([None, RuntimeError("a bug"), OSError(28, "full")], RuntimeError, "a bug"),
    ],
)
def test_every_output_is_closed_even_if_one_cannot_be(errors, raised, words):
    outputs = Outputs()
    sinks = [RecordingSink(on_close=error) for error in errors]
    for number, sink in enumerate(sinks):
        outputs.add(f"sink {number}", sink)
    with pytest.raises(raised, match=words):
        outputs.close()
    assert [sink.closed for sink in sinks] == [1] * len(sinks)


def test_percentiles_are_per_stage():
    times = {"wait": deque(range(101)), "output": deque()}
    assert stage_percentiles(times) == {"wait": {"p50": 50.0, "p90": 90.0}}


def test_the_recent_rate_forgets_the_past(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("gain_apps.streaming.summary.time.monotonic", lambda: now[0])
    record = RunRecord()
    assert record.tick(4) == 0.0
    for _ in range(40):
        now[0] += 0.1
        slow = record.tick(4)
    assert slow == pytest.approx(40.0)
    for _ in range(300):
        now[0] += 0.01
        fast = record.tick(4)
    assert fast == pytest.approx(400.0)


def test_ties_go_to_the_lowest_index():
    probs = np.array([0.1, 0.3, 0.3, 0.3], dtype=np.float32)
    top = rank(probs, ("a", "b", "c", "d"), top_k=3)
    assert [(item.index, item.label) for item in top] == [(1, "b"), (2, "c"), (3, "d")]


def test_a_wrapped_source_tells_how_often_the_signal_came_back(monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.reconnecting.FIRST_PAUSE_S", 0.02)
    uri = "test://pattern?width=64&height=48&frames=3"
    camera = ReconnectingSource(lambda: open_source(uri), patience_s=math.inf)
    noisy = CorruptingSource(TruthSource(camera), parse_schedule("gaussian_noise:1"))
    with LiveSource(noisy) as source:
        indices = [frame.index for frame in islice(source, 7)]
        assert (indices, source.reconnects) == ([*range(7)], 2)


def test_the_keys_of_the_window_are_commands(run, artifact_path, clip_path, tmp_path, monkeypatch):
    keys = iter(["reset", "freeze", "freeze", "save", "quit"])

    class Window(RecordingSink):
        def __init__(self, title, *, render, on_action) -> None:
            super().__init__()
            self.press = on_action

        def write(self, result) -> None:
            self.press(next(keys))

        def poll(self) -> None:
            """Nothing happens between frames."""

    monkeypatch.setattr("gain_apps.streaming.outputs.DisplaySink", Window)
    use = [clip_path, "--model", artifact_path, "--display", "--state-out", tmp_path / "s"]
    summary = run(*use)
    assert (summary["frames"], summary["stopped_by"]) == (5, "quit")
    said = [line for line in summary["stderr"].splitlines() if line.startswith("NOTE: ")][2:]
    words = ("reset: back to", "learning paused", "learning again", "saved to s", "ending")
    for line, word in zip(said, words, strict=True):
        assert line.startswith(f"NOTE: {word}")

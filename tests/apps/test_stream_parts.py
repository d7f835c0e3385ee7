"""The small parts: scores, several outputs as one, times, the loop's own decisions."""

from __future__ import annotations

import io
import logging
import math
from collections import deque
from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from gain_apps.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.control import StopRequest
from gain_apps.streaming.input import TruthSource, _dressed
from gain_apps.streaming.loop import StreamLoop, rank
from gain_apps.streaming.outputs import Outputs
from gain_apps.streaming.run import _actions
from gain_apps.streaming.summary import (
    RunRecord,
    Score,
    ScoreBoard,
    print_summary,
    stage_percentiles,
)
from gain_core.errors import ConfigError, StreamError
from gain_runtime.frames import Frame, FrameResult, Ranked, SourceInfo
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.reader import FrameReader
from gain_runtime.sources.reconnecting import ReconnectingSource
from gain_scenes.sources import CorruptingSource, LiveSource, parse_schedule


def make_result(index: int = 0, *, timestamp_ns: int = 0) -> FrameResult:
    frame = Frame(
        image=np.zeros((4, 4, 3), dtype=np.uint8),
        index=index,
        timestamp_ns=timestamp_ns,
        source_id="test",
    )
    top = (Ranked(index=0, label="a", prob=1.0),)
    return FrameResult(frame=frame, source_top=top, adapted_top=top, strength=0.0, gain=0.0)


class RecordingSink:
    """Keeps what it is given; fails when told to."""

    def __init__(self, *, fails_at: int | None = None, fails_to_close: bool = False) -> None:
        self.indices: list[int] = []
        self.closed = 0
        self._fails_at = fails_at
        self._fails_to_close = fails_to_close

    def write(self, result: FrameResult, /) -> None:
        if result.frame.index == self._fails_at:
            raise StreamError("no room")
        self.indices.append(result.frame.index)

    def close(self) -> None:
        self.closed += 1
        if self._fails_to_close:
            raise OSError(28, "No space left on device")


def test_running_scores_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(500, 7))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    labels = rng.integers(0, 7, size=500)
    score = Score()
    for start in range(0, 500, 37):
        score.add(log_probs[start : start + 37], labels[start : start + 37])
    probs = np.exp(log_probs)
    assert score.to_dict() == pytest.approx(
        {
            "accuracy_percent": 100 * accuracy(probs, labels),
            "ece_percent": 100 * expected_calibration_error(probs, labels),
            "nll_nats": negative_log_likelihood(log_probs, labels),
        },
        rel=1e-12,
    )


def test_scores_without_frames_or_with_impossible_labels_are_null() -> None:
    assert set(Score().to_dict().values()) == {None}
    score = Score()
    score.add(np.array([[0.0, -np.inf]]), np.array([1]))
    assert score.to_dict()["nll_nats"] is None
    assert score.to_dict()["accuracy_percent"] == 0.0


def test_conditions_are_scored_apart_and_together() -> None:
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


def test_one_failing_output_does_not_keep_the_others_from_their_frame(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outputs = Outputs()
    sinks = [RecordingSink(), RecordingSink(fails_at=1), RecordingSink(fails_at=1), RecordingSink()]
    for number, sink in enumerate(sinks):
        outputs.add(f"sink {number}", sink)
    outputs.write(make_result(0))
    with pytest.raises(StreamError, match=r"^sink 1: no room$"):
        outputs.write(make_result(1))
    assert [sink.indices for sink in sinks] == [[0, 1], [0], [0], [0, 1]]
    assert "sink 2: no room" in caplog.text


def test_every_output_is_closed_even_if_one_cannot_be() -> None:
    outputs = Outputs()
    sinks = [RecordingSink(fails_to_close=True), RecordingSink()]
    outputs.add("video", sinks[0])
    outputs.add("rows", sinks[1])
    with pytest.raises(StreamError, match=r"video: .*No space left"):
        outputs.close()
    assert [sink.closed for sink in sinks] == [1, 1]


def test_an_error_that_is_none_of_ours_leaves_no_output_open() -> None:
    class BrokenSink(RecordingSink):
        def close(self) -> None:
            super().close()
            raise RuntimeError("a bug")

    outputs = Outputs()
    sinks = [RecordingSink(), BrokenSink(), RecordingSink(fails_to_close=True)]
    for number, sink in enumerate(sinks):
        outputs.add(f"sink {number}", sink)
    with pytest.raises(RuntimeError, match="a bug"):
        outputs.close()
    assert [sink.closed for sink in sinks] == [1, 1, 1]


def test_percentiles_are_per_stage() -> None:
    times = {"wait": deque(range(101)), "output": deque()}
    assert stage_percentiles(times) == {"wait": {"p50": 50.0, "p90": 90.0}}


def test_the_recent_rate_forgets_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ties_go_to_the_lowest_index() -> None:
    probs = np.array([0.1, 0.3, 0.3, 0.3], dtype=np.float32)
    top = rank(probs, ("a", "b", "c", "d"), top_k=3)
    assert [(item.index, item.label) for item in top] == [(1, "b"), (2, "c"), (3, "d")]


def test_a_wrapped_source_tells_how_often_the_signal_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gain_runtime.sources.reconnecting.FIRST_PAUSE_S", 0.02)
    uri = "test://pattern?width=64&height=48&frames=3"
    camera = ReconnectingSource(lambda: open_source(uri), patience_s=math.inf)
    noisy = CorruptingSource(TruthSource(camera), parse_schedule("gaussian_noise:1"))
    with LiveSource(noisy) as source:
        indices = [frame.index for frame in islice(source, 7)]
        assert (indices, source.reconnects) == ([*range(7)], 2)


def test_a_live_source_refuses_batches() -> None:
    info = SourceInfo(
        source_id="camera 0",
        width_px=8,
        height_px=8,
        rate_hz=30.0,
        num_frames=None,
        live=True,
    )
    config = StreamConfig(input="0", model="m", batch_size=4)
    with pytest.raises(ConfigError, match="--update-every 4"):
        _dressed(SimpleNamespace(info=info), None, None, config=config, num_classes=5)


def test_the_windows_keys(caplog: pytest.LogCaptureFixture, tmp_path: object) -> None:
    calls: list[str] = []
    adapter = SimpleNamespace(
        frozen=False,
        frames=7,
        reset=lambda: calls.append("reset"),
        freeze=lambda: calls.append("freeze"),
        unfreeze=lambda: calls.append("unfreeze"),
        save_state=lambda path: calls.append(f"save {path}"),
    )
    stop = StopRequest()
    act = _actions(adapter, StreamConfig(input="0", model="m", state_out="s"), stop)
    act("reset")
    act("freeze")
    adapter.frozen = True
    act("freeze")
    act("save")
    assert calls == ["reset", "freeze", "unfreeze", "save s"]
    with caplog.at_level(logging.INFO):
        _actions(adapter, StreamConfig(input="0", model="m"), stop)("save")
    assert "--state-out" in caplog.text
    assert not stop
    act("quit")
    assert stop
    assert (stop.reason, stop.exit_status) == ("quit", 0)


class EndingSource:
    """Three frames, then the cable is pulled."""

    info = SourceInfo(
        source_id="camera", width_px=4, height_px=4, rate_hz=None, num_frames=None, live=False
    )
    skipped = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for index in range(3):
            yield make_result(index).frame
        raise StreamError("signal lost")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("ahead", [0, 1], ids=["host", "device"])
def test_frames_before_a_lost_signal_are_all_classified(ahead: int) -> None:
    sizes: list[int] = []
    probs = np.full((2, 2), 0.5, dtype=np.float32)

    def submit(images: list, regions: list, learn: bool) -> Callable[[], SimpleNamespace]:
        sizes.append(len(images))
        batch = SimpleNamespace(
            source_probs=probs,
            probs=probs,
            source_log_probs=np.log(probs),
            log_probs=np.log(probs),
            strength=np.zeros(2),
            gain=np.zeros(2),
            stage_ns={"preprocess": 1, "forward": 2, "adapt": 3},
        )
        return lambda: batch

    artifact = SimpleNamespace(manifest=SimpleNamespace(labels=("a", "b")))
    adapter = SimpleNamespace(artifact=artifact, submit=submit, ahead=ahead)
    outputs, record, sink = Outputs(), RunRecord(), RecordingSink()
    outputs.add("rows", sink)
    loop = StreamLoop(adapter, outputs, record, stop=StopRequest(), batch=2)
    with (
        FrameReader(EndingSource()) as reader,
        pytest.raises(StreamError, match="signal lost"),
    ):
        loop.run(reader)
    assert sizes == [2, 1]
    assert sink.indices == [0, 1, 2]
    assert record.frames == 3


def test_the_summary_puts_frozen_beside_adapted() -> None:
    score = {"accuracy_percent": 40.0, "ece_percent": 9.0, "nll_nats": 1.5}
    better = {"accuracy_percent": 60.0, "ece_percent": 5.0, "nll_nats": None}
    summary = {
        **RunRecord().to_dict(),
        "source": "photos",
        "skipped": 1,
        "dropped": 2,
        "frames_learned": 0,
        "artifact": {"path": "m.onnx", "sha256": "ab" * 32},
        "provider": "CPUExecutionProvider",
        "config": StreamConfig(input="photos", model="m.onnx", preset="paper").to_dict(),
        "outputs": {"jsonl": "rows.jsonl"},
        "stopped_by": None,
        "truth": {"frames": 5, "source": score, "adapted": better, "conditions": {}},
    }
    buffer = io.StringIO()
    print_summary(summary, Console(file=buffer, width=120))
    text = buffer.getvalue()
    line = next(line for line in text.splitlines() if "all" in line)
    cells = [cell.strip() for cell in line.split("│") if cell.strip()]
    assert cells == ["all", "5", "40.0", "60.0", "9.0", "5.0", "1.500", "inf"]
    assert "1 unreadable, 2 dropped, 0 rejected" in text
    assert "method paper, batch_size 1, seed 0, device cpu" in text

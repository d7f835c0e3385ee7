"""What the loop does with broken frames, silence and failing outputs; the watchdog."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from eager_adapter import eager
from recording_sink import RecordingSink
from results import make_info

from gain_apps.stream import main
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.control import HUNG_STATUS, StopRequest, Watchdog
from gain_apps.streaming.loop import Backpressure, RunningStream, StreamHost, StreamLoop
from gain_apps.streaming.outputs import Outputs
from gain_core import preset
from gain_core.errors import StreamError
from gain_export.adaptive import add_adaptation
from gain_runtime.adapter import Adapter
from gain_runtime.engine import AdaptiveEngine
from gain_runtime.files.adaptive import load_adaptive
from gain_runtime.frames import Frame, SourceInfo
from gain_runtime.sessions.session import open_adaptive_session, open_session
from gain_runtime.sources.reader import FrameReader
from gain_runtime.sources.reconnecting import SignalLostError


class ListSource:
    """These pictures, then what `at_end` does."""

    skipped = 0

    def __init__(self, images: list[np.ndarray], *, at_end: Callable[[], object] = int) -> None:
        self._images = images
        self._at_end = at_end

    @property
    def info(self) -> SourceInfo:
        return make_info()

    def __iter__(self) -> Iterator[Frame]:
        for index, image in enumerate(self._images):
            yield Frame(image=image, index=index, timestamp_ns=index, source_id="cam")
        self._at_end()


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(30, 250, size=(20, 30, 3), dtype=np.uint8)


def running(adapter, source, reader, *, sink=None, backpressure=None, **settings) -> RunningStream:
    """A stream of this reader, with one sink."""
    outputs = Outputs()
    outputs.add("rows", sink or RecordingSink())
    return RunningStream(
        config=StreamConfig(input="0", model="m.onnx", **settings),
        stop=StopRequest(),
        host=StreamHost(),
        source=source,
        reader=reader,
        adapter=adapter,
        outputs=outputs,
        keeper=None,
        backpressure=backpressure,
        watchdog=Watchdog(None),
    )


@pytest.mark.parametrize("batch", [1, 4])
def test_broken_frames_are_predicted_and_teach_nothing(artifact_path, batch):
    black = np.zeros((20, 30, 3), dtype=np.uint8)
    images = [noise(0), black, noise(1), noise(1), noise(2), black]
    source, sink = ListSource(images), RecordingSink()
    with open_session(artifact_path) as session, FrameReader(source) as reader:
        adapter = eager(session, preset("paper"))
        run = running(*(adapter, source, reader), sink=sink, batch_size=batch, check_frames=True)
        StreamLoop(run).run()
        assert adapter.frames == 3
        expected = eager(session, preset("paper"))
        for seed in (0, 1, 2):
            expected.step([noise(seed)])
        if batch == 1:
            probe = [noise(9)]
            np.testing.assert_array_equal(adapter.step(probe).probs, expected.step(probe).probs)
    assert sink.indices == list(range(6))
    assert run.record.to_dict()["not_learned"] == {"black": 2, "frozen": 1}


@contextmanager
def every_second_frame(artifact_path: Path, folder: Path | None) -> Iterator[Adapter]:
    """An adapter that learns every 2 frames; in an adaptive file made in `folder`, if given."""
    config = preset("shift")
    if folder is None:
        with open_session(artifact_path, num_threads=1) as session:
            yield eager(session, config, update_every=2)
        return
    path = folder / "tiny.adaptive.onnx"
    add_adaptation(artifact_path, path, config=config, update_every=2)
    with open_adaptive_session(load_adaptive(path), num_threads=1) as graph:
        yield Adapter(AdaptiveEngine(graph))


class Camera:
    """A live source that gives so many frames for each that is taken from it, on any machine.

    Its clock is the number of frames it gave, of which 300 are a second.
    """

    skipped = 0

    def __init__(self, frames: int) -> None:
        self.frames, self.allowed, self.given = frames, 1, 0
        self.per_taken = 3
        self._changed = threading.Condition()

    @property
    def info(self) -> SourceInfo:
        return make_info(rate_hz=300.0, live=True)

    def __iter__(self) -> Iterator[Frame]:
        for index in range(self.frames):
            with self._changed:
                self._changed.wait_for(lambda: self.given < self.allowed)
            yield Frame(image=noise(index), index=index, timestamp_ns=index, source_id="cam")
            # The reader asks for the next one only when this one has its place.
            with self._changed:
                self.given += 1
                self._changed.notify_all()

    def take(self) -> None:
        """A frame was taken: give as many as come meanwhile, before anything else goes on."""
        with self._changed:
            self.allowed = min(self.allowed + self.per_taken, self.frames)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.given == self.allowed, timeout=120.0)


@pytest.mark.parametrize("kind", ["model", "adaptive"])
def test_a_device_that_cannot_keep_up_updates_less_then_skips_and_recovers(
    artifact_path, tmp_path, monkeypatch, caplog, kind
):
    monkeypatch.setattr("gain_apps.streaming.loop.EVERY_S", 0.1)
    monkeypatch.setattr("gain_apps.streaming.loop.SETTLING_S", 0.05)
    camera = Camera(450)
    steps: list[tuple[int, int]] = []
    with (
        every_second_frame(artifact_path, tmp_path if kind == "adaptive" else None) as adapter,
        FrameReader(camera) as reader,
    ):

        class Pressure(Backpressure):
            def takes(self) -> bool:
                camera.take()
                return super().takes()

        pressure = Pressure(adapter, lambda: reader.dropped, clock=lambda: camera.given / 300.0)

        def note() -> None:
            step = (adapter.update_every, pressure.stride)
            steps.extend([step] if steps[-1:] != [step] else [])
            if pressure.stride >= 4:
                # The load is gone.
                camera.per_taken = 1

        run = running(adapter, camera, reader, backpressure=pressure, check_frames=False)
        with caplog.at_level(logging.WARNING):
            StreamLoop(run, on_batch=note).run()
    record = run.record
    assert steps[:6] == [(2, 1), (8, 1), (32, 1), (64, 1), (64, 2), (64, 4)]
    # Less is done about it as soon as nothing is dropped.
    assert (64, 2) in steps[6:]
    assert record.left_out > 0
    assert record.frames + record.left_out + reader.dropped == camera.frames
    assert record.to_dict()["left_out"] == record.left_out
    assert "an update every 8 frames from here on" in caplog.messages[0]
    assert any("the others are skipped" in message for message in caplog.messages)
    assert any(message.startswith("no frame is dropped") for message in caplog.messages)


def test_a_source_that_hangs_in_a_read_is_a_lost_signal(artifact_path):
    reached, release = threading.Event(), threading.Event()
    source = ListSource([noise(0), noise(1)], at_end=lambda: (reached.set(), release.wait(120.0)))
    with open_session(artifact_path) as session, FrameReader(source) as reader:
        run = running(eager(session, preset("shift")), source, reader, watchdog=0.15)
        # The silence is that after the frames, whenever the reader's thread has its turn.
        assert isinstance(reader.get(timeout_s=120.0), Frame)
        assert reached.wait(120.0)
        with pytest.raises(SignalLostError, match="hangs in a read"):
            StreamLoop(run).run()
        release.set()
    assert run.record.frames == 1


@pytest.mark.parametrize("ahead", [0, 1], ids=["host", "device"])
def test_frames_before_a_lost_signal_are_all_classified(artifact_path, monkeypatch, ahead):
    monkeypatch.setattr(Adapter, "ahead", ahead)

    def lost():
        raise StreamError("signal lost")

    source, sink = ListSource([noise(seed) for seed in range(3)], at_end=lost), RecordingSink()
    with open_session(artifact_path) as session, FrameReader(source) as reader:
        adapter = eager(session, preset("shift"))
        run = running(adapter, source, reader, sink=sink, batch_size=2)
        with pytest.raises(StreamError, match="signal lost"):
            StreamLoop(run).run()
    assert (sink.indices, run.record.frames, adapter.frames) == ([0, 1, 2], 3, 3)


def test_a_failing_output_is_dropped_said_once_and_an_error_at_the_end(caplog, result):
    good, bad = RecordingSink(), RecordingSink(fails_from=2)
    polled: list[int] = []
    outputs = Outputs(drop_failing=True)
    outputs.add("--good", good)
    outputs.add("--bad", bad, poll=lambda: polled.append(1))
    for index in range(6):
        outputs.write(result(index))
        outputs.poll()
    assert good.indices == list(range(6))
    assert (bad.indices, bad.closed, len(polled)) == ([0, 1], 1, 2)
    assert outputs.lost == ["--bad: no room"]
    assert [record.message for record in caplog.records] == [
        "--bad: no room; the stream continues without it"
    ]
    with pytest.raises(StreamError, match="--bad: no room"):
        outputs.close()
    assert good.closed == 1
    outputs.close()


def test_a_beating_watchdog_ends_nothing_and_a_silent_one_ends_the_process(monkeypatch, until):
    now, looks = [0.0], [0]

    def clock() -> float:
        looks[0] += threading.current_thread() is not threading.main_thread()
        return now[0]

    monkeypatch.setattr("gain_apps.streaming.control.time", SimpleNamespace(monotonic=clock))
    expired = threading.Event()
    with Watchdog(0.2, on_expiry=expired.set) as watchdog:
        for _ in range(5):
            watchdog.beat()
            now[0] += 0.15
            before = looks[0]
            until(lambda before=before: looks[0] > before)
        assert not expired.is_set()
        now[0] += 0.15
        assert expired.wait(120.0)
    code = (
        "import time\nfrom gain_apps.streaming.control import Watchdog\n"
        "with Watchdog(0.2) as watchdog:\n    watchdog.beat()\n    time.sleep(120)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == HUNG_STATUS
    assert "Current thread" in done.stderr
    assert "time.sleep" in done.stderr or "line 5" in done.stderr


def test_a_live_run_loses_its_camera_for_good(answering, mjpeg, artifact_path, tmp_path, capsys):
    picture = cv2.resize(noise(0), (64, 48), interpolation=cv2.INTER_CUBIC)
    # It has nothing for whoever asks again.
    jpegs = iter([cv2.imencode(".jpg", picture)[1].tobytes()] * 12)
    rows = tmp_path / "rows.jsonl"
    more = [f"--model={artifact_path}", f"--jsonl={rows}", "--set=reconnect=0.2", "--json=-"]
    with answering(mjpeg(lambda: jpegs)) as host:
        status = main([f"http://joe:secret@{host}/", *more])
    captured = capsys.readouterr()
    assert status == 3, captured.err
    summary = json.loads(captured.out)
    assert summary["frames"] == len(rows.read_text().splitlines()) > 0
    # One picture over and over is a frozen camera.
    assert summary["not_learned"]["frozen"] == summary["frames"] - 1
    assert "secret" not in captured.err + captured.out + rows.read_text()

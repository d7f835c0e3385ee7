"""What the loop does with broken frames, silence and failing outputs; the watchdog; the sinks."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from gain_apps.stream import main
from gain_apps.streaming.backpressure import Backpressure
from gain_apps.streaming.loop import StreamLoop
from gain_apps.streaming.outputs import Outputs
from gain_apps.streaming.stopping import HUNG_STATUS, StopRequest, Watchdog
from gain_apps.streaming.summary import RunRecord
from gain_core import Config, preset
from gain_core.errors import ConfigError, StreamError
from gain_export.adaptive import add_adaptation
from gain_runtime.adapter import Adapter
from gain_runtime.engine import AdaptiveEngine, NetworkEngine
from gain_runtime.files.adaptive import load_adaptive
from gain_runtime.frames import Frame, FrameHealth, FrameResult, Ranked, SourceInfo
from gain_runtime.sessions.session import Session, open_adaptive_session, open_session
from gain_runtime.sinks.background import BackgroundSink
from gain_runtime.sinks.pictures import ChangedSink
from gain_runtime.sinks.webhook import WebhookSink
from gain_runtime.sources.pattern import PatternParams, PatternSource
from gain_runtime.sources.reader import FrameReader
from gain_runtime.sources.reconnecting import SignalLostError
from gain_scenes.sources import LiveSource


def eager(session: Session, config: Config, *, update_every: int = 1, **more: Any) -> Adapter:
    """An adapter whose first update does not wait."""
    engine = NetworkEngine(session, config, update_every=update_every, warmup_frames=1)
    return Adapter(engine, **more)


def wait_until(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def make_result(index: int = 0, *, source: int = 0, adapted: int = 0) -> FrameResult:
    image = np.full((20, 30, 3), 40 + index % 200, dtype=np.uint8)
    frame = Frame(image=image, index=index, timestamp_ns=index, source_id="cam")
    return FrameResult(
        frame=frame,
        source_top=(Ranked(index=source, label=f"class {source}", prob=0.5),),
        adapted_top=(Ranked(index=adapted, label=f"class {adapted}", prob=0.75),),
        strength=0.5,
        gain=0.1,
    )


class ListSource:
    """These pictures, then what `at_end` does."""

    skipped = 0

    def __init__(self, images: list[np.ndarray], *, at_end: Callable[[], object] = int) -> None:
        self._images = images
        self._at_end = at_end

    @property
    def info(self) -> SourceInfo:
        return SourceInfo(
            source_id="cam", width_px=30, height_px=20, rate_hz=None, num_frames=None, live=False
        )

    def __iter__(self) -> Iterator[Frame]:
        for index, image in enumerate(self._images):
            yield Frame(image=image, index=index, timestamp_ns=index, source_id="cam")
        self._at_end()


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(30, 250, size=(20, 30, 3), dtype=np.uint8)


class Sink:
    """Keeps what it is given; fails from a frame on."""

    def __init__(self, *, fails_from: int = 10**9) -> None:
        self.indices: list[int] = []
        self.closed = 0
        self._fails_from = fails_from

    def write(self, result: FrameResult, /) -> None:
        if result.frame.index >= self._fails_from:
            raise StreamError("no room")
        self.indices.append(result.frame.index)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("batch", [1, 4])
def test_broken_frames_are_predicted_and_teach_nothing(artifact_path: Path, batch: int) -> None:
    black = np.zeros((20, 30, 3), dtype=np.uint8)
    images = [noise(0), black, noise(1), noise(1), noise(2), black]
    sink, outputs, record = Sink(), Outputs(), RunRecord()
    outputs.add("sink", sink)
    with open_session(artifact_path) as session:
        adapter = eager(session, preset("paper"))
        loop = StreamLoop(
            *(adapter, outputs, record), stop=StopRequest(), batch=batch, health=FrameHealth()
        )
        with FrameReader(ListSource(images)) as reader:
            loop.run(reader)
        assert adapter.frames == 3
        expected = eager(session, preset("paper"))
        for seed in (0, 1, 2):
            expected.step([noise(seed)])
        if batch == 1:
            probe = [noise(9)]
            np.testing.assert_array_equal(adapter.step(probe).probs, expected.step(probe).probs)
    assert sink.indices == list(range(6))
    assert record.to_dict()["not_learned"] == {"black": 2, "frozen": 1}


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


@pytest.mark.parametrize("kind", ["model", "adaptive"])
def test_a_device_that_cannot_keep_up_updates_less_then_skips_and_recovers(
    artifact_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    monkeypatch.setattr("gain_apps.streaming.backpressure.EVERY_S", 0.1)
    monkeypatch.setattr("gain_apps.streaming.backpressure.SETTLING_S", 0.05)
    source = LiveSource(PatternSource(PatternParams(width=24, height=16, frames=900, rate=300.0)))
    record, slow = RunRecord(), threading.Event()
    slow.set()
    steps: list[tuple[int, int]] = []

    class Busy(Sink):
        def write(self, result: FrameResult, /) -> None:
            super().write(result)
            # Room for some 100 frames a second of 300; then the load is gone.
            time.sleep(0.01 if slow.is_set() else 0.0)

    sink, outputs = Busy(), Outputs()
    outputs.add("sink", sink)
    with (
        every_second_frame(artifact_path, tmp_path if kind == "adaptive" else None) as adapter,
        FrameReader(source) as reader,
    ):
        pressure = Backpressure(adapter, lambda: reader.dropped)

        def note() -> None:
            step = (adapter.update_every, pressure.stride)
            steps.extend([step] if steps[-1:] != [step] else [])
            if pressure.stride >= 4:
                slow.clear()

        loop = StreamLoop(
            *(adapter, outputs, record),
            stop=StopRequest(),
            between=note,
            backpressure=pressure,
        )
        with caplog.at_level(logging.WARNING):
            loop.run(reader)
    assert steps[:6] == [(2, 1), (8, 1), (32, 1), (64, 1), (64, 2), (64, 4)]
    # Less is done about it as soon as nothing is dropped.
    assert (64, 2) in steps[6:]
    assert record.left_out > 0
    assert record.frames + record.left_out + reader.dropped == 900
    assert record.to_dict()["left_out"] == record.left_out
    assert "an update every 8 frames from here on" in caplog.messages[0]
    assert any("the others are skipped" in message for message in caplog.messages)
    assert any(message.startswith("no frame is dropped") for message in caplog.messages)


def test_a_source_that_hangs_in_a_read_is_a_lost_signal(artifact_path: Path) -> None:
    release = threading.Event()
    source = ListSource([noise(0)], at_end=lambda: release.wait(10))
    outputs, record = Outputs(), RunRecord()
    with open_session(artifact_path) as session, FrameReader(source) as reader:
        loop = StreamLoop(
            eager(session, preset("shift")),
            *(outputs, record),
            stop=StopRequest(),
            silence_s=0.15,
        )
        with pytest.raises(SignalLostError, match="hangs in a read"):
            loop.run(reader)
        release.set()
    assert record.frames == 1


def test_a_failing_output_is_dropped_said_once_and_an_error_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, bad = Sink(), Sink(fails_from=2)
    polled: list[int] = []
    outputs = Outputs(drop_failing=True)
    outputs.add("--good", good)
    outputs.add("--bad", bad, poll=lambda: polled.append(1))
    for index in range(6):
        outputs.write(make_result(index))
        outputs.poll()
    assert good.indices == list(range(6))
    assert (bad.indices, bad.closed, len(polled)) == ([0, 1], 1, 2)
    assert outputs.lost == ["--bad: no room"]
    assert [record.message for record in caplog.records] == [
        "--bad: no room; the stream goes on without it"
    ]
    with pytest.raises(StreamError, match="--bad: no room"):
        outputs.close()
    assert good.closed == 1
    outputs.close()


def test_a_beating_watchdog_ends_nothing_and_a_silent_one_ends_the_process() -> None:
    expired = threading.Event()
    with Watchdog(0.2, on_expiry=expired.set) as watchdog:
        for _ in range(30):
            watchdog.beat()
            time.sleep(0.01)
        assert not expired.is_set()
        assert expired.wait(2.0)
    code = (
        "import time\nfrom gain_apps.streaming.stopping import Watchdog\n"
        "with Watchdog(0.2) as watchdog:\n    watchdog.beat()\n    time.sleep(30)\n"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == HUNG_STATUS
    assert time.monotonic() - started < 10.0
    assert "Current thread" in done.stderr
    assert "time.sleep" in done.stderr or "line 5" in done.stderr


def test_a_slow_delivery_never_stalls_and_the_queue_is_bounded() -> None:
    gate = threading.Event()
    taken: list[int] = []

    def deliver(result: FrameResult) -> None:
        gate.wait(5.0)
        taken.append(result.frame.index)

    sink = BackgroundSink("slow", deliver, queue_size=4)
    started = time.monotonic()
    for index in range(1000):
        sink.write(make_result(index))
    assert time.monotonic() - started < 1.0
    gate.set()
    wait_until(lambda: taken[-1:] == [999])
    sink.close()
    sink.close()
    assert len(taken) <= 5


def test_a_failing_delivery_is_said_once_and_goes_on_when_it_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gain_runtime.sinks.background.FIRST_PAUSE_S", 0.001)
    works = threading.Event()
    tries: list[int] = []

    def deliver(result: FrameResult) -> None:
        tries.append(result.frame.index)
        if not works.is_set():
            raise OSError("nobody there")

    with caplog.at_level(logging.WARNING), BackgroundSink("there", deliver) as sink:
        for index in range(4):
            sink.write(make_result(index))
        wait_until(lambda: len(tries) == 4)
        works.set()
        sink.write(make_result(4))
        wait_until(lambda: 4 in tries)
    # The first was tried until it got through; nothing was lost, nothing overtook it.
    assert tries[:4] == [0, 0, 0, 0]
    assert [index for index in tries if index] == [1, 2, 3, 4]
    messages = [record.message for record in caplog.records]
    assert sum("nobody there" in message for message in messages) == 1
    assert sum("delivering again" in message for message in messages) == 1
    assert not any("not delivered" in message for message in messages)


def test_what_was_never_delivered_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Event()

    def deliver(result: FrameResult) -> None:
        tried.set()
        raise OSError("nobody there")

    sink = BackgroundSink("there", deliver, queue_size=4)
    sink.write(make_result(0))
    assert tried.wait(5.0)
    for index in range(1, 10):
        sink.write(make_result(index))
    sink.close()
    assert caplog.records[-1].message == "there: 10 results were not delivered"


def test_a_delivery_that_fails_while_the_sink_closes_is_not_said_to_be_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, closing = threading.Event(), threading.Event()
    tries: list[int] = []

    def deliver(result: FrameResult) -> None:
        tries.append(result.frame.index)
        begun.set()
        assert closing.wait(5.0)
        raise OSError("nobody there")

    sink = BackgroundSink("there", deliver)
    sink.write(make_result(0))
    assert begun.wait(5.0)
    # `close` waits for the delivery, so that it has to end while another thread closes.
    closer = threading.Thread(target=sink.close)
    closer.start()
    wait_until(sink._closing.is_set)
    closing.set()
    closer.join(5.0)
    assert tries == [0]
    messages = [record.message for record in caplog.records]
    assert messages == [
        "there: nobody there; delivery is not tried again, the sink is being closed",
        "there: 1 results were not delivered",
    ]


@contextmanager
def hook(status: int = 200) -> Iterator[tuple[str, list[dict], list[dict]]]:
    """A server that keeps what is posted: its address, the records and the headers."""
    records: list[dict] = []
    headers: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            # Before the answer, which lets the next post come, in a thread of its own.
            headers.append(dict(self.headers))
            records.append(json.loads(data))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", records, headers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_webhook_posts_every_change_of_class() -> None:
    with hook() as (host, records, headers):
        sink = WebhookSink(f"http://joe:p%40ss@{host}/events?room=1")
        for index, adapted in enumerate([1, 1, 1, 2, 2, 1]):
            sink.write(make_result(index, adapted=adapted))
        wait_until(lambda: len(records) == 3)
        sink.close()
    assert [record["index"] for record in records] == [0, 3, 5]
    assert records[1]["adapted"] == [{"index": 2, "label": "class 2", "prob": 0.75}]
    assert headers[0]["Authorization"] == "Basic am9lOnBAc3M="


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_refused_post_is_said_without_the_password(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with hook(status) as (host, records, _):
        sink = WebhookSink(f"http://joe:secret@{host}/?token=hush")
        sink.write(make_result())
        wait_until(lambda: len(records) == 1 and bool(caplog.records))
        sink.close()
    assert f"the server answered {status}" in caplog.text
    assert "secret" not in caplog.text
    assert "hush" not in caplog.text


def test_a_host_that_is_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sink = WebhookSink(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        sink.write(make_result())
        wait_until(lambda: bool(caplog.records))
        started = time.monotonic()
        sink.close()
    assert time.monotonic() - started < 1.5
    assert "cannot be reached" in caplog.text


def test_a_host_that_talks_nonsense_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                client.sendall(b"SSH-2.0-nonsense\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        sink = WebhookSink(f"http://127.0.0.1:{server.getsockname()[1]}/")
        sink.write(make_result())
        wait_until(lambda: bool(caplog.records))
        sink.close()
        thread.join()
    assert "no HTTP server answers there" in caplog.text


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "host", "http://h:x/", "http://a b/"])
def test_bad_webhooks_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--set webhook: expected"):
        WebhookSink(url)


def test_changed_predictions_are_kept_and_the_oldest_go(tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    for start in (0, 10):
        sink = ChangedSink(folder, most=4)
        for index in range(start, start + 10):
            sink.write(make_result(index, adapted=index % 2))
        sink.close()
    names = sorted(path.name for path in folder.glob("*.jpg"))
    assert names == [f"changed-{number:010d}.jpg" for number in (7, 8, 9, 10)]
    lines = [line.split("\t") for line in (folder / "changed.tsv").read_text().splitlines()]
    assert [line[0] for line in lines] == names
    assert lines[-1][1:] == ["19", "class 0", "class 1"]
    with Image.open(folder / names[-1]) as picture:
        np.testing.assert_allclose(np.asarray(picture)[5, 5], 59, atol=2)


def test_a_live_run_loses_its_camera_for_good(
    artifact_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = cv2.resize(noise(0), (64, 48), interpolation=cv2.INTER_CUBIC)
    image = cv2.imencode(".jpg", picture)[1].tobytes()
    part = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(image)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            for _ in range(12):
                self.wfile.write(part + image + b"\r\n")

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def serve_once() -> None:
        server.handle_request()
        server.server_close()

    thread = threading.Thread(target=serve_once)
    thread.start()
    uri = f"http://joe:secret@127.0.0.1:{server.server_port}/"
    rows = tmp_path / "rows.jsonl"
    status = main(
        [uri, f"--model={artifact_path}", f"--jsonl={rows}", "--set=reconnect=0.2", "--json=-"]
    )
    thread.join()
    captured = capsys.readouterr()
    assert status == 3, captured.err
    summary = json.loads(captured.out)
    assert summary["frames"] == len(rows.read_text().splitlines()) > 0
    # One picture over and over is a frozen camera.
    assert summary["not_learned"]["frozen"] == summary["frames"] - 1
    assert "secret" not in captured.err + captured.out + rows.read_text()

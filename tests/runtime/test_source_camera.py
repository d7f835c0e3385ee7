"""Cameras without hardware, and live HTTP streams over the loopback."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import pytest
from clips import page, write_clip

from gain_core.errors import ConfigError, StreamError
from gain_runtime.frames import Frame
from gain_runtime.sources.camera import CameraRequest, CameraSource
from gain_runtime.sources.opening import open_source

BLUE_BGR = (255, 0, 0)


class FakeCamera:
    """A device that records what is asked of it; `script` says which grabs work."""

    def __init__(
        self,
        *,
        script: Sequence[bool] = (),
        opens: bool = True,
        size: tuple[int, int] = (64, 48),
        grant: bool = True,
    ) -> None:
        self.script = list(script)
        self.opens = opens
        self.size = size
        self.grant = grant
        self.asked: list[tuple[int, float]] = []
        self.opened_with: tuple[int | str, int] | None = None
        self.grabs = 0
        self.grab_times: list[int] = []
        self.releases = 0

    def __call__(self, target: int | str, backend: int) -> FakeCamera:
        self.opened_with = (target, backend)
        return self

    def isOpened(self) -> bool:  # noqa: N802
        return self.opens

    def grab(self) -> bool:
        assert not self.releases, "grab after release"
        works = self.script[self.grabs] if self.grabs < len(self.script) else True
        self.grabs += 1
        self.grab_times.append(time.monotonic_ns())
        return works

    def retrieve(self) -> tuple[bool, np.ndarray]:
        image = np.full((self.size[1], self.size[0], 3), BLUE_BGR, dtype=np.uint8)
        image[0, 0] = self.grabs
        return True, image

    def get(self, prop: int) -> float:
        return 30.0 if prop == cv2.CAP_PROP_FPS else 0.0

    def set(self, prop: int, value: float) -> bool:
        self.asked.append((prop, value))
        if prop == cv2.CAP_PROP_FRAME_WIDTH and self.grant:
            self.size = (int(value), self.size[1])
        if prop == cv2.CAP_PROP_FRAME_HEIGHT and self.grant:
            self.size = (self.size[0], int(value))
        return self.grant

    def release(self) -> None:
        self.releases += 1


def opened(camera: FakeCamera, target: str = "0", /, **more: Any) -> CameraSource:
    """A source that gets this camera from OpenCV."""
    shown = f"camera {target}" if target.isdigit() else target
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cv2, "VideoCapture", camera)
        return CameraSource(target, **{"shown": shown, **more})


def take(source: CameraSource, count: int) -> list[Frame]:
    return [frame for frame, _ in zip(source, range(count), strict=False)]


def test_the_pixel_format_is_asked_for_before_size_and_rate():
    camera = FakeCamera()
    request = CameraRequest(width_px=320, height_px=240, rate_hz=60.0)
    with opened(camera, "1", request=request) as source:
        assert (source.info.width_px, source.info.height_px) == (320, 240)
    assert [prop for prop, _ in camera.asked] == [
        cv2.CAP_PROP_FOURCC,
        cv2.CAP_PROP_FRAME_WIDTH,
        cv2.CAP_PROP_FRAME_HEIGHT,
        cv2.CAP_PROP_FPS,
    ]
    assert camera.asked[0][1] == int.from_bytes(b"MJPG", "little")
    assert camera.opened_with is not None
    assert camera.opened_with[0] == 1


def test_what_is_granted_is_logged_and_a_difference_is_a_warning(caplog):
    request = CameraRequest(width_px=1920, height_px=1080)
    camera = FakeCamera(grant=False)
    with caplog.at_level(logging.INFO), opened(camera, request=request):
        pass
    info, warning = caplog.records
    assert (info.levelno, warning.levelno) == (logging.INFO, logging.WARNING)
    assert "64 x 48 px, 30 Hz" in info.getMessage()
    assert "asked for 1920 x 1080 px" in warning.getMessage()


def test_a_camera_is_live_and_its_frames_are_rgb():
    with opened(FakeCamera()) as source:
        assert source.info.live
        assert source.info.num_frames is None
        assert source.info.source_id == "camera 0"
        (frame,) = take(source, 1)
    assert frame.image[5, 5].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    ("request_", "discarded"),
    [
        pytest.param(CameraRequest(), 10, id="default"),
        pytest.param(CameraRequest(num_warm_up=3), 3, id="three"),
        pytest.param(CameraRequest(num_warm_up=0), 0, id="none"),
    ],
)
def test_warm_up_frames_are_discarded(request_, discarded):
    camera = FakeCamera()
    with opened(camera, request=request_) as source:
        frames = take(source, 2)
    assert [frame.index for frame in frames] == [0, 1]
    # The first grab of all is the one that tells the size.
    assert frames[0].image[0, 0, 0] == 1 + discarded + 1


def test_frames_are_stamped_after_their_own_grab():
    camera = FakeCamera()
    before = time.monotonic_ns()
    with opened(camera, request=CameraRequest(num_warm_up=0)) as source:
        frames = take(source, 3)
    for frame, grabbed, later in zip(
        frames, camera.grab_times[1:], [*camera.grab_times[2:], time.monotonic_ns()], strict=False
    ):
        assert before < grabbed <= frame.timestamp_ns <= later


def test_a_few_failed_reads_are_bridged_and_counted(monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.camera.RETRY_PAUSE_S", 0.0)
    camera = FakeCamera(script=[True, True, False, False, True])
    with opened(camera, request=CameraRequest(num_warm_up=0)) as source:
        assert len(take(source, 3)) == 3
        assert source.skipped == 2


def test_a_lost_signal_is_an_error_after_a_bounded_number_of_tries(monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.camera.RETRY_PAUSE_S", 0.0)
    camera = FakeCamera(script=[True] * 3 + [False] * 100)
    request = CameraRequest(num_warm_up=0, num_tries=5)
    with opened(camera, request=request) as source:
        frames = iter(source)
        assert [next(frames).index, next(frames).index] == [0, 1]
        with pytest.raises(StreamError, match="camera 0: signal lost after 3 frames"):
            next(frames)
    assert camera.grabs == 3 + 5
    assert camera.releases == 1


def test_slow_failures_are_not_waited_for_one_by_one(monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.camera.PATIENCE_S", 0.1)

    class Slow(FakeCamera):
        def grab(self) -> bool:
            works = super().grab()
            time.sleep(0.0 if works else 0.06)
            return works

    camera = Slow(script=[True] + [False] * 100)
    request = CameraRequest(num_warm_up=0, num_tries=100)
    with (
        opened(camera, request=request) as source,
        pytest.raises(StreamError, match="signal lost after 1 frames"),
    ):
        next(iter(source))
    assert camera.grabs <= 3


def test_a_camera_without_a_first_frame_is_an_error_and_released(monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.camera.RETRY_PAUSE_S", 0.0)
    camera = FakeCamera(script=[False] * 100)
    with pytest.raises(StreamError, match="signal lost after 0 frames"):
        opened(camera)
    assert camera.releases == 1


def test_a_device_that_does_not_open_says_why(tmp_path):
    camera = FakeCamera(opens=False)
    with pytest.raises(StreamError, match=r"camera 97: cannot be opened; no device /dev/video97"):
        opened(camera, "97")
    assert camera.releases == 1
    with pytest.raises(StreamError, match="another program may hold it"):
        opened(camera, "/dev/null")
    (tmp_path / "video0").touch()
    with pytest.raises(StreamError, match="video0 is no device"):
        opened(camera, str(tmp_path / "video0"))


def test_close_waits_for_no_grab_and_the_reading_thread_releases():
    inside, go_on = threading.Event(), threading.Event()

    class Blocking(FakeCamera):
        def grab(self) -> bool:
            if self.grabs == 1:
                inside.set()
                assert go_on.wait(120.0)
            return super().grab()

    camera = Blocking()
    source = opened(camera, request=CameraRequest(num_warm_up=0))
    frames: list[Frame] = []
    thread = threading.Thread(target=lambda: frames.extend(source))
    thread.start()
    assert inside.wait(120.0)
    source.close()
    assert camera.releases == 0, "releasing during a grab crashes FFmpeg"
    go_on.set()
    thread.join(120.0)
    assert not thread.is_alive()
    assert camera.releases == 1
    assert frames == []
    source.close()
    assert camera.releases == 1


def test_close_interrupts_the_pause_between_tries(monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.camera.RETRY_PAUSE_S", 60.0)
    camera = FakeCamera(script=[True] + [False] * 100)
    source = opened(camera, request=CameraRequest(num_warm_up=0))
    thread = threading.Thread(target=lambda: list(source))
    thread.start()
    while camera.grabs < 2:
        time.sleep(0.001)
    source.close()
    thread.join(120.0)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param({"width_px": 640}, "width and height", id="width-only"),
        pytest.param({"width_px": 0, "height_px": 480}, "width_px", id="zero"),
        pytest.param({"rate_hz": 0.0}, "rate_hz", id="rate"),
        pytest.param({"rate_hz": float("nan")}, "rate_hz", id="nan"),
        pytest.param({"pixel_format": "MJPEG"}, "pixel_format", id="format"),
        pytest.param({"num_tries": 0}, "num_tries", id="tries"),
        pytest.param({"num_warm_up": -1}, "num_warm_up", id="warm-up"),
    ],
)
def test_bad_requests_are_refused(arguments, named):
    with pytest.raises(ConfigError, match=named):
        CameraRequest(**arguments)  # type: ignore[arg-type]


def test_a_live_http_stream_is_read_and_its_end_is_a_lost_signal(answering, mjpeg):
    green = np.zeros((48, 64, 3), dtype=np.uint8)
    green[:, :, 1] = 255
    jpegs = [cv2.imencode(".jpg", green)[1].tobytes()] * 12
    with (
        answering(mjpeg(lambda: jpegs)) as host,
        open_source(f"http://{host}/live?token=secret") as source,
    ):
        assert source.info.live
        assert source.info.source_id == f"http://{host}/live?***"
        frames: list[Frame] = []
        with pytest.raises(StreamError, match="signal lost after 12 frames") as caught:
            frames.extend(source)
    assert "secret" not in str(caught.value)
    assert [frame.index for frame in frames] == list(range(12))
    np.testing.assert_allclose(frames[0].image[24, 32], (0, 255, 0), atol=8)
    stamps = [frame.timestamp_ns for frame in frames]
    assert stamps == sorted(stamps)


def test_a_recording_behind_a_url_is_no_live_source(answering, tmp_path):
    frames = [np.full((48, 64, 3), 20 * shade, dtype=np.uint8) for shade in range(5)]
    write_clip(tmp_path / "a.avi", frames, "mpeg4")
    recording = page((tmp_path / "a.avi").read_bytes())
    with answering(recording) as host, open_source(f"http://{host}/clip.avi") as source:
        assert not source.info.live
        assert len(list(source)) == 5


def test_a_pipeline_is_opened_by_gstreamer_and_asked_for_nothing():
    camera = FakeCamera()
    pipeline = "rtspsrc location=rtsp://joe:secret@cam/1 ! decodebin ! appsink"
    request = CameraRequest(num_warm_up=2, rate_hz=60.0)
    shown = "rtspsrc location=rtsp://***@cam/1 ! decodebin ! appsink"
    with opened(camera, pipeline, shown=shown, is_pipeline=True, request=request) as source:
        assert source.info.live
        assert [frame.source_id for frame in take(source, 2)] == [shown] * 2
    assert camera.opened_with == (pipeline, cv2.CAP_GSTREAMER)
    assert camera.asked == []


@pytest.mark.skipif(
    cv2.videoio_registry.hasBackend(cv2.CAP_GSTREAMER), reason="this OpenCV has GStreamer"
)
@pytest.mark.parametrize("uri", ["csi://0", "videotestsrc ! videoconvert ! appsink"])
def test_without_gstreamer_the_error_says_which_opencv_has_it(uri):
    with pytest.raises(StreamError, match="built without GStreamer"):
        open_source(uri)

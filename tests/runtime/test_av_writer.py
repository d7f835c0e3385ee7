"""H.264 through PyAV: used where it is installed, passed over where it is not."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from gain_runtime.av_writer import AV_CODEC, AvWriter
from gain_runtime.frame import Frame
from gain_runtime.opencv_capture import codec_name
from gain_runtime.result import FrameResult, Ranked
from gain_runtime.video_sink import VideoSink


def make_result(index: int) -> FrameResult:
    top = (Ranked(index=0, label="a", prob=1.0),)
    image = np.full((48, 64, 3), (20 * index, 128, 40), dtype=np.uint8)
    frame = Frame(image=image, index=index, timestamp_ns=index, source_id="test")
    return FrameResult(frame=frame, source_top=top, adapted_top=top, strength=0.0, gain=0.0)


def write(path: Path, count: int) -> None:
    with VideoSink(path, render=lambda result: result.frame.image, rate_hz=24000 / 1001) as sink:
        for index in range(count):
            sink.write(make_result(index))


def read(path: Path) -> tuple[str, float, list[np.ndarray]]:
    """Codec, rate and RGB frames."""
    capture = cv2.VideoCapture(str(path))
    frames = []
    while (read := capture.read())[0]:
        frames.append(read[1][:, :, ::-1])
    codec = codec_name(capture.get(cv2.CAP_PROP_FOURCC))
    rate_hz = capture.get(cv2.CAP_PROP_FPS)
    capture.release()
    return codec, rate_hz, frames


def open_files() -> list[str]:
    """Paths of what this process has open."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("this system does not tell which files are open")
    return [os.path.realpath(item) for item in descriptors.iterdir()]


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_every_frame_is_there_in_h264_with_its_colours(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("av", reason="the extra video is not installed")
    path = tmp_path / f"out{suffix}"
    write(path, 9)
    codec, rate_hz, frames = read(path)
    assert codec.lower() in ("h264", "avc1")
    assert rate_hz == pytest.approx(24000 / 1001, rel=1e-3)
    assert len(frames) == 9
    for index, frame in enumerate(frames):
        np.testing.assert_allclose(frame[24, 32], (20 * index, 128, 40), atol=6)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_without_pyav_the_next_codec_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert not AvWriter(tmp_path / "a.mp4", rate_hz=30.0, size=(64, 48)).isOpened()
    path = tmp_path / "out.mp4"
    with caplog.at_level(logging.INFO):
        write(path, 3)
    assert len(read(path)[2]) == 3
    assert AV_CODEC not in caplog.text


def test_a_container_of_unknown_kind_is_not_opened(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="the extra video is not installed")
    assert not AvWriter(tmp_path / "a.nothing", rate_hz=30.0, size=(64, 48)).isOpened()


def test_a_file_is_closed_even_if_the_encoder_cannot_be_emptied(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="the extra video is not installed")
    path = tmp_path / "a.mp4"
    writer = AvWriter(path, rate_hz=30.0, size=(64, 48))
    assert writer.write(np.zeros((48, 64, 3), dtype=np.uint8))
    # Or it would be closed where nobody refers to it any more.
    container = writer._container
    assert str(path) in open_files()

    class Stream:
        def encode(self, frame: object) -> object:
            raise ValueError("no frame")

    writer._stream = Stream()
    with pytest.raises(ValueError, match="no frame"):
        writer.release()
    writer.release()
    assert str(path) not in open_files()
    del container

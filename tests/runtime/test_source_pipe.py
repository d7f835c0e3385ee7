"""JPEGs on a pipe: cut by their structure, damaged ones skipped, nothing hangs."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from clips import write_clip
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gain_core.errors import StreamError
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.pipe import JpegSplitter, PipeSource, open_pipe
from gain_runtime.sources.reader import PipeReader
from gain_runtime.sources.uri import parse_uri


def jpeg(shade: int, *, thumbnail: bool = False) -> bytes:
    """A noisy picture, if wished with another JPEG inside its EXIF data."""
    rng = np.random.default_rng(shade)
    image = np.clip(rng.normal(shade, 20, size=(24, 32, 3)), 0, 255).astype(np.uint8)
    data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_RST_INTERVAL, 2])[1].tobytes()
    if thumbnail:
        inner = jpeg(0)
        size = (len(inner) + 2).to_bytes(2, "big")
        data = data[:2] + b"\xff\xe1" + size + inner + data[2:]
    return data


def piped(data: bytes) -> PipeReader:
    """A reader of these bytes, as of a file on standard input."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return PipeReader(os.dup(file.fileno()), shown="stdin", owned=True)


# A pipe gives a few bytes at a time.
@pytest.mark.parametrize("chunk", [65_536, 7])
def test_pictures_are_cut_apart(chunk, monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.pipe.CHUNK_BYTES", chunk)
    pictures = [jpeg(40), jpeg(90, thumbnail=True), jpeg(200)]
    with piped(b"".join(pictures)) as pipe:
        splitter = JpegSplitter(pipe)
        assert [splitter.next() for _ in range(4)] == [*pictures, None]
    assert splitter.lost == 0


def test_what_lies_between_is_dropped_and_counted():
    with piped(b"noise" + jpeg(40) + b"--frame\r\n" + jpeg(90) + b"xx") as pipe:
        splitter = JpegSplitter(pipe)
        assert [splitter.next() for _ in range(3)] == [jpeg(40), jpeg(90), None]
    assert splitter.lost == 3


def test_a_cut_picture_at_the_end_is_counted_and_not_yielded():
    whole = jpeg(90)
    with PipeSource(piped(jpeg(40) + jpeg(60) + whole[: len(whole) // 2])) as source:
        frames = list(source)
        assert source.skipped == 1
    assert [frame.index for frame in frames] == [0, 1]
    assert (source.info.width_px, source.info.height_px) == (32, 24)
    assert abs(float(frames[0].image.mean()) - 40) < 6
    assert frames[1].timestamp_ns == round(1e9 / 30)


def test_frames_are_rgb():
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24), (250, 10, 10)).save(buffer, "jpeg")
    with PipeSource(piped(buffer.getvalue())) as source:
        (frame,) = source
    np.testing.assert_allclose(frame.image[12, 16], (250, 10, 10), atol=6)


@pytest.mark.parametrize("data", [b"", b"text\n" * 50, jpeg(40)[:60]])
def test_a_pipe_of_something_else_is_one_clear_line(data):
    with pytest.raises(StreamError, match="expected JPEGs one after another, got none"):
        PipeSource(piped(data))


def test_an_endless_picture_is_refused(monkeypatch):
    monkeypatch.setattr("gain_runtime.sources.pipe.MOST_BYTES", 100_000)
    with (
        piped(jpeg(40)[:-2] + bytes(400_000)) as pipe,
        pytest.raises(StreamError, match="one of over 100000 bytes"),
    ):
        JpegSplitter(pipe).next()


@given(st.lists(st.sampled_from([jpeg(40), b"\xff", b"\xff\xd8", b"\xff\xda\x00", b"\x00", b"ab"])))
def test_any_bytes_end(parts):
    with piped(b"".join(parts)) as pipe:
        splitter = JpegSplitter(pipe)
        while (picture := splitter.next()) is not None:
            assert picture.startswith(b"\xff\xd8")
            assert picture.endswith(b"\xff\xd9")


def test_the_standard_input_is_a_source():
    code = (
        "from gain_runtime.sources.opening import open_source\n"
        "with open_source('-') as source: print(source.info.source_id, len(list(source)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=jpeg(40) * 5, capture_output=True, check=True
    )
    assert done.stdout.decode().split() == ["stdin", "5"]


def clip(path: Path, container: str) -> bytes:
    """Ten frames of a video, each 20 levels brighter."""
    frames = [np.full((48, 64, 3), 20 * number + 30, dtype=np.uint8) for number in range(10)]
    write_clip(path, frames, "mpeg4" if container == "mpegts" else "ffv1", container=container)
    return path.read_bytes()


def feed(path: Path, data: bytes) -> threading.Thread:
    """Write to a pipe as another program does."""

    def write() -> None:
        with path.open("wb") as stream, suppress(BrokenPipeError):
            stream.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_a_header_of_an_impossible_size_is_one_unreadable_picture(caplog):
    huge = bytearray(jpeg(90))
    at = huge.index(b"\xff\xc0") + 5
    huge[at : at + 4] = struct.pack(">HH", 65_500, 65_500)
    with PipeSource(piped(jpeg(40) + bytes(huge) + jpeg(200))) as source:
        frames = list(source)
        assert source.skipped == 1
    assert [frame.index for frame in frames] == [0, 2]
    assert "picture 1: expected a readable image (more than" in caplog.text


@pytest.mark.parametrize("container", ["mpegts", "matroska"])
def test_a_video_is_read_from_a_named_pipe(tmp_path, container):
    data = clip(tmp_path / "a.bin", container)
    pipe = tmp_path / "x.png"
    os.mkfifo(pipe)
    thread = feed(pipe, data)
    with open_source(str(pipe)) as source:
        levels = [float(frame.image.mean()) for frame in source]
        assert not source.info.live
    thread.join(120.0)
    np.testing.assert_allclose(levels, 20.0 * np.arange(10) + 30.0, atol=3.0)


def test_dv_is_told_from_jpegs_by_its_first_bytes(tmp_path):
    path, pipe = tmp_path / "a.dv", tmp_path / "p"
    write_clip(path, [np.full((576, 720, 3), 90, np.uint8)] * 3, "dvvideo", rate=25)
    os.mkfifo(pipe)
    thread = feed(pipe, path.read_bytes())
    with open_source(str(pipe)) as source:
        levels = [float(frame.image.mean()) for frame in source]
    np.testing.assert_allclose(levels, [90.0] * 3, atol=3.0)
    thread.join(120.0)


def test_jpegs_are_read_from_a_named_pipe(tmp_path):
    pipe = tmp_path / "p"
    os.mkfifo(pipe)
    thread = feed(pipe, jpeg(40) + jpeg(90))
    with open_source(str(pipe)) as source:
        assert len(list(source)) == 2
    thread.join(120.0)


def test_only_a_character_device_is_a_camera(tmp_path):
    """Shells hand over the output of a command as `/dev/fd/63`."""
    data = clip(tmp_path / "a.bin", "mpegts")
    reader, writer = os.pipe()
    # Small enough for the pipe's own buffer.
    os.write(writer, data[: 188 * 200])
    os.close(writer)
    assert parse_uri(f"/dev/fd/{reader}").kind == "path"
    assert parse_uri("/dev/null").kind == "camera"
    assert parse_uri("/dev/video97").kind == "camera"
    with open_source(f"/dev/fd/{reader}") as source:
        assert source.info.width_px == 64
        assert len(list(source)) == 10
    os.close(reader)


@pytest.mark.parametrize("begun", [b"", jpeg(40)[:30], b"\x47\x40"], ids=["nothing", "jpeg", "ts"])
def test_close_ends_a_read_that_waits(begun):
    reader, writer = os.pipe()
    os.write(writer, begun)
    pipe = PipeReader(reader, shown="pipe")
    failures: list[BaseException] = []

    def run() -> None:
        try:
            open_pipe(pipe)
        except StreamError as err:
            failures.append(err)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive(), "nothing came yet"
    pipe.close()
    thread.join(120.0)
    assert not thread.is_alive()
    assert len(failures) == 1
    os.close(reader)
    os.close(writer)

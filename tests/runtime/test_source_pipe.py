"""JPEGs on a pipe: cut by their structure, damaged ones skipped, nothing hangs."""

from __future__ import annotations

import io
import subprocess
import sys

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gain_core.errors import StreamError
from gain_runtime.pipe_source import JpegSplitter, PipeSource


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


class Dribble(io.BytesIO):
    """A stream that gives a few bytes at a time, as pipes do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(7)


@pytest.mark.parametrize("kind", [io.BytesIO, Dribble])
def test_pictures_are_cut_apart(kind: type[io.BytesIO]) -> None:
    pictures = [jpeg(40), jpeg(90, thumbnail=True), jpeg(200)]
    splitter = JpegSplitter(kind(b"".join(pictures)))
    assert [splitter.next() for _ in range(4)] == [*pictures, None]
    assert splitter.lost == 0


def test_what_lies_between_is_dropped_and_counted() -> None:
    splitter = JpegSplitter(io.BytesIO(b"noise" + jpeg(40) + b"--frame\r\n" + jpeg(90) + b"xx"))
    assert [splitter.next() for _ in range(3)] == [jpeg(40), jpeg(90), None]
    assert splitter.lost == 3


def test_a_cut_picture_at_the_end_is_counted_and_not_yielded() -> None:
    whole = jpeg(90)
    with PipeSource(io.BytesIO(jpeg(40) + jpeg(60) + whole[: len(whole) // 2])) as source:
        frames = list(source)
        assert source.skipped == 1
    assert [frame.index for frame in frames] == [0, 1]
    assert (source.info.width_px, source.info.height_px) == (32, 24)
    assert abs(float(frames[0].image.mean()) - 40) < 6
    assert frames[1].timestamp_ns == round(1e9 / 30)


def test_frames_are_rgb() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24), (250, 10, 10)).save(buffer, "jpeg")
    with PipeSource(io.BytesIO(buffer.getvalue())) as source:
        (frame,) = source
    np.testing.assert_allclose(frame.image[12, 16], (250, 10, 10), atol=6)


@pytest.mark.parametrize("data", [b"", b"text\n" * 50, jpeg(40)[:60]])
def test_a_pipe_of_something_else_is_one_clear_line(data: bytes) -> None:
    with pytest.raises(StreamError, match="expected JPEGs one after another, got none"):
        PipeSource(io.BytesIO(data))


def test_an_endless_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gain_runtime.pipe_source.MOST_BYTES", 100_000)
    splitter = JpegSplitter(io.BytesIO(jpeg(40)[:-2] + bytes(400_000)))
    with pytest.raises(StreamError, match="one of over 100000 bytes"):
        splitter.next()


@given(st.lists(st.sampled_from([jpeg(40), b"\xff", b"\xff\xd8", b"\xff\xda\x00", b"\x00", b"ab"])))
def test_any_bytes_end(parts: list[bytes]) -> None:
    splitter = JpegSplitter(Dribble(b"".join(parts)))
    while (picture := splitter.next()) is not None:
        assert picture.startswith(b"\xff\xd8")
        assert picture.endswith(b"\xff\xd9")


def test_the_standard_input_is_a_source() -> None:
    code = (
        "from gain_runtime.sources import open_source\n"
        "with open_source('-') as source: print(source.info.source_id, len(list(source)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=jpeg(40) * 5, capture_output=True, check=True
    )
    assert done.stdout.decode().split() == ["stdin", "5"]

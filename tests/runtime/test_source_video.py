"""Video files: every frame once, damage, and everything that is no video."""

from __future__ import annotations

import logging
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from gain_core.errors import StreamError
from gain_runtime.sources.av_errors import reads_dash
from gain_runtime.sources.opening import open_source

SIZE = (96, 64)
RATE_HZ = 10.0


def write_clip(path: Path, images: Sequence[np.ndarray], *, codec: str) -> Path:
    """Write RGB images of equal size."""
    height, width = images[0].shape[:2]
    writer = cv2.VideoWriter(
        str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*codec), RATE_HZ, (width, height)
    )
    assert writer.isOpened(), f"this OpenCV cannot write {codec} to {path.suffix}"
    for image in images:
        writer.write(np.ascontiguousarray(image[:, :, ::-1]))
    writer.release()
    return path


def shades(count: int) -> list[np.ndarray]:
    """Grey images, each 10 brighter than the one before, with texture so that no frame is empty."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 30, size=(SIZE[1], SIZE[0], 3), dtype=np.uint8)
    return [noise + np.uint8(10 * n) for n in range(count)]


def media_data(data: bytes) -> tuple[int, int]:
    """Start and end of the `mdat` box of an MP4."""
    start = 0
    while True:
        size, name = struct.unpack(">I4s", data[start : start + 8])
        if name == b"mdat":
            return start, start + size
        start += size


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        pytest.param("a.mp4", "mp4v", id="mp4"),
        pytest.param("a.avi", "MJPG", id="avi"),
        pytest.param("a.mkv", "FFV1", id="mkv"),
    ],
)
def test_every_frame_arrives_once_in_order(tmp_path: Path, name: str, codec: str) -> None:
    path = write_clip(tmp_path / name, shades(20), codec=codec)
    with open_source(str(path)) as source:
        frames = list(source)
        assert list(source) == []
        assert (source.info.width_px, source.info.height_px) == SIZE
        assert (source.info.num_frames, source.info.live) == (20, False)
        assert source.info.rate_hz == pytest.approx(RATE_HZ)
        assert source.skipped == 0
    assert [frame.index for frame in frames] == list(range(20))
    assert {frame.source_id for frame in frames} == {name}
    levels = np.array([frame.image.mean() for frame in frames])
    np.testing.assert_allclose(np.diff(levels), 10.0, atol=2.0)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        pytest.param("cut.avi", "MJPG", id="avi"),
        pytest.param("cut.mkv", "mp4v", id="mkv"),
    ],
)
def test_a_cut_video_keeps_the_frames_before_the_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, codec: str
) -> None:
    path = write_clip(tmp_path / name, shades(20), codec=codec)
    with open_source(str(path)) as source:
        whole = [frame.image for frame in source]
        assert (len(whole), source.skipped) == (20, 0)
    assert caplog.records == []
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.6)])
    with caplog.at_level(logging.WARNING), open_source(str(path)) as source:
        kept = [frame.image for frame in source]
        skipped = source.skipped
    assert 8 <= len(kept) <= 14
    for image, original in zip(kept[:-1], whole, strict=False):
        np.testing.assert_array_equal(image, original)
    assert skipped == pytest.approx(20 - len(kept), abs=1)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert name in warnings[0]
    assert "cut short" in warnings[0]


def test_a_cut_mp4_without_its_index_is_an_error(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "cut.mp4", shades(20), codec="mp4v")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.6)])
    with pytest.raises(StreamError, match="index is missing"):
        open_source(str(path))


def test_damage_in_the_middle_is_skipped_and_counted(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "damaged.mov", shades(20), codec="MJPG")
    data = bytearray(path.read_bytes())
    start, end = media_data(data)
    third = (end - start) // 3
    data[start + third : start + third + third // 2] = bytes(third // 2)
    path.write_bytes(bytes(data))
    with open_source(str(path)) as source:
        frames = list(source)
        skipped = source.skipped
    assert 1 <= skipped <= 6
    assert len(frames) + skipped == 20
    indices = [frame.index for frame in frames]
    assert indices[0] == 0
    assert indices[-1] == 19
    gaps = [later - earlier for earlier, later in pairwise(indices)]
    assert max(gaps) == skipped + 1


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        pytest.param("empty.mp4", b"", "empty file", id="empty"),
        pytest.param("noise.mp4", np.random.default_rng(0).bytes(9000), "no video", id="noise"),
        pytest.param("zeros.avi", bytes(9000), "no video", id="zeros"),
        pytest.param("page.mp4", b"<!doctype html><p>Not found\n" * 40, "text file", id="html"),
        pytest.param("notes.txt", "Grüße\n".encode() * 1000, "text file", id="text"),
        pytest.param("data.bin", b"\x7fELF" + bytes(range(256)) * 30, "no video", id="binary"),
    ],
)
def test_what_is_no_video_is_one_clear_error(
    tmp_path: Path, name: str, content: bytes, named: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(StreamError, match=named) as caught:
        open_source(str(path))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dash_manifest_is_read_or_refused_with_what_to_do(
    tmp_path: Path, answering: Callable[..., AbstractContextManager[str]]
) -> None:
    """PyAV's wheels write manifests and read none; the segments play through the HLS playlist."""
    manifest = tmp_path / "a.mpd"
    options = {"hls_playlist": "1", "seg_duration": "1"}
    with av.open(str(manifest), "w", format="dash", container_options=options) as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "10"})
        stream.width, stream.height = SIZE
        for image in shades(20):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    if reads_dash():
        with open_source(str(manifest)) as source:
            assert len(list(source)) == 20
        return

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(manifest.stat().st_size))
            self.end_headers()
            self.wfile.write(manifest.read_bytes())

    with answering(Server) as host:
        for uri in (str(manifest), f"http://{host}/a.mpd"):
            with pytest.raises(
                StreamError, match=r"a DASH manifest .*\.m3u8.* or: ffmpeg -i"
            ) as told:
                open_source(uri)
            assert "\n" not in str(told.value)
    with open_source(str(tmp_path / "master.m3u8")) as source:
        assert len(list(source)) == 20


def test_the_libraries_below_add_nothing_to_the_error(tmp_path: Path) -> None:
    path = tmp_path / "noise.mp4"
    path.write_bytes(np.random.default_rng(0).bytes(9000))
    program = (
        "import sys\n"
        "from gain_core.errors import StreamError\n"
        "from gain_runtime.sources.opening import open_source\n"
        "try:\n"
        "    open_source(sys.argv[1])\n"
        "except StreamError as err:\n"
        "    print(err)\n"
    )
    # A fresh process: FFmpeg's verbosity can only be given before its first use.
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_a_video_without_frames_is_an_error(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "none.avi", shades(3), codec="MJPG")
    data = path.read_bytes()
    start = data.index(b"movi")
    path.write_bytes(data[: start + 4])
    with pytest.raises(StreamError, match=r"none\.avi: expected a video"):
        open_source(str(path))


def test_close_ends_the_iteration_and_may_be_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_clip(tmp_path / "a.avi", shades(20), codec="MJPG")
    source = open_source(str(path))
    frames = iter(source)
    next(frames)
    source.close()
    source.close()
    assert list(frames) == []
    assert caplog.records == []

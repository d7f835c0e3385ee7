"""Video files: colour, rotation, time stamps, damage and everything that is no video."""

from __future__ import annotations

import logging
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from gain_core.errors import StreamError
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


def quadrants() -> np.ndarray:
    """An image whose corners are red, green, blue and white, clockwise from top left."""
    image = np.zeros((SIZE[1], SIZE[0], 3), dtype=np.uint8)
    half_h, half_w = SIZE[1] // 2, SIZE[0] // 2
    image[:half_h, :half_w] = (255, 0, 0)
    image[:half_h, half_w:] = (0, 255, 0)
    image[half_h:, half_w:] = (0, 0, 255)
    image[half_h:, :half_w] = 255
    return image


def corner_colours(image: np.ndarray) -> list[tuple[bool, ...]]:
    """Which channels are bright at the four corners, clockwise from top left."""
    height, width = image.shape[:2]
    at = [
        (height // 4, width // 4),
        (height // 4, width * 3 // 4),
        (height * 3 // 4, width * 3 // 4),
        (height * 3 // 4, width // 4),
    ]
    return [tuple(bool(value > 128) for value in image[row, column]) for row, column in at]


RED, GREEN, BLUE, WHITE = (
    (True, False, False),
    (False, True, False),
    (False, False, True),
    (True, True, True),
)


def boxes(data: bytes) -> dict[bytes, tuple[int, int]]:
    """Start and end of the MP4 boxes needed below, by name (one video track)."""
    found: dict[bytes, tuple[int, int]] = {}

    def walk(start: int, end: int) -> None:
        while start + 8 <= end:
            size, name = struct.unpack(">I4s", data[start : start + 8])
            if size < 8:
                break
            found.setdefault(name, (start, start + size))
            if name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts"):
                walk(start + 8, start + size)
            start += size

    walk(0, len(data))
    return found


def rotate_metadata(path: Path, *, degrees: int) -> None:
    """Set the display matrix of the track header, as a phone held sideways does."""
    data = bytearray(path.read_bytes())
    start = boxes(bytes(data))[b"tkhd"][0] + 8 + 40
    one = 1 << 16
    matrix = {
        90: (0, one, 0, -one, 0, 0),
        180: (-one, 0, 0, 0, -one, 0),
        270: (0, -one, 0, one, 0, 0),
    }[degrees]
    data[start : start + 36] = struct.pack(">9i", *matrix, 0, 0, 1 << 30)
    path.write_bytes(bytes(data))


def make_variable_rate(path: Path, durations: Sequence[int]) -> None:
    """Rewrite the table of sample durations (`stts`), in units of the first duration."""
    data = path.read_bytes()
    table = boxes(data)
    start, end = table[b"stts"]
    unit = struct.unpack(">I", data[start + 20 : start + 24])[0]
    entries = b"".join(struct.pack(">II", 1, unit * value) for value in durations)
    stts = struct.pack(">4sII", b"stts", 0, len(durations)) + entries
    patched = bytearray(data[:start] + struct.pack(">I", len(stts) + 4) + stts + data[end:])
    grown = len(stts) + 4 - (end - start)
    for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        at, box_end = table[name]
        patched[at : at + 4] = struct.pack(">I", box_end - at + grown)
    # Without its edit list the track is as long as its samples.
    at = table[b"edts"][0]
    patched[at + 4 : at + 8] = b"free"
    assert table[b"moov"][0] > table[b"mdat"][0], "media data must not move"
    path.write_bytes(bytes(patched))


def index_first(path: Path) -> None:
    """Move `moov` before `mdat`, as for streaming, so that a cut leaves the index whole."""
    data = path.read_bytes()
    table = boxes(data)
    moov = bytearray(data[slice(*table[b"moov"])])
    at = table[b"stco"][0] - table[b"moov"][0]
    count = struct.unpack(">I", moov[at + 12 : at + 16])[0]
    for n in range(count):
        spot = slice(at + 16 + 4 * n, at + 20 + 4 * n)
        offset = struct.unpack(">I", moov[spot])[0]
        moov[spot] = struct.pack(">I", offset + len(moov))
    start = table[b"ftyp"][1]
    path.write_bytes(data[:start] + bytes(moov) + data[start : table[b"moov"][0]])


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
    ("name", "codec", "tolerance"),
    [
        pytest.param("a.avi", "FFV1", 2, id="lossless"),
        pytest.param("a.mp4", "mp4v", 12, id="mpeg4"),
        pytest.param("a.avi", "MJPG", 12, id="mjpeg"),
    ],
)
def test_red_is_red(tmp_path: Path, name: str, codec: str, tolerance: int) -> None:
    red = np.zeros((SIZE[1], SIZE[0], 3), dtype=np.uint8)
    red[:, :, 0] = 255
    path = write_clip(tmp_path / name, [red] * 3, codec=codec)
    with open_source(str(path)) as source:
        frame = next(iter(source))
    np.testing.assert_allclose(frame.image.astype(int), red.astype(int), atol=tolerance)


@pytest.mark.parametrize(
    ("degrees", "corners"),
    [
        pytest.param(90, [WHITE, RED, GREEN, BLUE], id="90"),
        pytest.param(180, [BLUE, WHITE, RED, GREEN], id="180"),
        pytest.param(270, [GREEN, BLUE, WHITE, RED], id="270"),
    ],
)
def test_rotation_metadata_is_honoured(
    tmp_path: Path, degrees: int, corners: list[tuple[bool, ...]]
) -> None:
    path = write_clip(tmp_path / "phone.mp4", [quadrants()] * 3, codec="mp4v")
    with open_source(str(path)) as source:
        assert corner_colours(next(iter(source)).image) == [RED, GREEN, BLUE, WHITE]
    rotate_metadata(path, degrees=degrees)
    with open_source(str(path)) as source:
        frame = next(iter(source))
        size = (source.info.width_px, source.info.height_px)
    assert corner_colours(frame.image) == corners
    assert size == (SIZE if degrees == 180 else SIZE[::-1])


def test_variable_frame_rate_uses_the_container_times(tmp_path: Path) -> None:
    durations = [1, 1, 5, 1, 3, 1]
    path = write_clip(tmp_path / "vfr.mp4", shades(6), codec="mp4v")
    make_variable_rate(path, durations)
    with open_source(str(path)) as source:
        stamps = [frame.timestamp_ns / 1e9 for frame in source]
        assert source.skipped == 0
    expected = np.concatenate([[0.0], np.cumsum(durations[:-1])]) / RATE_HZ
    np.testing.assert_allclose(stamps, expected, atol=2e-3)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        pytest.param("cut.avi", "MJPG", id="avi"),
        pytest.param("cut.mkv", "mp4v", id="mkv"),
        pytest.param("cut.mp4", "MJPG", id="mp4-index-first"),
    ],
)
def test_a_cut_video_keeps_the_frames_before_the_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, codec: str
) -> None:
    path = write_clip(tmp_path / name, shades(20), codec=codec)
    if path.suffix == ".mp4":
        index_first(path)
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
    start, end = boxes(bytes(data))[b"mdat"]
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


def test_a_name_that_is_not_utf8_is_just_a_name(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.avi")
    write_clip(tmp_path / "a.avi", shades(3), codec="MJPG").rename(path)
    with open_source(str(path)) as source:
        assert len(list(source)) == 3


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match=r"gone\.mp4: no such file"):
        open_source(str(tmp_path / "gone.mp4"))


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

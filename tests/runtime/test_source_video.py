"""Video files: every frame once, damage, and everything that is no video."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from clips import page, write_clip
from without import run_without

from gain_core.errors import StreamError
from gain_runtime.sources.decoder import reads_dash
from gain_runtime.sources.opening import open_source

SIZE = (96, 64)
RATE_HZ = 10.0


def shades(count: int) -> list[np.ndarray]:
    """Grey images, each 10 brighter than the one before, with texture so that no frame is empty."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 30, size=(SIZE[1], SIZE[0], 3), dtype=np.uint8)
    return [noise + np.uint8(10 * n) for n in range(count)]


def clip(path: Path, codec: str, *, count: int = 20) -> Path:
    """A file of `shades`, whose frames take the same room."""
    pixel_format = {"mjpeg": "yuvj420p", "ffv1": "bgr0"}.get(codec, "yuv420p")
    options = {"g": "1", "qmin": "4", "qmax": "4"}
    write_clip(path, shades(count), codec, pixel_format=pixel_format, options=options)
    return path


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
        ("a.mp4", "mpeg4"),
        ("a.avi", "mjpeg"),
        ("a.mkv", "ffv1"),
    ],
)
def test_every_frame_arrives_once_in_order(tmp_path, name, codec):
    path = clip(tmp_path / name, codec)
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


def test_a_cut_mp4_without_its_index_is_an_error(tmp_path):
    path = clip(tmp_path / "cut.mp4", "mpeg4")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.6)])
    with pytest.raises(StreamError, match="index is missing"):
        open_source(str(path))


def test_damage_in_the_middle_is_skipped_and_counted(tmp_path):
    path = clip(tmp_path / "damaged.mov", "mjpeg")
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
def test_what_is_no_video_is_one_clear_error(tmp_path, name, content, named):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(StreamError, match=named) as caught:
        open_source(str(path))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dash_manifest_is_read_or_refused_with_what_to_do(tmp_path, answering):
    """PyAV's wheels write manifests and read none; the segments play through the HLS playlist."""
    manifest = tmp_path / "a.mpd"
    options = {"hls_playlist": "1", "seg_duration": "1"}
    dash = {"container": "dash", "container_options": options}
    write_clip(manifest, shades(20), "libx264", options={"g": "10"}, **dash)
    if reads_dash():
        with open_source(str(manifest)) as source:
            assert len(list(source)) == 20
        return

    with answering(page(manifest.read_bytes())) as host:
        for uri in (str(manifest), f"http://{host}/a.mpd"):
            with pytest.raises(
                StreamError, match=r"a DASH manifest .*\.m3u8.* or: ffmpeg -i"
            ) as told:
                open_source(uri)
            assert "\n" not in str(told.value)
    with open_source(str(tmp_path / "master.m3u8")) as source:
        assert len(list(source)) == 20


def test_the_libraries_below_add_nothing_to_the_error(tmp_path):
    path = tmp_path / "noise.mp4"
    path.write_bytes(np.random.default_rng(0).bytes(9000))
    program = (
        "from gain_core.errors import StreamError\n"
        "from gain_runtime.sources.opening import open_source\n"
        "try:\n"
        "    open_source(sys.argv[1])\n"
        "except StreamError as err:\n"
        "    print(err)\n"
    )
    # A fresh process: FFmpeg's verbosity can only be given before its first use.
    done = run_without((), program, path)
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)


def test_a_video_without_frames_is_an_error(tmp_path):
    path = clip(tmp_path / "none.avi", "mjpeg", count=3)
    data = path.read_bytes()
    start = data.index(b"movi")
    path.write_bytes(data[: start + 4])
    with pytest.raises(StreamError, match=r"none\.avi: expected a video"):
        open_source(str(path))


def test_close_ends_the_iteration_and_may_be_repeated(tmp_path, caplog):
    path = clip(tmp_path / "a.avi", "mjpeg")
    source = open_source(str(path))
    frames = iter(source)
    next(frames)
    source.close()
    source.close()
    assert list(frames) == []
    assert caplog.records == []

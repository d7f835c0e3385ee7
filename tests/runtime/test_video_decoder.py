"""Every kind of video people have comes out as the `ffmpeg` command shows it."""

from __future__ import annotations

import gc
import hashlib
import platform
import shutil
import struct
import subprocess
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace
from clips import write_clip

from gain_core.errors import StreamError
from gain_runtime.sources.decoder import DEINTERLACE, VideoDecoder
from gain_runtime.sources.opening import open_source

FFMPEG = shutil.which("ffmpeg")
SIZE = (96, 64)
RATE = 25
FIELDS = {"flags": "+ildct+ilme"}
LOSSLESS = {"qp": "0", "preset": "ultrafast"}
# SHA-256 of all frames where the encoder loses nothing, so that no version of it matters.
HASHES = {
    "h264 interlaced": "4beacc6a33b6a46e",
    "h264 709": "188c9f085b8579e1",
    "wide pixels": "03a75e297692e48c",
    "ffv1": "9751cd4a39a851e5",
}


def scene(count: int, size: tuple[int, int] = SIZE) -> list[np.ndarray]:
    """RGB frames of a bar that moves fast over a coloured ramp."""
    width, height = size
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    frames = []
    for number in range(count):
        frame = np.stack([x, y, np.full_like(x, 128.0)], axis=2).astype(np.uint8)
        left = 4 * number % (width - 16)
        frame[height // 4 : height // 2, left : left + 12] = (250, 240, 30)
        frames.append(frame)
    return frames


def woven(fields: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Interlaced frames: even lines of one moment, odd lines of the next."""
    frames = []
    for first, second in zip(fields[::2], fields[1::2], strict=True):
        frame = first.copy()
        frame[1::2] = second[1::2]
        frames.append(frame)
    return frames


def encode(
    path: Path,
    frames: Sequence[np.ndarray],
    codec: str,
    *,
    rate: int = RATE,
    pixel_format: str = "yuv420p",
    options: dict[str, str] | None = None,
    matrix: Colorspace = Colorspace.ITU601,
    full_range: bool = False,
    times: Sequence[int] | None = None,
    aspect: Fraction | None = None,
) -> Path:
    """Write RGB frames through PyAV."""
    height, width = frames[0].shape[:2]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        context = stream.codec_context
        context.time_base = stream.time_base = Fraction(1, 1000 if times else RATE)
        is_709 = matrix == Colorspace.ITU709
        if codec.startswith("libx26"):
            context.colorspace = 1 if is_709 else 6
            context.color_range = ColorRange.JPEG if full_range else ColorRange.MPEG
        if aspect is not None:
            context.sample_aspect_ratio = aspect
        for number, frame in enumerate(frames):
            made = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(
                format=pixel_format,
                dst_colorspace=matrix,
                dst_color_range=ColorRange.JPEG if full_range else ColorRange.MPEG,
            )
            made.pts = times[number] if times else number
            made.time_base = context.time_base
            container.mux(stream.encode(made))
        container.mux(stream.encode(None))
    return path


def decode(path: Path) -> list[np.ndarray]:
    with open_source(str(path)) as source:
        return [frame.image for frame in source]


def by_command_line(path: Path, shape: tuple[int, ...], filters: str) -> np.ndarray:
    """The same by `ffmpeg`, every frame as RGB."""
    assert FFMPEG is not None
    done = subprocess.run(
        [
            *(FFMPEG, "-v", "error", "-i", path, "-vf", filters, "-vsync", "passthrough"),
            *("-f", "rawvideo", "-pix_fmt", "rgb24", "-"),
        ],
        capture_output=True,
        check=True,
    )
    return np.frombuffer(done.stdout, dtype=np.uint8).reshape(-1, *shape)


Recipe = tuple[str, str, dict[str, Any]]


def make(folder: Path, recipe: Recipe) -> Path:
    """A file of twelve frames: codec, suffix, and what `encode` takes; `fields` interlaces."""
    codec, suffix, settings = recipe
    settings = dict(settings)
    size = settings.pop("size", SIZE)
    frames = woven(scene(24, size)) if settings.pop("fields", False) else scene(12, size)
    return encode(folder / f"a{suffix}", frames, codec, **settings)


BT709, TEN = {"matrix": Colorspace.ITU709}, {"pixel_format": "yuv420p10le"}
FULL = {"full_range": True}
TOP = {"fields": True, "options": {**LOSSLESS, **FIELDS, "x264-params": "tff=1"}}
BOTTOM = {"fields": True, "options": {**LOSSLESS, **FIELDS, "x264-params": "bff=1"}}
MPEG2 = {"fields": True, "options": {**FIELDS, "b": "4M"}}
PRORES = {"fields": True, "options": FIELDS, "pixel_format": "yuv422p10le"}
DV = {"fields": True, "size": (720, 576)}
QUIET = {"options": {"x265-params": "log-level=none"}}
WIDE = {"options": LOSSLESS, "aspect": Fraction(16, 11)}
DEINTERLACED = f"yadif={DEINTERLACE}"
KINDS: dict[str, tuple[Recipe, str]] = {
    "h264 interlaced": (("libx264", ".mp4", TOP), DEINTERLACED),
    "h264 interlaced ts": (("libx264", ".ts", TOP), DEINTERLACED),
    "h264 bottom first": (("libx264", ".mkv", BOTTOM), DEINTERLACED),
    "mpeg2 interlaced": (("mpeg2video", ".mpg", MPEG2), DEINTERLACED),
    "dv": (("dvvideo", ".dv", DV), f"{DEINTERLACED},scale=768:576:flags=bicubic"),
    "prores interlaced": (("prores_ks", ".mov", PRORES), DEINTERLACED),
    "h264": (("libx264", ".mp4", {}), "null"),
    "h264 601 full": (("libx264", ".mkv", FULL), "null"),
    "h264 601 10 bits": (("libx264", ".mkv", TEN), "null"),
    "h264 601 full 10 bits": (("libx264", ".mp4", {**FULL, **TEN}), "null"),
    "h264 709": (("libx264", ".mp4", {**BT709, "options": LOSSLESS}), "null"),
    "h264 709 full": (("libx264", ".mp4", {**BT709, **FULL}), "null"),
    "h264 709 10 bits": (("libx264", ".mp4", {**BT709, **TEN}), "null"),
    "h264 709 full 10 bits": (("libx264", ".mov", {**BT709, **FULL, **TEN}), "null"),
    "hevc 10 bits": (("libx265", ".mp4", {**TEN, **QUIET}), "null"),
    "vp9": (("libvpx-vp9", ".webm", {}), "null"),
    "av1": (("libsvtav1", ".mp4", {"options": {"preset": "12"}}), "null"),
    "mjpeg": (("mjpeg", ".avi", {**FULL, "pixel_format": "yuvj420p"}), "null"),
    "ffv1": (("ffv1", ".mkv", {"pixel_format": "bgr0"}), "null"),
    "wide pixels": (("libx264", ".mp4", WIDE), "scale=140:64:flags=bicubic"),
    "tall pixels": (("libx264", ".mkv", {"aspect": Fraction(2, 3)}), "scale=96:96:flags=bicubic"),
}


@pytest.mark.skipif(FFMPEG is None, reason="no ffmpeg command to compare with")
@pytest.mark.parametrize("name", KINDS)
def test_every_frame_is_the_command_lines(tmp_path, name):
    recipe, filters = KINDS[name]
    if recipe[0] not in av.codecs_available:
        pytest.skip(f"this PyAV has no encoder {recipe[0]}")
    path = make(tmp_path, recipe)
    ours = np.stack(decode(path))
    theirs = by_command_line(path, ours.shape[1:], filters)
    assert len(ours) == len(theirs) == 12
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max() <= 1, f"{difference.max()} levels"


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="FFmpeg's conversion to RGB rounds otherwise on other processors",
)
@pytest.mark.parametrize("name", HASHES)
def test_lossless_frames_are_those_that_were_compared(tmp_path, name):
    frames = np.stack(decode(make(tmp_path, KINDS[name][0])))
    assert hashlib.sha256(frames.tobytes()).hexdigest()[:16] == HASHES[name]


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name][1] != "null"])
def test_frames_are_the_scene_that_was_filmed(tmp_path, name):
    """OpenCV 4.13 and later give memory that nobody has written to where frames are interlaced."""
    recipe = KINDS[name][0]
    size = recipe[2].get("size", SIZE)
    fields = recipe[2].get("fields", False)
    truth = scene(24 if fields else 12, size)
    for at, frame in enumerate(decode(make(tmp_path, recipe))):
        columns = np.linspace(0, frame.shape[1] - 1, size[0]).round().astype(int)
        rows = np.linspace(0, frame.shape[0] - 1, size[1]).round().astype(int)
        shown = frame[rows][:, columns].astype(int)
        assert np.abs(shown - truth[2 * at if fields else at]).mean() < 8.0
        if fields:
            # Woven, every other line of the bar's edges is of another moment.
            assert comb(shown) < 0.5 * comb(woven(truth[2 * at : 2 * at + 2])[0].astype(int))


def comb(image: np.ndarray) -> float:
    """How much every line differs from those above and below, between the bar's ends."""
    image = image[len(image) // 4 + 2 : len(image) // 2 - 2]
    return float(np.abs(image[2:] - 2 * image[1:-1] + image[:-2]).mean())


def test_a_live_interlaced_stream_is_deinterlaced_too(tmp_path):
    path = make(tmp_path, KINDS["h264 interlaced ts"][0])
    recorded = decode(path)
    with VideoDecoder(str(path), shown="ts", live=True) as decoder:
        for expected in recorded:
            decoded = decoder.read()
            assert decoded is not None
            np.testing.assert_array_equal(decoded.image, expected)


def test_frames_are_let_go_without_the_garbage_collector(tmp_path):
    """A frame that its own side data holds stays until a collection: megabytes each."""
    path = encode(tmp_path / "a.mp4", scene(40), "libx264")
    gc.collect()
    gc.disable()
    try:
        with VideoDecoder(str(path), shown="mp4") as decoder:
            while decoder.read() is not None:
                pass
        held = [item for item in gc.get_objects() if type(item) is av.VideoFrame]
    finally:
        gc.enable()
    assert len(held) <= 2  # of forty


def test_a_change_of_size_in_mid_stream_is_followed(tmp_path):
    """A camera that switches its resolution; the first frames of either size arrive whole."""
    small = encode(tmp_path / "small.h264", scene(6), "libx264", options={"bf": "0"})
    large = encode(tmp_path / "large.h264", scene(6, (160, 128)), "libx264", options={"bf": "0"})
    both = tmp_path / "both.h264"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    frames = decode(both)
    assert [frame.shape for frame in frames] == [(64, 96, 3)] * 6 + [(128, 160, 3)] * 6
    for frame, expected in zip(frames, scene(6) + scene(6, (160, 128)), strict=True):
        assert np.abs(frame.astype(int) - expected).mean() < 8.0


def turn(path: Path, matrix: tuple[int, int, int, int]) -> None:
    """Set a, b, c, d of the display matrix in an mp4's track header."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    a, b, c, d = (value << 16 for value in matrix)
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        pytest.param((0, 1, -1, 0), lambda image: np.rot90(image, -1), id="90"),
        pytest.param((-1, 0, 0, -1), lambda image: np.rot90(image, 2), id="180"),
        pytest.param((0, -1, 1, 0), lambda image: np.rot90(image, 1), id="270"),
        pytest.param((-1, 0, 0, 1), lambda image: image[:, ::-1], id="mirrored"),
        pytest.param((1, 0, 0, -1), lambda image: image[::-1], id="upside-down"),
        pytest.param((0, 1, 1, 0), lambda image: image.transpose(1, 0, 2), id="transposed"),
        pytest.param(
            (0, -1, -1, 0), lambda image: np.rot90(image, 2).transpose(1, 0, 2), id="anti"
        ),
    ],
)
def test_turned_and_mirrored_videos_are_upright(tmp_path, matrix, expected):
    path = encode(tmp_path / "a.mp4", scene(4), "libx264", options=LOSSLESS)
    before = decode(path)
    turn(path, matrix)
    with open_source(str(path)) as source:
        size = (source.info.height_px, source.info.width_px)
        for frame, upright in zip(source, before, strict=True):
            assert frame.image.shape[:2] == size
            np.testing.assert_allclose(
                frame.image.astype(int), expected(upright).astype(int), atol=1
            )


def test_a_rate_that_is_a_time_base_is_not_believed(tmp_path):
    """Recorders write 1000 or 90000 frames a second into WebM and FLV."""
    times = [0, 40, 80, 120, 500, 540]
    path = tmp_path / "a.mkv"
    frames = scene(6)
    encode(path, frames, "ffv1", rate=1000, pixel_format="bgr0", times=times)
    with open_source(str(path)) as source:
        assert source.info.rate_hz is None
        assert source.info.num_frames is None
        assert source.info.timed
        assert [round(frame.timestamp_ns / 1e6) for frame in source] == times
        assert source.skipped == 0


@pytest.mark.parametrize("ordered", ["0", "3"], ids=["no-b-frames", "b-frames"])
@pytest.mark.parametrize("suffix", [".mp4", ".avi", ".flv"])
def test_frames_of_a_cut_file_are_those_that_were_decoded(tmp_path, caplog, suffix, ordered):
    """Threads of the decoder hold frames back; the error of the cut one took them along."""
    path = tmp_path / f"a{suffix}"
    is_mp4 = suffix == ".mp4"
    options = {"movflags": "+faststart"} if is_mp4 else {}
    x264 = {"bf": ordered, "g": "10"}
    write_clip(path, scene(60), "libx264", rate=RATE, options=x264, container_options=options)
    data = path.read_bytes()
    if is_mp4:
        assert data.index(b"moov") < data.index(b"mdat")
    path.write_bytes(data[: len(data) * 6 // 10])
    with open_source(str(path)) as source:
        indices = [frame.index for frame in source]
        # Others have a length in time only, or none.
        assert not is_mp4 or len(indices) + source.skipped == 60
    assert indices == list(range(len(indices)))
    decodable = 0
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for packet in container.demux(video=0):
            # The last one is a piece of one.
            if not packet.is_corrupt:
                decodable += len(packet.decode())
    assert len(indices) == decodable
    assert 5 < decodable < 60
    assert "cut short" in caplog.text


@pytest.mark.parametrize("at", [(57, 58), (23, 50, 59)], ids=str)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
@pytest.mark.parametrize("ordered", ["0", "3"], ids=["no-b-frames", "b-frames"])
def test_a_file_damaged_at_its_end_gives_the_frames_that_one_thread_decodes(
    tmp_path, suffix, at, ordered
):
    """PyAV's last call ended at the first damaged frame: what threads held behind it was lost."""
    options = {"bf": ordered, "g": "10", "qp": "20"}
    path = encode(tmp_path / f"a{suffix}", scene(60), "libx264", options=options)
    whole = by_one_thread(path)[0]
    spoil(path, at)
    expected, damaged = by_one_thread(path)
    assert damaged
    assert 40 < len(expected) < 60
    with VideoDecoder(str(path), shown="a") as decoder:
        decoded = {}
        while (item := decoder.read()) is not None:
            decoded[item.position_s] = item.image
        assert decoder.damaged == damaged
    start = min(whole)
    assert list(decoded) == pytest.approx([time - start for time in expected])
    untouched = 0
    for (time, image), ours in zip(expected.items(), decoded.values(), strict=True):
        # What hides the damage in a frame depends on the threads.
        if np.array_equal(image, whole[time]):
            untouched += 1
            np.testing.assert_array_equal(ours, image)
    assert untouched > 20


def test_a_hole_in_a_transport_stream_does_not_end_it(tmp_path):
    """Behind so many empty bytes FFmpeg asks to be called again."""
    path = encode(tmp_path / "a.ts", scene(60), "libx264")
    data = path.read_bytes()
    path.write_bytes(data + bytes(100_000) + data + bytes(100_000))
    assert len(decode(path)) == 120


def by_one_thread(path: Path) -> tuple[dict[float, np.ndarray], int]:
    """Frames by their time in seconds, and how many packets cannot be decoded."""
    frames, damaged = {}, 0
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for packet in container.demux(video=0):
            try:
                for frame in packet.decode():
                    frames[frame.time] = frame.to_ndarray(format="rgb24")
            except av.error.InvalidDataError:
                damaged += 1
    return frames, damaged


def spoil(path: Path, at: Sequence[int]) -> None:
    """Overwrite the start of the picture data of some packets."""
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    for number in at:
        start = packets[number].pos
        if path.suffix == ".ts":
            # It cuts packets in pieces; its own start code and a delimiter come first.
            for _ in range(3):
                start = data.index(b"\0\0\1", start + 3)
        else:
            start = data.index(bytes(packets[number]), start)
        # Behind the length or start code and the kind of the unit.
        data[start + 5 : start + 40] = bytes([1]) * 35
    path.write_bytes(bytes(data))


def test_an_alien_hardware_decoder_is_an_error_that_lists_those_that_are_there(tmp_path):
    path = encode(tmp_path / "a.mp4", scene(3), "libx264")
    with pytest.raises(StreamError, match=r"--set hwaccel=warp: this FFmpeg has .*leave that out"):
        open_source(str(path), hwaccel="warp")


@pytest.mark.parametrize("name", av.codec.hwaccel.hwdevices_available())
def test_a_hardware_decoder_is_used_or_an_error_and_never_replaced(tmp_path, name):
    path = encode(tmp_path / "a.mp4", scene(30), "libx264")
    try:
        source = open_source(str(path), hwaccel=name)
    except StreamError as err:
        message = str(err)
    else:
        with source:
            assert source.info.detail == f"h264 on {name}"
            assert len(list(source)) == 30
        return
    assert f"--set hwaccel={name}" in message
    assert "leave it out" in message
    assert "\n" not in message

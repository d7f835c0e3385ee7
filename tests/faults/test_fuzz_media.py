"""Pictures and videos with any bytes changed: skipped or one clear error, no hang, no growth."""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from gain_core.errors import GainError, StreamError
from gain_runtime.files.images import decode_image
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.pipe import PipeSource
from gain_runtime.sources.reader import PipeReader

PICTURES = ("jpeg", "png", "gif", "webp", "tiff", "bmp", "jpeg2000", "avif", "ppm")
VIDEOS = {
    "mp4": ("libx264", "yuv420p"),
    "mpegts": ("mpeg2video", "yuv420p"),
    "matroska": ("ffv1", "bgr0"),
    "avi": ("mjpeg", "yuvj420p"),
    "webm": ("libvpx", "yuv420p"),
}
# Far above what a frame of this size needs on a busy machine, far below a hang.
LONGEST_S = 60.0
Change = tuple[int, int]
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=12)
BOUNDED = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def texture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, (48, 64, 3), dtype=np.uint8)


@lru_cache
def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    extra = {"compression": "tiff_lzw"} if kind == "tiff" else {}
    Image.fromarray(texture(0)).save(buffer, kind, **extra)
    return buffer.getvalue()


@lru_cache
def video(kind: str) -> bytes:
    codec, pixel_format = VIDEOS[kind]
    buffer = io.BytesIO()
    frames = [texture(number) for number in range(8)]
    write_clip(buffer, frames, codec, rate=25, pixel_format=pixel_format, container=kind)
    return buffer.getvalue()


def changed(data: bytes, changes: Sequence[Change], cut: float) -> bytes:
    """Some bytes replaced, and the end cut off."""
    spoilt = bytearray(data)
    for at, value in changes:
        spoilt[at % len(spoilt)] = value
    return bytes(spoilt[: max(int(len(spoilt) * cut), 1)])


@pytest.mark.parametrize("kind", PICTURES)
@BOUNDED
@given(changes=CHANGES, cut=st.sampled_from([1.0, 1.0, 0.5, 0.05]))
def test_a_picture_is_decoded_or_refused(kind, changes, cut):
    started = time.monotonic()
    try:
        pixels = decode_image(changed(picture(kind), changes, cut), shown=kind)
    except StreamError as err:
        message = str(err)
    else:
        message = ""
        assert pixels.dtype == np.uint8
        assert pixels.shape[2] == 3
    assert "\n" not in message
    assert time.monotonic() - started < LONGEST_S


@pytest.mark.parametrize("kind", VIDEOS)
@BOUNDED
@given(changes=CHANGES, cut=st.sampled_from([1.0, 1.0, 0.7, 0.2]))
def test_a_video_is_decoded_as_far_as_it_goes_or_refused(kind, changes, cut, tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(changed(video(kind), changes, cut))
    started = time.monotonic()
    try:
        with open_source(str(path)) as source:
            stamps = [frame.timestamp_ns for _, frame in zip(range(40), source, strict=False)]
            assert source.skipped >= 0
    except GainError as err:
        message, stamps = str(err), []
    else:
        message = ""
    assert stamps == sorted(stamps)
    assert "\n" not in message
    assert time.monotonic() - started < LONGEST_S


@BOUNDED
@given(changes=CHANGES, cut=st.sampled_from([1.0, 0.7]))
def test_a_pipe_of_spoilt_pictures_ends(changes, cut):
    whole = picture("jpeg")
    with tempfile.TemporaryFile() as file:
        file.write(whole + changed(whole, changes, cut) + whole)
        file.seek(0)
        with PipeSource(PipeReader(file.fileno(), shown="stdin")) as source:
            frames = [frame.index for frame in source]
    # What is spoilt may swallow the picture after it, and no more.
    assert 1 <= len(frames) <= 3


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
def test_spoilt_files_leave_no_memory_behind(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "a.bin"

    def spoil(rounds: int) -> None:
        for number in range(rounds):
            kinds = list(VIDEOS) if number % 2 else list(PICTURES)
            kind = kinds[number // 2 % len(kinds)]
            data = video(kind) if number % 2 else picture(kind)
            changes = [
                (int(at), int(value))
                for at, value in rng.integers(0, 1 << 16, (6, 2)) % [1 << 16, 256]
            ]
            path.write_bytes(changed(data, changes, 1.0))
            with suppress(GainError), open_source(str(path)) as source:
                for _ in zip(range(20), source, strict=False):
                    pass

    spoil(60)
    before = resident_bytes()
    spoil(120)
    # A frame that leaked in each round would be more, and the decoders' contexts much more.
    assert resident_bytes() - before < 80 << 20

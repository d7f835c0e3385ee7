"""Artefacts of coded pictures: bits that flip on the way, and a clip at a poor quality or bit rate.

The clip pans over the image and ends on it, so that most of that frame is predicted from earlier
ones, as in a camera's stream.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from gain_scenes.corruptions.constants import Field, constants

__all__ = [
    "bit_error",
    "h264_abr",
    "h264_crf",
    "h265_abr",
    "h265_crf",
]

_QUALITY = 90
_MARKER = 0xFF
_START_OF_SCAN = b"\xff\xda"


def bit_error(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Write as JPEG, flip bits of the coded pixels, and decode what is left.

    Every row of blocks starts with a marker at which the decoder finds its place again, as coded
    video has it; markers are kept, so that damage stays in the rows it falls on.
    """
    (share,) = constants("bit_error", severity)
    written = io.BytesIO()
    pixels = np.rint(image * 255).astype(np.uint8)
    Image.fromarray(pixels).save(written, "JPEG", quality=_QUALITY, restart_marker_rows=1)
    clean = np.frombuffer(written.getvalue(), dtype=np.uint8)
    flips = _places(clean, share, rng=rng)
    while True:
        damaged = clean.copy()
        np.bitwise_xor.at(damaged, flips[:, 0], flips[:, 1].astype(np.uint8))
        _restore_markers(damaged, clean)
        try:
            with Image.open(io.BytesIO(damaged.tobytes())) as picture:
                values: Field = np.asarray(picture, dtype=np.float32) / np.float32(255)
                return values
        except (OSError, SyntaxError):
            # A decoder that gives up at some damage shows nothing: it is given half of it.
            flips = flips[: len(flips) // 2]


def _places(
    coded: npt.NDArray[np.uint8], share: float, *, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Byte and bit mask of each flip, (F, 2); a higher share flips the same bits and more."""
    raw = coded.tobytes()
    header = raw.index(_START_OF_SCAN)
    start = header + 2 + int.from_bytes(raw[header + 2 : header + 4], "big")
    end = len(raw) - 2
    count = round(8 * (end - start) * share)
    # One draw per place for both numbers: a prefix is then the same whatever the count.
    draws = rng.random((count, 2))
    where = start + (draws[:, 0] * (end - start)).astype(np.int64)
    return np.stack([where, 1 << (draws[:, 1] * 8).astype(np.int64)], axis=1)


def _restore_markers(damaged: npt.NDArray[np.uint8], clean: npt.NDArray[np.uint8]) -> None:
    """Undo what would make or break a marker: bytes of 0xFF and the ones after them."""
    special = (clean == _MARKER) | (damaged == _MARKER)
    special[1:] |= special[:-1].copy()
    damaged[special] = clean[special]


_NUM_FRAMES = 3
_FRAMES_PER_SECOND = 25
# Px per frame of a 224 px image.
_PAN_PX = 3.0
_ENCODERS = {"h264": "libx264", "hevc": "libx265"}
# One thread each: the same clip gives the same bits on every machine.
_SETTINGS = {"preset": "ultrafast", "tune": "zerolatency"}
_X265 = "log-level=none:pools=none:frame-threads=1"
# x265 takes no smaller frames than its smallest block allows; both want even sides.
_LEAST_SIDE_PX = 64

Pixels = npt.NDArray[np.uint8]


def h264_crf(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """H.264 at a constant poor quality."""
    (factor,) = constants("h264_crf", severity)
    return _coded(image, "h264", {"crf": f"{factor:.2f}"}, rng=rng, scale=scale)


def h265_crf(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """H.265 at a constant poor quality."""
    (factor,) = constants("h265_crf", severity)
    return _coded(image, "hevc", {"crf": f"{factor:.2f}"}, rng=rng, scale=scale)


def h264_abr(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """H.264 at too low a bit rate."""
    (bits,) = constants("h264_abr", severity)
    return _coded(image, "h264", {}, bits_per_px=bits, rng=rng, scale=scale)


def h265_abr(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """H.265 at too low a bit rate."""
    (bits,) = constants("h265_abr", severity)
    return _coded(image, "hevc", {}, bits_per_px=bits, rng=rng, scale=scale)


def _coded(
    image: Field,
    codec: str,
    quality: Mapping[str, str],
    *,
    rng: np.random.Generator,
    scale: float,
    bits_per_px: float | None = None,
) -> Field:
    """The image as the last frame of a clip that was coded and decoded."""
    height, width = image.shape[:2]
    angle = rng.uniform(0, 2 * np.pi)
    step = _PAN_PX * scale * np.array([np.cos(angle), np.sin(angle)])
    pixels = _padded(np.rint(image * 255).astype(np.uint8))
    frames = [_moved(pixels, left * step) for left in range(_NUM_FRAMES - 1, -1, -1)]
    packets = _encode(frames, codec, quality, bits_per_px=bits_per_px)
    decoded = _decode(packets, codec)
    values: Field = decoded[:height, :width].astype(np.float32) / np.float32(255)
    return values


def _padded(pixels: Pixels) -> Pixels:
    """The edge repeated to sides that an encoder takes."""
    height, width = (max(side + side % 2, _LEAST_SIDE_PX) for side in pixels.shape[:2])
    below, right = height - pixels.shape[0], width - pixels.shape[1]
    padded: Pixels = cv2.copyMakeBorder(pixels, 0, below, 0, right, cv2.BORDER_REPLICATE)
    return padded


def _moved(pixels: Pixels, offset: npt.NDArray[np.float64]) -> Pixels:
    """The image moved by (x, y) px, mirrored at its edges."""
    height, width = pixels.shape[:2]
    shift = np.array([[1, 0, offset[0]], [0, 1, offset[1]]], dtype=np.float64)
    moved: Pixels = cv2.warpAffine(
        pixels, shift, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
    )
    return moved


def _encode(
    frames: list[Pixels], codec: str, quality: Mapping[str, str], *, bits_per_px: float | None
) -> list[Any]:
    """The clip's packets."""
    context = av.CodecContext.create(_ENCODERS[codec], "w")
    height, width = frames[0].shape[:2]
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.time_base = Fraction(1, _FRAMES_PER_SECOND)
    context.framerate = _FRAMES_PER_SECOND
    context.thread_count = 1
    options = {**_SETTINGS, **quality}
    x265 = _X265
    if bits_per_px is not None:
        rate = max(int(bits_per_px * width * height * _FRAMES_PER_SECOND), 1000)
        context.bit_rate = rate
        # x264 keeps to a rate by itself; held to one by a buffer, it leaves small frames grey.
        kilobits = max(rate // 1000, 1)
        x265 += f":vbv-maxrate={kilobits}:vbv-bufsize={max(kilobits // 4, 1)}"
    if codec == "hevc":
        options["x265-params"] = x265
    context.options = options
    packets = []
    for number, pixels in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
        frame.pts = number
        packets += context.encode(frame)
    return [*packets, *context.encode(None)]


def _decode(packets: list[Any], codec: str) -> Pixels:
    """The clip's last frame."""
    context = av.CodecContext.create(codec, "r")
    context.thread_count = 1
    frames = [frame for packet in packets for frame in context.decode(packet)]
    frames += context.decode(None)
    last: Pixels = frames[-1].to_ndarray(format="rgb24")
    return last

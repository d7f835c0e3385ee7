"""Values changed one by one or in blocks: noise, bad light, contrast, JPEG, coded video."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from gain_scenes.corruptions.constants import Field, constants, fit, reference_shape

# 1e8 photons at white: noise nobody can see, and a mean that NumPy's Poisson still takes.
_LEAST_SHOT = 1e-4


def gaussian_noise(
    image: Field, severity: float, *, rng: np.random.Generator, scale: float
) -> Field:
    """Add a normal deviate to every value."""
    (deviation,) = constants("gaussian_noise", severity)
    return image + np.float32(deviation) * rng.standard_normal(image.shape, dtype=np.float32)


def shot_noise(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Count photons: Poisson with the value times the photons at white as its mean."""
    (noise_at_white,) = constants("shot_noise", severity)
    photons = np.float32(max(noise_at_white, _LEAST_SHOT) ** -2)
    counts = rng.poisson(image * photons).astype(np.float32)
    return counts / photons


def impulse_noise(
    image: Field, severity: float, *, rng: np.random.Generator, scale: float
) -> Field:
    """Replace a share of the values, each channel by itself, by 0 or 1 with equal chances."""
    (share,) = constants("impulse_noise", severity)
    draw = rng.random(image.shape, dtype=np.float32)
    salted = np.where(draw < share, np.float32(1), image)
    return np.where(draw < share / 2, np.float32(0), salted)


# Of the encoding of light into pixel values.
_GAMMA = np.float32(2.2)


def low_light(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Leave a share of the light; what is left is counted in few photons."""
    share, shot, read = constants("low_light", severity)
    return _exposed(image, share, shot=shot, read=read, rng=rng)


def iso_noise(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Amplify too few photons: noise of light and of the amplifier, strongest in the shadows."""
    shot, read = constants("iso_noise", severity)
    return _exposed(image, 1.0, shot=shot, read=read, rng=rng)


def color_quant(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Round every value down to one of a few levels."""
    (levels,) = constants("color_quant", severity)
    count = round(levels)
    steps = np.minimum(np.floor(image * np.float32(count)), np.float32(count - 1))
    return steps / np.float32(count - 1)


def _exposed(
    image: Field, share: float, *, shot: float, read: float, rng: np.random.Generator
) -> Field:
    """Expose a sensor to a share of the image's light.

    `shot` is the noise of the photons at the image's own white, `read` the deviation of what the
    amplifier adds, both in units of that white.
    """
    light = image**_GAMMA * np.float32(share)
    photons = np.float32(max(shot, _LEAST_SHOT) ** -2)
    counted = rng.poisson(light * photons).astype(np.float32) / photons
    counted += np.float32(read) * rng.standard_normal(image.shape, dtype=np.float32)
    return np.clip(counted, 0, None) ** (1 / _GAMMA)


def contrast(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Draw every value towards the mean of its channel."""
    (share,) = constants("contrast", severity)
    mean = image.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
    return (image - mean) * np.float32(share) + mean


def elastic_transform(
    image: Field, severity: float, *, rng: np.random.Generator, scale: float
) -> Field:
    """Shift three corners of a centred square at random, then ripple the image."""
    ripple, sigma, corner = constants("elastic_transform", severity)
    height, width = image.shape[:2]
    centre = np.array([width // 2, height // 2], dtype=np.float32)
    reach = min(height, width) // 3
    corners = np.array([[1, 1], [1, -1], [-1, -1]], dtype=np.float32)
    triangle = centre + reach * corners
    moved = triangle + rng.uniform(-corner * scale, corner * scale, (3, 2)).astype(np.float32)
    sheared = cv2.warpAffine(
        image,
        cv2.getAffineTransform(triangle, moved),
        (width, height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT_101,
    )
    shape = reference_shape(image.shape, scale)
    dx, dy = (
        fit(_smooth_noise(shape, sigma, rng=rng), image.shape) * np.float32(ripple * scale)
        for _ in range(2)
    )
    return cv2.remap(
        sheared,
        dx + np.arange(width, dtype=np.float32),
        dy + np.arange(height, dtype=np.float32)[:, None],
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_REFLECT,
    )


def _smooth_noise(shape: tuple[int, int], sigma: float, *, rng: np.random.Generator) -> Field:
    """Uniform noise in [-1, 1] under a gaussian of `sigma` px cut at three sigma, edges mirrored.

    With mirrored edges the cosine transform turns the filter into a product, which does not grow
    with sigma; at 170 px the filter itself would have 1,025 taps. The transform wants even sides
    with small factors; what they are too long is cut off.
    """
    rows, columns = (2 * cv2.getOptimalDFTSize((side + 1) // 2) for side in shape)
    noise = 2 * rng.random((rows, columns), dtype=np.float32) - 1
    response = np.outer(_response(rows, sigma), _response(columns, sigma)).astype(np.float32)
    smooth: Field = cv2.idct(cv2.dct(noise) * response)
    return np.ascontiguousarray(smooth[: shape[0], : shape[1]])


def _response(side: int, sigma: float) -> npt.NDArray[np.float64]:
    """What the filter leaves of each of the `side` cosines."""
    taps = np.arange(int(3 * sigma + 0.5) + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2)
    weights[1:] *= 2  # both sides of the middle
    waves = np.cos(np.outer(np.arange(side) * (np.pi / side), taps))
    return waves @ (weights / weights.sum())


def pixelate(image: Field, severity: float, *, rng: np.random.Generator, scale: float) -> Field:
    """Shrink by box averaging and blow up again, on 8-bit pixels."""
    (share,) = constants("pixelate", severity)
    height, width = image.shape[:2]
    small = (max(1, int(width * share)), max(1, int(height * share)))
    picture = Image.fromarray(_pixels(image))
    coarse = picture.resize(small, Image.Resampling.BOX)
    return _values(coarse.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(
    image: Field, severity: float, *, rng: np.random.Generator, scale: float
) -> Field:
    """Write as JPEG of low quality and read back. Quality is a whole number, so are its steps."""
    (quality,) = constants("jpeg_compression", severity)
    written = io.BytesIO()
    Image.fromarray(_pixels(image)).save(written, "JPEG", quality=round(quality))
    with Image.open(written) as picture:
        return _values(picture)


def _pixels(image: Field) -> npt.NDArray[np.uint8]:
    """Nearest 8-bit pixels."""
    return np.rint(image * 255).astype(np.uint8)


def _values(picture: Image.Image) -> Field:
    """Values in [0, 1] of an 8-bit picture."""
    return np.asarray(picture, dtype=np.float32) / np.float32(255)


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
    picture = Image.fromarray(_pixels(image))
    picture.save(written, "JPEG", quality=_QUALITY, restart_marker_rows=1)
    clean = np.frombuffer(written.getvalue(), dtype=np.uint8)
    flips = _places(clean, share, rng=rng)
    while True:
        damaged = clean.copy()
        np.bitwise_xor.at(damaged, flips[:, 0], flips[:, 1].astype(np.uint8))
        _restore_markers(damaged, clean)
        try:
            with Image.open(io.BytesIO(damaged.tobytes())) as decoded:
                return _values(decoded)
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
# The encoder and the decoder.
_CODECS = {"h264": ("libx264", "h264"), "h265": ("libx265", "hevc")}
# One thread each: the same clip gives the same bits on every machine.
_SETTINGS = {"preset": "ultrafast", "tune": "zerolatency"}
_X265 = "log-level=none:pools=none:frame-threads=1"
# x265 takes no smaller frames than its smallest block allows; both want even sides.
_LEAST_SIDE_PX = 64

Pixels = npt.NDArray[np.uint8]


def _coded(name: str) -> Callable[..., Field]:
    """The image as the last frame of a clip that was coded and decoded.

    `crf` is a constant poor quality, `abr` too low a bit rate.
    """
    codec, mode = name.split("_")
    encoder, decoder = _CODECS[codec]

    def corruption(
        image: Field, severity: float, *, rng: np.random.Generator, scale: float
    ) -> Field:
        (value,) = constants(name, severity)
        height, width = image.shape[:2]
        angle = rng.uniform(0, 2 * np.pi)
        step = _PAN_PX * scale * np.array([np.cos(angle), np.sin(angle)])
        pixels = _padded(_pixels(image))
        frames = [_moved(pixels, left * step) for left in range(_NUM_FRAMES - 1, -1, -1)]
        decoded = _decode(_encode(frames, encoder, mode, value), decoder)
        return decoded[:height, :width].astype(np.float32) / np.float32(255)

    return corruption


h264_crf = _coded("h264_crf")
h264_abr = _coded("h264_abr")
h265_crf = _coded("h265_crf")
h265_abr = _coded("h265_abr")


def _padded(pixels: Pixels) -> Pixels:
    """The edge repeated to sides that an encoder takes."""
    height, width = (max(side + side % 2, _LEAST_SIDE_PX) for side in pixels.shape[:2])
    below, right = height - pixels.shape[0], width - pixels.shape[1]
    return cv2.copyMakeBorder(pixels, 0, below, 0, right, cv2.BORDER_REPLICATE)


def _moved(pixels: Pixels, offset: npt.NDArray[np.float64]) -> Pixels:
    """The image moved by (x, y) px, mirrored at its edges."""
    height, width = pixels.shape[:2]
    shift = np.array([[1, 0, offset[0]], [0, 1, offset[1]]], dtype=np.float64)
    return cv2.warpAffine(
        pixels, shift, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
    )


def _encode(frames: list[Pixels], encoder: str, mode: str, value: float) -> list[Any]:
    """The clip's packets, at a rate factor (`crf`) or at so many bits per px (`abr`)."""
    context = av.CodecContext.create(encoder, "w")
    height, width = frames[0].shape[:2]
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.time_base = Fraction(1, _FRAMES_PER_SECOND)
    context.framerate = _FRAMES_PER_SECOND
    context.thread_count = 1
    options, x265 = dict(_SETTINGS), _X265
    if mode == "crf":
        options["crf"] = f"{value:.2f}"
    else:
        rate = max(int(value * width * height * _FRAMES_PER_SECOND), 1000)
        context.bit_rate = rate
        # x264 keeps to a rate by itself; held to one by a buffer, it leaves small frames grey.
        kilobits = max(rate // 1000, 1)
        x265 += f":vbv-maxrate={kilobits}:vbv-bufsize={max(kilobits // 4, 1)}"
    if encoder == "libx265":
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
    return frames[-1].to_ndarray(format="rgb24")

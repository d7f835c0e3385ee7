"""One sign as a camera may see it: its pose, what stands behind it, and the finished picture."""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
import numpy.typing as npt

from gain_scenes.roadsigns.designs import LABELS, TEXTURE_PX, texture
from gain_scenes.roadsigns.scenery import smooth_noise, weathered

Generator = np.random.Generator
Picture = npt.NDArray[np.float32]


def backdrop(size_px: int, rng: Generator, /) -> npt.NDArray[np.uint8]:
    """A square piece of roadside, (size_px, size_px, 3) uint8 RGB; the generator decides it all."""
    kinds = (_sky, _foliage, _asphalt, _building, _bokeh)
    picture = kinds[rng.choice(5, p=(0.28, 0.3, 0.1, 0.2, 0.12))](size_px, rng)
    if rng.random() < 0.35:
        lower = kinds[rng.choice(3, p=(0.1, 0.6, 0.3))](size_px, rng)
        horizon = int(size_px * rng.uniform(0.3, 0.9))
        picture[horizon:] = lower[horizon:]
    if rng.random() < 0.75:
        _post(picture, rng)
    if rng.random() < 0.6:
        picture = cv2.GaussianBlur(picture, (0, 0), float(size_px * rng.uniform(0.005, 0.03)))
    return np.clip(picture, 0.0, 255.0).astype(np.uint8)


def _mix(low: object, high: object, amount: Picture) -> Picture:
    """Two colours blended by (H, W) amounts."""
    first, second = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return first + (second - first) * amount[..., None]


def _sky(size: int, rng: Generator) -> Picture:
    """A gradient with clouds, blue to overcast."""
    overcast = rng.random()
    top = np.array([70, 130, 205]) * (1 - overcast) + np.array([170, 176, 184]) * overcast
    low = np.array([176, 206, 232]) * (1 - overcast) + np.array([226, 228, 230]) * overcast
    ramp = np.broadcast_to(np.linspace(0, 1, size, dtype=np.float32)[:, None], (size, size))
    picture = _mix(top, low, ramp * np.float32(rng.uniform(0.3, 1.0)))
    clouds = smooth_noise(rng, (size, size), cells=int(rng.integers(2, 6)))
    return (
        _mix(0, 1, np.clip(clouds * 1.6 - 0.7, 0, 1))
        * (244 - picture)
        * np.float32(rng.uniform(0.0, 0.9))
        + picture
    )


def _foliage(size: int, rng: Generator) -> Picture:
    """Leaves in light and shade."""
    amount = 0.45 * smooth_noise(rng, (size, size), cells=4)
    amount += 0.35 * smooth_noise(rng, (size, size), cells=11)
    amount += 0.35 * smooth_noise(rng, (size, size), cells=max(size // 3, 12))
    season = rng.random()
    bright = np.array([120, 152, 58]) * (1 - season) + np.array([168, 136, 66]) * season
    return _mix((18, 30, 14), bright * rng.uniform(0.7, 1.2), np.clip(amount, 0, 1.2))


def _asphalt(size: int, rng: Generator) -> Picture:
    """A grey, grainy surface, at times with a white mark."""
    grain = 0.7 * smooth_noise(rng, (size, size), cells=5)
    grain += 0.3 * smooth_noise(rng, (size, size), cells=max(size // 2, 8))
    level = rng.uniform(60, 140)
    picture = _mix([level * 0.8] * 3, [level * 1.2, level * 1.2, level * 1.24], grain)
    if rng.random() < 0.4:
        x = rng.uniform(0, size, 2)
        line = np.rint(
            [[x[0], 0], [x[0] + size * 0.1, 0], [x[1] + size * 0.14, size], [x[1], size]]
        )
        cv2.fillPoly(picture, [line.astype(np.int32)], (214.0, 214.0, 208.0))
    return picture


def _building(size: int, rng: Generator) -> Picture:
    """A wall with rows of windows."""
    wall = np.array([150, 138, 124]) + rng.uniform(-40, 60) + rng.uniform(-22, 22, 3)
    picture = _mix(wall * 0.85, wall * 1.1, smooth_noise(rng, (size, size), cells=4))
    pitch = rng.uniform(0.22, 0.5, 2) * size
    offset = rng.uniform(-0.3, 0.2, 2) * size
    glass = rng.uniform(30, 110) + np.array([0.0, 8.0, 18.0])
    for x in np.arange(offset[0], size, pitch[0]):
        for y in np.arange(offset[1], size, pitch[1]):
            color = tuple(float(channel) for channel in glass * rng.uniform(0.6, 1.5))
            stop = (int(x + pitch[0] * 0.55), int(y + pitch[1] * 0.6))
            cv2.rectangle(picture, (int(x), int(y)), stop, color, -1)
    return picture


def _bokeh(size: int, rng: Generator) -> Picture:
    """Lights and leaves far out of focus."""
    base = rng.uniform(20, 120) + rng.uniform(-16, 24, 3)
    picture = _mix(base * 0.7, base * 1.3, smooth_noise(rng, (size, size), cells=3))
    for _ in range(int(rng.integers(4, 14))):
        center = rng.uniform(0, size, 2)
        color = base + rng.uniform(10, 120) + rng.uniform(-30, 30, 3)
        radius = max(int(size * rng.uniform(0.04, 0.16)), 1)
        blob = picture.copy()
        cv2.circle(blob, (int(center[0]), int(center[1])), radius, tuple(map(float, color)), -1)
        picture = picture * 0.55 + blob * 0.45
    return cv2.GaussianBlur(picture, (0, 0), float(max(size * 0.02, 0.5)))


def _post(picture: Picture, rng: Generator) -> None:
    """The sign's post below the middle, in place."""
    size = picture.shape[0]
    half = max(size * rng.uniform(0.018, 0.035), 0.6)
    x = size * rng.uniform(0.47, 0.53)
    level = rng.uniform(90, 190)
    picture[size // 2 :, max(int(x - half), 0) : int(np.ceil(x + half))] = level


# Distance of the eye in half sign widths: a moderate perspective.
EYE = 7.0
SMALLEST_MIP_PX = 16


def corners(
    center: tuple[float, float], half_px: float, /, *, yaw: float, pitch: float, roll: float
) -> npt.NDArray[np.float32]:
    """Project the corners of a square plate, (4, 2) float32: clockwise from the top left.

    Centre and half the side, seen straight on, are in px; yaw, pitch and roll turn it about the
    vertical, the horizontal and the line of sight, in degrees.
    """
    cy, sy = np.cos(np.radians(yaw)), np.sin(np.radians(yaw))
    cp, sp = np.cos(np.radians(pitch)), np.sin(np.radians(pitch))
    cr, sr = np.cos(np.radians(roll)), np.sin(np.radians(roll))
    x = np.array([-1.0, 1.0, 1.0, -1.0])
    y = np.array([-1.0, -1.0, 1.0, 1.0])
    x, y = x * cr - y * sr, x * sr + y * cr
    y, z = y * cp, y * sp
    x, z = x * cy + z * sy, z * cy - x * sy
    depth = EYE / (EYE + z)
    points = np.stack([center[0] + half_px * x * depth, center[1] + half_px * y * depth], axis=1)
    return points.astype(np.float32)


def mip_size(half_px: float, /) -> int:
    """The texture size, a power of two, that a plate of this size is painted from."""
    size = SMALLEST_MIP_PX
    while size < TEXTURE_PX and size < 2.0 * half_px:
        size *= 2
    return size


@cache
def mip(class_index: int, size_px: int, /) -> npt.NDArray[np.uint8]:
    """A sign's texture at a smaller size: shared, read only."""
    if size_px >= TEXTURE_PX:
        return texture(class_index)
    small = cv2.resize(texture(class_index), (size_px, size_px), interpolation=cv2.INTER_AREA)
    small.setflags(write=False)
    return small


def paint(
    image: npt.NDArray[np.uint8], plate: npt.NDArray[np.uint8], quad: npt.NDArray[np.float32], /
) -> None:
    """Paint a plate into a picture, (H, W, 3) uint8, in place.

    The plate, (S, S, 4) uint8, has colours multiplied by coverage, and coverage. Its corners go to
    `quad`, (4, 2) float32, as `corners` orders them; parts outside the picture are cut.
    """
    height, width = image.shape[:2]
    left, top = np.maximum(np.floor(quad.min(axis=0)).astype(int) - 1, 0)
    right, bottom = np.minimum(np.ceil(quad.max(axis=0)).astype(int) + 2, (width, height))
    if right <= left or bottom <= top:
        return
    side = float(plate.shape[0])
    source = np.array([[0, 0], [side, 0], [side, side], [0, side]], np.float32) - 0.5
    # OpenCV counts from the centre of the first pixel, corners from its edge.
    target = quad - np.array([left + 0.5, top + 0.5], np.float32)
    matrix = cv2.getPerspectiveTransform(source, target)
    warped = cv2.warpPerspective(
        plate, matrix, (int(right - left), int(bottom - top)), flags=cv2.INTER_LINEAR
    )
    part = image[top:bottom, left:right]
    through = cv2.cvtColor(255 - warped[..., 3], cv2.COLOR_GRAY2RGB)
    behind = cv2.multiply(part, through, scale=1.0 / 255.0)
    part[:] = cv2.add(cv2.cvtColor(warped, cv2.COLOR_RGBA2RGB), behind)


Image = npt.NDArray[np.uint8]

# A detector's box is at best a little larger than the sign and not quite centred.
NEAREST_PX, FARTHEST_PX = 112.0, 28.0


def render_sample(
    class_index: int, rng: Generator, /, *, size_px: int = 64, severity: float = 1.0
) -> Image:
    """Draw one picture of a sign: its pose, wear, surroundings, light, camera and distance vary.

    There is no weather and no night here; a drive has those. The same generator state gives the
    same picture, (size_px, size_px, 3) uint8 RGB. It is taken at 28 to 112 px and resized, so that
    far signs are as coarse as they are in a real crop. The severity scales wear, pose and light; 1
    is the everyday roadside.
    """
    taken_px = round(float(np.exp(rng.uniform(np.log(FARTHEST_PX), np.log(NEAREST_PX)))))
    image = backdrop(taken_px, rng)
    half = 0.5 * taken_px / (1.0 + rng.uniform(0.02, 0.3))
    slack = max(taken_px / 2.0 - half, 1.0)
    shift = rng.uniform(-1.0, 1.0, 2) * slack * 0.9
    quad = corners(
        (taken_px / 2.0 + shift[0], taken_px / 2.0 + shift[1]),
        half,
        yaw=severity * rng.normal(0.0, 16.0),
        pitch=severity * rng.normal(0.0, 6.0),
        roll=severity * rng.normal(0.0, 4.0),
    )
    plate = weathered(mip(class_index, mip_size(half)), rng, severity=severity)
    paint(image, plate, quad)
    image = _exposed(image, rng, severity)
    filter_ = cv2.INTER_AREA if taken_px > size_px else cv2.INTER_CUBIC
    return cv2.resize(image, (size_px, size_px), interpolation=filter_)


def render_labelled(
    index: int, /, *, seed: int, size_px: int = 64, severity: float = 1.0
) -> tuple[Image, int]:
    """Sample number `index` of the endless data set `seed`: the picture and its class index."""
    rng = np.random.default_rng([seed, index])
    class_index = int(rng.integers(len(LABELS)))
    return render_sample(class_index, rng, size_px=size_px, severity=severity), class_index


def _exposed(image: Image, rng: Generator, severity: float) -> Image:
    """Light, white balance, a trace of blur and the sensor's noise."""
    picture = image.astype(np.float32)
    size = image.shape[0]
    gain = np.exp(severity * rng.normal(0.0, 0.22)) * np.exp(severity * rng.normal(0.0, 0.05, 3))
    slope = severity * rng.uniform(-0.2, 0.2, 2)
    ramp = np.linspace(-1.0, 1.0, size, dtype=np.float32)
    light = 1.0 + ramp * np.float32(slope[0]) + ramp[:, None] * np.float32(slope[1])
    picture *= light[..., None] * gain.astype(np.float32)
    contrast = np.float32(1.0 + severity * rng.uniform(-0.2, 0.15))
    picture = (picture - 118.0) * contrast + 118.0
    if rng.random() < 0.4 * severity:
        sigma_px = size / 64.0 * rng.uniform(0.3, 0.9)
        picture = cv2.GaussianBlur(picture, (0, 0), float(sigma_px))
    sigma = np.float32(severity * rng.uniform(0.5, 7.0))
    picture += rng.standard_normal(picture.shape, dtype=np.float32) * sigma
    return np.clip(picture, 0.0, 255.0).astype(np.uint8)

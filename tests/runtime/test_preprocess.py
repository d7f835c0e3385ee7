"""Preprocessing equals timm's evaluation transform, and refuses what is no image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from gain_core.errors import ArrayError
from gain_runtime.files.manifest import Preprocess
from gain_runtime.preprocess import _shrunk, preprocess, preprocess_batch, resized_crop

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
INCEPTION = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
PHOTOS = 6


def spec(**changes) -> Preprocess:
    return replace(Preprocess(height_px=224, width_px=224, **IMAGENET), **changes)


def timm_transform(settings: Preprocess):
    timm_data = pytest.importorskip("timm.data", reason="timm is the reference here")
    return timm_data.create_transform(
        input_size=(3, settings.height_px, settings.width_px),
        interpolation=settings.interpolation,
        crop_mode=settings.crop_mode,
        crop_pct=settings.crop_fraction,
        mean=settings.mean,
        std=settings.std,
    )


def assert_equals_timm(image: np.ndarray, settings: Preprocess) -> None:
    expected = timm_transform(settings)(Image.fromarray(image)).numpy()
    np.testing.assert_array_equal(preprocess(image, settings), expected)


def textured(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Noise over a gradient: fine and coarse structure, every level present."""
    rng = np.random.default_rng(seed)
    slope = np.linspace(0, 200, height * width).reshape(height, width, 1)
    return np.clip(slope + rng.integers(0, 56, (height, width, 3)), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def photos(photo_dir) -> list[np.ndarray]:
    """Real photographs: none square, both orientations, some of odd size."""
    chosen: dict[str, np.ndarray] = {}
    for path in sorted(photo_dir.glob("*.jpg")):
        with Image.open(path) as photo:
            width, height = photo.size
            kind = "tall" if height > width else "wide"
            kind += " odd" if height % 2 and width % 2 else ""
            if width == height or (kind in chosen and len(chosen) < 4):
                continue
            chosen[kind if kind not in chosen else path.name] = np.asarray(photo.convert("RGB"))
        if len(chosen) == PHOTOS:
            break
    assert {"tall", "wide", "tall odd", "wide odd"} <= set(chosen)
    return list(chosen.values())


@pytest.mark.parametrize("crop_fraction", [1.0, 0.95, 0.9, 0.875])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_photographs_equal_timm(photos, crop_mode, crop_fraction):
    for photo in photos:
        assert_equals_timm(photo, spec(crop_mode=crop_mode, crop_fraction=crop_fraction))


@pytest.mark.parametrize("size", [(384, 128), (160, 320), (224, 225)])
@pytest.mark.parametrize("crop_fraction", [1.0, 0.9])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_non_square_inputs_equal_timm(photos, size, crop_fraction, crop_mode):
    height, width = size
    settings = spec(
        height_px=height, width_px=width, crop_fraction=crop_fraction, crop_mode=crop_mode
    )
    for photo in photos[:3]:
        assert_equals_timm(photo, settings)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_every_filter_equals_timm(photos, interpolation):
    for photo in photos[:2]:
        assert_equals_timm(photo, spec(interpolation=interpolation, crop_fraction=0.9))


@pytest.mark.parametrize("statistics", [IMAGENET, INCEPTION], ids=["imagenet", "inception"])
def test_every_level_is_normalised_as_timm_does(statistics):
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = np.stack([levels, levels[::-1], levels.T], axis=-1)
    assert_equals_timm(image, spec(height_px=16, width_px=16, **statistics))


@pytest.mark.parametrize("side", [15, 16, 17, 31, 33])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (7, 3), (16, 16), (33, 34), (250, 251)])
def test_odd_and_small_images_equal_timm(shape, side):
    for crop_fraction in (1.0, 0.875):
        settings = spec(height_px=side, width_px=side, crop_fraction=crop_fraction)
        assert_equals_timm(textured(*shape), settings)
        assert_equals_timm(textured(*shape), replace(settings, width_px=side + 8))


def test_many_shapes_keep_timms_roundings():
    rng = np.random.default_rng(7)
    for _ in range(60):
        height, width, target_height, target_width = rng.integers(5, 90, size=4).tolist()
        settings = spec(
            height_px=target_height,
            width_px=rng.choice([target_height, target_width]).item(),
            crop_fraction=rng.choice([1.0, 0.96, 0.9, 0.875, 0.77]).item(),
            crop_mode=rng.choice(["center", "squash"]).item(),
            interpolation="bilinear",
        )
        assert_equals_timm(textured(height, width), settings)


def test_bgr_networks_get_planes_in_their_order():
    image = np.zeros((20, 20, 3), dtype=np.uint8)
    image[..., 0] = 255  # pure red
    settings = spec(height_px=20, width_px=20, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))
    rgb = preprocess(image, settings)
    bgr = preprocess(image, replace(settings, channel_order="BGR"))
    np.testing.assert_allclose(rgb[:, 0, 0], [0.9, -0.2, -0.3], rtol=1e-6)
    np.testing.assert_allclose(bgr[:, 0, 0], [-0.1, -0.2, 0.7], rtol=1e-6)


def test_region_equals_the_cut_out_image():
    image = textured(90, 120)
    settings = spec(height_px=32, width_px=32, crop_fraction=0.9)
    np.testing.assert_array_equal(
        preprocess(image, settings, region=(11, 5, 71, 88)),
        preprocess(image[5:88, 11:71].copy(), settings),
    )


@pytest.mark.parametrize(
    ("region", "clipped"),
    [
        pytest.param((-20, -3, 50, 60), (0, 0, 50, 60), id="left and top"),
        pytest.param((60, 40, 500, 91), (60, 40, 120, 90), id="right and bottom"),
        pytest.param((-1, -1, 121, 91), (0, 0, 120, 90), id="around the frame"),
    ],
)
def test_region_is_clipped_to_the_frame(region, clipped):
    image, settings = textured(90, 120), spec(height_px=32, width_px=32)
    np.testing.assert_array_equal(
        preprocess(image, settings, region=region), preprocess(image, settings, region=clipped)
    )


@pytest.mark.parametrize(
    "region",
    [
        pytest.param((10, 10, 10, 20), id="no width"),
        pytest.param((10, 30, 20, 20), id="upside down"),
        pytest.param((120, 0, 140, 20), id="right of the frame"),
        pytest.param((0, -40, 20, 0), id="above the frame"),
        pytest.param((0.5, 0, 20, 20), id="fractions"),
        pytest.param((0, 0, 20), id="three edges"),
    ],
)
def test_empty_and_malformed_regions_are_refused(region):
    with pytest.raises(ArrayError, match="region: expected"):
        preprocess(textured(90, 120), spec(), region=region)


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(np.zeros((8, 8, 3), dtype=np.float32), id="float32"),
        pytest.param(np.zeros((8, 8, 3), dtype=np.uint16), id="uint16"),
        pytest.param(np.zeros((8, 8), dtype=np.uint8), id="grey"),
        pytest.param(np.zeros((8, 8, 4), dtype=np.uint8), id="alpha"),
        pytest.param(np.zeros((3, 8, 8), dtype=np.uint8), id="planes first"),
        pytest.param(np.zeros((0, 8, 3), dtype=np.uint8), id="no rows"),
        pytest.param(np.zeros((8, 0, 3), dtype=np.uint8), id="no columns"),
        pytest.param([[[0, 0, 0]]], id="list"),
    ],
)
def test_other_arrays_are_refused(image):
    with pytest.raises(ArrayError, match="image: expected"):
        preprocess(image, spec())


def test_sliver_that_would_fill_the_memory_is_refused():
    with pytest.raises(ArrayError, match="too narrow"):
        preprocess(textured(1, 4000), spec())


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda image: image[:, ::-1], id="mirrored"),
        pytest.param(lambda image: image[..., ::-1], id="channels reversed"),
        pytest.param(lambda image: np.asfortranarray(image), id="fortran order"),
        pytest.param(lambda image: image[::2, 1::3], id="strided"),
    ],
)
def test_memory_layout_does_not_matter(view):
    image, settings = view(textured(90, 120)), spec(height_px=32, width_px=32)
    expected = preprocess(np.ascontiguousarray(image), settings)
    image.flags.writeable = False
    np.testing.assert_array_equal(preprocess(image, settings), expected)


def test_batch_equals_single_frames_of_any_size():
    images = [textured(90, 120), textured(41, 17, seed=1), textured(64, 64, seed=2)]
    regions = [(4, 4, 60, 60), None, (-5, 0, 30, 99)]
    settings = spec(height_px=32, width_px=40, crop_fraction=0.9)
    batch = preprocess_batch(images, settings, regions=regions)
    assert batch.shape == (3, 3, 32, 40)
    assert batch.dtype == np.float32
    assert batch.flags.c_contiguous
    for row, image, region in zip(batch, images, regions, strict=True):
        np.testing.assert_array_equal(row, preprocess(image, settings, region=region))
    np.testing.assert_array_equal(
        preprocess_batch(images, settings)[0], preprocess(images[0], settings)
    )


def test_empty_batch_has_no_rows():
    assert preprocess_batch([], spec()).shape == (0, 3, 224, 224)


def test_batch_with_too_few_regions_is_refused():
    with pytest.raises(ArrayError, match="regions: expected 2"):
        preprocess_batch([textured(9, 9)] * 2, spec(), regions=[None])


def drawn(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Noise, black and white squares, ramps of whole levels, or one colour."""
    y, x = np.mgrid[:height, :width][..., None]
    tile = rng.integers(1, 40, 2)
    chosen = rng.integers(5)
    if chosen == 0:
        levels = rng.integers(0, 256, (height, width, 3))
    elif chosen == 1:
        squares = rng.integers(0, 2, (height // tile[0] + 1, width // tile[1] + 1, 3))
        levels = 255 * squares[y[..., 0] // tile[0], x[..., 0] // tile[1]]
    elif chosen == 2:
        levels = (x * tile[0] // tile[1] + np.arange(3) * y) % 256
    elif chosen == 3:
        levels = np.clip(
            128 + 90 * np.sin(x / tile[0]) * np.cos(y / tile[1] + np.arange(3)), 0, 255
        )
    else:
        levels = np.full((height, width, 3), rng.integers(0, 256, 3))
    return levels.astype(np.uint8)


def resized_by_pillow(image: np.ndarray, settings: Preprocess) -> np.ndarray:
    """The levels of the network's input, from Pillow alone."""
    crop = resized_crop(*image.shape[:2], settings)
    whole = Image.fromarray(image).resize(
        (crop.width_px, crop.height_px), getattr(Image.Resampling, settings.interpolation.upper())
    )
    rows = slice(crop.top_px, crop.top_px + settings.height_px)
    columns = slice(crop.left_px, crop.left_px + settings.width_px)
    return np.asarray(whole)[rows, columns]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("seed", range(4))
def test_products_of_matrices_equal_pillow(interpolation, seed):
    """Shrunk and enlarged, cropped, wide, and so tall that Pillow 13 scales rows first."""
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(60):
        height, width = (2 ** rng.uniform(3, 9.5, 2)).astype(int).tolist()
        settings = spec(
            height_px=int(2 ** rng.uniform(2, 7)),
            width_px=int(2 ** rng.uniform(2, 7)),
            crop_fraction=rng.choice([1.0, 0.95, 0.875, 0.5]).item(),
            crop_mode=rng.choice(["center", "squash"]).item(),
            interpolation=interpolation,
        )
        image = drawn(height, width, rng)
        levels = _shrunk(image, resized_crop(height, width, settings), settings)
        if levels is None:
            refused += 1
        else:
            np.testing.assert_array_equal(levels, resized_by_pillow(image, settings))
    assert refused < 20


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(720, 1280), (1080, 1920), (1500, 300), (97, 701)])
@pytest.mark.parametrize(
    "settings",
    [
        *({"crop_fraction": 0.875}, {"height_px": 64, "width_px": 64, "crop_mode": "squash"}),
        {"height_px": 60, "width_px": 45, "channel_order": "BGR"},
    ],
    ids=str,
)
def test_large_frames_equal_pillow(interpolation, size, settings):
    """Many parts that stay in the cache, and a region of them."""
    unit = spec(**settings, interpolation=interpolation, mean=(0.0,) * 3, std=(1 / 255,) * 3)
    image = drawn(*size, np.random.default_rng(size[0]))
    height, width = size
    cut = image[2 : height - 11, 3 : width - 7]
    for found, part in (
        (preprocess(image, unit), image),
        (preprocess(image, unit, region=(3, 2, width - 7, height - 11)), cut),
    ):
        expected = resized_by_pillow(part, unit).transpose(2, 0, 1)
        if unit.channel_order == "BGR":
            expected = expected[::-1]
        np.testing.assert_array_equal(found.round(), expected)


@pytest.mark.parametrize("period", [1, 5, 256])
def test_stripes_whose_sums_are_halves_equal_pillow(period):
    """Nearly every sum lies between two levels."""
    levels = np.arange(1280) // period % 2 * 255 if period == 1 else np.arange(1280) // period % 256
    image = np.broadcast_to(levels[None, :, None], (720, 1280, 3)).astype(np.uint8)
    unit = spec(height_px=64, width_px=64, crop_mode="squash", mean=(0.0,) * 3, std=(1 / 255,) * 3)
    assert _shrunk(image, resized_crop(720, 1280, unit), unit) is None or period == 256
    expected = resized_by_pillow(image, unit).transpose(2, 0, 1)
    np.testing.assert_array_equal(preprocess(image, unit).round(), expected)

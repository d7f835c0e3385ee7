"""Rewrite `photo.png` and `reference.npz`: what `imagecorruptions` 1.1.2 makes of one photograph.

`imagecorruptions` cannot live in the development environment: it depends on `opencv-python`,
whose `cv2` would overwrite that of `opencv-python-headless`, and it needs names that NumPy 2,
scikit-image and SciPy have dropped. So it runs in an environment of its own::

    python3.11 -m venv /tmp/reference
    /tmp/reference/bin/pip install --no-deps imagecorruptions==1.1.2
    /tmp/reference/bin/pip install numpy scikit-image opencv-python-headless pillow
    /tmp/reference/bin/python tests/corruptions/make_reference.py

The photograph is `skimage.data.coffee` (by Rachel Michetti, CC0), cropped and resized to 224 px.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
DETERMINISTIC = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
)
RANDOM = ("gaussian_noise", "shot_noise", "impulse_noise", "motion_blur", "snow", "frost", "fog")
NUM_SEEDS = 100  # frost is one of five photographs: fewer runs would not settle its mean
# Rows and columns that are stored: both edges in full, every seventh pixel between them.
STORED = np.unique(np.r_[0:6, 0:224:7, 218:224])
ANGLES = (-40.0, -15.0, 0.0, 20.0, 45.0)
GLASS_BOX = np.s_[60:108, 70:134]
GLASS = ((1, 2), (2, 1), (2, 3), (3, 2), (4, 2))  # displacement, passes


def load_imagecorruptions() -> Any:
    """Import it with the names it misses put back."""
    import scipy.ndimage
    import skimage.filters

    setattr(np, "float_", np.float64)  # noqa: B010 - gone from NumPy 2, a name ruff knows
    resources = types.ModuleType("pkg_resources")
    folder = Path(importlib.util.find_spec("imagecorruptions").origin).parent
    resources.resource_filename = lambda _package, name: str(folder / name)
    sys.modules["pkg_resources"] = resources
    sys.modules["scipy.ndimage.interpolation"] = scipy.ndimage
    gaussian = skimage.filters.gaussian

    @functools.wraps(gaussian)
    def gaussian_multichannel(image: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("multichannel", False):
            kwargs["channel_axis"] = -1
        return gaussian(image, *args, **kwargs)

    skimage.filters.gaussian = gaussian_multichannel
    import imagecorruptions

    return imagecorruptions


def make_photo() -> Any:
    """The photograph, (224, 224, 3) uint8."""
    import skimage.data

    picture = Image.fromarray(skimage.data.coffee())
    left = (picture.width - picture.height) // 2
    square = picture.crop((left, 0, left + picture.height, picture.height))
    return np.asarray(square.resize((224, 224), Image.Resampling.LANCZOS))


def statistics(before: Any, after: Any) -> list[float]:
    """Mean, deviation, mean absolute change and mean absolute step to the right-hand pixel."""
    values = after.astype(np.float64)
    change = np.abs(values - before).mean()
    return [values.mean(), values.std(), change, np.abs(np.diff(values, axis=1)).mean()]


def glass(library: Any, image: Any, severity: int) -> tuple[Any, Any]:
    """Glass blur with offsets of ours: the result, and the offsets in the order of the loop."""
    reach, passes = GLASS[severity - 1]
    num_visits = (image.shape[0] - 2 * reach) * (image.shape[1] - 2 * reach)
    rng = np.random.default_rng(severity)
    offsets = rng.integers(-reach, reach, (passes * num_visits, 2), dtype=np.int8)
    rows = iter(offsets.astype(np.int64))
    original, np.random.randint = np.random.randint, lambda *_args, **_kwargs: next(rows)
    try:
        return library.corrupt(image, severity, "glass_blur"), offsets
    finally:
        np.random.randint = original


def motion(library: Any, image: Any, severity: int) -> Any:
    """Motion blur at an angle of ours."""
    original, np.random.uniform = np.random.uniform, lambda *_args: ANGLES[severity - 1]
    try:
        return library.corrupt(image, severity, "motion_blur")
    finally:
        np.random.uniform = original


def main() -> None:
    """Write both files beside this one."""
    library = load_imagecorruptions()
    photo = make_photo()
    Image.fromarray(photo).save(HERE / "photo.png", optimize=True)
    arrays: dict[str, Any] = {"stored": STORED, "angles": np.array(ANGLES)}
    for severity in range(1, 6):
        for name in DETERMINISTIC:
            result = library.corrupt(photo, severity, name)
            arrays[f"{name}_{severity}"] = result[np.ix_(STORED, STORED)]
            arrays[f"statistics_{name}_{severity}"] = np.array(statistics(photo, result))
        moved = motion(library, photo, severity)
        arrays[f"motion_blur_{severity}"] = moved[np.ix_(STORED, STORED)]
        result, offsets = glass(library, np.ascontiguousarray(photo[GLASS_BOX]), severity)
        arrays[f"glass_blur_{severity}"], arrays[f"glass_offsets_{severity}"] = result, offsets
        for name in (*RANDOM, "glass_blur"):
            np.random.seed(severity)  # noqa: NPY002 - the generator the library draws from
            num_seeds = 2 if name == "glass_blur" else NUM_SEEDS
            runs = [library.corrupt(photo, severity, name) for _ in range(num_seeds)]
            rows = np.array([statistics(photo, run) for run in runs])
            arrays[f"statistics_{name}_{severity}"] = rows.mean(axis=0)
    np.savez_compressed(HERE / "reference.npz", **arrays)


if __name__ == "__main__":
    main()

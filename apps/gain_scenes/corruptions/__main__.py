"""All corruptions of one photograph on one sheet: a row per corruption, a column per severity."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from gain_core.errors import ConfigError, GainError, StreamError
from gain_runtime.files.images import load_image
from gain_runtime.files.paths import write_atomically
from gain_scenes.corruptions.apply import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, image_rng
from gain_scenes.corruptions.constants import MAX_SEVERITY, REFERENCE_PX

Pixels = npt.NDArray[np.uint8]

_TILE_PX = 168
_GAP_PX = 4
_LABEL_WIDTH_PX = 150
_HEADER_PX = 24
_QUALITY = 84
_FORMATS = (".jpg", ".jpeg", ".png")


def contact_sheet(
    photo: Pixels,
    *,
    names: Sequence[str] = CORRUPTIONS,
    seed: int = 0,
    tile_px: int = _TILE_PX,
) -> Pixels:
    """Draw the clean photograph and severities 1 to 5 of every corruption, (h, w, 3) uint8 RGB.

    The photograph, (H, W, 3) uint8 RGB with sides of at least 32 px, is corrupted at its own size
    and then resized to square tiles.
    """
    pitch = tile_px + _GAP_PX
    method = cv2.INTER_AREA if min(photo.shape[:2]) > tile_px else cv2.INTER_LINEAR
    height = _HEADER_PX + pitch * len(names)
    sheet = np.full((height, _LABEL_WIDTH_PX + pitch * (MAX_SEVERITY + 1), 3), 255, np.uint8)
    for severity in range(MAX_SEVERITY + 1):
        text = f"severity {severity}" if severity else "clean"
        _write(sheet, text, left=_LABEL_WIDTH_PX + severity * pitch, baseline=_HEADER_PX - 8)
    for row, name in enumerate(names):
        top = _HEADER_PX + row * pitch
        _write(sheet, name.replace("_", " "), left=6, baseline=top + tile_px // 2)
        for severity in range(MAX_SEVERITY + 1):
            image = corrupt(photo, name, severity, rng=image_rng(seed, 0, name))
            tile = cv2.resize(image, (tile_px, tile_px), interpolation=method)
            left = _LABEL_WIDTH_PX + severity * pitch
            sheet[top : top + tile_px, left : left + tile_px] = tile
    return sheet


def _write(sheet: Pixels, text: str, *, left: int, baseline: int) -> None:
    """Write one line of text."""
    font = cv2.FONT_HERSHEY_SIMPLEX
    cv2.putText(sheet, text, (left, baseline), font, 0.45, (0, 0, 0), 1, cv2.LINE_AA)


def read_photo(path: Path) -> Pixels:
    """The middle square of a picture file, upright, of 224 px; `ConfigError` if it is none."""
    try:
        upright = Image.fromarray(load_image(path))
    except StreamError as err:
        raise ConfigError(f"photo: expected a picture file, got {err}") from err
    size = (REFERENCE_PX, REFERENCE_PX)
    return np.asarray(ImageOps.fit(upright, size, Image.Resampling.BICUBIC))


def build_parser() -> argparse.ArgumentParser:
    """Flags of ``python -m gain_scenes.corruptions``."""
    parser = argparse.ArgumentParser(
        prog="python -m gain_scenes.corruptions",
        description="Draw the fifteen corruptions of a photograph at severities 1 to 5.",
    )
    parser.add_argument("photo", type=Path, help="picture file; its middle square is used")
    parser.add_argument("--out", type=Path, required=True, help="sheet to write, .jpg or .png")
    parser.add_argument("--extra", action="store_true", help="those of cameras and video too")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random corruptions")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the sheet; 0 on success, 1 with one line on stderr otherwise."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.out.suffix.lower() not in _FORMATS:
            raise ConfigError(f"--out: expected one of {', '.join(_FORMATS)}, got {arguments.out}")
        names = CORRUPTIONS + EXTRA_CORRUPTIONS if arguments.extra else CORRUPTIONS
        photo = read_photo(arguments.photo)
        _save(contact_sheet(photo, names=names, seed=arguments.seed), arguments.out)
    except GainError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    print(arguments.out)
    return 0


def _save(sheet: Pixels, path: Path) -> None:
    """Write the sheet in full or not at all."""
    buffer = io.BytesIO()
    kind = Image.registered_extensions()[path.suffix.lower()]
    Image.fromarray(sheet).save(buffer, kind, quality=_QUALITY, optimize=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())
    except OSError as err:
        raise ConfigError(f"--out: expected a path to write to, got {path}: {err}") from err


if __name__ == "__main__":
    raise SystemExit(main())

"""Sheets to look at: all designs, one sample of each, or a frame of each condition of the drive."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError, GainError
from gain_runtime.files.paths import is_folder, write_atomically
from gain_scenes.roadsigns.conditions import CONDITIONS
from gain_scenes.roadsigns.designs import LABELS, draw_sign
from gain_scenes.roadsigns.sample import paint, render_sample
from gain_scenes.roadsigns.sources import DriveParams, DriveSource

__all__ = [
    "build_parser",
    "design_sheet",
    "drive_sheet",
    "main",
    "sample_sheet",
]

Image = npt.NDArray[np.uint8]

_GAP_PX = 6
_CAPTION_PX = 16
_INK = (40, 40, 40)
_FORMATS = (".png", ".jpg", ".jpeg")
# Far enough into a condition for it to have rolled in.
_FRAMES, _SHOWN = 300, 75


def design_sheet(*, columns: int = 9, tile_px: int = 112) -> Image:
    """All signs as they are designed, with their names: (H, W, 3) uint8 RGB."""
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float32) * tile_px
    tiles = []
    for index in range(len(LABELS)):
        tile = np.full((tile_px, tile_px, 3), 236, np.uint8)
        paint(tile, draw_sign(index, size_px=tile_px), square)
        tiles.append(tile)
    return _arranged(tiles, LABELS, columns=columns)


def sample_sheet(*, seed: int = 0, columns: int = 9, tile_px: int = 112) -> Image:
    """One sample of each sign, with its name: (H, W, 3) uint8 RGB."""
    tiles = [
        render_sample(index, np.random.default_rng([seed, index]), size_px=tile_px)
        for index in range(len(LABELS))
    ]
    return _arranged(tiles, LABELS, columns=columns)


def drive_sheet(*, seed: int = 5, columns: int = 2, tile_px: int = 480) -> Image:
    """The same moment of a drive in each condition, the region outlined: (H, W, 3) uint8 RGB."""
    tiles = []
    for name in CONDITIONS:
        with DriveSource(DriveParams(frames=_FRAMES, conditions=name, seed=seed)) as source:
            frame = source.frame(_SHOWN)
        image = frame.image.copy()
        if frame.region is not None:
            left, top, right, bottom = frame.region
            cv2.rectangle(image, (left, top), (right, bottom), (255, 220, 0), 2)
        size = (tile_px, tile_px * image.shape[0] // image.shape[1])
        tiles.append(cv2.resize(image, size, interpolation=cv2.INTER_AREA))
    return _arranged(tiles, tuple(CONDITIONS), columns=columns)


def _arranged(tiles: Sequence[Image], names: Sequence[str], *, columns: int) -> Image:
    """Tiles of one size in rows, each above its name."""
    height, width = tiles[0].shape[:2]
    rows = -(-len(tiles) // columns)
    pitch_x, pitch_y = width + _GAP_PX, height + _CAPTION_PX + _GAP_PX
    shape = (rows * pitch_y + _GAP_PX, columns * pitch_x + _GAP_PX, 3)
    sheet = np.full(shape, 236, np.uint8)
    for index, (tile, name) in enumerate(zip(tiles, names, strict=True)):
        top, left = _GAP_PX + index // columns * pitch_y, _GAP_PX + index % columns * pitch_x
        sheet[top : top + height, left : left + width] = tile
        _caption(sheet, name, center_x=left + width // 2, baseline=top + height + 12)
    return sheet


def _caption(sheet: Image, text: str, *, center_x: int, baseline: int) -> None:
    """Write a small centred line, in place."""
    (width, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.36, 1)
    origin = (center_x - width // 2, baseline)
    cv2.putText(sheet, text, origin, cv2.FONT_HERSHEY_SIMPLEX, 0.36, _INK, 1, cv2.LINE_AA)


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m gain_scenes.roadsigns",
        description="Draw a sheet of the road signs or of the drive's conditions.",
    )
    parser.add_argument("out", type=Path, help="picture to write, .png or .jpg")
    parser.add_argument("--kind", choices=("designs", "samples", "drive"), default="designs")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 on success, 1 on a `GainError`."""
    args = build_parser().parse_args(argv)
    sheets = {"designs": design_sheet, "samples": sample_sheet, "drive": drive_sheet}
    try:
        _write(args.out, sheets[args.kind]())
    except GainError as err:
        sys.stderr.write(f"{err}\n")
        return 1
    return 0


def _write(path: Path, sheet: Image) -> None:
    """Encode a sheet by its file's suffix."""
    if path.suffix.lower() not in _FORMATS or not is_folder(path.parent):
        raise ConfigError(
            f"{path}: expected a file ending in {', '.join(_FORMATS)} in a folder that exists"
        )
    suffix = path.suffix.lower()
    how = [cv2.IMWRITE_PNG_COMPRESSION, 9] if suffix == ".png" else [cv2.IMWRITE_JPEG_QUALITY, 86]
    _, data = cv2.imencode(suffix, cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR), how)
    write_atomically(path, data.tobytes())


if __name__ == "__main__":
    raise SystemExit(main())

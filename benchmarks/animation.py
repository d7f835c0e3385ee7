"""The README's animation: the drive of `make demo`, frozen beside adapted, as the weather turns.

    python benchmarks/animation.py demo-result/drive.mp4 demo-result/frames.jsonl \
        docs/images/frozen-and-adapted.gif

`make animation` does both. Of each weather a few seconds are shown, taken where the two answers
differ most, so it shows what adapting does and not how often: the README's table has that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
from PIL import Image

# Frames of a scene, how many of them are kept, and how long each is shown.
SCENE_FRAMES = 60
STRIDE = 5
FRAME_MS = 160
SCENES = ("clear", "fog", "rain", "snow", "dirty-lens")
WIDTH_PX = 720
COLOURS = 128
ACCENTS = (
    "#40d0a4",
    "#3cc29a",
    "#36b08b",
    "#58d68d",
    "#f08080",
    "#e05555",
    "#ffb23e",
    "#d99a3c",
    "#8f96c0",
)
MOST_BYTES = 3_000_000


def main() -> int:
    """Write the animation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path, help="drive.mp4 of make demo")
    parser.add_argument("rows", type=Path, help="frames.jsonl of the same run")
    parser.add_argument("output", type=Path, metavar="GIF")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text("utf-8").splitlines()]
    wanted = set(frames_to_show(rows))
    with av.open(str(args.video)) as container:
        frames = enumerate(container.decode(video=0))
        pictures = [shrunk(frame.to_image()) for number, frame in frames if number in wanted]
    save(pictures, args.output)
    print(f"{args.output}: {len(pictures)} frames, {args.output.stat().st_size / 1e6:.2f} MB")
    return 0


def frames_to_show(rows: Sequence[dict[str, Any]], /) -> Iterator[int]:
    """Numbers of the frames, scene by scene."""
    for scene in SCENES:
        starts = [
            at
            for at in range(0, len(rows) - SCENE_FRAMES + 1, STRIDE)
            if all(row["condition"] == scene for row in rows[at : at + SCENE_FRAMES])
        ]
        if starts:
            best = max(starts, key=lambda at: lead(rows[at : at + SCENE_FRAMES]))
            yield from range(best, best + SCENE_FRAMES, STRIDE)


def lead(rows: Sequence[dict[str, Any]], /) -> int:
    """How many more frames the adapted prediction has right."""
    adapted, source = (
        sum(row[which][0]["index"] == row["truth"] for row in rows)
        for which in ("adapted", "source")
    )
    return adapted - source


def shrunk(picture: Image.Image, /) -> Image.Image:
    """As wide as the README shows it."""
    height = round(picture.height * WIDTH_PX / picture.width)
    return picture.resize((WIDTH_PX, height), Image.Resampling.LANCZOS)


def save(pictures: Sequence[Image.Image], path: Path, /) -> None:
    """A GIF with one palette, so that what stands still costs nothing.

    One that is too large for a README ends the script.
    """
    height = pictures[0].height
    sheet = Image.new("RGB", (WIDTH_PX, height * (len(pictures) + len(ACCENTS))))
    for at, picture in enumerate(pictures):
        sheet.paste(picture, (0, at * height))
    # The palette is drawn up by area, and what tells right from wrong is small.
    for at, colour in enumerate(ACCENTS, len(pictures)):
        sheet.paste(colour, (0, at * height, WIDTH_PX, (at + 1) * height))
    palette = sheet.quantize(COLOURS, dither=Image.Dither.NONE)
    frames = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in pictures]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0, optimize=False
    )
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path}: expected at most {MOST_BYTES} bytes; show fewer frames")


if __name__ == "__main__":
    raise SystemExit(main())

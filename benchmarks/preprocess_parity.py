"""Measure how far preprocessing is from timm's own evaluation transform on real photographs.

    python benchmarks/preprocess_parity.py PHOTOS --json benchmarks/results/preprocess_parity.json

Pixels are compared for every setting below; logits for an artifact (`--artifact`) or, by default,
for a timm ViT with random weights. Exit status 1 if any pixel differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image

from gain_core import __version__
from gain_core._optional import require
from gain_runtime.files.manifest import Preprocess
from gain_runtime.preprocess import preprocess
from gain_runtime.sessions.onnx import OnnxSession

torch = require("torch", extra="eval")
timm = require("timm", extra="eval")
timm_data = require("timm.data", extra="eval")

Photo = npt.NDArray[np.uint8]
Network = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]

INCEPTION = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def settings() -> Iterator[Preprocess]:
    """Sizes, crops, filters and statistics that timm's models use."""
    sizes = ((224, 224), (256, 128))
    for (height, width), mode, fraction, interpolation in product(
        sizes, ("center", "squash"), (1.0, 0.95, 0.9, 0.875), ("bicubic", "bilinear")
    ):
        yield Preprocess(
            height_px=height,
            width_px=width,
            crop_mode=mode,
            crop_fraction=fraction,
            interpolation=interpolation,
            **(INCEPTION if interpolation == "bicubic" else IMAGENET),
        )


def reference(photo: Photo, spec: Preprocess) -> npt.NDArray[np.float32]:
    """timm's transform of the same pixels."""
    transform = timm_data.create_transform(
        input_size=(3, spec.height_px, spec.width_px),
        interpolation=spec.interpolation,
        crop_mode=spec.crop_mode,
        crop_pct=spec.crop_fraction,
        mean=spec.mean,
        std=spec.std,
    )
    return transform(Image.fromarray(photo)).numpy()


def read_photos(folder: Path, limit: int) -> list[Photo]:
    """Photographs that are not square, evenly spread over the folder."""
    photos = []
    for path in sorted(folder.glob("*.jpg")):
        with Image.open(path) as photo:
            if photo.width != photo.height:
                photos.append(np.asarray(photo.convert("RGB")))
    if not photos:
        raise SystemExit(f"{folder}: expected .jpg photographs that are not square, found none")
    return photos[:: max(1, len(photos) // limit)][:limit]


def pixel_differences(photos: list[Photo]) -> list[dict[str, object]]:
    """The largest difference per setting, in normalised units."""
    rows = []
    for spec in settings():
        differences = [np.abs(preprocess(photo, spec) - reference(photo, spec)) for photo in photos]
        rows.append(
            {
                "input_px": f"{spec.height_px}x{spec.width_px}",
                "crop_mode": spec.crop_mode,
                "crop_fraction": spec.crop_fraction,
                "interpolation": spec.interpolation,
                "max_abs_pixel_difference": max(float(array.max()) for array in differences),
            }
        )
    return rows


def random_vit(name: str) -> tuple[Preprocess, Network]:
    """A timm ViT with seeded random weights and its own preprocessing."""
    torch.manual_seed(0)
    backbone = timm.create_model(name, pretrained=False).eval()
    config = timm_data.resolve_model_data_config(backbone)
    spec = Preprocess(
        height_px=config["input_size"][1],
        width_px=config["input_size"][2],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        crop_mode=config["crop_mode"],
        crop_fraction=config["crop_pct"],
    )

    def forward(pixel_values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            return backbone(torch.from_numpy(pixel_values)).numpy()

    return spec, forward


def loaded_artifact(path: Path) -> tuple[Preprocess, Network]:
    """An exported artifact on ONNX Runtime's CPU provider."""
    session = OnnxSession(path)
    return session.artifact.manifest.preprocess, lambda pixels: np.asarray(
        session.infer(pixels).logits
    )


def logit_differences(photos: list[Photo], spec: Preprocess, network: Network) -> dict[str, object]:
    """The largest logit difference between our pixels and timm's, and the spread it is small to."""
    largest, agreed, scale = 0.0, 0, 0.0
    for photo in photos:
        ours = network(preprocess(photo, spec)[None])
        theirs = network(reference(photo, spec)[None])
        if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
            raise SystemExit("logits: expected finite values, got NaN or infinity")
        largest = max(largest, float(np.abs(ours - theirs).max()))
        scale = max(scale, float(np.abs(theirs).max()))
        agreed += int(ours.argmax() == theirs.argmax())
    return {
        "preprocess": asdict(spec),
        "photos": len(photos),
        "max_abs_logit_difference": largest,
        "max_abs_logit": scale,
        "top1_agreement": agreed / len(photos),
    }


def milliseconds(repeats: int) -> dict[str, float]:
    """Median time for one 1280 x 720 px frame, ours and timm's alternating."""
    spec = Preprocess(height_px=224, width_px=224, crop_fraction=0.9, **INCEPTION)
    frame = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), dtype=np.uint8)
    taken: dict[str, list[float]] = {"preprocess": [], "timm": []}
    for _ in range(repeats + 2):
        for name, function in (("preprocess", preprocess), ("timm", reference)):
            start = time.perf_counter_ns()
            function(frame, spec)
            taken[name].append((time.perf_counter_ns() - start) / 1e6)
    return {f"{name}_720p_p50_ms": round(median(times[2:]), 3) for name, times in taken.items()}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path, help="folder of .jpg photographs")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--artifact", type=Path, help="compare this artifact's logits")
    parser.add_argument("--vit", default="vit_tiny_patch16_224", help="timm ViT without --artifact")
    parser.add_argument("--limit", type=int, default=100, help="photographs to use")
    parser.add_argument("--repeats", type=int, default=60, help="frames to time")
    return parser


def main() -> int:
    arguments = build_parser().parse_args()
    torch.set_num_threads(1)
    photos = read_photos(arguments.photos, arguments.limit)
    source = arguments.artifact or arguments.vit
    network = loaded_artifact(source) if arguments.artifact else random_vit(source)
    some = random.Random(0).sample(photos, min(len(photos), 32))
    pixels = pixel_differences(photos)
    largest = max(row["max_abs_pixel_difference"] for row in pixels)
    result = {
        "command": recorded_command(),
        "photos": len(photos),
        "portrait_photos": sum(photo.shape[0] > photo.shape[1] for photo in photos),
        "max_abs_pixel_difference": largest,
        "network": source.name if arguments.artifact else f"{source}, random weights",
        "logits": logit_differences(some, *network),
        "time": milliseconds(arguments.repeats),
        "versions": {
            "gain-edge": __version__,
            "timm": timm.__version__,
            "torch": torch.__version__,
            "pillow": PIL.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        },
        "settings": pixels,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 1 if largest else 0


def recorded_command() -> str:
    """The command line, with paths relative to where it ran."""
    words = [
        os.path.relpath(word) if os.path.isabs(word) else word  # noqa: PTH117
        for word in sys.argv
    ]
    return " ".join(["python", *words])


if __name__ == "__main__":
    sys.exit(main())

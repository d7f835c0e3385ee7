"""Record frames of any source at an artifact's own input size, for the JavaScript examples.

    python examples/record_clip.py MODEL.onnx test://drive examples/web/demo --frames 600

writes clip.json and clip.bin. The frames are what preprocessing makes of them, as uint8, so that a
runtime without Pillow sees the same pixels.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import onnx

from gain_core.errors import GainError
from gain_runtime.files.manifest import Manifest
from gain_runtime.files.paths import write_atomically
from gain_runtime.frames import FrameSource
from gain_runtime.preprocess import preprocess
from gain_runtime.sources.opening import open_source
from gain_scenes.roadsigns.sources import drive_source


def main(argv: list[str] | None = None) -> int:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="artifact or adaptive file")
    parser.add_argument("source", help="URI of frames, see gain-stream --help")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        manifest = read_manifest(args.model)
        with open_source(args.source, schemes={"drive": drive_source}, seed=args.seed) as source:
            count = record(source, manifest, args.folder, limit=args.frames)
    except GainError as err:
        sys.stderr.write(f"record_clip: error: {err}\n")
        return 1
    sys.stdout.write(f"{count} frames in {args.folder}\n")
    return 0


def read_manifest(path: Path) -> Manifest:
    """The manifest of an artifact or adaptive file."""
    model = onnx.load(path, load_external_data=False)
    metadata = {item.key: item.value for item in model.metadata_props}
    return Manifest.from_metadata(metadata, path=str(path))


def record(source: FrameSource, manifest: Manifest, folder: Path, *, limit: int) -> int:
    """Write at most `limit` frames of a source; returns how many."""
    spec = manifest.preprocess
    mean, std = np.array(spec.mean).reshape(3, 1, 1), np.array(spec.std).reshape(3, 1, 1)
    frames, truth, conditions = [], [], []
    for frame in islice(source, limit):
        planes = preprocess(frame.image, spec, region=frame.region)
        levels = np.rint((planes * std + mean) * 255.0).astype(np.uint8)
        rgb = levels[::-1] if spec.channel_order == "BGR" else levels
        frames.append(np.ascontiguousarray(rgb.transpose(1, 2, 0)))
        truth.append(frame.truth)
        conditions.append(frame.condition)
    header = {
        "frames": len(frames),
        "height": spec.height_px,
        "width": spec.width_px,
        "mean": spec.mean,
        "std": spec.std,
        "channel_order": spec.channel_order,
        "labels": manifest.labels,
        "truth": truth,
        "conditions": conditions,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "clip.bin", b"".join(frame.tobytes() for frame in frames))
    write_atomically(folder / "clip.json", json.dumps(header, ensure_ascii=False).encode())
    return len(frames)


if __name__ == "__main__":
    sys.exit(main())

"""Write the trained road-sign classifier as a plain ONNX file and its labels.

    python models/roadsigns/export.py out/roadsigns/checkpoint.pt

Input `pixel_values` (B, 3, 64, 64) float32, output `logits` (B, K) float32, any batch size. The
file holds no metadata of ours: `gain-export` adds the features output and the manifest.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from network import INPUT_PX, build_network

from gain_runtime.files.paths import write_atomically
from gain_scenes.roadsigns.designs import LABELS

HERE = Path(__file__).resolve().parent
OPSET = 17
IR_VERSION = 9
# Largest difference allowed between torch and ONNX Runtime on the logits.
TOLERANCE = 1e-3


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="written by train.py")
    parser.add_argument("--out", type=Path, default=HERE / "roadsigns.onnx")
    return parser


def load_network(checkpoint: Path) -> torch.nn.Module:
    """The running average of the weights, ready for inference."""
    record = torch.load(checkpoint, weights_only=True)
    network = build_network(len(LABELS))
    network.load_state_dict(record["average"])
    return network.eval()


def to_onnx(network: torch.nn.Module, path: Path) -> None:
    """Trace the network into a file; attention is written as matrix products and a softmax."""
    for block in network.blocks:
        block.attn.fused_attn = False
    torch.onnx.export(
        network,
        (torch.zeros(1, 3, INPUT_PX, INPUT_PX),),
        str(path),
        input_names=["pixel_values"],
        output_names=["logits"],
        dynamic_axes={"pixel_values": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=OPSET,
        dynamo=False,
    )
    model = onnx.load(str(path))
    model.ir_version = IR_VERSION
    model.doc_string = "Road-sign classifier; see the model card beside it."
    onnx.checker.check_model(model, full_check=True)
    write_atomically(path, model.SerializeToString())


def compare(network: torch.nn.Module, path: Path) -> float:
    """Largest difference of the logits between torch and ONNX Runtime, over batch sizes 1 and 5."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for size in (1, 5):
        pixels = np.random.default_rng(size).standard_normal((size, 3, INPUT_PX, INPUT_PX))
        pixels = pixels.astype(np.float32)
        with torch.inference_mode():
            expected = network(torch.from_numpy(pixels)).numpy()
        (logits,) = session.run(["logits"], {"pixel_values": pixels})
        worst = max(worst, float(np.abs(logits - expected).max()))
    return worst


def main() -> int:
    args = build_parser().parse_args()
    network = load_network(args.checkpoint)
    to_onnx(network, args.out)
    worst = compare(network, args.out)
    if not worst <= TOLERANCE:
        args.out.unlink()
        sys.stderr.write(f"{args.out}: logits differ by {worst:.2g} from torch; not written\n")
        return 1
    labels = "".join(f"{label}\n" for label in LABELS)
    write_atomically(args.out.with_name("labels.txt"), labels.encode())
    size_mb = args.out.stat().st_size / 1e6
    sys.stderr.write(f"{args.out}: {size_mb:.2f} MB, logits within {worst:.2g} of torch\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

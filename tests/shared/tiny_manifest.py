"""The manifest of a small network that a test has built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from gain_runtime.files.artifact import write_metadata
from gain_runtime.files.manifest import HeadLocation, Manifest, Preprocess

HEAD = HeadLocation(weight="head.weight", layout="KD", bias="head.bias")


def write_manifest(
    model: onnx.ModelProto,
    labels: Sequence[str],
    *,
    head: HeadLocation | None = HEAD,
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
    std: tuple[float, float, float] = (0.5, 0.5, 0.5),
    crop_fraction: float = 1.0,
    **more: Any,
) -> Manifest:
    """Make a network an artifact: names and sizes are the graph's, `more` the manifest's own.

    Without a head it does not say that it has features.
    """
    (pixels,), outputs = model.graph.input, {value.name: value for value in model.graph.output}
    height_px, width_px = (dim.dim_value for dim in pixels.type.tensor_type.shape.dim[2:])
    features = outputs.get("features") if head is not None else None
    manifest = Manifest(
        source="tiny",
        weights_sha256="0" * 64,
        input_name=pixels.name,
        features_name=None if features is None else features.name,
        logits_name="logits",
        num_classes=len(labels),
        feature_dim=None if features is None else features.type.tensor_type.shape.dim[1].dim_value,
        labels=tuple(labels),
        head=head,
        preprocess=Preprocess(
            height_px=height_px, width_px=width_px, mean=mean, std=std, crop_fraction=crop_fraction
        ),
        tool_versions={"onnx": onnx.__version__},
        **more,
    )
    write_metadata(model, manifest)
    return manifest

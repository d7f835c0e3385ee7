"""Tiny artifacts: a strided convolution as backbone, a Gemm head and a full manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_text import network
from tiny_manifest import write_manifest

from gain_runtime.files.artifact import write_metadata
from gain_runtime.files.manifest import HeadLocation, Manifest

NUM_CLASSES, FEATURE_DIM, SIZE_PX = 5, 7, 16


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """The ONNX model, its manifest and the arrays it computes with."""

    model: onnx.ModelProto
    manifest: Manifest
    patches: np.ndarray  # (D, 3, 4, 4)
    weight: np.ndarray  # (K, D)
    bias: np.ndarray  # (K,)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.model.SerializeToString())
        return path

    def relabel(self, **changes: Any) -> TinyModel:
        """The same graph under a changed manifest."""
        manifest = replace(self.manifest, **changes)
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        write_metadata(model, manifest)
        return replace(self, model=model, manifest=manifest)

    def forward(self, pixel_values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features and logits, computed with NumPy."""
        batch_size, _, height, width = pixel_values.shape
        cells = pixel_values.reshape(batch_size, 3, height // 4, 4, width // 4, 4)
        maps = np.tensordot(cells.astype(np.float64), self.patches, ([1, 3, 5], [1, 2, 3]))
        features = np.maximum(maps, 0.0).mean(axis=(1, 2))
        return features, features @ self.weight.T + self.bias


def build_tiny_model(
    *,
    layout: str = "KD",
    bias: bool = True,
    dtype: int = TensorProto.FLOAT,
    batch: str | int = "B",
    trailing: int = 0,
    seed: int = 0,
) -> TinyModel:
    """Build the model; `trailing` axes of length one make the stored weight a convolution's."""
    rng = np.random.default_rng(seed)
    patches = rng.normal(size=(FEATURE_DIM, 3, 4, 4)).astype(np.float32)
    # Multiples of 1/8 below 8 survive every float type unchanged.
    weight = rng.integers(-40, 41, size=(NUM_CLASSES, FEATURE_DIM)).astype(np.float32) / 8
    offset = rng.integers(-40, 41, size=NUM_CLASSES).astype(np.float32) / 8 * bias
    stored = weight if layout == "KD" else weight.T
    shape = stored.shape + (1,) * trailing
    arrays = {
        "patches": patches,
        "head.weight": helper.make_tensor("head.weight", dtype, shape, stored.ravel().tolist()),
        "head.bias": helper.make_tensor("head.bias", dtype, [NUM_CLASSES], offset.tolist()),
        "matrix": np.array(stored.shape, dtype=np.int64),
    }
    model = network(
        "maps = Conv<strides=[4, 4]>(pixel_values, patches); positive = Relu(maps);"
        "pooled = GlobalAveragePool(positive); features = Flatten(pooled);"
        "cast = Cast<to=1>(head.weight); head = Reshape(cast, matrix);"
        "offset = Cast<to=1>(head.bias);"
        f"logits = Gemm<transB={int(layout == 'KD')}>(features, head{', offset' * bias})",
        arrays,
        inputs={"pixel_values": [batch, 3, SIZE_PX, SIZE_PX]},
        outputs={"features": [batch, FEATURE_DIM], "logits": [batch, NUM_CLASSES]},
    )
    manifest = write_manifest(
        model,
        ("apfel", "birne", "cassis", "dattel", "erdbeere, süß"),
        head=HeadLocation(weight="head.weight", layout=layout, bias="head.bias" if bias else None),
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.3),
        verification={"max_abs_difference": 0.0},
    )
    return TinyModel(model=model, manifest=manifest, patches=patches, weight=weight, bias=offset)


@pytest.fixture
def make_model() -> Callable[..., TinyModel]:
    """`build_tiny_model`, for tests in other files."""
    return build_tiny_model


@pytest.fixture
def tiny_model() -> TinyModel:
    return build_tiny_model()


@pytest.fixture
def tiny_artifact(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """A valid artifact on disk."""
    return tiny_model.write(tmp_path / "tiny.onnx")


@pytest.fixture(scope="session")
def photo_dir() -> Path:
    """Real photographs beside the repository."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "imagenet_samples"
    if not folder.is_dir():
        pytest.skip("no photographs at ../shared/data/imagenet_samples")
    return folder

"""Artifacts small enough to build engines of in a second, and the road-sign network."""

from __future__ import annotations

import functools
import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_text import network

from gain_export import PreprocessOverrides, export_onnx
from gain_export.engine import EngineOptions, build_engine
from gain_runtime.files.engine import Engine, read_engine, write_engine

ROADSIGNS = Path(__file__).resolve().parents[2] / "models" / "roadsigns" / "roadsigns.onnx"
IMG_SIZE = 32
NUM_CLASSES = 5


def convolutional_net() -> onnx.ModelProto:
    """Convolution, ReLU, global mean and a linear head of seeded weights, dynamic batch."""
    rng = np.random.default_rng(7)
    arrays = {
        "kernel": rng.normal(0, 0.3, (8, 3, 3, 3)),
        "kernel_bias": rng.normal(0, 0.1, 8),
        "head.weight": rng.normal(0, 1, (NUM_CLASSES, 8)),
        "head.bias": rng.normal(0, 0.1, NUM_CLASSES),
    }
    return network(
        "conv = Conv<strides=[2, 2]>(pixel_values, kernel, kernel_bias); relu = Relu(conv);"
        "pooled = GlobalAveragePool(relu); flat = Flatten(pooled);"
        "logits = Gemm<transB=1>(flat, head.weight, head.bias)",
        arrays,
        inputs={"pixel_values": ["batch", 3, IMG_SIZE, IMG_SIZE]},
        outputs={"logits": ["batch", NUM_CLASSES]},
        opset=18,
        ir_version=10,
    )


def exported(source: Path, img_size: int) -> Path:
    overrides = PreprocessOverrides(
        img_size=(img_size, img_size),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        crop_fraction=1.0,
        interpolation="bilinear",
    )
    return export_onnx(source, preprocess=overrides).path


@pytest.fixture(scope="session")
def made_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("net") / "net.onnx"
    source.write_bytes(convolutional_net().SerializeToString())
    return exported(source, IMG_SIZE)


@pytest.fixture
def artifact_path(made_artifact: Path, tmp_path: Path) -> Path:
    """The convolutional artifact, alone in the test's own folder."""
    return Path(shutil.copy(made_artifact, tmp_path / "net.onnx"))


@pytest.fixture
def original_path(tmp_path: Path) -> Path:
    """The convolutional network before its export, alone in the test's own folder."""
    path = tmp_path / "net.onnx"
    path.write_bytes(convolutional_net().SerializeToString())
    return path


@pytest.fixture
def roadsigns_path(tmp_path: Path) -> Path:
    """The road-sign vision transformer as an artifact."""
    return exported(Path(shutil.copy(ROADSIGNS, tmp_path / "roadsigns.onnx")), 64)


@pytest.fixture
def rtx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of TensorRT-RTX, where it is installed; its caches go to the test's folder."""
    if importlib.util.find_spec("tensorrt_rtx") is None:
        pytest.skip("tensorrt_rtx is not installed (Python 3.10 to 3.13 on x86-64 only)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return "tensorrt_rtx"


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory, made_artifact: Path) -> Callable[..., Path]:
    """Builds the engine of the convolutional artifact once for the same options."""

    @functools.cache
    def build(options: EngineOptions) -> Path:
        folder = tmp_path_factory.mktemp("engine")
        return build_engine(shutil.copy(made_artifact, folder / "net.onnx"), options=options).path

    return build


@pytest.fixture
def lay_engine(artifact_path: Path, plans: Callable[..., Path], rtx: str) -> Callable[..., Engine]:
    """Lays the artifact's engine beside it, never run yet, its header changed if asked."""

    def lay(options: EngineOptions, **changes: object) -> Engine:
        engine, path = read_engine(plans(options)), artifact_path.with_suffix(".engine")
        verification = {"verified": "no", "reason": "nobody ran it"}
        header = replace(engine.header, **{"verification": verification, **changes})
        write_engine(path, header, engine.plan)
        return read_engine(path)

    return lay

"""Networks the precision passes are tested on: the road-sign ViT and a small conv net."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_text import network
from PIL import Image
from tiny_manifest import write_manifest

from gain_export.precision import PrecisionReport, convert_precision
from gain_scenes.roadsigns.sample import render_labelled

SIZE_PX, WIDTH, CLASSES = 16, 12, 7


@pytest.fixture(scope="session")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A folder of 24 drawn signs, the same for the same seed."""

    def draw(seed: int) -> Path:
        folder = tmp_path_factory.mktemp("signs")
        for index in range(24):
            image, _ = render_labelled(index, seed=seed)
            Image.fromarray(image).save(folder / f"{index:02}.png")
        return folder

    return draw


@pytest.fixture(scope="session")
def converted(roadsigns: Path, signs: Callable[[int], Path]) -> dict[str, PrecisionReport]:
    """The road-sign ViT in fp16 and int8, calibrated on other signs than it is verified on."""
    calibration, check = signs(1), signs(2)
    return {
        precision: convert_precision(
            roadsigns, precision, calibration_images=calibration, verify_images=check
        )
        for precision in ("fp16", "int8")
    }


def conv_net(scale: float = 1.0) -> onnx.ModelProto:
    """Conv, Relu, residual Conv, mean, decomposed LayerNorm, Gemm head; `scale` its first maps."""
    rng = np.random.default_rng(11)
    arrays = {
        "first": scale * rng.normal(size=(WIDTH, 3, 3, 3)) / 5.0,
        "first.bias": rng.normal(size=WIDTH),
        "second": rng.normal(size=(WIDTH, WIDTH, 3, 3)) / 10.0,
        "epsilon": np.array(1e-5),
        "gamma": rng.normal(size=WIDTH),
        "head.weight": rng.normal(size=(CLASSES, WIDTH)),
        "head.bias": rng.normal(size=CLASSES),
    }
    return network(
        "c1 = Conv<pads=[1, 1, 1, 1]>(pixel_values, first, first.bias); r1 = Relu(c1);"
        "c2 = Conv<pads=[1, 1, 1, 1]>(r1, second); sum = Add(c2, r1);"
        "pooled = GlobalAveragePool(sum); flat = Flatten(pooled);"
        "mean = ReduceMean<axes=[-1]>(flat); centered = Sub(flat, mean);"
        "square = Mul(centered, centered); variance = ReduceMean<axes=[-1]>(square);"
        "safe = Add(variance, epsilon); deviation = Sqrt(safe); unit = Div(centered, deviation);"
        "features = Mul(unit, gamma); logits = Gemm<transB=1>(features, head.weight, head.bias)",
        arrays,
        inputs={"pixel_values": ["batch", 3, SIZE_PX, SIZE_PX]},
        outputs={"features": ["batch", WIDTH], "logits": ["batch", CLASSES]},
    )


@pytest.fixture
def conv_artifact(tmp_path: Path) -> Callable[..., Path]:
    """Writes `conv_net` as an artifact into this test's folder."""

    def write(scale: float = 1.0) -> Path:
        model = conv_net(scale)
        model.metadata_props.add(key="author", value="tests")
        write_manifest(model, [f"class {k}" for k in range(CLASSES)])
        path = tmp_path / "conv.gain.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


@pytest.fixture
def plain_conv() -> onnx.ModelProto:
    return conv_net()

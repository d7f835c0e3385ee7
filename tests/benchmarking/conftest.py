"""The shipped road signs as an artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from gain_export import PreprocessOverrides, export_onnx

ROADSIGNS = Path(__file__).resolve().parents[2] / "models" / "roadsigns"


@pytest.fixture(scope="session")
def artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """53 classes of 64 x 64 px, some 20 ms a frame on one core."""
    output = tmp_path_factory.mktemp("artifact") / "roadsigns.gain.onnx"
    half = (0.5, 0.5, 0.5)
    export_onnx(
        ROADSIGNS / "roadsigns.onnx",
        output=output,
        labels=ROADSIGNS / "labels.txt",
        preprocess=PreprocessOverrides(
            img_size=(64, 64), mean=half, std=half, interpolation="bicubic", crop_fraction=1.0
        ),
    )
    return output

"""Timings of one step over sizes and namespaces; run by hand with `pytest -m slow tests/bench`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gain_core import PRESETS, Gain, preset

pytestmark = pytest.mark.slow


def _as_numpy(array: np.ndarray) -> Any:
    return array


def _as_torch(array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch", reason="the export extra is not installed")
    return torch.from_numpy(array)


@pytest.mark.parametrize("convert", [_as_numpy, _as_torch], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("num_classes", "feature_dim"),
    [pytest.param(10, 512, id="K10"), pytest.param(1000, 768, id="K1000")],
)
@pytest.mark.parametrize("batch_size", [1, 64])
@pytest.mark.parametrize("name", list(PRESETS))
def test_step(
    benchmark: Any, convert: Any, num_classes: int, feature_dim: int, batch_size: int, name: str
) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((num_classes, feature_dim)).astype(np.float32)
    features = rng.standard_normal((batch_size, feature_dim)).astype(np.float32)
    gain = Gain(convert(weight), preset(name))
    inputs = convert(features), convert(features @ weight.T / feature_dim**0.5)
    gain.step(*inputs)
    prediction = benchmark(gain.step, *inputs)
    np.testing.assert_allclose(np.asarray(prediction.probs).sum(axis=1), 1.0, rtol=1e-5)

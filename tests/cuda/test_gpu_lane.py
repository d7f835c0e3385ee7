"""An adapter whose forward pass and step stay on the card, against one on the host."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gain_core import GainConfig, NumericsError
from gain_runtime.adapter import Adapter
from gain_runtime.onnx_session import OnnxSession

pytestmark = pytest.mark.gpu

NUM_FRAMES = 48


@pytest.fixture
def sessions(cuda_provider, roadsigns_artifact):
    """One on the host and one whose results stay on the card."""
    with (
        OnnxSession(roadsigns_artifact) as host,
        OnnxSession(roadsigns_artifact, provider=cuda_provider, device_outputs=True) as device,
    ):
        yield host, device


def batches(size=4):
    """Frames of flat colours with noise, which drift."""
    rng = np.random.default_rng(0)
    for start in range(0, NUM_FRAMES, size):
        drift = 60.0 * start / NUM_FRAMES
        images = rng.normal(100.0 + drift, 40.0, size=(size, 80, 96, 3))
        yield list(np.clip(images, 0, 255).astype(np.uint8))


def assert_batches_alike(result, expected):
    assert_allclose(result.source_probs, expected.source_probs, rtol=0, atol=2e-3)
    assert_allclose(result.probs, expected.probs, rtol=0, atol=5e-3)


@pytest.mark.parametrize("preset", ["tracked", "balanced"])
def test_same_as_on_the_host(sessions, preset):
    config = GainConfig.preset(preset)
    host, device = (Adapter(session, config) for session in sessions)
    for images in batches():
        result = device.step(images)
        assert_batches_alike(result, host.step(images))
        assert set(result.stage_ns) == {"preprocess", "forward", "adapt"}
        assert all(spent > 0 for spent in result.stage_ns.values())
    assert device.frames == host.frames == NUM_FRAMES
    assert device.status().guard_trips == host.status().guard_trips


def test_batches_may_be_submitted_ahead_of_their_results(sessions):
    config = GainConfig()
    ahead, one_by_one = (Adapter(sessions[1], config) for _ in range(2))
    # More than the slots there are: the oldest results must outlive their memory.
    awaited = [ahead.submit(images) for images in batches()]
    expected = [one_by_one.step(images) for images in batches()]
    for result, wanted in zip((wait() for wait in awaited), expected, strict=True):
        assert_allclose(result.probs, wanted.probs, rtol=0, atol=1e-6)


def test_state_goes_from_the_card_to_the_host(sessions, tmp_path):
    config = GainConfig()
    host, device = (Adapter(session, config) for session in sessions)
    for images in batches():
        device.step(images)
    device.save_state(tmp_path / "state.safetensors")
    host.load_state(tmp_path / "state.safetensors")
    assert host.frames == NUM_FRAMES
    images = next(batches())
    assert_batches_alike(device.step(images, learn=False), host.step(images, learn=False))


def test_batch_that_is_not_finite_is_rejected(sessions, monkeypatch):
    device = Adapter(sessions[1], GainConfig())
    device.step(next(batches()))
    inner = sessions[1].infer

    def broken(pixel_values):
        features, logits = inner(pixel_values)
        logits[1, 2] = np.nan
        return features, logits

    monkeypatch.setattr(sessions[1], "infer", broken)
    awaited = device.submit(next(batches()))
    with pytest.raises(NumericsError, match="logits"):
        awaited()
    monkeypatch.undo()
    assert np.all(np.isfinite(device.step(next(batches())).probs))


def test_preprocessing_on_the_card_changes_nothing(sessions):
    config = GainConfig()
    there = Adapter(sessions[1], config, device_preprocess=True)
    here = Adapter(sessions[1], config)
    for images in batches():
        assert_allclose(there.step(images).probs, here.step(images).probs, rtol=0, atol=1e-6)

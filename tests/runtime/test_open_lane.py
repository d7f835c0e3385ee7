"""Which lane a session gets, and what is said where it cannot have the one asked for."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gain_core import ConfigError, GainConfig
from gain_core.prototypes import DEFAULT_ASYMMETRY
from gain_runtime.adapter import Adapter
from gain_runtime.fitness import Fitness
from gain_runtime.lane import HostLane
from gain_runtime.onnx_session import OnnxSession
from gain_runtime.open_lane import open_adapting_session, open_lane

FITNESS = Fitness(
    num_images=99,
    num_classes=5,
    feature_norm=1.0,
    common_share=0.1,
    alignment=0.5,
    confidence=0.9,
    effective_classes=4.5,
    lda_agreement=None,
    single_asymmetry=0.0625,
    mixed_asymmetry=0.5,
    single_images=80,
)


def test_results_in_host_memory_are_adapted_there(tiny_artifact):
    with open_adapting_session(tiny_artifact) as session:
        assert session.stream is None
        assert isinstance(open_lane(session, GainConfig()), HostLane)


@pytest.mark.parametrize(
    ("measured", "settings", "said"),
    [
        pytest.param(False, {}, True, id="never-measured"),
        pytest.param(True, {}, False, id="measured"),
        pytest.param(False, {"mixture_test": False}, False, id="nothing-to-measure"),
        pytest.param(False, {"proposal": "gaussian", "guard": False}, False, id="gaussians"),
    ],
)
def test_what_clean_images_would_do_is_said(tiny_model, tmp_path, caplog, measured, settings, said):
    model = tiny_model.relabel(fitness=FITNESS) if measured else tiny_model
    path = model.write(tmp_path / "tiny.onnx")
    with OnnxSession(path) as session, caplog.at_level(logging.INFO, "gain_runtime.open_lane"):
        open_lane(session, GainConfig(**settings))
    expected = "tiny.onnx: never measured on clean images"
    assert [line.startswith(expected) for line in caplog.messages] == [True] * said


def test_what_the_export_measured_reaches_the_method(tiny_model, tmp_path):
    for measured, expected in ((FITNESS, (0.0625, 0.5)), (None, DEFAULT_ASYMMETRY)):
        path = tiny_model.relabel(fitness=measured).write(tmp_path / "tiny.onnx")
        with OnnxSession(path) as session:
            prototypes = open_lane(session, GainConfig()).prototypes
        assert_array_equal(prototypes.asymmetry, np.float32(expected))


def test_device_preprocessing_wants_a_device(tiny_artifact):
    with (
        OnnxSession(tiny_artifact) as session,
        pytest.raises(ConfigError, match=r"^device_preprocess: expected a session that runs"),
    ):
        Adapter(session, GainConfig(), device_preprocess=True)


def test_missing_cupy_is_said_and_the_host_adapts(tiny_artifact, caplog, monkeypatch):
    monkeypatch.setattr("gain_runtime.open_lane.find_spec", lambda name: None)
    with (
        caplog.at_level(logging.INFO, "gain_runtime.open_lane"),
        open_adapting_session(tiny_artifact, device="auto") as session,
    ):
        assert session.stream is None
    assert "adaptation runs on the host, since CuPy is not installed" in caplog.text

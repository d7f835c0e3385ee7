"""Which lane a session gets, and what is said where it cannot have the one asked for."""

from __future__ import annotations

import logging

import pytest

from gain_core import ConfigError, GainConfig
from gain_runtime.adapter import Adapter
from gain_runtime.lane import HostLane
from gain_runtime.onnx_session import OnnxSession
from gain_runtime.open_lane import open_adapting_session, open_lane


def test_results_in_host_memory_are_adapted_there(tiny_artifact):
    with open_adapting_session(tiny_artifact) as session:
        assert session.stream is None
        assert isinstance(open_lane(session, GainConfig()), HostLane)


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

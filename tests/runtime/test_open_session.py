"""The choice of a device: by name, or the first that runs, with the reasons said."""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import pytest

from gain_core.errors import ArtifactError, ConfigError, EngineError, GainError
from gain_runtime.sessions import onnx as onnx_session
from gain_runtime.sessions.onnx import CPU_PROVIDER, CUDA_PROVIDER
from gain_runtime.sessions.session import first_that_opens, open_session


class Openers:
    """Openers that give the device's name, or raise what is said for it."""

    def __init__(self, **refusals: GainError) -> None:
        self.refusals = refusals
        self.tried: list[str] = []

    def open(self, name: str) -> str:
        self.tried.append(name)
        if name in self.refusals:
            raise self.refusals[name]
        return name

    def first(self) -> str:
        names = ("tensorrt", "cuda", "cpu")
        return first_that_opens({name: partial(self.open, name) for name in names})


def test_best_device_is_taken_and_the_others_are_not_tried(caplog):
    openers = Openers()
    with caplog.at_level(logging.INFO, logger="gain_runtime"):
        assert openers.first() == "tensorrt"
    assert openers.tried == ["tensorrt"]
    assert caplog.messages == ["auto: tensorrt is used"]


def test_errors_of_the_last_device_are_the_callers():
    refusals = {name: EngineError(name) for name in ("tensorrt", "cuda", "cpu")}
    with pytest.raises(EngineError, match=r"^cpu$"):
        Openers(**refusals).first()


def test_wrong_settings_are_no_reason_to_pass_a_device_over():
    openers = Openers(tensorrt=ConfigError("num_threads: 0"))
    with pytest.raises(ConfigError, match="num_threads"):
        openers.first()
    assert openers.tried == ["tensorrt"]


@pytest.fixture
def no_cuda():
    if CUDA_PROVIDER in onnx_session.native.get_available_providers():
        pytest.skip("this ONNX Runtime has the CUDA provider")


def test_auto_ends_at_the_cpu_and_says_why(tiny_artifact, no_cuda, caplog):
    with (
        caplog.at_level(logging.INFO, logger="gain_runtime"),
        open_session(tiny_artifact, device="auto", num_threads=1) as session,
    ):
        assert session.provider == CPU_PROVIDER
        logits = session.infer(np.zeros((2, 3, 16, 16), np.float32)).logits
    assert isinstance(logits, np.ndarray)
    said = [message for message in caplog.messages if message.startswith("auto: ")]
    assert len(said) == 3
    assert said[0].startswith(f"auto: tensorrt is passed over: {tiny_artifact.with_suffix('')}.eng")
    assert said[1].startswith(f"auto: cuda is passed over: {CUDA_PROVIDER}: cannot be used here")
    assert said[2] == "auto: cpu is used"
    assert f"running on {CPU_PROVIDER}" in caplog.text


def test_auto_hides_no_damaged_artifact(tmp_path):
    with pytest.raises(ArtifactError, match="no such file"):
        open_session(tmp_path / "absent.onnx", device="auto")


def test_wrong_settings_are_refused(tiny_artifact):
    with pytest.raises(ConfigError, match="device: expected cpu, cuda, auto"):
        open_session(tiny_artifact, device="gpu")
    with pytest.raises(ConfigError, match="num_threads"):
        open_session(tiny_artifact, device="auto", num_threads=0)

"""ONNX Runtime sessions: right numbers, checked input, and no silent change of device."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from onnx import helper

from gain_core.errors import (
    ArrayError,
    BackendUnavailableError,
    EngineError,
)
from gain_runtime.sessions import onnx as onnx_session
from gain_runtime.sessions.onnx import CPU_PROVIDER, CUDA_PROVIDER, OnnxSession
from gain_runtime.sessions.session import open_session
from gain_runtime.sessions.shared import SharedSession


def batch_of(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, 3, 16, 16)).astype(np.float32)


@pytest.fixture
def session(tiny_artifact):
    with OnnxSession(tiny_artifact, num_threads=1) as session:
        yield session


@pytest.mark.parametrize("batch_size", [1, 3, 17])
def test_outputs_equal_numpy(session, tiny_model, batch_size):
    pixel_values = batch_of(batch_size)
    features, logits = session.infer(pixel_values)
    assert features.dtype == logits.dtype == np.float32
    expected_features, expected_logits = tiny_model.forward(pixel_values)
    np.testing.assert_allclose(features, expected_features, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-5, atol=1e-4)


def test_outputs_are_not_overwritten_by_the_next_call(session):
    first = session.infer(batch_of(2))
    kept = first.logits.copy()
    session.infer(batch_of(2, seed=1))
    np.testing.assert_array_equal(first.logits, kept)


@pytest.mark.parametrize(
    "pixel_values",
    [
        pytest.param(np.zeros((1, 3, 16, 16)), id="float64"),
        pytest.param(np.zeros((1, 3, 16, 16), dtype=np.uint8), id="uint8"),
        pytest.param(np.zeros((3, 16, 16), dtype=np.float32), id="no batch axis"),
        pytest.param(np.zeros((1, 16, 16, 3), dtype=np.float32), id="channels last"),
        pytest.param(np.zeros((1, 3, 16, 17), dtype=np.float32), id="other size"),
        pytest.param(np.zeros((4, 3, 16, 16), dtype=np.float32)[::2], id="strided"),
        pytest.param([[0.0]], id="list"),
    ],
)
def test_other_input_is_refused(session, pixel_values):
    with pytest.raises(ArrayError, match="pixel_values: expected"):
        session.infer(pixel_values)


def test_closed_session_refuses(tiny_artifact):
    session = OnnxSession(tiny_artifact)
    session.close()
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.infer(batch_of(1))


def test_warm_up_runs_the_network_at_the_given_batch_size(session, monkeypatch):
    sizes = []
    infer = session.infer
    monkeypatch.setattr(
        OnnxSession, "infer", lambda self, pixels: sizes.append(pixels.shape) or infer(pixels)
    )
    session.warm_up(5)
    session.warm_up()
    assert sizes == [(5, 3, 16, 16), (1, 3, 16, 16)]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5])
def test_batches_are_cut_and_filled_for_a_network_of_one_size(make_model, tmp_path, rows):
    tiny = make_model(batch=2)
    pixel_values = batch_of(rows)
    with OnnxSession(tiny.write(tmp_path / "a.onnx")) as session:
        features, logits = session.infer(pixel_values)
        session.warm_up()
    want_features, want_logits = tiny.forward(pixel_values)
    np.testing.assert_allclose(features, want_features, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(logits, want_logits, rtol=1e-5, atol=1e-5)


def test_an_artifact_of_logits_only_has_no_features(make_model, tmp_path):
    tiny = make_model()
    only = tiny.relabel(features_name=None, feature_dim=None, head=None)
    del only.model.graph.output[0]
    assert only.model.graph.output[0].name == "logits"
    with OnnxSession(only.write(tmp_path / "a.onnx")) as session:
        assert (session.artifact.head_weight, session.artifact.head_bias) == (None, None)
        features, logits = session.infer(batch_of(3))
        assert session.infer(batch_of(0)).logits.shape == (0, 5)
        shared = SharedSession(session)
        again = shared.join().infer(batch_of(3))
    assert features is None
    assert again.features is None
    np.testing.assert_array_equal(again.logits, logits)
    np.testing.assert_allclose(logits, tiny.forward(batch_of(3))[1], rtol=1e-5, atol=1e-5)


def test_failure_while_running_carries_the_librarys_message(tiny_model, tmp_path):
    # A reshape to a fixed number of elements fits batches of one only.
    graph = tiny_model.model.graph
    next(node for node in graph.node if node.op_type == "Flatten").output[0] = "flat"
    graph.initializer.append(helper.make_tensor("fixed", 7, [2], [1, 7]))
    graph.node.insert(4, helper.make_node("Reshape", ["flat", "fixed"], ["features"]))
    with OnnxSession(tiny_model.write(tmp_path / "a.onnx")) as session:
        assert session.infer(batch_of(1)).features.shape == (1, 7)
        with pytest.raises(EngineError, match=r"batch of 3.*[Rr]eshape") as caught:
            session.infer(batch_of(3))
    assert "\n" not in str(caught.value)


def test_output_that_breaks_the_manifests_promise_is_refused(tiny_model, tmp_path):
    # Symbolic output shapes pass the artifact's check; the mean over the batch shows when run.
    graph = tiny_model.model.graph
    next(node for node in graph.node if node.op_type == "Flatten").output[0] = "flat"
    graph.node.insert(4, helper.make_node("ReduceMean", ["flat"], ["features"], axes=[0]))
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    with (
        OnnxSession(tiny_model.write(tmp_path / "a.onnx")) as session,
        pytest.raises(EngineError, match=r"features: expected \(3, 7\) float32, got \(1, 7\)"),
    ):
        session.infer(batch_of(3))


def test_graph_the_library_cannot_load_is_one_line(tiny_model, tmp_path):
    tiny_model.model.graph.node[1].op_type = "NoSuchOperator"
    with pytest.raises(EngineError, match=r"cannot load it.*NoSuchOperator") as caught:
        OnnxSession(tiny_model.write(tmp_path / "a.onnx"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("provider", ["ROCMExecutionProvider", "cuda"])
def test_provider_that_is_not_built_in_is_refused(tiny_artifact, provider):
    with pytest.raises(BackendUnavailableError, match=f"{provider}: cannot be used here"):
        OnnxSession(tiny_artifact, provider=provider)


class Replaced:
    """A session whose provider the library quietly replaced by the CPU."""

    made: list[dict] = []  # noqa: RUF012

    def __init__(self, path, options, **arguments):
        self.made.append(arguments)

    def get_providers(self):
        return [CPU_PROVIDER]

    def disable_fallback(self):
        pass


class Failing(Replaced):
    """A session whose provider finds no driver."""

    def __init__(self, path, options, **arguments):
        raise onnx_session.native.RuntimeException("CUDA failure 35:\n no driver")


def list_cuda(monkeypatch, session_class):
    """ONNX Runtime as its GPU build lists itself on a machine without a usable GPU."""
    library, providers = onnx_session.onnxruntime, [CUDA_PROVIDER, CPU_PROVIDER]
    monkeypatch.setattr(library, "get_available_providers", lambda: providers)
    monkeypatch.setattr(library, "InferenceSession", session_class)


def test_provider_that_was_replaced_is_an_error(tiny_artifact, monkeypatch):
    list_cuda(monkeypatch, Replaced)
    # `onnxruntime` and `onnxruntime-gpu` write the same files, and the base install has one.
    told = f"put {CPU_PROVIDER} in its place.*uninstall -y onnxruntime;.*install.* onnxruntime-gpu;"
    with pytest.raises(BackendUnavailableError, match=told):
        OnnxSession(tiny_artifact, provider=CUDA_PROVIDER)
    providers = [(CUDA_PROVIDER, {"use_tf32": "0"}), CPU_PROVIDER]
    assert Replaced.made[-1] == {"providers": providers, "enable_fallback": 0}


def test_provider_that_fails_is_an_error(tiny_artifact, monkeypatch):
    list_cuda(monkeypatch, Failing)
    with pytest.raises(BackendUnavailableError, match="CUDA failure 35: no driver") as caught:
        open_session(tiny_artifact, device="cuda")
    assert "\n" not in str(caught.value)


def test_node_placement_is_logged(tiny_artifact, caplog):
    with caplog.at_level(logging.INFO, logger="gain_runtime"), OnnxSession(tiny_artifact) as opened:
        if not hasattr(opened._session, "get_provider_graph_assignment_info"):
            pytest.skip("this ONNX Runtime cannot tell where nodes run (needs 1.24)")
    assert f"{CPU_PROVIDER} executes" in caplog.text


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu(tiny_artifact):
    with (
        OnnxSession(tiny_artifact, provider=CUDA_PROVIDER) as device,
        OnnxSession(tiny_artifact) as host,
    ):
        for size in (0, 1, 5):
            pairs = zip(device.infer(batch_of(size)), host.infer(batch_of(size)), strict=True)
            for got, expected in pairs:
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)

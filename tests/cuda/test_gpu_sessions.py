"""The road-sign network on a CUDA device against the CPU, wherever its arrays lie."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from gain_core.errors import ArrayError, EngineError
from gain_runtime.onnx_native import CUDA_PROVIDER
from gain_runtime.onnx_session import OnnxSession
from gain_runtime.open_session import open_session

pytestmark = pytest.mark.gpu

SIZE_PX = 64
SIZES = (1, 5, 2, 8, 3, 0, 8)

# Features and logits reach five. Two orders of summation in float32 differ by 1e-6 on a CPU; TF32,
# ten bits of mantissa in every product, would not pass.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}

# Operators that cost something: none of them may run on the CPU.
HEAVY = {"Conv", "Gemm", "MatMul", "Softmax", "LayerNormalization", "Erf", "Relu", "ReduceMean"}


@pytest.fixture(scope="module")
def reference(roadsigns_artifact):
    """The CPU's features and logits of a batch."""
    with OnnxSession(roadsigns_artifact) as session:
        yield session.infer


@pytest.fixture
def open_cuda(cuda_provider, roadsigns_artifact):
    """Opens sessions on the device, which are closed after the test."""
    sessions: list[OnnxSession] = []

    def open_it(**settings: Any) -> OnnxSession:
        sessions.append(OnnxSession(roadsigns_artifact, provider=cuda_provider, **settings))
        return sessions[-1]

    yield open_it
    for session in sessions:
        session.close()


def batch_of(size: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.5, size=(size, 3, SIZE_PX, SIZE_PX)).astype(np.float32)


def assert_equal_features(got: Any, expected: Any) -> None:
    """Within the tolerance, from NumPy or CuPy."""
    for name in ("features", "logits"):
        array, wanted = getattr(got, name), getattr(expected, name)
        host = array if isinstance(array, np.ndarray) else array.get()
        assert host.dtype == np.float32
        np.testing.assert_allclose(host, wanted, **TOLERANCE, err_msg=name)


@pytest.mark.parametrize("outputs", ["host", "device"])
@pytest.mark.parametrize("inputs", ["host", "device"])
def test_cuda_agrees_with_the_cpu(open_cuda, reference, cupy, inputs, outputs):
    session = open_cuda(device_outputs=outputs == "device")
    assert session.provider == CUDA_PROVIDER
    assert (session.stream is None) == (outputs == "host")
    for seed, size in enumerate(SIZES):
        values = batch_of(size, seed)
        result = session.infer(values if inputs == "host" else cupy.asarray(values))
        kind = np.ndarray if outputs == "host" else cupy.ndarray
        assert all(isinstance(array, kind) for array in result)
        assert_equal_features(result, reference(values))


def test_every_costly_node_runs_on_the_device(open_cuda, caplog):
    with caplog.at_level(logging.INFO, logger="gain_runtime"):
        network = open_cuda()._session
    assert network.get_providers()[0] == CUDA_PROVIDER
    if not hasattr(network, "get_provider_graph_assignment_info"):
        pytest.skip("this ONNX Runtime cannot tell where nodes run (needs 1.24)")
    nodes = [
        (part.ep_name, node.op_type)
        for part in network.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]
    elsewhere = {kind for provider, kind in nodes if provider != CUDA_PROVIDER}
    assert not elsewhere & HEAVY
    assert {kind for provider, kind in nodes if provider == CUDA_PROVIDER} & HEAVY
    assert f"{CUDA_PROVIDER} executes" in caplog.text


def test_outputs_are_overwritten_after_as_many_calls_as_the_ring_says(open_cuda, reference):
    session = open_cuda(device_outputs=True, ring=2)
    first = session.infer(batch_of(2, 0))
    session.infer(batch_of(2, 1))
    assert_equal_features(first, reference(batch_of(2, 0)))
    third = session.infer(batch_of(2, 2))
    assert first.logits.data.ptr == third.logits.data.ptr
    assert_equal_features(first, reference(batch_of(2, 2)))


def test_host_outputs_are_never_overwritten(open_cuda):
    session = open_cuda()
    first = session.infer(batch_of(2, 0)).logits
    kept = first.copy()
    session.infer(batch_of(2, 1))
    np.testing.assert_array_equal(first, kept)


def test_infer_returns_while_the_device_is_held_up(open_cuda, reference, cupy):
    session = open_cuda(device_outputs=True)
    values = batch_of(4)
    pixel_values = cupy.asarray(values)
    with session.stream:
        for _ in range(4):  # every buffer of the ring and of the library is there
            session.infer(pixel_values)
        session.stream.synchronize()
        go_on = threading.Event()
        session.stream.launch_host_func(lambda event: event.wait(20.0), go_on)
        started = time.perf_counter()
        result = session.infer(pixel_values)
        seconds, still_held = time.perf_counter() - started, not session.stream.done
        go_on.set()
        assert_equal_features(result, reference(values))
    assert still_held
    assert seconds < 10.0


def test_network_waits_for_the_callers_stream(open_cuda, reference, cupy):
    session = open_cuda(device_outputs=True)
    values = batch_of(4)
    source, pixel_values = cupy.asarray(values), cupy.zeros(values.shape, np.float32)
    session.infer(pixel_values)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.launch_host_func(time.sleep, 0.2)
        pixel_values[...] = source
        result = session.infer(pixel_values)
        # Queued behind the network on the caller's stream, without waiting here.
        pixel_values[...] = 0.0
        assert_equal_features(result, reference(values))


def test_array_at_an_odd_address_is_taken(open_cuda, reference, cupy):
    values = batch_of(3)
    room = cupy.empty(values.size + 1, np.float32)
    pixel_values = room[1:].reshape(values.shape)
    pixel_values[...] = cupy.asarray(values)
    result = open_cuda(device_outputs=True).infer(pixel_values)
    assert_equal_features(result, reference(values))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(
            lambda cupy: cupy.zeros((1, 3, SIZE_PX, SIZE_PX + 1), np.float32),
            r"expected \(B, 3, 64, 64\) float32, got \(1, 3, 64, 65\) float32",
            id="size",
        ),
        pytest.param(
            lambda cupy: cupy.zeros((1, 3, SIZE_PX, SIZE_PX), np.float16), "float16", id="float16"
        ),
        pytest.param(
            lambda cupy: cupy.zeros((3, SIZE_PX, SIZE_PX), np.float32), "expected", id="no batch"
        ),
        pytest.param(
            lambda cupy: cupy.zeros((4, 3, SIZE_PX, SIZE_PX), np.float32)[::2],
            r"cupy\.ascontiguousarray",
            id="strided",
        ),
        pytest.param(lambda cupy: [[0.0]], r"NumPy or cuda:\d CuPy array .*list", id="list"),
    ],
)
def test_other_arrays_are_refused(open_cuda, cupy, make, words):
    session = open_cuda(device_outputs=True)
    with pytest.raises(ArrayError, match=rf"^pixel_values: .*{words}"):
        session.infer(make(cupy))


def test_closed_session_refuses(open_cuda, cupy):
    session = open_cuda(device_outputs=True)
    kept = session.infer(batch_of(1)).logits
    session.close()
    session.close()
    assert np.isfinite(kept.get()).all()
    with pytest.raises(EngineError, match="closed"):
        session.infer(cupy.asarray(batch_of(1)))


def test_session_of_the_host_refuses_device_arrays(roadsigns_artifact, cupy):
    with (
        OnnxSession(roadsigns_artifact) as session,
        pytest.raises(ArrayError, match=r"expected a NumPy array .* got cupy"),
    ):
        session.infer(cupy.asarray(batch_of(1)))


def test_without_cupy_the_library_copies(roadsigns_artifact, cupy, reference, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with OnnxSession(roadsigns_artifact, provider=CUDA_PROVIDER) as session:
        assert session.stream is None
        for size in SIZES:
            assert_equal_features(session.infer(batch_of(size)), reference(batch_of(size)))


def test_auto_takes_the_device_and_says_what_it_passed_over(roadsigns_artifact, cupy, caplog):
    with (
        caplog.at_level(logging.INFO, logger="gain_runtime"),
        open_session(roadsigns_artifact, device="auto", device_outputs=True) as session,
    ):
        assert session.provider == CUDA_PROVIDER
        assert session.stream is not None
    said = [message for message in caplog.messages if message.startswith("auto: ")]
    assert said[0].startswith("auto: tensorrt is passed over: ")
    assert said[1:] == ["auto: cuda is used"]

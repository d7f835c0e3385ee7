"""The comparison: what is there is measured, what is not is named."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from lazy_streams import SET_MS, CompileException, CUDARuntimeError
from numpy.testing import assert_array_equal

from gain_apps.benchmarking.bench_config import BenchConfig
from gain_apps.benchmarking.device_copy import FRAMES, IN_PLACE, PAGEABLE, STAGED, copy_times
from gain_apps.benchmarking.device_memory import DevicePeak
from gain_apps.benchmarking.rivals import Rival, compare_rivals, list_rivals
from gain_apps.benchmarking.run_bench import logits_on_host
from gain_core.errors import BackendUnavailableError, EngineError
from gain_runtime.artifact import load_artifact
from gain_runtime.open_session import open_session

PIXELS = np.random.default_rng(0).standard_normal((2, 3, 64, 64), dtype=np.float32)


def rival(name, logits, **settings):
    """A rival that answers with what it is told to, and the calls it got."""
    calls = []

    @contextmanager
    def opened():
        def forward(pixel_values):
            calls.append(len(pixel_values))
            return logits

        yield forward
        calls.append("closed")

    return Rival(name=name, open=opened, **settings), calls


def test_each_is_warmed_up_measured_and_closed():
    one, calls = rival("one", np.eye(2, dtype=np.float32))
    expected = np.array([[1, 0], [1, 0]], dtype=np.float32)
    (row,) = compare_rivals([one], PIXELS, rounds=4, expected=expected)
    assert calls == [2] * (3 + 4) + ["closed"]
    assert row["top1_agreement_percent"] == 50.0
    assert row["forward_ms"]["p50"] > 0
    assert row["rate_hz"] > 0


def test_random_weights_are_not_said_to_agree():
    one, _ = rival("one", np.eye(2, dtype=np.float32), same_weights=False)
    (row,) = compare_rivals([one], PIXELS, rounds=1, expected=np.eye(2, dtype=np.float32))
    assert row["top1_agreement_percent"] is None


def test_one_that_is_not_there_is_named_and_the_next_is_measured():
    @contextmanager
    def missing():
        raise BackendUnavailableError("cuda: not\nhere")
        yield

    one, _ = rival("one", np.eye(2, dtype=np.float32))
    rivals = [Rival(name="gone", open=missing), one]
    rows = compare_rivals(rivals, PIXELS, rounds=1, expected=np.eye(2, dtype=np.float32))
    assert rows[0] == {"name": "gone", "absent": "cuda: not here"}
    assert rows[1]["top1_agreement_percent"] == 100.0


def test_without_a_torch_model_every_library_is_still_named(artifact_path):
    config = BenchConfig(artifact=str(artifact_path), compare=True, threads=1)
    artifact = load_artifact(artifact_path)
    with open_session(artifact, num_threads=1) as session:
        expected = np.asarray(session.infer(PIXELS).logits)
    rivals = list_rivals(artifact, config)
    rows = {row["name"]: row for row in compare_rivals(rivals, PIXELS, rounds=1, expected=expected)}
    assert rows["onnxruntime cpu"]["top1_agreement_percent"] == 100.0
    # There is no engine beside the artifact, whether or not the library is there.
    assert "engine" in rows["tensorrt"]["absent"]
    for name in ("torch eager cpu", "torch compile cpu", "torch eager cuda", "torch compile cuda"):
        assert "--torch-model" in rows[name]["absent"]


def test_torch_runs_the_named_model_on_the_artifacts_classes(artifact_path):
    pytest.importorskip("timm", reason="the export extra is not installed")
    torch = pytest.importorskip("torch")
    artifact = load_artifact(artifact_path)
    config = BenchConfig(
        artifact=str(artifact_path),
        compare=True,
        threads=1,
        torch_model="vit_tiny_patch16_224.augreg_in21k",
    )
    before = torch.get_num_threads()
    eager = next(item for item in list_rivals(artifact, config) if item.name == "torch eager cpu")
    assert not eager.same_weights
    with eager.open() as forward:
        logits = forward(PIXELS)
        assert torch.get_num_threads() == 1
    assert logits.shape == (2, 53)
    assert np.isfinite(logits).all()
    assert torch.get_num_threads() == before


def test_a_wrong_torch_model_is_named_in_its_row(artifact_path):
    pytest.importorskip("timm", reason="the export extra is not installed")
    config = BenchConfig(artifact=str(artifact_path), compare=True, torch_model="vit_nonesuch")
    artifact = load_artifact(artifact_path)
    rivals = [item for item in list_rivals(artifact, config) if item.name == "torch eager cpu"]
    (row,) = compare_rivals(rivals, PIXELS, rounds=1, expected=np.zeros((2, 53), np.float32))
    assert "vit_nonesuch" in row["absent"]


@pytest.mark.parametrize("allowed", [False, True])
def test_engines_with_host_code_run_where_they_are_allowed(artifact_path, monkeypatch, allowed):
    asked = {}

    def opened(_artifact, *, device, num_threads, allow_host_code):
        asked[device] = allow_host_code
        raise BackendUnavailableError("not here")

    monkeypatch.setattr("gain_apps.benchmarking.rivals.open_session", opened)
    config = BenchConfig(artifact=str(artifact_path), compare=True, allow_host_code=allowed)
    rivals = list_rivals(load_artifact(artifact_path), config)
    compare_rivals(rivals, PIXELS, rounds=1, expected=np.zeros((2, 53), np.float32))
    assert asked["tensorrt"] is allowed


def torch_rivals(artifact_path, monkeypatch, model):
    """Both of torch's on the CPU, with a model of our own."""
    monkeypatch.setattr("gain_apps.benchmarking.rivals._torch_model", lambda *_: model)
    config = BenchConfig(artifact=str(artifact_path), compare=True, torch_model="any")
    rivals = list_rivals(load_artifact(artifact_path), config)
    return {item.name: item for item in rivals if item.name.startswith("torch")}


def test_a_model_that_does_not_fit_the_device_has_its_row(artifact_path, monkeypatch):
    torch = pytest.importorskip("torch")

    class Large:
        def to(self, device):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nGPU 0")

    rivals = torch_rivals(artifact_path, monkeypatch, Large())
    one, _ = rival("one", np.eye(2, dtype=np.float32))
    rows = compare_rivals(
        [rivals["torch eager cpu"], rivals["torch compile cpu"], one],
        PIXELS,
        rounds=1,
        expected=np.eye(2, dtype=np.float32),
    )
    assert rows[0]["absent"] == "torch: failed: CUDA out of memory. Tried to allocate 20 GiB."
    assert rows[1]["absent"].startswith("torch.compile: failed: CUDA out of memory.")
    assert rows[2]["top1_agreement_percent"] == 100.0


@pytest.mark.parametrize("fails", [False, True])
def test_torch_computes_float32_as_float32(artifact_path, monkeypatch, fails):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    seen = []

    def settings():
        return (
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
            torch.get_float32_matmul_precision(),
        )

    class Model(torch.nn.Module):
        def forward(self, pixel_values):
            seen.append(settings())
            if fails:
                raise RuntimeError("no")
            return pixel_values.mean(dim=(2, 3))

    try:
        eager = torch_rivals(artifact_path, monkeypatch, Model())["torch eager cpu"]
        (row,) = compare_rivals([eager], PIXELS, rounds=1, expected=np.eye(2, 3, dtype=np.float32))
        after = settings()
    finally:
        torch.set_float32_matmul_precision(before)
    assert ("absent" in row) is fails
    assert set(seen) == {(False, False, "highest")}
    assert after == (True, True, "high")


def test_nothing_is_copied_on_the_cpu(artifact_path):
    with open_session(artifact_path, num_threads=1) as session:
        times = copy_times(PIXELS, session, rounds=3, device_preprocess=False)
    assert times == {"ms": None, "note": IN_PLACE}


def test_the_copy_is_timed_into_a_buffer_that_is_kept_until_it_has_arrived(
    artifact_path, lazily, lazy_device, lazy_module, monkeypatch
):
    made, streams = [], []
    empty = lazy_module.empty

    def noted(shape, dtype):
        made.append(empty(shape, dtype))
        streams.append(lazy_device.current)
        return made[-1]

    monkeypatch.setattr(lazy_module, "empty", noted)
    with open_session(artifact_path, num_threads=1) as session:
        times = copy_times(PIXELS, lazily(session), rounds=3, device_preprocess=False)
    assert len(made) == len(lazy_module.pinned) == 1
    # On the stream that writes it: memory of another one may still be written there.
    assert streams == [lazy_device.streams[-1]]
    assert_array_equal(made[0].values, PIXELS)
    # The host has waited for the last of all copies.
    assert lazy_device.host_ms == 4 * SET_MS
    assert 0 < times["ms"]["p50"] <= times["ms"]["max"]
    assert times["note"] == STAGED


def test_a_device_that_fails_while_the_copy_is_timed_is_an_error_of_ours(
    artifact_path, lazily, lazy_device
):
    with open_session(artifact_path, num_threads=1) as session:
        device = lazily(session)
        lazy_device.broken = "cudaErrorIllegalAddress"
        with pytest.raises(EngineError, match=r"roadsigns\.gain\.onnx: cudaErrorIllegalAddress"):
            copy_times(PIXELS, device, rounds=3, device_preprocess=False)


def test_frames_that_are_preprocessed_on_the_device_are_not_copied_as_pixel_values(
    artifact_path, lazily, lazy_module
):
    with open_session(artifact_path, num_threads=1) as session:
        times = copy_times(PIXELS, lazily(session), rounds=3, device_preprocess=True)
    assert times == {"ms": None, "note": FRAMES}
    assert lazy_module.pinned == []


def test_without_cupy_onnx_runtimes_own_copy_is_timed(monkeypatch):
    class Buffer:
        """As ONNX Runtime's, which is of no device here."""

        def __init__(self, array):
            self._value = native.ortvalue_from_numpy(array, "cpu", 0)

        def update_inplace(self, array):
            copied.append(len(array))
            self._value.update_inplace(array)

    copied, allocated = [], []

    def allocate(array, device, number):
        allocated.append((device, number))
        return Buffer(array)

    session = SimpleNamespace(stream=None, provider="CUDAExecutionProvider")
    native = onnxruntime.OrtValue
    fake = SimpleNamespace(OrtValue=SimpleNamespace(ortvalue_from_numpy=allocate))
    monkeypatch.setattr("gain_apps.benchmarking.device_copy.onnxruntime", fake)
    times = copy_times(PIXELS, session, rounds=3, device_preprocess=False)
    assert allocated == [("cuda", 0)]
    assert copied == [2] * 4
    assert times["note"] == PAGEABLE


def test_peak_memory_is_the_largest_reading(monkeypatch):
    free = iter([700, 100, 400])
    runtime = SimpleNamespace(memGetInfo=lambda: (next(free), 1000))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    peak = DevicePeak("CUDAExecutionProvider")
    for _ in range(3):
        peak.read()
    result = peak.to_dict()
    assert result["peak_used"] == 900
    assert "after each batch" in result["note"]
    assert "other processes" in result["note"]


def lost_device(monkeypatch):
    """CuPy's module as far as its failures go, and a call that fails as a lost device does."""
    compiler = SimpleNamespace(CompileException=CompileException)
    cuda = SimpleNamespace(compiler=compiler, runtime=SimpleNamespace())
    cupy = SimpleNamespace(cuda=cuda, ndarray=type("ndarray", (), {}))
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def fail(*arguments, **settings):
        raise CUDARuntimeError("cudaErrorLaunchFailure: unspecified launch failure")

    return cupy, fail


def test_a_device_lost_between_batches_is_an_engine_error(monkeypatch):
    cupy, fail = lost_device(monkeypatch)
    cupy.cuda.runtime.memGetInfo = fail
    with pytest.raises(EngineError, match="device memory: cudaErrorLaunchFailure"):
        DevicePeak("CUDAExecutionProvider").read()


def test_a_device_lost_before_its_logits_arrive_is_an_engine_error(monkeypatch):
    _, fail = lost_device(monkeypatch)
    logits = SimpleNamespace(to_device=fail)
    session = SimpleNamespace(
        stream=object(),
        artifact=SimpleNamespace(path="net.onnx"),
        infer=lambda pixel_values: SimpleNamespace(logits=logits),
    )
    with pytest.raises(EngineError, match=r"net\.onnx: cudaErrorLaunchFailure"):
        logits_on_host(session, PIXELS)


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("CPUExecutionProvider", "the CPU has no memory of its own"),
        ("tensorrt", "cannot be read: cupy"),
    ],
)
def test_memory_that_cannot_be_read_is_not_guessed(monkeypatch, provider, said):
    monkeypatch.setitem(sys.modules, "cupy", None)
    peak = DevicePeak(provider)
    peak.read()
    result = peak.to_dict()
    assert result["peak_used"] is None
    assert result["note"].startswith(said)

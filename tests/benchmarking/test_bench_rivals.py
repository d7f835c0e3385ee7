"""The comparison: what is there is measured, what is not is named."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from gain_apps.bench import BenchConfig
from gain_apps.benchmarking.machine import DevicePeak
from gain_apps.benchmarking.stages import Rival, compare_rivals, list_rivals
from gain_core.errors import BackendUnavailableError, EngineError
from gain_runtime.files.artifact import load_artifact
from gain_runtime.sessions.session import open_session

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
    config = BenchConfig(artifact=str(artifact_path), compare=True, num_threads=1)
    artifact = load_artifact(artifact_path)
    with open_session(artifact, num_threads=1) as session:
        expected = np.asarray(session.infer(PIXELS).logits)
    rivals = list_rivals(artifact, config)
    rows = {row["name"]: row for row in compare_rivals(rivals, PIXELS, rounds=1, expected=expected)}
    assert rows["onnxruntime cpu"]["top1_agreement_percent"] == 100.0
    # There is no engine beside the artifact, whether or not the library is there.
    assert "engine" in rows["tensorrt"]["absent"]
    for name in ("torch eager cpu", "torch compile cpu", "torch eager cuda", "torch compile cuda"):
        assert "--timm" in rows[name]["absent"]


def test_torch_runs_the_named_model_on_the_artifacts_classes(artifact_path):
    pytest.importorskip("timm", reason="the export extra is not installed")
    torch = pytest.importorskip("torch")
    artifact = load_artifact(artifact_path)
    config = BenchConfig(
        artifact=str(artifact_path),
        compare=True,
        num_threads=1,
        timm="vit_tiny_patch16_224.augreg_in21k",
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
    config = BenchConfig(artifact=str(artifact_path), compare=True, timm="vit_nonesuch")
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

    monkeypatch.setattr("gain_apps.benchmarking.stages.open_session", opened)
    config = BenchConfig(artifact=str(artifact_path), compare=True, allow_host_code=allowed)
    rivals = list_rivals(load_artifact(artifact_path), config)
    compare_rivals(rivals, PIXELS, rounds=1, expected=np.zeros((2, 53), np.float32))
    assert asked["tensorrt"] is allowed


def torch_rivals(artifact_path, monkeypatch, model):
    """Both of torch's on the CPU, with a model of our own."""
    monkeypatch.setattr("gain_apps.benchmarking.stages._torch_model", lambda *_: model)
    config = BenchConfig(artifact=str(artifact_path), compare=True, timm="any")
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


def test_peak_memory_is_the_largest_reading(monkeypatch):
    free = iter([700, 100, 400])
    runtime = SimpleNamespace(memGetInfo=lambda: (next(free), 1000))
    compiler = SimpleNamespace(CompileException=type("CompileException", (Exception,), {}))
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, compiler=compiler))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    peak = DevicePeak("CUDAExecutionProvider")
    for _ in range(3):
        peak.read()
    result = peak.to_dict()
    assert result["peak_used"] == 900
    assert "after each batch" in result["note"]
    assert "other processes" in result["note"]


def test_a_device_lost_between_batches_is_an_engine_error(monkeypatch):
    failure = type("CUDARuntimeError", (RuntimeError,), {"__module__": "cupy_backends.cuda"})

    def fail():
        raise failure("cudaErrorLaunchFailure: unspecified launch failure")

    compiler = SimpleNamespace(CompileException=type("CompileException", (Exception,), {}))
    cuda = SimpleNamespace(compiler=compiler, runtime=SimpleNamespace(memGetInfo=fail))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    with pytest.raises(EngineError, match="device memory: cudaErrorLaunchFailure"):
        DevicePeak("CUDAExecutionProvider").read()


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

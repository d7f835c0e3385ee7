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
EYE = np.eye(2, dtype=np.float32)


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


def compare(rivals, expected=EYE):
    return compare_rivals(rivals, PIXELS, rounds=1, expected=expected)


def rivals_of(artifact_path, **settings):
    """Everything a comparison names, by its name."""
    config = BenchConfig(artifact=str(artifact_path), compare=True, num_threads=1, **settings)
    return {rival.name: rival for rival in list_rivals(load_artifact(artifact_path), config)}


def test_each_is_warmed_up_measured_and_closed():
    one, calls = rival("one", EYE)
    expected = np.array([[1, 0], [1, 0]], dtype=np.float32)
    (row,) = compare_rivals([one], PIXELS, rounds=4, expected=expected)
    assert calls == [2] * (3 + 4) + ["closed"]
    assert row["top1_agreement_percent"] == 50.0
    assert row["forward_ms"]["p50"] > 0
    assert row["rate_hz"] > 0


def test_random_weights_are_not_said_to_agree():
    one, _ = rival("one", EYE, same_weights=False)
    (row,) = compare([one])
    assert row["top1_agreement_percent"] is None


def test_one_that_is_not_there_is_named_and_the_next_is_measured():
    @contextmanager
    def missing():
        raise BackendUnavailableError("cuda: not\nhere")
        yield

    one, _ = rival("one", EYE)
    rows = compare([Rival(name="gone", open=missing), one])
    assert rows[0] == {"name": "gone", "absent": "cuda: not here"}
    assert rows[1]["top1_agreement_percent"] == 100.0


def test_without_a_torch_model_every_library_is_still_named(artifact_path):
    with open_session(artifact_path, num_threads=1) as session:
        expected = np.asarray(session.infer(PIXELS).logits)
    rivals = list(rivals_of(artifact_path).values())
    rows = {row["name"]: row for row in compare(rivals, expected)}
    assert rows["onnxruntime cpu"]["top1_agreement_percent"] == 100.0
    # There is no engine beside the artifact, whether or not the library is there.
    assert "engine" in rows["tensorrt"]["absent"]
    for name in ("torch eager cpu", "torch compile cpu", "torch eager cuda", "torch compile cuda"):
        assert "--timm" in rows[name]["absent"]


def test_torch_runs_the_named_model_on_the_artifacts_classes(artifact_path):
    pytest.importorskip("timm", reason="the export extra is not installed")
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    rivals = rivals_of(artifact_path, timm="vit_tiny_patch16_224.augreg_in21k")
    eager = rivals["torch eager cpu"]
    assert not eager.same_weights
    with eager.open() as forward:
        logits = forward(PIXELS)
        assert torch.get_num_threads() == 1
    assert logits.shape == (2, 53)
    assert np.isfinite(logits).all()
    assert torch.get_num_threads() == before


def test_a_wrong_torch_model_is_named_in_its_row(artifact_path):
    pytest.importorskip("timm", reason="the export extra is not installed")
    (row,) = compare([rivals_of(artifact_path, timm="vit_nonesuch")["torch eager cpu"]])
    assert "vit_nonesuch" in row["absent"]


@pytest.mark.parametrize("allowed", [False, True])
def test_engines_with_host_code_run_where_they_are_allowed(artifact_path, monkeypatch, allowed):
    asked = {}

    def opened(_artifact, *, device, num_threads, allow_host_code):
        asked[device] = allow_host_code
        raise BackendUnavailableError("not here")

    monkeypatch.setattr("gain_apps.benchmarking.stages.open_session", opened)
    compare(list(rivals_of(artifact_path, allow_host_code=allowed).values()))
    assert asked["tensorrt"] is allowed


def torch_rivals(artifact_path, monkeypatch, model):
    """Those of torch with a model of our own."""
    monkeypatch.setattr("gain_apps.benchmarking.stages._torch_model", lambda *_: model)
    return rivals_of(artifact_path, timm="any")


def test_a_model_that_does_not_fit_the_device_has_its_row(artifact_path, monkeypatch):
    torch = pytest.importorskip("torch")

    class Large:
        def to(self, device):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nGPU 0")

    rivals = torch_rivals(artifact_path, monkeypatch, Large())
    one, _ = rival("one", EYE)
    rows = compare([rivals["torch eager cpu"], rivals["torch compile cpu"], one])
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
        (row,) = compare([eager])
        after = settings()
    finally:
        torch.set_float32_matmul_precision(before)
    assert ("absent" in row) is fails
    assert set(seen) == {(False, False, "highest")}
    assert after == (True, True, "high")


def install_cupy(monkeypatch, memory):
    """A CuPy whose device says of its memory what the function says."""
    compiler = SimpleNamespace(CompileException=type("CompileException", (Exception,), {}))
    cuda = SimpleNamespace(compiler=compiler, runtime=SimpleNamespace(memGetInfo=memory))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))


def test_peak_memory_is_the_largest_reading(monkeypatch):
    free = iter([700, 100, 400])
    install_cupy(monkeypatch, lambda: (next(free), 1000))
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

    install_cupy(monkeypatch, fail)
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

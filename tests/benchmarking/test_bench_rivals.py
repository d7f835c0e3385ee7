"""The comparison: what is there is measured, what is not is named."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from gain_apps.benchmarking.bench_config import BenchConfig
from gain_apps.benchmarking.device_copy import IN_PLACE, copy_times, device_memory_bytes
from gain_apps.benchmarking.rivals import Rival, compare_rivals, list_rivals
from gain_core.errors import BackendUnavailableError
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


def test_nothing_is_copied_on_the_cpu():
    times = copy_times(PIXELS, "CPUExecutionProvider", rounds=3)
    assert times == {"ms": None, "note": IN_PLACE}
    assert device_memory_bytes("CPUExecutionProvider")["used"] is None


def test_copies_are_timed_per_frame(monkeypatch):
    copied = []
    monkeypatch.setattr("gain_apps.benchmarking.device_copy._copier", lambda _: copied.append)
    times = copy_times(PIXELS, "Any", rounds=3)
    assert len(copied) == 4
    assert 0 <= times["ms"]["p50"] <= times["ms"]["max"]
    assert times["note"] == "timed by itself; it is a part of forward"

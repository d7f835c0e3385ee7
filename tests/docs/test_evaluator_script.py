"""The script of the evaluator's page: its four numbers a frame, and what is made of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gain_apps.evaluation.methods.protocol import Diagnosis

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def evaluator() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import evaluator as module

        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


def log_softmax(raw: np.ndarray) -> np.ndarray:
    return raw - np.log(np.sum(np.exp(raw), axis=1, keepdims=True))


@pytest.fixture
def frames(evaluator):
    """Six frames of four classes, strengths none, half and all; the last class is not known."""
    rng = np.random.default_rng(2)
    logits, moved = rng.normal(size=(2, 6, 4)).astype(np.float32)
    evidence = log_softmax(moved.astype(np.float64)) - log_softmax(logits.astype(np.float64))
    strength = np.array([0.0, 0.5, 1.0, 0.0, 0.5, 1.0], dtype=np.float32)
    diagnosis = Diagnosis(strength=strength, gain=strength, evidence=evidence.astype(np.float32))
    labels = np.arange(6) % 4
    known = np.array([True] * 5 + [False])
    return evidence, labels, evaluator.of_frames(diagnosis, logits, labels, known)


def test_realised_gains_are_those_at_the_true_class(frames):
    evidence, labels, found = frames
    assert_allclose(found.full[:5], evidence[np.arange(5), labels[:5]], atol=1e-6)
    # Nothing of it, all of it, and of the half that which the path between the two gives.
    assert_allclose(found.applied[[0, 3]], 0.0, atol=1e-6)
    assert_allclose(found.applied[2], found.full[2], atol=1e-6)
    assert 0.5 * found.full[1] <= found.applied[1]


def test_a_class_that_is_not_known_has_no_realised_gain(frames):
    *_, found = frames
    assert np.isnan(found.full[5])
    assert np.isnan(found.applied[5])
    assert found.strength[5] == 1.0


def test_means_leave_out_what_is_not_known(evaluator, frames):
    *_, found = frames
    record = evaluator.summary(found)
    assert record["frames"] == 6
    assert record["left_to_the_source"] == pytest.approx(33.33)
    assert record["strength"] == pytest.approx(0.5)
    assert record["full_nats"] == pytest.approx(np.mean(found.full[:5]), abs=1e-4)
    assert record["applied_nats"] == pytest.approx(np.mean(found.applied[:5]), abs=1e-4)


def test_where_nothing_is_acted_on_there_is_no_correlation(evaluator):
    nothing = np.zeros(500)
    frames = evaluator.Frames(nothing, nothing, nothing, nothing)
    record = evaluator.summary(frames)
    assert record["left_to_the_source"] == 100.0
    assert "pearson" not in record
    expected = np.linspace(0.0, 1.0, 500)
    record = evaluator.summary(evaluator.Frames(nothing + 1.0, expected, 2.0 * expected, expected))
    assert record["pearson"] == 1.0
    assert len(record["by_expected"]) == evaluator.BINS
    assert_allclose([full / seen for seen, full in record["by_expected"]], 2.0, rtol=1e-2)


def test_the_right_answer_of_the_world_is_what_the_page_says(evaluator, tmp_path):
    """Without its constant, every domain is the clean one."""
    evaluator.write_gaussian_world(tmp_path / "world.npz")
    with np.load(tmp_path / "world.npz") as world:
        logits = world["clean"].astype(np.float64) @ world["weight"].T + world["bias"]
        accuracy = 100.0 * np.mean(np.argmax(logits, axis=1) == world["labels"])
    page = (BENCHMARKS.parent / "docs" / "adaptation.md").read_text("utf-8")
    assert f"known in closed form: {accuracy:.1f} % on every domain" in page

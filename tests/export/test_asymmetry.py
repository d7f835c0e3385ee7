"""The asymmetry of logits: its value on mixtures that are known, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from gain_export.asymmetry import CLASS_IMAGES, LEAST_IMAGES, UNKNOWN_SINGLE, measure_asymmetry
from numpy.testing import assert_allclose


def mixture(labels, *, num_classes=5, height=10.0, noise=1.0, seed=4):
    """Logits of `height` at the class and Gaussian noise everywhere."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=noise, size=(len(labels), num_classes))
    logits[np.arange(len(labels)), labels] += height
    return logits


def by_hand(logits):
    """The definition, image by image."""
    rows = [row - row.mean() for row in logits]
    mean = sum(rows) / len(rows)
    lean = sum(max(row - mean) + min(row - mean) for row in rows)
    reach = sum(max(row - mean) - min(row - mean) for row in rows)
    return lean / reach


def test_one_class_is_symmetric_and_a_mixture_sticks_out_in_one_logit():
    found = measure_asymmetry(mixture(np.arange(4000) % 5, noise=0.001))
    assert found is not None
    # y = h (e_k - 1/K): h (1 - 1/K) at the top, -h / K at the bottom.
    assert found.mixed == pytest.approx(1 - 2 / 5, abs=1e-3)
    assert found.single == pytest.approx(0.0, abs=0.01)
    assert found.single_images == 4000


def test_values_are_those_of_the_definition():
    labels = np.array([0] * 20 + [1] * 30 + [2] * 7 + [3] * 8)
    logits = mixture(labels)
    logits[:, 2] **= 2
    predicted = np.argmax(logits, axis=1)
    counts = np.bincount(predicted, minlength=5)
    groups = [(by_hand(logits[predicted == k]), n) for k, n in enumerate(counts) if n >= 8]
    assert 2 <= len(groups) < 5
    found = measure_asymmetry(logits)
    assert found is not None
    single = sum(value * n for value, n in groups) / sum(n for _, n in groups)
    assert_allclose(found.single, single, atol=1e-6)
    assert_allclose(found.mixed, by_hand(logits), atol=1e-6)
    assert found.single_images == sum(n for _, n in groups)


def test_log_probabilities_constants_and_scale_do_not_matter():
    logits = mixture(np.arange(400) % 5)
    exact = measure_asymmetry(logits)
    rows = np.random.default_rng(1).normal(size=(400, 1))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for other in (log_probs, logits + rows, 3.0 * logits):
        assert_allclose(measure_asymmetry(other), exact, atol=2e-6)


def test_images_are_taken_in_any_order_and_float32_will_do():
    logits = mixture(np.arange(400) % 5).astype(np.float32)
    shuffled = np.random.default_rng(2).permutation(logits)
    assert_allclose(measure_asymmetry(shuffled), measure_asymmetry(logits), atol=2e-6)


def test_default_for_one_class_where_no_class_has_enough_images():
    labels = np.repeat(np.arange(40), CLASS_IMAGES - 1)
    found = measure_asymmetry(mixture(labels, num_classes=40, noise=0.1))
    assert found is not None
    assert (found.single, found.single_images) == (UNKNOWN_SINGLE, 0)
    assert found.mixed == pytest.approx(1 - 2 / 40, abs=0.05)


@pytest.mark.parametrize(
    "logits",
    [
        pytest.param(mixture(np.arange(400) % 2, num_classes=2), id="two classes"),
        pytest.param(mixture(np.arange(LEAST_IMAGES - 1) % 5), id="too few images"),
        pytest.param(mixture(np.zeros(400, dtype=int)), id="one class only"),
        pytest.param(np.tile(mixture([3]), (40, 1)), id="one image again and again"),
    ],
)
def test_nothing_is_measured_where_it_would_tell_nothing(logits):
    assert measure_asymmetry(logits) is None

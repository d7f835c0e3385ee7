"""Metrics against cases worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gain_apps.metrics import (
    accuracy,
    calibration_excess,
    expected_calibration_error,
    negative_log_likelihood,
)
from gain_core import ArrayError, ConfigError


def two_class(*confidences: float) -> np.ndarray:
    """Rows that predict class 0 with these probabilities (each at least a half)."""
    return np.array([[c, 1.0 - c] for c in confidences])


def test_accuracy_counts_the_largest_probability_the_first_of_a_tie():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2]])
    assert accuracy(probs, np.array([0, 2, 0, 1])) == 0.75
    assert accuracy(probs, np.array([1, 2, 1, 1])) == 0.25


@pytest.mark.parametrize(
    ("probs", "labels", "expected"),
    [
        pytest.param(two_class(1.0, 1.0), [0, 0], 0.0, id="sure-and-right"),
        pytest.param(two_class(1.0, 1.0), [1, 1], 1.0, id="sure-and-wrong"),
        pytest.param(two_class(1.0, 1.0), [0, 1], 0.5, id="sure-half-right"),
        # one bin: mean confidence (0.71 + 0.74)/2 = 0.725 against accuracy 0.5
        pytest.param(two_class(0.71, 0.74), [0, 1], 0.225, id="one-bin-pools"),
        # two bins: |0.71 - 1| and |0.76 - 0|, half the weight each
        pytest.param(two_class(0.71, 0.76), [0, 1], 0.525, id="two-bins-do-not-cancel"),
        # exactly 1 shares [0.95, 1] with 0.96: |(0.96 + 1)/2 - 0.5| = 0.48; a bin of its own
        # would give (|0.96 - 1| + |1 - 0|)/2 = 0.52
        pytest.param(two_class(0.96, 1.0), [0, 1], 0.48, id="one-is-in-the-last-bin"),
        # bins are closed on the left: 0.75 opens [0.75, 0.80), 0.74 lies below it
        pytest.param(two_class(0.74, 0.75), [0, 1], (0.26 + 0.75) / 2, id="boundary-below"),
        # and shares its bin with 0.79: |(0.75 + 0.79)/2 - 0.5| = 0.27
        pytest.param(two_class(0.75, 0.79), [0, 1], 0.27, id="boundary-above"),
        # bins of 3, 1 and 0 samples weigh by their counts
        pytest.param(
            two_class(0.51, 0.52, 0.53, 0.9),
            [0, 1, 1, 0],
            3 / 4 * abs(0.52 - 1 / 3) + 1 / 4 * 0.1,
            id="bins-weigh-by-count",
        ),
    ],
)
def test_expected_calibration_error(probs, labels, expected):
    result = expected_calibration_error(probs, np.array(labels))
    assert_allclose(result, expected, rtol=0, atol=1e-12)


def test_expected_calibration_error_depends_on_the_number_of_bins():
    probs = two_class(0.51, 0.59)
    labels = np.array([0, 1])
    assert_allclose(expected_calibration_error(probs, labels, num_bins=10), 0.05, atol=1e-12)
    assert_allclose(
        expected_calibration_error(probs, labels, num_bins=20), (0.49 + 0.59) / 2, atol=1e-12
    )


def test_negative_log_likelihood_is_the_mean_of_minus_log_p_of_the_label():
    log_probs = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    result = negative_log_likelihood(log_probs, np.array([0, 2]))
    assert_allclose(result, (math.log(2.0) + math.log(10.0)) / 2, rtol=1e-14)
    beyond_exp = np.array([[0.0, -2000.0], [-2000.0, 0.0]])
    assert negative_log_likelihood(beyond_exp, np.array([0, 0])) == 1000.0


def test_metrics_of_float32_probabilities_agree_with_float64():
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(7), size=500)
    labels = rng.integers(0, 7, size=500)
    narrow = probs.astype(np.float32)
    for metric in (accuracy, expected_calibration_error):
        assert_allclose(metric(narrow, labels), metric(probs, labels), atol=1e-5)
    narrow_nll, nll = (negative_log_likelihood(np.log(p), labels) for p in (narrow, probs))
    assert_allclose(narrow_nll, nll, rtol=1e-5)


def test_calibration_excess_of_parts_adds_up_to_that_of_the_whole():
    rng = np.random.default_rng(4)
    probs = rng.dirichlet(np.ones(4), size=60)
    labels = rng.integers(0, 4, size=60)
    parts = sum(
        calibration_excess(probs[rows], labels[rows]) for rows in np.split(np.arange(60), 5)
    )
    assert parts.shape == (20,)
    assert_allclose(
        np.sum(np.abs(parts)) / 60, expected_calibration_error(probs, labels), atol=1e-12
    )


METRICS = [accuracy, expected_calibration_error, negative_log_likelihood]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        pytest.param(np.ones((0, 3)), np.zeros(0, dtype=int), r"N >= 1, got \(0, 3\)", id="none"),
        pytest.param(np.ones((2, 3)), np.zeros(3, dtype=int), r"got \(2, 3\) and \(3,\)", id="N"),
        pytest.param(np.ones(3), np.zeros(3, dtype=int), r"expected \(N, K\)", id="1-D"),
        pytest.param(np.ones((2, 3)), np.zeros(2), "labels: expected integers", id="floats"),
        pytest.param(np.ones((2, 3)), np.array([0, 3]), r"\[0, 3\), got 0 to 3", id="too-large"),
        pytest.param(np.ones((2, 3)), np.array([-1, 0]), r"\[0, 3\), got -1 to 0", id="negative"),
    ],
)
def test_labels_that_do_not_fit_are_named(metric, probs, labels, message):
    with pytest.raises(ArrayError, match=message):
        metric(probs, labels)


def test_no_bins_are_refused():
    with pytest.raises(ConfigError, match="num_bins: expected at least 1, got 0"):
        expected_calibration_error(np.ones((1, 2)) / 2, np.zeros(1, dtype=int), num_bins=0)

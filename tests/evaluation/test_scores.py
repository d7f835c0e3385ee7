"""Scores against hand-computed cases and against the core's own metrics."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluation.eval_input import ANY_SEVERITY, FeatureStore, Outputs
from gain_apps.evaluation.executor import GainTrace, Trace, run_methods
from gain_apps.evaluation.methods.protocol import Cost, log_softmax
from gain_apps.evaluation.streams import StreamPlan, make_stream
from gain_apps.metrics import (
    accuracy,
    calibration,
    correlations,
    domain_scores,
    expected_calibration_error,
    negative_log_likelihood,
    round_scores,
    score,
)
from gain_core.errors import NumericsError


def trace_of(confidence, correct, domains=None, rounds=None, gain=None):
    confidence = np.asarray(confidence, dtype=np.float64)
    zeros = np.zeros(len(confidence), dtype=np.int64)
    return Trace(
        domains=zeros if domains is None else np.asarray(domains),
        rounds=zeros if rounds is None else np.asarray(rounds),
        confidence=confidence,
        correct=np.asarray(correct, dtype=bool),
        nll=1.0 - confidence,
        brier=2.0 * (1.0 - confidence),
        step_ms=np.ones(1),
        cost=Cost(),
        gain=gain,
    )


def test_bins_by_hand():
    # Bin 5 of 20 holds 0.25 (its lower edge) and 0.27; the last 0.96 and exactly 1; others none.
    bins = calibration(np.array([0.25, 0.27, 0.96, 1.0]), np.array([1, 0, 1, 0], bool))
    assert_array_equal(np.flatnonzero(bins.counts), [5, 19])
    assert_array_equal(bins.counts[[5, 19]], [2, 2])
    assert_allclose(bins.accuracy[[5, 19]], [0.5, 0.5])
    assert_allclose(bins.confidence[[5, 19]], [0.26, 0.98])
    assert bins.error == pytest.approx(0.5 * 0.24 + 0.5 * 0.48)


class Answers:
    """Says of each batch what a function says of its logits."""

    cost = Cost()

    def __init__(self, says):
        self._says = says

    def predict(self, batch):
        return self._says(batch.logits)

    def reset(self):
        pass


def run(world, says):
    """The function over the world's batches."""
    features = np.concatenate([batch.features for batch in world.batches])
    store = FeatureStore(
        head=world.head,
        labels=np.concatenate(world.labels),
        domains=("a",),
        outputs={("a", ANY_SEVERITY): (Outputs(features=features),)},
    )
    plan = StreamPlan(kind="csc", num_domains=1, batch_size=20)
    stream = make_stream(plan, store.labels, num_classes=6)
    return run_methods({"x": Answers(says)}, stream, store)["x"]


def test_scores_are_those_of_the_core(world):
    trace = run(world, log_softmax)
    scores = score(trace)
    log_probs = np.concatenate([log_softmax(batch.logits) for batch in world.batches])
    labels, probs = np.concatenate(world.labels), np.exp(log_probs)
    assert scores.accuracy == pytest.approx(100 * accuracy(probs, labels))
    error = expected_calibration_error(probs, labels)
    assert scores.ece == pytest.approx(100 * error, abs=1e-3)
    assert scores.nll == pytest.approx(negative_log_likelihood(log_probs, labels), rel=1e-5)
    squares = np.sum((probs - np.eye(probs.shape[1])[labels]) ** 2, axis=1)
    assert scores.brier == pytest.approx(np.mean(squares), rel=1e-5)
    assert trace.gain is None


def test_domains_count_alike_whatever_their_size():
    # Domain 0: one sample, right; domain 1: three samples, one right.
    trace = trace_of([0.5] * 4, [1, 1, 0, 0], domains=[0, 1, 1, 1])
    by_domain = domain_scores(trace)
    assert by_domain[0].accuracy == pytest.approx(100)
    assert by_domain[1].accuracy == pytest.approx(100 / 3)
    assert by_domain[1].ece == pytest.approx(100 * (0.5 - 1 / 3))
    (over_domains,) = round_scores(trace)
    assert over_domains.accuracy == pytest.approx((100 + 100 / 3) / 2)
    assert score(trace).accuracy == pytest.approx(50)
    assert score(trace).ece == pytest.approx(0)
    assert over_domains.ece == pytest.approx(100 * (0.5 + 1 / 6) / 2)


def test_rounds_are_kept_apart():
    trace = trace_of([0.5] * 4, [1, 1, 0, 0], rounds=[0, 0, 1, 1])
    assert [scores.accuracy for scores in round_scores(trace)] == [100, 0]
    assert domain_scores(trace)[0].ece == pytest.approx(50)


def test_infinite_nll_becomes_null():
    trace = trace_of([1.0], [0])
    trace.nll[0] = np.inf
    record = score(trace).to_dict()
    assert record["nll"] is None
    assert record["accuracy"] == 0


def gains(expected, realised):
    expected, realised = np.asarray(expected, float), np.asarray(realised, float)
    return GainTrace(strength=np.ones(len(expected)), expected=expected, realised=realised)


def test_correlations_by_hand():
    # The first sample was predicted without history, the last one's gain is infinite. Ranks of
    # the rest: 0, 1.5, 1.5, 3 and 0, 1, 2, 3.
    pairs = gains([0, 1, 2, 2, 9, 1], [0, 1, 2, 3, 4, -np.inf])
    trace = trace_of([0.5] * 6, [1] * 6, gain=pairs)
    result = correlations(trace)
    assert result["pearson"] == pytest.approx(np.corrcoef([1, 2, 2, 9], [1, 2, 3, 4])[0, 1])
    assert result["spearman"] == pytest.approx(np.corrcoef([0, 1.5, 1.5, 3], [0, 1, 2, 3])[0, 1])


def test_correlations_of_nothing_are_undefined():
    trace = trace_of([0.5] * 3, [1] * 3, gain=gains([1, 1, 1], [1, 2, 3]))
    assert correlations(trace) == {"pearson": None, "spearman": None}


@pytest.mark.parametrize("bad", [np.nan, 0.5])
def test_what_is_no_distribution_is_refused(bad, world):
    with pytest.raises(NumericsError, match=r"Answers: expected probabilities .* in batch 0"):
        run(world, lambda logits: np.full_like(logits, bad))

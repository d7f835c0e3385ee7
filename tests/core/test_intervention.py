"""The evidence path, the gain and the strength: what holds whatever the data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import evidence_path, expected_gain, slope, solve_strength


def normalised(scores: np.ndarray) -> np.ndarray:
    """Log-softmax of each row."""
    shifted = scores - np.max(scores, axis=1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))


def random_log_probs(
    rng: np.random.Generator, *, spread: float, rows: int = 300, num_classes: int = 7
) -> np.ndarray:
    """Rows of log-probabilities, peaked the more the larger `spread` is."""
    return normalised(spread * rng.normal(size=(rows, num_classes)))


def kl(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """KL(p || q) of each row, in nats."""
    return np.sum(np.exp(log_p) * (log_p - log_q), axis=1)


def improvement(log_s: np.ndarray, xi: np.ndarray, log_bar: np.ndarray, strength) -> np.ndarray:
    """J(lambda) = KL(q_bar || s) - KL(q_bar || p(lambda)), by its definition."""
    strength = np.broadcast_to(np.asarray(strength, dtype=float), log_s.shape[:1])
    return kl(log_bar, log_s) - kl(log_bar, evidence_path(log_s, xi, strength))


def solved(log_s: np.ndarray, xi: np.ndarray, log_bar: np.ndarray):
    """G and lambda*."""
    gain = expected_gain(log_bar, xi)
    return gain, solve_strength(log_s, xi, gain=gain)


def bisected(log_s: np.ndarray, xi: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """lambda* by forty-four halvings, each of which asks the definition of J'."""

    def rising(strength: np.ndarray) -> np.ndarray:
        p = np.exp(normalised(log_s + strength[:, None] * xi))
        return gain - np.sum(p * xi, axis=1)

    low, high = np.zeros_like(gain), np.ones_like(gain)
    none, full = rising(low) <= 0, rising(high) >= 0
    for _ in range(44):
        middle = 0.5 * (low + high)
        up = rising(middle) > 0
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    return np.where(none, 0.0, np.where(full, 1.0, 0.5 * (low + high)))


@pytest.fixture(params=[0.3, 2.0, 6.0], ids=["close", "apart", "peaked"])
def triple(request):
    """log s, log q_hat, log q_bar of 300 samples."""
    rng = np.random.default_rng(11)
    return tuple(random_log_probs(rng, spread=request.param) for _ in range(3))


def test_path_runs_from_the_source_to_the_proposal_and_is_normalised(triple):
    log_s, log_hat, _ = triple
    xi = log_hat - log_s
    assert_allclose(evidence_path(log_s, xi, np.zeros(300)), log_s, atol=1e-12)
    assert_allclose(evidence_path(log_s, xi, np.ones(300)), log_hat, atol=1e-12)
    path = evidence_path(log_s, xi, np.linspace(0, 1, 300))
    assert_allclose(np.sum(np.exp(path), axis=1), 1.0, rtol=1e-12)


def test_gain_is_the_improvement_of_the_full_correction(triple):
    log_s, log_hat, log_bar = triple
    xi = log_hat - log_s
    gain = expected_gain(log_bar, xi)
    assert_allclose(gain, kl(log_bar, log_s) - kl(log_bar, log_hat), atol=1e-11)
    assert_allclose(improvement(log_s, xi, log_bar, 1.0), gain, atol=1e-11)


def test_slope_is_the_derivative_and_has_the_divergences_at_its_ends(triple):
    log_s, log_hat, log_bar = triple
    xi = log_hat - log_s
    gain = expected_gain(log_bar, xi)
    at_zero = slope(log_s, xi, gain=gain, strength=np.zeros(300))
    at_one = slope(log_s, xi, gain=gain, strength=np.ones(300))
    assert_allclose(at_zero, gain + kl(log_s, log_hat), atol=1e-11)
    assert_allclose(at_one, gain - kl(log_hat, log_s), atol=1e-11)
    for middle in (0.1, 0.5, 0.9):
        rise = improvement(log_s, xi, log_bar, middle + 1e-5)
        fall = improvement(log_s, xi, log_bar, middle - 1e-5)
        expected = slope(log_s, xi, gain=gain, strength=np.full(300, middle))
        assert_allclose((rise - fall) / 2e-5, expected, atol=1e-5)


def test_chosen_strength_is_at_least_as_good_as_a_grid(triple):
    log_s, log_hat, log_bar = triple
    xi = log_hat - log_s
    gain, strength = solved(log_s, xi, log_bar)
    best = improvement(log_s, xi, log_bar, strength)
    assert np.all(best >= np.maximum(0.0, gain) - 1e-9)
    for at in np.linspace(0, 1, 21):
        assert np.all(best >= improvement(log_s, xi, log_bar, at) - 1e-9)
    kinds = [np.sum(strength == 0.0), np.sum(strength == 1.0)]
    assert min(*kinds, 300 - sum(kinds)) > 10  # all three cases of eq:app_optimal_lambda


def test_self_evaluation_applies_the_whole_correction(triple):
    log_s, log_hat, _ = triple
    xi = log_hat - log_s
    gain, strength = solved(log_s, xi, log_hat)
    assert np.all(gain > 0)
    # J'(1) is 0 exactly here, up to rounding of either sign.
    path = np.exp(evidence_path(log_s, xi, strength))
    assert_allclose(path, np.exp(log_hat), rtol=0, atol=1e-8 if np.min(xi) > -20 else 5e-4)


def test_an_evaluator_that_agrees_with_the_source_applies_none(triple):
    log_s, log_hat, _ = triple
    gain, strength = solved(log_s, log_hat - log_s, log_s)
    assert np.all(gain < 0)
    assert_allclose(strength, 0.0, atol=1e-7)


def test_no_evidence_means_no_intervention(triple):
    log_s, _, log_bar = triple
    gain, strength = solved(log_s, np.zeros_like(log_s), log_bar)
    assert_array_equal(gain, 0.0)
    assert_array_equal(strength, 0.0)


def test_an_evaluator_on_the_path_is_found():
    """q_bar = p(lambda) has its optimum at that lambda."""
    rng = np.random.default_rng(12)
    log_s = random_log_probs(rng, spread=2.0)
    xi = random_log_probs(rng, spread=2.0) - log_s
    wanted = rng.uniform(0.01, 0.99, size=300)
    _, strength = solved(log_s, xi, evidence_path(log_s, xi, wanted))
    assert_allclose(strength, wanted, atol=1e-10)


# --- the strength, against bisection ---

# Deviation of the logits, and what may be left of a probability: float64, float32.
ROWS = {
    "close": (0.3, 1e-13, 1e-6),
    "as-they-occur": (2.0, 1e-12, 1e-6),
    "peaked": (6.0, 1e-6, 3e-6),
    "made-to-be-hard": (12.0, 1e-4, 1e-4),
}


@pytest.mark.parametrize("num_classes", [2, 3, 50, 1000])
@pytest.mark.parametrize(("spread", "at_float64", "at_float32"), ROWS.values(), ids=ROWS)
def test_the_strength_is_that_of_bisection(spread, at_float64, at_float32, num_classes):
    rng = np.random.default_rng(13)
    rows = 2000 if num_classes < 100 else 100
    log_s, log_hat, log_bar = (
        random_log_probs(rng, spread=spread, rows=rows, num_classes=num_classes) for _ in range(3)
    )
    for dtype, bound in ((np.float64, at_float64), (np.float32, at_float32)):
        start, xi, evaluator = (a.astype(dtype) for a in (log_s, log_hat - log_s, log_bar))
        gain = expected_gain(evaluator, xi)
        strength = solve_strength(start, xi, gain=gain)
        assert strength.dtype == dtype
        wide = [a.astype(np.float64) for a in (start, xi, gain)]
        wanted = bisected(*wide)
        assert np.mean((wanted > 0) & (wanted < 1)) > 0.1
        p, q = (evidence_path(*wide[:2], at.astype(np.float64)) for at in (strength, wanted))
        assert np.max(np.abs(np.exp(p) - np.exp(q))) <= bound
        if spread <= 2.0 and dtype == np.float64:
            # A correction of a thousandth of a nat makes J flat, and any strength as good.
            assert_allclose(strength, wanted, rtol=0, atol=1e-9)


def test_newton_does_not_go_round_in_circles_between_two_classes():
    """A step from either side of this kink of the log-odds lands on the other side."""
    rng = np.random.default_rng(0)
    log_s, log_hat, log_bar = (
        random_log_probs(rng, spread=spread, rows=20_000, num_classes=5) for spread in (30, 2, 1)
    )
    xi = log_hat - log_s
    gain, strength = solved(log_s, xi, log_bar)
    wanted = evidence_path(log_s, xi, bisected(log_s, xi, gain))
    assert_allclose(np.exp(evidence_path(log_s, xi, strength)), np.exp(wanted), rtol=0, atol=1e-4)


def test_rows_do_not_see_each_other():
    rng = np.random.default_rng(14)
    log_s, log_hat, log_bar = (random_log_probs(rng, spread=3.0, rows=40) for _ in range(3))
    xi = log_hat - log_s
    _, together = solved(log_s, xi, log_bar)
    for row in range(40):
        one = slice(row, row + 1)
        _, alone = solved(log_s[one], xi[one], log_bar[one])
        assert_allclose(alone, together[one], rtol=0, atol=1e-7)


SCORES = npst.arrays(np.float64, (4, 5), elements=st.floats(-12, 12, width=32))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(source=SCORES, proposal=SCORES, evaluator=SCORES)
def test_no_row_is_worse_than_either_end_nor_far_from_bisection(source, proposal, evaluator):
    log_s, log_hat, log_bar = normalised(source), normalised(proposal), normalised(evaluator)
    xi = log_hat - log_s
    gain, strength = solved(log_s, xi, log_bar)
    assert np.all((strength >= 0) & (strength <= 1))
    best = improvement(log_s, xi, log_bar, strength)
    assert np.all(best >= np.maximum(0.0, gain) - 1e-8)
    path, wanted = (
        np.exp(evidence_path(log_s, xi, at)) for at in (strength, bisected(log_s, xi, gain))
    )
    assert_allclose(path, wanted, rtol=0, atol=1e-5)

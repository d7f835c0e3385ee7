"""Each baseline's equations on a case small enough to compute by hand."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.evaluation.methods.forward_only import (
    T3A,
    BatchRecentring,
    Dota,
    FoaShift,
    Lame,
    Neo,
    NeoContinual,
    knn_affinity,
)
from gain_apps.evaluation.methods.protocol import Batch, Head, entropy, log_softmax
from gain_apps.evaluation.methods.registry import METHODS, make_method
from gain_core.errors import ConfigError

HEAD = Head(weight=np.eye(2), bias=np.array([0.0, 0.5]), source_mean=np.array([1.0, 1.0]))
FIRST = np.array([[1.0, 0.0], [3.0, 0.0]])
SECOND = np.array([[5.0, 4.0], [5.0, 4.0]])


def batch(features, logits=None, head=HEAD):
    features = np.asarray(features, dtype=np.float64)
    return Batch(features=features, logits=head.logits(features) if logits is None else logits)


def assert_logits(log_probs, logits):
    assert_allclose(log_probs, log_softmax(np.asarray(logits, dtype=np.float64)), atol=1e-12)


def test_source_is_the_softmax_of_the_logits():
    result = make_method("source", HEAD).predict(batch(FIRST))
    assert_allclose(np.exp(result[0]), [1 / (1 + np.exp(-0.5)), 1 / (1 + np.exp(0.5))])


def test_neo_is_about_the_mean_of_all_frames():
    neo = Neo(HEAD)
    assert_logits(neo.predict(batch(FIRST)), [[-1, 0.5], [1, 0.5]])
    # g = (2 (2, 0) + 2 (5, 4)) / 4 = (3.5, 2)
    assert_logits(neo.predict(batch(SECOND)), [[1.5, 2.5]] * 2)


def test_neo_answers_with_the_source_until_it_is_warm():
    neo = Neo(HEAD)
    assert_logits(neo.predict(batch(FIRST[:1])), [[1, 0.5]])
    assert_logits(neo.predict(batch(FIRST[1:])), [[1, 0.5]])  # (3, 0) - (2, 0)
    literal = Neo(HEAD, warm_up=1)
    assert_logits(literal.predict(batch(FIRST[:1])), [[0, 0.5]])


def test_neo_continual_forgets_from_zero():
    neo = NeoContinual(HEAD, rate=0.5)
    assert_logits(neo.predict(batch(FIRST)), [[0, 0.5], [2, 0.5]])  # g = (1, 0)
    assert_logits(neo.predict(batch(SECOND)), [[2, 2.5]] * 2)  # g = (3, 2)


def test_foa_shift_moves_the_target_mean_to_the_source_mean():
    foa = FoaShift(HEAD)
    assert_logits(foa.predict(batch(FIRST)), [[0, 1.5], [2, 1.5]])  # h = (2, 0)
    # h = 0.9 (2, 0) + 0.1 (5, 4) = (2.3, 0.4)
    assert_logits(foa.predict(batch(SECOND)), [[3.7, 5.1]] * 2)
    with pytest.raises(ConfigError, match=r"foa-shift: .*--source-images"):
        FoaShift(Head(weight=HEAD.weight, bias=HEAD.bias))


def test_recentring_is_about_the_batch():
    recentre = BatchRecentring(HEAD)
    recentre.predict(batch(SECOND))
    assert_logits(recentre.predict(batch(FIRST)), [[-1, 0.5], [1, 0.5]])
    assert_logits(recentre.predict(batch(FIRST[:1])), [[1, 0.5]])


def test_t3a_sums_normalised_supports():
    head = Head(weight=np.array([[2.0, 0.0], [0.0, 1.0]]), bias=np.zeros(2))
    seen = Batch(features=np.array([[3.0, 4.0]]), logits=np.array([[10.0, 0.0]]))
    # class 0: e_0 + (0.6, 0.8) = (1.6, 0.8), normalised (2, 1) / sqrt 5
    assert_logits(T3A(head).predict(seen), [[10 / np.sqrt(5), 4.0]])
    # one support each: the new one is surer than the head's row with logits (4, 0)
    assert_logits(T3A(head, num_supports=1).predict(seen), [[5.0, 4.0]])
    doubtful = Batch(features=seen.features, logits=np.array([[0.1, 0.0]]))
    assert_logits(T3A(head, num_supports=1).predict(doubtful), [[3.0, 4.0]])


def test_t3a_files_head_rows_under_the_class_the_head_gives_them():
    head = Head(weight=np.array([[2.0, 0.0], [1.0, 0.0]]), bias=np.zeros(2))
    result = T3A(head).predict(batch([[3.0, 1.0]], logits=np.array([[5.0, 0.0]])))
    e_0, new = np.array([1.0, 0.0]), np.array([3.0, 1.0]) / np.sqrt(10)
    template = 2 * e_0 + new
    assert_logits(result, [[np.array([3.0, 1.0]) @ template / np.linalg.norm(template), 0.0]])


def test_lame_affinity_is_nearest_by_cosine_and_symmetric():
    angles = np.radians([0.0, 10.0, 30.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.array([[1.0], [5.0], [2.0]])
    assert_array_equal(knn_affinity(rows, 1), [[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]])


def test_lame_settles_where_its_update_no_longer_moves():
    features = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    logits = np.array([[2.0, 0.0], [-0.2, 0.0], [0.0, 1.0], [0.0, 3.0]])
    result = Lame(num_neighbours=1).predict(batch(features, logits))
    unary = -np.log(np.exp(log_softmax(logits)) + 1e-10)
    affinity = np.zeros((4, 4))
    affinity[[0, 1, 2, 3], [1, 0, 3, 2]] = 1.0
    assert_allclose(result, log_softmax(-unary + affinity @ np.exp(result)), atol=1e-4)
    assert_array_equal(result.argmax(axis=1), [0, 0, 1, 1])
    # A single frame has no neighbour.
    assert_logits(Lame().predict(batch(FIRST[:1])), HEAD.logits(FIRST[:1]))


@pytest.mark.parametrize("covariance", ["per-class", "pooled"])
def test_dota_learns_a_discriminant(covariance):
    head = Head(weight=np.array([[2.0, 0.0], [0.0, 3.0]]), bias=np.zeros(2))
    dota = Dota(head, covariance=covariance)
    count, means = np.ones(2), np.zeros((2, 2))
    scatter = np.array([0.002 * np.eye(2)] * 2)
    # Near the bisector, so that no sample belongs to one class alone; lengths do not matter.
    for degrees in ([44.6, 45.3, 52.0], [44.0, 46.5]):
        angles = np.radians(degrees)
        rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        before = dota.predict(batch(rows * 7.0))
        if not means.any():
            assert_logits(before, 100 * rows)  # the discriminant says nothing yet
        assigned = np.exp(log_softmax(100 * rows))
        total = count + assigned.sum(axis=0)
        means = (count[:, None] * means + assigned.T @ rows) / total[:, None]
        count = total
        for row, shares in zip(rows, assigned, strict=True):
            for k in (0, 1):
                scatter[k] += shares[k] * np.outer(row - means[k], row - means[k])
    if covariance == "per-class":
        mean = (scatter / count[:, None, None]).mean(axis=0)
    else:
        mean = scatter.sum(axis=0) / count.sum()
    precision = np.linalg.inv((1 - 1e-4) * mean + 1e-4 * np.eye(2))
    query = np.array([[0.6, 0.8]])
    score = [query[0] @ precision @ m - 0.5 * m @ precision @ m for m in means]
    weight = min(0.005 * count.mean(), 0.2)
    assert_allclose(
        dota.predict(batch(query)), log_softmax(100 * query + weight * np.array([score])), atol=1e-9
    )


def test_dota_refuses_gigabytes():
    head = Head(weight=np.zeros((1000, 1280), dtype=np.float32), bias=np.zeros(1000))
    with pytest.raises(ConfigError, match=r"dota: .* use dota:covariance=pooled"):
        Dota(head)


def test_entropy_of_certainty_is_zero():
    assert_allclose(entropy(np.array([[0.0, -np.inf]])), [0.0])
    assert_allclose(entropy(np.log([[0.25] * 4])), [np.log(4)])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_probabilities_and_forgets_on_reset(name, world):
    head = Head(
        weight=world.head.weight, bias=world.head.bias, source_mean=world.batches[0].features[0]
    )
    method = make_method(name, head)
    before = [method.predict(item) for item in world.batches]
    for log_probs in before:
        assert_allclose(np.exp(log_probs).sum(axis=1), 1.0, atol=1e-5)
    assert method.cost.num_backward == 0
    assert method.cost.state_bytes >= 0
    method.reset()
    assert_array_equal(method.predict(world.batches[0]), before[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("neu", "method: expected one of source, shift"),
        ("neo:rate=0.1", "neo:rate=0.1: unknown option rate; neo has warm_up"),
        ("neo-continual:rate=2", r"rate: expected a number in \(0, 1\], got 2"),
        ("neo-continual:rate", "expected NAME:key=value:key=value, got 'rate'"),
        ("neo-continual:rate=0.1:rate=0.2", "rate is given more than once"),
        ("neo-continual:rate=fast", "an option is of the wrong type"),
        ("shift:rule=full", "unknown option rule"),
        ("paper:half_life=3", "unknown option half_life"),
        ("paper:rule=always", "rule: expected one of gain, retention"),
        ("shift:half_life=fast", "an option is of the wrong type"),
        ("paper:role=evaluator:rule=full", "role evaluator: sets no strength"),
        ("shift:update_every=0.5", "update_every: expected a whole number of frames"),
        ("source:rate=1", "unknown option rate; source has none"),
    ],
)
def test_bad_methods_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        make_method(text, HEAD)

"""Streams as a camera sees them: how long objects stay, which classes come, and what is scored."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gain_apps.evaluation import evaluate, open_input
from gain_apps.evaluation.camera_streams import EMPTY_SCENE, STAY, noise_of
from gain_apps.evaluation.streams import CAMERA_STREAMS, StreamPlan, make_stream, parse_stream
from gain_core.errors import ConfigError

LABELS = np.arange(600) % 12
K = 12


def stream_of(kind, **changes):
    plan = StreamPlan(kind=kind, num_domains=4, batch_size=16, **changes)
    return make_stream(plan, LABELS, num_classes=K)


def column(stream, name, *, scored=None):
    chosen = [item for item in stream if scored is None or item.scored == scored]
    return np.concatenate([getattr(item, name) for item in chosen])


@pytest.mark.parametrize("kind", CAMERA_STREAMS)
def test_objects_stay_and_a_seed_fixes_the_stream(kind):
    images = column(stream_of(kind, seed=3), "images")
    lengths = np.diff(np.flatnonzero(np.diff(images, prepend=-2, append=-2)))
    assert (lengths % STAY == 0).all() or kind in ("parked", "day-night")
    assert_array_equal(images, column(stream_of(kind, seed=3), "images"))
    other = column(stream_of(kind, seed=4), "images")
    assert len(other) != len(images) or (other != images).any()


@pytest.mark.parametrize(
    ("kind", "classes"), [("video", 12), ("few", 5), ("one-class", 1), ("mixed", 12)]
)
def test_which_classes_come(kind, classes):
    shown = np.unique(LABELS[column(stream_of(kind), "images")])
    assert len(shown) == classes


def test_a_tail_has_rare_classes():
    counts = np.bincount(LABELS[column(stream_of("tailed"), "images")], minlength=K)
    assert counts.max() > 20 * max(counts.min(), 1)


def test_mixed_changes_the_domain_with_every_object():
    stream = stream_of("mixed")
    domains = column(stream, "domains")
    assert_array_equal(domains.reshape(-1, STAY).min(axis=1), domains[::STAY])
    assert len(np.unique(domains)) == 4


@pytest.mark.parametrize(("kind", "place"), [("one-after", 3), ("one-same", 2)])
def test_one_class_after_all_is_what_counts_and_the_seeds_take_the_classes_in_turn(kind, place):
    for seed in range(3):
        stream = stream_of(kind, seed=seed)
        assert set(LABELS[column(stream, "images", scored=True)]) == {seed}
        assert set(column(stream, "domains", scored=True)) == {place}
        assert set(column(stream, "domains", scored=False)) == {0, 1, 2}
    assert set(LABELS[column(stream_of(kind, only_class=7), "images", scored=True)]) == {7}


def test_parked_and_night():
    assert len(column(stream_of("parked"), "images", scored=True)) == 10_000
    assert len(set(column(stream_of("parked"), "images", scored=True))) == 1
    night = stream_of("day-night", frames=500)
    images = column(night, "images")
    assert (images == EMPTY_SCENE).sum() == 500
    assert (column(night, "images", scored=True) != EMPTY_SCENE).all()


def test_recordings_then_one_class_of_the_last():
    plan = StreamPlan(kind="recorded-one", num_domains=2, batch_size=16, frames=100, seed=1)
    labels = np.concatenate([np.arange(50) % 5, [0, 3, 3, 3, 4, 4]])
    stream = make_stream(
        plan, labels, num_classes=5, recorded=np.repeat([0, 1], [50, 6]), recordings=(50, 6)
    )
    assert_array_equal(column(stream, "images", scored=False), np.arange(50))
    assert_array_equal(column(stream, "images", scored=True), np.resize([54, 55], 100))
    with pytest.raises(ConfigError, match="expected one that the recording shows, got 2"):
        make_stream(
            StreamPlan(kind="recorded-one", num_domains=2, only_class=2),
            labels,
            num_classes=5,
            recorded=np.zeros(56, dtype=np.int64),
            recordings=(50, 6),
        )


def test_noise_differs_from_frame_to_frame_and_the_empty_scene_is_no_class(colour_dump):
    of = open_input(colour_dump)
    plan = StreamPlan(kind="day-night", num_domains=2, batch_size=16, frames=64)
    (night,) = [
        item
        for item in make_stream(plan, of.store.labels, num_classes=3)
        if (item.images == EMPTY_SCENE).all()
    ][:1]
    batch = of.store.batch(night, noise=noise_of(plan))
    assert np.abs(batch.features - of.store.head.source_mean).max() < 6 * of.store.deviation.max()
    assert (np.diff(batch.features, axis=0) != 0).all()
    np.testing.assert_allclose(batch.logits, of.store.head.logits(batch.features))


def test_evaluate_scores_what_counts_only(colour_dump):
    found = evaluate(colour_dump, stream="one-after:class=1", methods=["neo"], seeds=2)
    assert found["stream"]["batch_size"] == 16
    assert list(found["methods"]) == ["source", "neo"]
    assert list(found["methods"]["source"]["domains"]) == ["fog"]
    first, second = found["methods"]["source"]["runs"]
    assert first["seed"] == 0
    assert first["accuracy"] != second["accuracy"] or first["nll"] != second["nll"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vidoe", "expected one of csc"),
        ("video:frames=many", "frames: expected a number, got 'many'"),
        ("lha:rounds=0.5", "rounds: expected a number, got 0.5"),
        ("cdc:epsilon=1", "with delta=N"),
    ],
)
def test_bad_specs_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_stream(text)

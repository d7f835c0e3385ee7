"""Streams: the published test vector, and what each kind promises about its samples.

Of a camera's: how long objects stay, which classes come, and what is scored.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gain_apps.evaluation import evaluate, open_input
from gain_apps.evaluation.streams import (
    CAMERA_STREAMS,
    EMPTY_SCENE,
    RAMP,
    RUN_FRAMES,
    STAY,
    StreamPlan,
    cdc_segments,
    image_order,
    noise_of,
    parse_stream,
)
from gain_apps.evaluation.streams import make_stream as make_any_stream
from gain_core.errors import ConfigError

LABELS = np.repeat(np.arange(5), 40)
CSC = StreamPlan(kind="csc", num_domains=3, batch_size=64)


def make_stream(plan, labels):
    return make_any_stream(plan, labels, num_classes=5)


def column(stream, name, *, scored=None):
    chosen = [item for item in stream if scored is None or item.scored == scored]
    return np.concatenate([getattr(item, name) for item in chosen])


def _pairs(stream):
    return sorted(
        zip(column(stream, "domains").tolist(), column(stream, "images").tolist(), strict=True)
    )


EVERY_SAMPLE = [(domain, image) for domain in range(3) for image in range(len(LABELS))]


def test_cdc_is_the_published_stream():
    segments = cdc_segments(15, 5000, 64, 1.0, 1)
    assert segments[:10] == [
        (13, 15),
        (14, 13),
        (0, 23),
        (2, 14),
        (12, 30),
        (1, 46),
        (5, 35),
        (11, 25),
        (4, 7),
        (10, 2),
    ]
    per_domain = np.zeros(15, dtype=int)
    for domain, batches in segments:
        per_domain[domain] += batches
    assert_array_equal(per_domain, 79)
    assert len(segments) == 45


def test_csc_keeps_the_list_order_and_ends_a_domain_with_a_short_batch():
    stream = make_stream(CSC, LABELS)
    assert [len(batch.images) for batch in stream] == [64, 64, 64, 8] * 3
    assert_array_equal(column(stream, "images"), np.tile(np.arange(200), 3))
    assert_array_equal(column(stream, "domains"), np.repeat([0, 1, 2], 200))
    assert_array_equal(column(stream, "severities"), 5.0)


@pytest.mark.parametrize("kind", ["csc", "cdc", "mds", "ramp", "recurring"])
@pytest.mark.parametrize("order", ["list", "shuffled", "runs", "sorted"])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 10_000])
def test_every_sample_comes_once(kind, order, batch_size):
    plan = replace(CSC, kind=kind, order=order, batch_size=batch_size, seed=3)
    stream = make_stream(plan, LABELS)
    assert _pairs(stream) == EVERY_SAMPLE
    assert all(1 <= len(batch.images) <= batch_size for batch in stream)


def test_lha_repeats_every_sample_in_every_round():
    plan = replace(CSC, kind="lha", rounds=4, order="shuffled")
    stream = make_stream(plan, LABELS)
    rounds = column(stream, "rounds")
    assert_array_equal(np.bincount(rounds), [600] * 4)
    assert _pairs(stream) == sorted(EVERY_SAMPLE * 4)
    images = column(stream, "images").reshape(4, 600)
    assert (images[0] != images[1]).any()


def test_cdc_visits_match_its_segments():
    plan = replace(CSC, kind="cdc", batch_size=8, seed=5)
    stream = make_stream(plan, LABELS)
    expected = [domain for domain, count in cdc_segments(3, 200, 8, 1.0, 5) for _ in range(count)]
    assert [int(batch.domains[0]) for batch in stream] == expected
    images = column(stream, "images")[column(stream, "domains") == 1]
    assert_array_equal(images, np.arange(200))


def test_mds_mixes_domains_within_a_batch():
    stream = make_stream(replace(CSC, kind="mds", severity=2.0), LABELS)
    assert all(len(np.unique(batch.domains)) == 3 for batch in stream[:-1])
    assert [len(batch.images) for batch in stream] == [64] * 9 + [24]
    assert_array_equal(column(stream, "severities"), 2.0)


def test_ramp_climbs_and_descends_in_every_domain():
    severities = column(make_stream(replace(CSC, kind="ramp"), LABELS), "severities")
    first = severities[:200]
    changes = first[np.flatnonzero(np.diff(first, prepend=0.0))]
    assert_array_equal(changes, RAMP)
    assert_array_equal(severities[200:400], first)


def test_recurring_domains_take_turns():
    stream = make_stream(replace(CSC, kind="recurring", visits=2), LABELS)
    domains = column(stream, "domains")
    visits = domains[np.flatnonzero(np.diff(domains, prepend=-1))]
    assert_array_equal(visits, [0, 1, 2, 0, 1, 2])


def test_sorted_shows_each_class_in_one_piece():
    images = image_order("sorted", LABELS, rng=np.random.default_rng(0))
    assert np.count_nonzero(np.diff(LABELS[images])) == 4


def test_runs_are_of_one_class_and_of_the_stated_length():
    labels = np.repeat(np.arange(3), 500)
    shown = labels[image_order("runs", labels, rng=np.random.default_rng(0))]
    lengths = np.diff(np.flatnonzero(np.diff(shown, prepend=-1, append=-1)))
    # Two runs of one class may come to lie beside each other, and each class ends with a rest.
    assert len(lengths) > 3 * 500 / (2 * RUN_FRAMES[1])
    assert lengths.max() < 500


def test_one_class_shows_that_class_only():
    plan = replace(CSC, order="one-class", only_class=2)
    images = column(make_stream(plan, LABELS), "images")
    assert_array_equal(LABELS[images], 2)
    assert len(images) == 3 * 40


def test_one_class_drawn_at_random_stays_the_same_through_all_domains():
    drawn = set()
    for seed in range(8):
        stream = make_stream(replace(CSC, order="one-class", seed=seed), LABELS)
        shown = set(LABELS[column(stream, "images")])
        assert len(shown) == 1
        drawn |= shown
    assert len(drawn) > 1


@pytest.mark.parametrize("kind", ["csc", "cdc", "recurring"])
def test_long_tailed_classes_fall_to_a_hundredth_in_every_domain(kind):
    labels = np.repeat(np.arange(5), 200)
    plan = replace(CSC, kind=kind, order="long-tailed", seed=4)
    stream = make_stream(plan, labels)
    domains, images = column(stream, "domains"), column(stream, "images")
    frequencies = [np.bincount(labels[images[domains == each]], minlength=5) for each in range(3)]
    assert sorted(frequencies[0]) == [2, 6, 20, 63, 200]
    assert_array_equal(frequencies[1], frequencies[0])
    assert_array_equal(frequencies[2], frequencies[0])
    # In no order: the rare classes do not all come last.
    first = labels[images[domains == 0]]
    assert np.any(np.diff(np.flatnonzero(first == np.argmax(frequencies[0]))) > 1)


def test_the_tail_differs_by_seed_and_no_class_is_left_out():
    heads = set()
    for seed in range(8):
        labels = LABELS[image_order("long-tailed", LABELS, rng=np.random.default_rng(seed))]
        assert set(labels) == set(LABELS)
        heads.add(int(np.argmax(np.bincount(labels))))
    assert len(heads) > 1


def test_one_class_without_images_is_refused():
    with pytest.raises(ConfigError, match="class: expected a class with images, got 9"):
        make_stream(replace(CSC, order="one-class", only_class=9), LABELS)


@pytest.mark.parametrize(
    ("kind", "order", "random"),
    [("csc", "list", False), ("mds", "list", True), ("lha", "runs", True), ("cdc", "list", True)],
)
def test_seeds_matter_exactly_where_the_plan_says_so(kind, order, random):
    plan = replace(CSC, kind=kind, order=order, rounds=2)
    assert plan.is_random is random
    one, other = (
        np.stack([column(stream, "domains"), column(stream, "images")])
        for stream in (make_stream(replace(plan, seed=seed), LABELS) for seed in (0, 1))
    )
    assert (one.shape == other.shape and (one == other).all()) is not random
    again = make_stream(replace(plan, seed=0), LABELS)
    assert_array_equal(column(again, "images"), one[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "abc"}, "stream: expected one of csc"),
        ({"order": "abc"}, "order: expected one of list"),
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ({"delta": 0.0}, "delta: expected a number > 0"),
        ({"seed": -1}, "seed: expected at least 0"),
    ],
)
def test_bad_plans_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(CSC, **change)


SHOWN = np.arange(600) % 12
K = 12


def stream_of(kind, **changes):
    """A camera's."""
    plan = StreamPlan(kind=kind, num_domains=4, batch_size=16, **changes)
    return make_any_stream(plan, SHOWN, num_classes=K)


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
    shown = np.unique(SHOWN[column(stream_of(kind), "images")])
    assert len(shown) == classes


def test_a_tail_has_rare_classes():
    counts = np.bincount(SHOWN[column(stream_of("tailed"), "images")], minlength=K)
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
        assert set(SHOWN[column(stream, "images", scored=True)]) == {seed}
        assert set(column(stream, "domains", scored=True)) == {place}
        assert set(column(stream, "domains", scored=False)) == {0, 1, 2}
    assert set(SHOWN[column(stream_of(kind, only_class=7), "images", scored=True)]) == {7}


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
    stream = make_any_stream(
        plan, labels, num_classes=5, recorded=np.repeat([0, 1], [50, 6]), recordings=(50, 6)
    )
    assert_array_equal(column(stream, "images", scored=False), np.arange(50))
    assert_array_equal(column(stream, "images", scored=True), np.resize([54, 55], 100))
    with pytest.raises(ConfigError, match="expected one that the recording shows, got 2"):
        make_any_stream(
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
        for item in make_any_stream(plan, of.store.labels, num_classes=3)
        if (item.images == EMPTY_SCENE).all()
    ][:1]
    batch = of.store.batch(night, noise=noise_of(plan))
    assert np.abs(batch.features - of.store.head.source_mean).max() < 6 * of.store.deviation.max()
    assert (np.diff(batch.features, axis=0) != 0).all()
    np.testing.assert_allclose(batch.logits, of.store.head.logits(batch.features))


def test_evaluate_scores_what_counts_only_and_repeats_itself(colour_dump):
    found, again = (
        evaluate(colour_dump, stream="one-after:class=1", methods=["neo"], seeds=2)
        for _ in range(2)
    )
    assert found["stream"]["batch_size"] == 16
    assert list(found["methods"]) == ["source", "neo"]
    assert list(found["methods"]["source"]["domains"]) == ["fog"]
    first, second = found["methods"]["source"]["runs"]
    assert first["seed"] == 0
    assert first["accuracy"] != second["accuracy"] or first["nll"] != second["nll"]
    # The noise of the frames is the seed's, too.
    assert again["methods"]["source"]["runs"] == [first, second]


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

"""The fitness report: its numbers on worlds that are known, and its place in the artifact."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, replace

import cv2
import numpy as np
import onnx
import pytest
from gain_export.asymmetry import measure_asymmetry
from numpy.testing import assert_allclose

from gain_core import ShiftConfig
from gain_core.config import PRESETS
from gain_core.errors import ArtifactError, ConfigError
from gain_export import export_onnx
from gain_export.fitness import add_fitness, advice, measure_fitness
from gain_runtime.artifact import load_artifact
from gain_runtime.fitness import Fitness

DEFAULT_PRESET = next(name for name, config in PRESETS.items() if config == ShiftConfig())


def world(*, num_images=4000, common=0.0, seed=3):
    """Gaussian classes at c_k with unit noise about a common mean: diagonal LDA is the head."""
    rng = np.random.default_rng(seed)
    weight = 2.0 * rng.normal(size=(8, 12))
    labels = np.arange(num_images) % 8
    features = weight[labels] + rng.normal(size=(num_images, 12))
    logits = features @ weight.T - 0.5 * np.sum(weight**2, axis=1)
    shifted = features + common
    return [array.astype(np.float32) for array in (shifted, logits, weight)]


def test_numbers_are_those_of_the_definition():
    features, logits, weight = world(num_images=500)
    found = measure_fitness(features, logits, weight)
    rows = weight - weight.mean(axis=0)
    chosen = np.argmax(logits, axis=1)
    centered = features - features.mean(axis=0)
    cosines = [
        z @ rows[k] / (np.linalg.norm(z) * np.linalg.norm(rows[k]))
        for z, k in zip(centered, chosen, strict=True)
    ]
    share = np.bincount(chosen, minlength=8) / 500
    assert found.num_images == 500
    assert_allclose(found.feature_norm, np.linalg.norm(features, axis=1).mean(), rtol=1e-5)
    assert_allclose(found.alignment, np.mean(cosines), rtol=1e-5)
    assert_allclose(found.effective_classes, 1 / np.sum(share**2), rtol=1e-9)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert_allclose(
        found.confidence, (probs / probs.sum(1, keepdims=True)).max(1).mean(), rtol=1e-5
    )


def test_lda_is_the_head_where_classes_are_gaussian_and_is_not_under_shuffled_rows():
    features, logits, weight = world()
    assert measure_fitness(features, logits, weight).lda_agreement > 0.98
    noise = np.random.default_rng(0).normal(size=logits.shape).astype(np.float32)
    assert measure_fitness(features, noise, weight).lda_agreement < 0.3


def test_lda_needs_images_of_the_classes():
    features, logits, weight = world(num_images=24)
    found = measure_fitness(features, logits, weight)
    assert found.lda_agreement is None
    assert any("too few images" in line for line in advice(found))


def test_common_component_is_seen_and_said():
    features, logits, weight = world(common=100.0)
    found = measure_fitness(features, logits, weight)
    assert found.common_share > 0.9
    assert any("common to all images" in line for line in advice(found))
    assert measure_fitness(*world()).common_share < 0.2


@pytest.mark.parametrize(
    ("common", "said"), [(0.49, False), (0.51, True)], ids=["half or less", "more"]
)
def test_the_common_component_is_said_from_a_half_on(common, said):
    found = replace(measure_fitness(*world(num_images=64)), common_share=common)
    assert any("51 % of the features' square" in line for line in advice(found)) == said


def test_the_common_share_is_one_of_squares():
    """|mean|^2 = 12 * 2^2 beside a noise of 12: four fifths."""
    rng = np.random.default_rng(7)
    features = (2.0 + rng.normal(size=(20_000, 12))).astype(np.float32)
    _, _, weight = world(num_images=8)
    found = measure_fitness(features, features @ weight.T, weight)
    assert_allclose(found.common_share, 0.8, atol=0.01)


def test_lda_is_asked_of_images_it_has_not_learned_from():
    """Features of noise, under a head that follows them in no way: held-out images are a guess."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(160, 200)).astype(np.float32)
    chosen = np.arange(160) % 8
    logits = np.eye(8, dtype=np.float32)[chosen]
    found = measure_fitness(features, logits, rng.normal(size=(8, 200)).astype(np.float32))
    assert found.lda_agreement < 0.3


def test_lda_scales_every_dimension_by_its_own_variance():
    """Nothing but noise in the wide dimensions; the classes lie in the narrow ones."""
    rng = np.random.default_rng(6)
    chosen = np.arange(800) % 8
    centers = np.concatenate([np.eye(8), np.zeros((8, 40))], axis=1)
    noise = rng.normal(size=(800, 48)) * np.repeat([0.1, 3.0], [8, 40])
    features = (centers[chosen] + noise).astype(np.float32)
    found = measure_fitness(
        features, np.eye(8, dtype=np.float32)[chosen], centers.astype(np.float32)
    )
    assert found.lda_agreement > 0.98


@pytest.mark.parametrize(
    ("per_class", "known", "measured"),
    [
        pytest.param(6, 4, True, id="six each"),
        pytest.param(5, 4, False, id="five each"),
        pytest.param(12, 1, False, id="one class"),
    ],
)
def test_lda_wants_six_images_of_a_class_and_two_classes(per_class, known, measured):
    features, logits, weight = world()
    chosen = np.argmax(logits, axis=1)
    rows = np.concatenate([np.flatnonzero(chosen == k)[:per_class] for k in range(known)])
    found = measure_fitness(features[rows], logits[rows], weight)
    assert (found.lda_agreement is not None) == measured


def test_lda_wants_half_of_the_classes_that_were_predicted():
    features, logits, weight = world()
    chosen = np.argmax(logits, axis=1)
    counts = (8, 8, 8, 1, 1, 1, 1, 1)
    rows = np.concatenate([np.flatnonzero(chosen == k)[:n] for k, n in enumerate(counts)])
    assert measure_fitness(features[rows], logits[rows], weight).lda_agreement is None
    assert measure_fitness(features[rows[:27]], logits[rows[:27]], weight).lda_agreement is not None


@pytest.mark.parametrize(
    ("agreement", "words"),
    [
        (0.95, "(the preset balanced) can be expected to help on streams of many classes"),
        (0.949, "(the preset balanced) can help a little on streams of many classes"),
        (0.8, "(the preset balanced) can help a little on streams of many classes"),
        (0.799, "class-conditional correction cannot be expected to help"),
        (None, "too few images a class to say whether class-conditional correction can be"),
    ],
)
def test_what_correcting_by_class_can_be_expected_to_do_is_said(agreement, words):
    found = replace(measure_fitness(*world(num_images=64)), lda_agreement=agreement)
    assert sum(words in line for line in advice(found)) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "which adapting now uses"),
        ({"single_images": 0}, "with the asymmetry of frames of many classes as measured"),
        ({"single_asymmetry": None, "mixed_asymmetry": None}, "at its most careful"),
        ({"num_classes": 2}, "told by what is predicted alone"),
    ],
)
def test_the_first_line_says_which_preset_fits(changes, words):
    first = advice(replace(measure_fitness(*world()), **changes))[0]
    assert first.startswith(f"the preset {DEFAULT_PRESET}, the default, fits")
    assert words in first


def test_images_of_a_few_of_the_classes_are_said():
    features, logits, weight = world()
    few = np.argmax(logits, axis=1) == 3
    few[:40] = True
    found = measure_fitness(features[few], logits[few], weight)
    assert any(line.startswith("the images are of 1 classes in effect") for line in advice(found))
    assert not any("classes in effect" in line for line in advice(measure_fitness(*world())))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_record_that_is_not_finite_is_refused(bad):
    found = measure_fitness(*world(num_images=64))
    record = {name: getattr(found, name) for name in Fitness.__dataclass_fields__}
    with pytest.raises(ValueError, match="finite"):
        Fitness.from_record({**record, "feature_norm": bad})


def record_of(fitness):
    """As JSON would have it, keys that are lists included."""
    return json.loads(json.dumps(asdict(fitness)))


def test_asymmetry_is_that_of_the_logits_and_said_in_words():
    features, logits, weight = world()
    found = measure_fitness(features, logits, weight)
    expected = measure_asymmetry(logits)
    assert found.asymmetry == (expected.single, expected.mixed)
    assert found.single_images == 4000
    (line,) = [line for line in advice(found) if "frames of one class can be told" in line]
    assert f"{expected.single:.2f} against {expected.mixed:.2f}" in line
    assert Fitness.from_record(record_of(found)) == found


@pytest.mark.parametrize(
    ("num_images", "num_classes", "words"),
    [
        pytest.param(48, 8, "no class has 8 images, so 0.03 is taken", id="few a class"),
        pytest.param(24, 8, "too few images to say how frames of one class", id="few"),
        pytest.param(400, 2, "with two classes", id="two classes"),
    ],
)
def test_asymmetry_that_was_not_measured_is_said(num_images, num_classes, words):
    features, logits, weight = world(num_images=num_images)
    found = measure_fitness(features, logits[:, :num_classes], weight[:num_classes])
    assert (found.asymmetry is None) == (num_images != 48)
    assert found.single_images == 0
    assert any(words in line for line in advice(found))


def test_asymmetry_of_images_of_one_class_tells_nothing():
    features, logits, weight = world()
    chosen = np.argmax(logits, axis=1) == 3
    found = measure_fitness(features[chosen], logits[chosen], weight)
    assert found.num_images > 100
    assert (found.single_asymmetry, found.mixed_asymmetry) == (None, None)
    (line,) = [line for line in advice(found) if "cannot be told" in line]
    assert "at most 0.06 and 0.5 are taken until a stream has shown more" in line


def older(record, *, with_asymmetry):
    """As earlier versions wrote it: with mean logits, and at first without the asymmetry."""
    record = {**record, "mean_logits": [0.25] * record["num_classes"]}
    gone = {"num_classes"}
    if not with_asymmetry:
        gone |= {"single_asymmetry", "mixed_asymmetry", "single_images"}
    return {name: value for name, value in record.items() if name not in gone}


@pytest.mark.parametrize("with_asymmetry", [True, False])
def test_an_older_record_loads(with_asymmetry):
    found = measure_fitness(*world())
    loaded = Fitness.from_record(older(record_of(found), with_asymmetry=with_asymmetry))
    if not with_asymmetry:
        assert loaded.asymmetry is None
        found = replace(found, single_asymmetry=None, mixed_asymmetry=None, single_images=0)
    assert loaded == found


@pytest.mark.parametrize(
    "pair", [(None, 0.4), (0.03, None), (0.4, 0.03), (math.nan, 0.4), (0.03, math.inf), ("x", "y")]
)
def test_half_an_asymmetry_or_one_the_wrong_way_round_is_refused(pair):
    record = record_of(measure_fitness(*world(num_images=64)))
    record |= dict(zip(("single_asymmetry", "mixed_asymmetry"), pair, strict=True))
    with pytest.raises(ValueError, match=r"asymmetry|finite|float"):
        Fitness.from_record(record)


@pytest.fixture
def artifact_path(classifier, saved, spec):
    return export_onnx(saved(classifier.plain()), preprocess=spec).path


@pytest.fixture
def clean_images(tmp_path):
    folder = tmp_path / "clean" / "sub"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(9)
    for index in range(20):
        colour = rng.integers(0, 255, 3)
        picture = np.full((40, 30, 3), colour, dtype=np.uint8)
        cv2.imwrite(str(folder / f"{index}.png"), picture)
    (folder / "broken.jpg").write_bytes(b"no picture")
    return tmp_path / "clean"


def test_the_report_lies_in_the_artifact_and_adapters_use_it(artifact_path, clean_images, caplog):
    before = load_artifact(artifact_path)
    assert before.manifest.fitness is None
    assert before.asymmetry is None
    found = add_fitness(artifact_path, clean_images)
    after = load_artifact(artifact_path)
    assert after.manifest.fitness == found
    assert found.num_images == 20
    assert "broken.jpg" in caplog.text
    assert after.sha256 != before.sha256
    assert after.asymmetry == found.asymmetry
    assert after.manifest.labels == before.manifest.labels


def test_no_more_images_are_run_than_the_most(artifact_path, clean_images, monkeypatch):
    monkeypatch.setattr("gain_export.fitness.MAX_IMAGES", 7)
    assert 1 < add_fitness(artifact_path, clean_images).num_images <= 7


def test_too_few_images_leave_the_artifact_as_it_was(artifact_path, tmp_path):
    digest = hashlib.sha256(artifact_path.read_bytes()).hexdigest()
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ArtifactError, match="at least two images"):
        add_fitness(artifact_path, empty)
    with pytest.raises(ArtifactError, match="expected a folder of images"):
        add_fitness(artifact_path, tmp_path / "none")
    assert hashlib.sha256(artifact_path.read_bytes()).hexdigest() == digest


def test_the_artifact_has_the_asymmetry_that_was_measured(artifact_path, clean_images, monkeypatch):
    found = add_fitness(artifact_path, clean_images)
    assert found.asymmetry is None
    measured = replace(found, single_asymmetry=0.05, mixed_asymmetry=0.5, single_images=16)
    monkeypatch.setattr("gain_export.fitness.measure_fitness", lambda *arrays: measured)
    add_fitness(artifact_path, clean_images)
    assert load_artifact(artifact_path).asymmetry == (0.05, 0.5)


def test_an_artifact_of_before_the_asymmetry_loads(artifact_path, clean_images):
    found = add_fitness(artifact_path, clean_images)
    model = onnx.load(artifact_path)
    (entry,) = [item for item in model.metadata_props if item.key == "gain.fitness"]
    entry.value = json.dumps(older(json.loads(entry.value), with_asymmetry=False))
    onnx.save(model, artifact_path)
    artifact = load_artifact(artifact_path)
    assert artifact.asymmetry is None
    assert artifact.manifest.fitness == found


def test_a_report_of_another_number_of_classes_is_refused(artifact_path, clean_images):
    fitness = add_fitness(artifact_path, clean_images)
    manifest = load_artifact(artifact_path).manifest
    more = fitness.num_classes + 1
    with pytest.raises(ConfigError, match=rf"^fitness: expected .* got {more}"):
        replace(manifest, fitness=replace(fitness, num_classes=more))

"""The fitness report: its numbers on worlds that are known, and its place in the artifact."""

import hashlib
import json
import math
from dataclasses import asdict, replace

import cv2
import numpy as np
import pytest
from numpy.testing import assert_allclose

from gain_core.errors import ArtifactError, ConfigError
from gain_core.shift.clean import ONE_CLASS
from gain_export import export_onnx
from gain_export.images import add_fitness, advice, measure_fitness
from gain_runtime.files.artifact import load_artifact
from gain_runtime.files.manifest import Fitness


def world(*, num_images=4000, num_classes=8, seed=3):
    """Logits (N, K) float32 of Gaussian classes in equal shares, 12 features, unit noise."""
    rng = np.random.default_rng(seed)
    weight = 3.0 * np.eye(num_classes, 12)
    labels = np.arange(num_images) % num_classes
    features = weight[labels] + rng.normal(size=(num_images, 12))
    return (features @ weight.T - 0.5 * np.sum(weight**2, axis=1)).astype(np.float32)


def skewness_of(centered):
    """mean(max y + min y) / mean(max y - min y), y centred over frames."""
    y = centered - centered.mean(axis=0)
    high, low = y.max(axis=1), y.min(axis=1)
    return np.mean(high + low) / np.mean(high - low)


def test_numbers_are_those_of_the_definition():
    logits = world(num_images=500)
    found = measure_fitness(logits)
    chosen = np.argmax(logits, axis=1)
    share = np.bincount(chosen, minlength=8) / 500
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    confidence = (probs / probs.sum(axis=1, keepdims=True)).max(axis=1).mean()
    assert (found.num_images, found.num_classes) == (500, 8)
    assert_allclose(found.effective_classes, 1 / np.sum(share**2), rtol=1e-9)
    assert_allclose(found.confidence, confidence, rtol=1e-5)
    centered = logits - logits.mean(axis=1, keepdims=True)
    of_one = [skewness_of(centered[chosen == k]) for k in range(8)]
    expected = np.average(of_one, weights=np.bincount(chosen, minlength=8)), skewness_of(centered)
    assert_allclose((found.one_class_skewness, found.mixture_skewness), expected, atol=1e-4)
    assert found.one_class_images == 500
    assert found.mixture_skewness - found.one_class_skewness > 0.2


def test_the_clean_moments_are_those_of_frames_of_other_classes():
    """The first two share a direction, so each is high, and varies, on the other's frames."""
    rng = np.random.default_rng(5)
    weight = 3.0 * np.eye(8, 12)
    weight[1, 0] = 2.0
    labels = np.arange(4000) % 8
    logits = (weight[labels] + rng.normal(size=(4000, 12))) @ weight.T
    found = np.array(measure_fitness(logits).clean_moments)
    centered = logits - logits.mean(axis=1, keepdims=True)
    weights = 1.0 - np.exp(centered) / np.exp(centered).sum(axis=1, keepdims=True)
    mean = np.sum(weights * centered, axis=0) / np.sum(weights, axis=0)
    logs = np.sum(weights * (centered - mean) ** 2, axis=0) / np.sum(weights, axis=0)
    for row, values in zip(found, (mean, 0.5 * np.log(logs)), strict=True):
        expected = values - values.mean()
        norms = np.linalg.norm(row), np.linalg.norm(expected)
        assert_allclose(row / norms[0], expected / norms[1], atol=1e-5)
        assert 0.4 < norms[0] / norms[1] < 1.0
        assert set(np.argsort(row)[-2:]) == {0, 1}


def test_clean_moments_that_are_noise_are_none():
    """Of few images, and of many of one class, which say nothing of how all classes are alike."""
    logits = world()
    for chosen in (logits[:40], logits[np.argmax(logits, axis=1) == 3]):
        assert np.max(np.abs(measure_fitness(chosen).clean_moments)) < 0.1
    # A network that is never sure has none.
    assert measure_fitness(np.zeros((64, 5), dtype=np.float32)).clean_moments == ((0.0,) * 5,) * 2


def test_the_skewness_is_said_in_words():
    found = measure_fitness(world())
    (line,) = advice(found)
    one_class, mixture = found.one_class_skewness, found.mixture_skewness
    assert f"skewness {one_class:.2f}, a mixture {mixture:.2f}" in line
    assert "learns only from frames of many classes" in line
    close = replace(found, mixture_skewness=one_class + 0.05)
    assert "the default keeps the source" in advice(close)[0]


@pytest.mark.parametrize(
    ("num_images", "num_classes", "words"),
    [
        (48, 8, f"no class has 8 images, so {ONE_CLASS:g} is taken"),
        (24, 8, "too few images to tell frames of one class"),
        (400, 2, "with two classes"),
    ],
)
def test_what_was_not_measured_is_said(num_images, num_classes, words):
    found = measure_fitness(world(num_images=num_images, num_classes=num_classes))
    assert (found.measured == {}) == (num_images != 48)
    assert found.one_class_images == 0
    assert any(words in line for line in advice(found))


def test_images_of_one_class_alone_are_said():
    logits = world()
    found = measure_fitness(logits[np.argmax(logits, axis=1) == 3])
    first, second = advice(found)
    assert "too close to be told apart" in first
    assert second.startswith("the images are of 1 classes in effect")


@pytest.mark.parametrize(
    "changes",
    [
        *({"confidence": math.nan}, {"confidence": math.inf}),
        {"clean_moments": [[0.0] * 8, [math.nan] * 8]},
        *({"one_class_skewness": None}, {"mixture_skewness": None}, {"mixture_skewness": math.inf}),
    ],
    ids=str,
)
def test_a_record_that_is_not_finite_or_whole_is_refused(changes):
    record = asdict(measure_fitness(world(num_images=64)))
    with pytest.raises(ValueError, match=r"skewness|finite"):
        Fitness.from_record(record | changes)


def test_a_record_of_an_earlier_version_loads():
    """It calls the skewness asymmetry, and holds what is not used now."""
    found = measure_fitness(world())
    record = json.loads(json.dumps(asdict(found)))
    for name, earlier in (
        ("one_class_skewness", "single_asymmetry"),
        ("mixture_skewness", "mixed_asymmetry"),
        ("one_class_images", "single_images"),
    ):
        record[earlier] = record.pop(name)
    record |= {"mean_logits": [0.25] * 8, "lda_agreement": 0.9}
    assert Fitness.from_record(record) == found


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
    assert before.measured == {}
    found = add_fitness(artifact_path, clean_images)
    after = load_artifact(artifact_path)
    assert after.manifest.fitness == found
    assert found.num_images == 20
    assert "broken.jpg" in caplog.text
    assert after.sha256 != before.sha256
    assert after.measured == found.measured
    assert after.manifest.labels == before.manifest.labels


def test_no_more_images_are_run_than_the_most(artifact_path, clean_images, monkeypatch):
    monkeypatch.setattr("gain_export.images.MAX_IMAGES", 7)
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


def test_a_report_of_another_number_of_classes_is_refused(artifact_path, clean_images):
    fitness = add_fitness(artifact_path, clean_images)
    manifest = load_artifact(artifact_path).manifest
    more = fitness.num_classes + 1
    with pytest.raises(ConfigError, match=rf"^fitness: expected .* got {more}"):
        replace(manifest, fitness=replace(fitness, num_classes=more))

"""The fitness report: what unlabelled clean images say about a network before it adapts."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArtifactError
from gain_core.prototypes import DEFAULT_ASYMMETRY
from gain_export.asymmetry import CLASS_IMAGES, LEAST_IMAGES, MAX_IMAGES, measure_asymmetry
from gain_export.photographs import iterate_photographs
from gain_runtime.artifact import load_artifact, read_model, write_metadata
from gain_runtime.atomic_file import write_atomically
from gain_runtime.fitness import Fitness
from gain_runtime.onnx_session import OnnxSession
from gain_runtime.preprocess import preprocess_batch

__all__ = ["add_fitness", "advice", "check_clean_images", "measure_fitness"]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Diagonal LDA is compared with the head where this many images stand behind a class, half of them
# to learn from, and where the classes that have them are at least this share of those predicted.
LDA_IMAGES, LDA_SHARE = 6, 0.5
# Agreement of diagonal LDA with the head from which correcting by class can be expected to help,
# and below which it cannot.
LDA_GOOD, LDA_POOR = 0.95, 0.8
_OF_FEATURES = ("feature_norm", "common_share", "alignment", "lda_agreement")
# A scatter needs two.
_FEWEST_IMAGES = 2


def check_clean_images(folder: Path, /) -> None:
    """Refuse a folder that `add_fitness` could not measure on, before any work.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    ArtifactError
        If there is no such folder, or fewer than two images in it can be read.
    """
    images = iterate_photographs(folder, most=MAX_IMAGES)
    _require_enough(folder, sum(1 for _ in islice(images, _FEWEST_IMAGES)))


def add_fitness(path: Path, folder: Path, /) -> Fitness:
    """Run an artifact on clean images and write the report into it.

    Parameters
    ----------
    path : Path
        The artifact; replaced, whole or not at all. Its hash changes, so states learned before
        belong to another file.
    folder : Path
        Searched for image files, subfolders included; unreadable ones are skipped with a warning.

    Returns
    -------
    Fitness

    Raises
    ------
    ArtifactError
        If `path` is no artifact or cannot be written, or fewer than two images can be read.
    EngineError
        If ONNX Runtime cannot run it.
    """
    artifact = load_artifact(path)
    features: list[Floats] = []
    logits: list[Floats] = []
    with OnnxSession(artifact) as session:
        # One by one, because the batch size may be fixed at 1.
        for image in iterate_photographs(folder, most=MAX_IMAGES):
            found = session.infer(preprocess_batch([image], artifact.manifest.preprocess))
            if found.features is not None:
                features.append(np.asarray(found.features))
            logits.append(np.asarray(found.logits))
    _require_enough(folder, len(logits))
    fitness = measure_fitness(
        np.concatenate(features) if features else None,
        np.concatenate(logits),
        artifact.head_weight,
    )
    model, _ = read_model(path)
    write_metadata(model, replace(artifact.manifest, fitness=fitness))
    try:
        write_atomically(path, model.SerializeToString())
    except OSError as err:
        if isinstance(err, ArtifactError):
            raise
        raise ArtifactError(f"{path}: cannot be written ({err.strerror or err})") from err
    return fitness


def _require_enough(folder: Path, found: int) -> None:
    """Refuse a folder in which too few images can be read."""
    if found < _FEWEST_IMAGES:
        raise ArtifactError(
            f"{folder}: expected at least two images that can be read, found {found}; "
            "give a folder of clean images of the classes the network knows"
        )


def measure_fitness(features: Floats | None, logits: Floats, weight: Floats | None, /) -> Fitness:
    """Measure how a network's logits scatter, and how its features lie about its head.

    Parameters
    ----------
    features : array, (N, D) float32, or None
        Of unlabelled images of the source's own domain, N at least 2. None where the network
        gives logits only.
    logits : array, (N, K) float32
    weight : array, (K, D) float32, or None
        Of the head.

    Returns
    -------
    Fitness
    """
    raw = logits.astype(np.float64)
    predicted = np.argmax(raw, axis=1)
    peaks = raw.max(axis=1, keepdims=True)
    probs = np.exp(raw - peaks)
    probs /= probs.sum(axis=1, keepdims=True)
    share = np.bincount(predicted, minlength=raw.shape[1]) / len(raw)
    asymmetry = measure_asymmetry(raw)
    place: dict[str, float | None] = dict.fromkeys(_OF_FEATURES)
    if features is not None and weight is not None:
        place = _features_about_head(features, weight, predicted)
    return Fitness(
        num_images=len(raw),
        num_classes=raw.shape[1],
        **place,
        confidence=float(np.mean(probs.max(axis=1))),
        effective_classes=float(1.0 / np.sum(share * share)),
        single_asymmetry=None if asymmetry is None else asymmetry.single,
        mixed_asymmetry=None if asymmetry is None else asymmetry.mixed,
        single_images=0 if asymmetry is None else asymmetry.single_images,
    )


def _features_about_head(
    features: Floats, weight: Floats, predicted: npt.NDArray[np.intp]
) -> dict[str, float | None]:
    """The numbers of `_OF_FEATURES`."""
    z, rows = features.astype(np.float64), weight.astype(np.float64)
    mean = z.mean(axis=0)
    centered = z - mean
    own = (rows - rows.mean(axis=0))[predicted]
    cosines = np.sum(centered * own, axis=1) / np.maximum(
        np.linalg.norm(centered, axis=1) * np.linalg.norm(own, axis=1), 1e-12
    )
    found = (
        float(np.mean(np.linalg.norm(z, axis=1))),
        float(mean @ mean / np.mean(np.sum(z * z, axis=1))),
        float(np.mean(cosines)),
        _lda_agreement(centered, predicted),
    )
    return dict(zip(_OF_FEATURES, found, strict=True))


def _lda_agreement(centered: Doubles, predicted: npt.NDArray[np.intp]) -> float | None:
    """Share of held-out images on which diagonal LDA gives the head's class; None on too few.

    Class means and the shared diagonal variance are those of every other image of a class, with
    the head's own predictions as labels: how near the head is to the Gaussians that
    class-conditional statistics assume.
    """
    classes, counts = np.unique(predicted, return_counts=True)
    known = classes[counts >= LDA_IMAGES]
    if len(known) < 2 or len(known) < LDA_SHARE * len(classes):
        return None
    order = np.concatenate([np.flatnonzero(predicted == k)[::2] for k in known])
    learned = np.zeros(len(predicted), dtype=bool)
    learned[order] = True
    tested = np.isin(predicted, known) & ~learned
    means = np.stack([centered[learned & (predicted == k)].mean(axis=0) for k in known])
    within = centered[learned] - means[np.searchsorted(known, predicted[learned])]
    variance = np.mean(within * within, axis=0)
    variance = np.maximum(variance, 1e-3 * variance.mean() + 1e-12)
    scores = centered[tested] @ (means / variance).T - 0.5 * np.sum(means**2 / variance, axis=1)
    return float(np.mean(known[np.argmax(scores, axis=1)] == predicted[tested]))


def advice(fitness: Fitness, /) -> list[str]:
    """The report in words, one finding a line.

    Parameters
    ----------
    fitness : Fitness

    Returns
    -------
    list of str
    """
    num_classes = fitness.num_classes
    lines = [_on_preset(fitness), _on_asymmetry(fitness)]
    if fitness.common_share is not None and fitness.common_share > 0.5:
        lines.append(
            f"{100 * fitness.common_share:.0f} % of the features' square is common to all images: "
            "statistics about the origin, as the preset paper has them, would collapse"
        )
    if fitness.feature_norm is not None:
        lines.append(_on_lda(fitness.lda_agreement, num_classes))
    if fitness.effective_classes < 0.25 * num_classes and fitness.num_images >= 4 * num_classes:
        lines.append(
            f"the images are of {fitness.effective_classes:.0f} classes in effect, of "
            f"{num_classes}: give a set in which all classes are about alike"
        )
    return lines


def _on_preset(fitness: Fitness) -> str:
    """Which preset fits, and how far it goes with what was measured.

    It is the default on every network: on none of the test beds is another one better on streams
    of many classes and as safe on streams of one (`docs/adaptation.md`).
    """
    fits = "the preset tracked, the default, fits"
    if fitness.num_classes < 3:
        return f"{fits}; a stream of one class is told by what is predicted alone"
    if fitness.asymmetry is None:
        return f"{fits}, at its most careful, for want of asymmetries measured on these images"
    if fitness.single_images == 0:
        return f"{fits}, with the asymmetry of frames of many classes as measured on these images"
    return f"{fits}, with the asymmetries measured on these images, which adapting now uses"


def _on_asymmetry(fitness: Fitness) -> str:
    """What a stream of one class will be taken for."""
    num_classes = fitness.num_classes
    single, mixed = fitness.single_asymmetry, fitness.mixed_asymmetry
    default = "at most {:g} and {:g} are taken until a stream has shown more".format(
        *DEFAULT_ASYMMETRY
    )
    if num_classes < 3:
        return (
            "with two classes, frames of one cannot be told from frames of both by the asymmetry "
            "of their logits; it is not looked at"
        )
    if single is None or mixed is None:
        if fitness.num_images < LEAST_IMAGES:
            return (
                "too few images to say how frames of one class are told from frames of many; "
                f"{LEAST_IMAGES} would do, better {CLASS_IMAGES} of each of the {num_classes} "
                f"classes; {default}"
            )
        return (
            "frames of one class cannot be told from frames of many on these images: their logits "
            f"are as symmetric; {default}, and the shift is followed late or not at all"
        )
    if fitness.single_images == 0:
        return (
            f"the logits' asymmetry over frames of many classes is {mixed:.2f}; no class has "
            f"{CLASS_IMAGES} images, so {single:g} is taken for frames of one: {CLASS_IMAGES} of "
            f"each of the {num_classes} classes would do"
        )
    return (
        "frames of one class can be told from frames of many: their logits' asymmetry is "
        f"{single:.2f} against {mixed:.2f}; a stream of one class counts as a single draw"
    )


def _on_lda(agreement: float | None, num_classes: int) -> str:
    """Whether class-conditional correction can be expected to help."""
    if agreement is None:
        return (
            "too few images a class to say whether class-conditional correction can be expected to "
            f"help; {LDA_IMAGES} of each of the {num_classes} classes would do"
        )
    words = f"diagonal LDA agrees with the head on {100 * agreement:.0f} %"
    if agreement < LDA_POOR:
        return f"{words}: class-conditional correction cannot be expected to help"
    extent = "can be expected to help" if agreement >= LDA_GOOD else "can help a little"
    return (
        f"{words}: class-conditional correction (the preset balanced) {extent} on streams of many "
        "classes, and does harm on those of one"
    )

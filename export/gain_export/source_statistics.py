"""What unlabelled clean images say about a network before it adapts."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArtifactError
from gain_core.shift.clean import MIN_SEPARATION, ONE_CLASS, clean_shift, skewness
from gain_export.verify import iterate_photographs
from gain_runtime.files.manifest import Fitness
from gain_runtime.files.paths import write_atomically
from gain_runtime.preprocess import preprocess_batch

__all__ = [
    "CLASS_IMAGES",
    "LEAST_IMAGES",
    "MAX_IMAGES",
    "add_fitness",
    "advice",
    "check_clean_images",
    "measure_fitness",
]

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# Images of a class from which its skewness counts: their own mean is taken out of them.
CLASS_IMAGES = 8
# Images from which the mixture's skewness is less than a few hundredths off.
LEAST_IMAGES = 32
# More are thinned out: by then the noise of what is measured is below use.
MAX_IMAGES = 5000
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
    # Measuring logits that are there already needs neither ONNX nor its runtime.
    from gain_runtime.files.artifact import load_artifact, read_model, write_metadata
    from gain_runtime.sessions.onnx import OnnxSession

    artifact = load_artifact(path)
    logits: list[Floats] = []
    with OnnxSession(artifact) as session:
        # One by one, because the batch size may be fixed at 1.
        for image in iterate_photographs(folder, most=MAX_IMAGES):
            found = session.infer(preprocess_batch([image], artifact.manifest.preprocess))
            logits.append(np.asarray(found.logits))
    _require_enough(folder, len(logits))
    fitness = measure_fitness(np.concatenate(logits))
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


def measure_fitness(logits: Floats, /) -> Fitness:
    """Measure how a network's logits scatter on the source's own domain.

    Parameters
    ----------
    logits : array, (N, K) floating
        Logits or log-probabilities of unlabelled images, N at least 2; the classes are those
        predicted.

    Returns
    -------
    Fitness
        Without skewness and clean shift for two classes, whose centred logits are symmetric
        always, and for fewer than `LEAST_IMAGES` images.
    """
    raw = logits.astype(np.float64)
    predicted = np.argmax(raw, axis=1)
    peaks = raw.max(axis=1, keepdims=True)
    probs = np.exp(raw - peaks)
    probs /= probs.sum(axis=1, keepdims=True)
    num_images, num_classes = raw.shape
    counts = np.bincount(predicted, minlength=num_classes)
    share = counts / num_images
    fitness = Fitness(
        num_images=num_images,
        num_classes=num_classes,
        confidence=float(np.mean(probs.max(axis=1))),
        effective_classes=float(1.0 / np.sum(share * share)),
    )
    if num_classes < 3 or num_images < LEAST_IMAGES:
        return fitness
    centered = raw - raw.mean(axis=1, keepdims=True)
    known = np.flatnonzero(counts >= CLASS_IMAGES)
    one_class = ONE_CLASS
    if len(known):
        values = [float(skewness(centered[predicted == k])) for k in known]
        one_class = float(np.average(values, weights=counts[known]))
    # Six digits are far below the noise, and keep the metadata readable.
    return replace(
        fitness,
        one_class_skewness=round(one_class, 6),
        mixture_skewness=round(float(skewness(centered)), 6),
        one_class_images=int(counts[known].sum()),
        clean_shift=tuple(round(float(value), 6) for value in clean_shift(centered)),
    )


def advice(fitness: Fitness, /) -> list[str]:
    """What the numbers mean for adapting this network, in words.

    Parameters
    ----------
    fitness : Fitness

    Returns
    -------
    list of str
    """
    num_classes = fitness.num_classes
    lines = [_on_skewness(fitness)]
    if fitness.effective_classes < 0.25 * num_classes and fitness.num_images >= 4 * num_classes:
        lines.append(
            f"the images are of {fitness.effective_classes:.0f} classes in effect, of "
            f"{num_classes}: give a set in which all classes are about alike"
        )
    return lines


def _on_skewness(fitness: Fitness) -> str:
    """How a stream of one class will be told from a mixture."""
    num_classes = fitness.num_classes
    one_class, mixture = fitness.one_class_skewness, fitness.mixture_skewness
    if num_classes < 3:
        return "with two classes the logits have no skewness, and the default keeps the source"
    if one_class is None or mixture is None:
        if fitness.num_images < LEAST_IMAGES:
            return (
                "too few images to tell frames of one class from a mixture; "
                f"{LEAST_IMAGES} would do, better {CLASS_IMAGES} of each of the {num_classes} "
                "classes; until then a guess from the head is used"
            )
        return "the skewness of these images' logits was not measured"
    if mixture - one_class < MIN_SEPARATION:
        return (
            f"frames of one class have the skewness {one_class:.2f}, a mixture {mixture:.2f}: too "
            "close to be told apart, so the default keeps the source"
        )
    if fitness.one_class_images == 0:
        return (
            f"the logits of a mixture have the skewness {mixture:.2f}; no class has {CLASS_IMAGES} "
            f"images, so {one_class:g} is taken for frames of one class"
        )
    return (
        f"frames of one class have the skewness {one_class:.2f}, a mixture {mixture:.2f}: "
        "adaptation learns only from frames of many classes"
    )

"""Images: those an export is verified on, and what clean ones say about a network."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArtifactError, StreamError
from gain_core.shift.clean import MIN_SEPARATION, ONE_CLASS, clean_moments, skewness
from gain_runtime.files.images import load_image, pictures_below
from gain_runtime.files.manifest import Fitness
from gain_runtime.files.paths import is_folder, write_atomically
from gain_runtime.preprocess import preprocess_batch

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

MAX_PHOTOGRAPHS = 64


def read_photographs(folder: Path, /) -> list[npt.NDArray[np.uint8]]:
    """Read up to `MAX_PHOTOGRAPHS` as (H, W, 3) uint8 RGB, spread evenly over sorted file names.

    Upright; subfolders are searched, unreadable files skipped with a warning. Raises ArtifactError
    if there is no such folder, or no readable photograph in it.
    """
    images = list(_iterate_photographs(folder, most=MAX_PHOTOGRAPHS))
    if not images:
        raise ArtifactError(
            f"{folder}: expected image files, found none that can be read; give another folder"
        )
    return images


def _iterate_photographs(folder: Path, /, *, most: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Read photographs one by one, spread evenly over a folder's sorted file names, upright."""
    if not is_folder(folder, error=ArtifactError):
        raise ArtifactError(f"{folder}: expected a folder of images, found none; check the path")
    found = pictures_below(folder)
    if complaint := found.complaint():
        logger.warning("%s: %d pictures; left out: %s", folder, len(found.paths), complaint)
    paths = sorted(found.paths)
    if len(paths) > most:
        spread = np.linspace(0, len(paths) - 1, most).round().astype(int)
        paths = [paths[position] for position in spread]
    for path in paths:
        try:
            yield load_image(path)
        except StreamError as err:
            logger.warning("%s; skipped", err)


# Landscape, portrait, square, smaller and larger than common network inputs.
_SIZES = ((480, 640), (320, 213), (256, 256), (180, 320), (250, 375), (300, 200))

Canvas = npt.NDArray[np.float32]


def synthetic_images(count: int, /, *, seed: int = 0) -> list[npt.NDArray[np.uint8]]:
    """Draw images, (H, W, 3) uint8 RGB, of edges, smooth areas and texture at non-square sizes.

    Noise averages out in a network's first layers, so that two networks that differ agree on it.
    Arguments decide the result.
    """
    rng = np.random.default_rng(seed)
    kinds: tuple[Callable[[Canvas, np.random.Generator], Canvas], ...] = (_shapes, _texture, _both)
    images = []
    for index in range(count):
        canvas = _gradient(_SIZES[index % len(_SIZES)], rng)
        canvas = kinds[index % len(kinds)](canvas, rng)
        canvas += 0.02 * rng.standard_normal(canvas.shape, dtype=np.float32)
        images.append((canvas.clip(0.0, 1.0) * 255.0).round().astype(np.uint8))
    return images


def _grid(canvas: Canvas) -> tuple[Canvas, Canvas]:
    """Row and column coordinates in [0, 1]."""
    height, width = canvas.shape[:2]
    rows = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    return rows, np.linspace(0, 1, width, dtype=np.float32)[None, :]


def _gradient(size: tuple[int, int], rng: np.random.Generator) -> Canvas:
    """A colour gradient in a random direction."""
    canvas = np.zeros((*size, 3), dtype=np.float32)
    rows, columns = _grid(canvas)
    angle = rng.uniform(0, 2 * np.pi)
    ramp = (np.cos(angle) * rows + np.sin(angle) * columns)[..., None]
    start, end = rng.random(size=(2, 3), dtype=np.float32)
    colours: Canvas = start + (end - start) * (ramp - ramp.min()) / np.ptp(ramp)
    return colours


def _texture(canvas: Canvas, rng: np.random.Generator) -> Canvas:
    """A sum of waves over the picture, different in every colour plane."""
    rows, columns = _grid(canvas)
    for _ in range(4):
        across, down = rng.uniform(-40, 40, size=2)
        phase, strength = rng.uniform(0, 2 * np.pi, size=3), rng.uniform(0.05, 0.2, size=3)
        wave = 2 * np.pi * (across * columns + down * rows)
        canvas = canvas + (strength * np.sin(wave[..., None] + phase)).astype(np.float32)
    return canvas


def _shapes(canvas: Canvas, rng: np.random.Generator) -> Canvas:
    """Filled ellipses and rectangles with hard edges."""
    rows, columns = _grid(canvas)
    canvas = canvas.copy()
    for index in range(12):
        centre, radius = rng.uniform(0.1, 0.9, size=2), rng.uniform(0.05, 0.3, size=2)
        down, across = abs(rows - centre[0]) / radius[0], abs(columns - centre[1]) / radius[1]
        inside = down**2 + across**2 < 1 if index % 2 else np.maximum(down, across) < 1
        canvas[inside] = rng.uniform(size=3)
    return canvas


def _both(canvas: Canvas, rng: np.random.Generator) -> Canvas:
    """Shapes under a texture."""
    return _texture(_shapes(canvas, rng), rng)


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

    Raises ArtifactError if there is none, or fewer than two images in it can be read.
    """
    images = _iterate_photographs(folder, most=MAX_IMAGES)
    _require_enough(folder, sum(1 for _ in islice(images, _FEWEST_IMAGES)))


def add_fitness(path: Path, folder: Path, /) -> Fitness:
    """Run an artifact on a folder's clean images and write the report into it.

    The file is replaced, whole or not at all. Its hash changes, so states learned before belong to
    another file. Subfolders are searched, unreadable files skipped with a warning. Raises
    ArtifactError if `path` is no artifact or cannot be written, or fewer than two images can be
    read, and EngineError if ONNX Runtime cannot run it.
    """
    # Measuring logits that are there already needs neither ONNX nor its runtime.
    from gain_runtime.files.artifact import load_artifact, read_model, write_metadata
    from gain_runtime.sessions.onnx import OnnxSession

    artifact = load_artifact(path)
    logits: list[Floats] = []
    with OnnxSession(artifact) as session:
        # One by one, because the batch size may be fixed at 1.
        for image in _iterate_photographs(folder, most=MAX_IMAGES):
            found = session.infer(preprocess_batch([image], artifact.manifest.preprocess))
            logits.append(np.asarray(found.logits))
    _require_enough(folder, len(logits))
    fitness = measure_fitness(np.concatenate(logits))
    model, _ = read_model(path)
    write_metadata(model, replace(artifact.manifest, fitness=fitness))
    write_atomically(path, model.SerializeToString(), error=ArtifactError)
    return fitness


def _require_enough(folder: Path, found: int) -> None:
    """Refuse a folder in which too few images can be read."""
    if found < _FEWEST_IMAGES:
        raise ArtifactError(
            f"{folder}: expected at least two images that can be read, found {found}; "
            "give a folder of clean images of the classes the network knows"
        )


def measure_fitness(logits: Floats, /) -> Fitness:
    """Measure how a network's logits (N, K), N at least 2, scatter on the source's own domain.

    They may be log-probabilities of unlabelled images; the classes are those predicted. There is no
    skewness and no clean shift for two classes, whose centred logits are symmetric always, and for
    fewer than `LEAST_IMAGES` images.
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
        clean_moments=tuple(
            tuple(round(float(value), 6) for value in row) for row in clean_moments(centered)
        ),
    )


def advice(fitness: Fitness, /) -> list[str]:
    """What the numbers mean for adapting this network, a line each."""
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

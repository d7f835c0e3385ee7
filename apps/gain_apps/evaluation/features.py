"""Frozen features of every image of a domain: corrupt, preprocess, one forward pass, keep."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from gain_apps import corruptions
from gain_apps.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, image_rng
from gain_apps.evaluation.cache import FeatureCache
from gain_apps.evaluation.eval_input import Normalise, Outputs
from gain_apps.evaluation.image_data import CLEAN, Image, ImageData
from gain_core import __version__
from gain_core.errors import ConfigError, NumericsError
from gain_runtime.manifest import Preprocess
from gain_runtime.preprocess import preprocess
from gain_runtime.session import Session

__all__ = ["LEAST_SHARE", "FeatureMaker", "make_view", "normalised"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
BATCH_ROWS = 32


def normalised(spec: Preprocess, normalise: Normalise, /) -> Preprocess:
    """The artifact's preprocessing with another mean and standard deviation.

    Raises
    ------
    ConfigError
        If the choice is unknown.
    """
    if normalise == "timm":
        return spec
    if normalise == "unit":
        return replace(spec, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if normalise != "imagenet":
        raise ConfigError(
            f"normalise: expected {', '.join(get_args(Normalise))}, got {normalise!r}"
        )
    if spec.channel_order == "BGR":
        return replace(spec, mean=IMAGENET_MEAN[::-1], std=IMAGENET_STD[::-1])
    return replace(spec, mean=IMAGENET_MEAN, std=IMAGENET_STD)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureMaker:
    """Makes and caches the outputs of one network on one data set.

    Attributes
    ----------
    session : Session
    data : ImageData
    cache : FeatureCache
    normalise : str
    seed : int
        Of corruptions and views; the same for all streams, so that seeds of streams share
        features.
    """

    session: Session
    data: ImageData
    cache: FeatureCache
    normalise: Normalise = "timm"
    seed: int = 0

    def outputs(
        self,
        domain: str,
        severity: float,
        /,
        *,
        view: int = 0,
        on_rows: Callable[[], None] | None = None,
    ) -> Outputs:
        """Features and logits of all images in one domain, from the cache where they are.

        Parameters
        ----------
        domain : str
            `clean`, a corruption, or one of the data's own domains.
        severity : float
            Ignored for `clean`.
        view : int
            See `make_view`.
        on_rows : callable, optional
            Called once per image.

        Returns
        -------
        Outputs

        Raises
        ------
        ConfigError
            If the domain is unknown.
        ArtifactError, StreamError, NumericsError
            If a cache file or an image is damaged, or the network's outputs are not finite.
        """
        generated = self.data.domains is None
        known = (CLEAN, *CORRUPTIONS, *EXTRA_CORRUPTIONS) if generated else self.data.domains or ()
        if domain not in known:
            raise ConfigError(f"domains: expected some of {', '.join(known)}, got {domain}")
        if generated and domain == CLEAN:
            severity = 0.0

        def compute(start: int, end: int) -> tuple[Any, Any]:
            return self._compute(range(start, end), domain, severity, view=view)

        key = self._key(domain, severity, view=view)
        return self.cache.fetch(key, len(self.data.labels), compute=compute, on_rows=on_rows)

    def _compute(
        self, indices: Sequence[int], domain: str, severity: float, *, view: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Forward passes over some images."""
        features, logits = [], []
        for first in range(0, len(indices), BATCH_ROWS):
            pixel_values = np.stack(
                [
                    self.pixel_values(index, domain, severity, view=view)
                    for index in indices[first : first + BATCH_ROWS]
                ]
            )
            result = self.session.infer(pixel_values)
            logits.append(np.asarray(result.logits))
            # Where there are logits only they stand in the features' place.
            found = logits[-1] if result.features is None else np.asarray(result.features)
            features.append(found)
        made = np.concatenate(features), np.concatenate(logits)
        if not all(np.isfinite(array).all() for array in made):
            raise NumericsError(
                f"{self.session.artifact.path}: expected finite features and logits, got NaN or "
                f"infinity on {domain}; verify the artifact"
            )
        return made

    def pixel_values(
        self, index: int, domain: str, severity: float, *, view: int = 0
    ) -> npt.NDArray[np.float32]:
        """One image as the network takes it.

        Corruptions are applied at the network's input size, as ImageNet-C's were. Images of that
        size already (ImageNet-C's 224 px files) are not resized or cropped again.
        """
        spec = normalised(self.session.artifact.manifest.preprocess, self.normalise)
        image = self.data.load(index, domain, severity)
        image = make_view(image, view, seed=self.seed, index=index)
        whole = replace(spec, crop_fraction=1.0)
        if self.data.domains is None and domain != CLEAN:
            sized = _resized(image, spec)
            row = view * len(self.data.labels) + index
            rng = image_rng(self.seed, row, domain)
            return preprocess(corrupt(sized, domain, severity, rng=rng), whole)
        fits = image.shape[:2] == (spec.height_px, spec.width_px)
        return preprocess(np.ascontiguousarray(image), whole if fits else spec)

    def _key(self, domain: str, severity: float, *, view: int) -> dict[str, Any]:
        """Everything the features depend on."""
        generated = self.data.domains is None and domain != CLEAN
        return {
            "artifact": self.session.artifact.sha256,
            "provider": self.session.provider,
            "data": self.data.fingerprint(domain, severity),
            "domain": domain,
            "severity": severity,
            "view": view,
            "normalise": self.normalise,
            "seed": self.seed if generated or view else 0,
            "corruptions": _corruptions_hash() if generated else "",
            "version": __version__,
        }


def _resized(image: Image, spec: Preprocess) -> Image:
    """Resized and cropped to the network's input, still in 8 bits."""
    plain = replace(spec, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), channel_order="RGB")
    planes = preprocess(np.ascontiguousarray(image), plain)
    levels: Image = np.rint(planes * 255.0).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(levels, 0, 2))


def _corruptions_hash() -> str:
    """Hash of the corruptions' code: features made with other code are other features."""
    digest = hashlib.sha256()
    folder = Path(corruptions.__file__).parent
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


# Of both sides: a crop keeps the aspect ratio and at least half of the area.
LEAST_SHARE = 0.75


def make_view(image: Image, number: int, /, *, seed: int, index: int) -> Image:
    """One view of an image.

    Parameters
    ----------
    image : array, (H, W, 3) uint8 RGB
    number : int
        0 is the image itself; odd numbers are mirrored.
    seed, index : int
        Of the run and of the image: together with `number` they decide the crop.

    Returns
    -------
    array, (h, w, 3) uint8 RGB
        A view of the same memory; both sides at least `LEAST_SHARE` of the image's.
    """
    if number == 0:
        return image
    rng = np.random.default_rng(np.random.SeedSequence((seed, index, number)))
    share = rng.uniform(LEAST_SHARE, 1.0)
    height, width = (max(1, round(side * share)) for side in image.shape[:2])
    top = int(rng.integers(image.shape[0] - height + 1))
    left = int(rng.integers(image.shape[1] - width + 1))
    crop = image[top : top + height, left : left + width]
    return crop[:, ::-1] if number % 2 else crop

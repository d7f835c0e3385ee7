"""Features and logits of every (domain, severity), ready to be put together into batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.methods.protocol import Batch, Floats, Head
from gain_apps.evaluation.streams import StreamBatch
from gain_core.errors import ConfigError

__all__ = ["ANY_SEVERITY", "FeatureStore", "Outputs", "PixelLoader"]

# Key of a domain that was recorded at one severity only, which the file does not state.
ANY_SEVERITY = -1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs:
    """What the frozen network says about all images of one domain at one severity.

    Attributes
    ----------
    features : array, (N, D) floating
        Any floating dtype, in memory or mapped from a file.
    logits : array, (N, K) floating, or None
        None where they are the head applied to the features.
    """

    features: Floats
    logits: Floats | None = None


class PixelLoader(Protocol):
    """Gives one image as the network takes it, (3, H, W)."""

    def __call__(
        self, index: int, domain: str, severity: float, *, view: int
    ) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureStore:
    """Everything a stream of features is made of.

    Attributes
    ----------
    head : Head
    labels : array, (N,) int64
        Of the images, which are the same in every domain.
    domains : tuple of str
    outputs : mapping of (domain name, severity) to views
        A view is the outputs for all images seen one way; N counts the images of all views, one
        view after the other. `ANY_SEVERITY` stands for whatever severity is asked for.
    columns : array, (K,) int64, or None
        Which of the recorded logits belong to the head's classes; None means all, in order.
    pixels : PixelLoader or None
        None for a bed.
    """

    head: Head
    labels: npt.NDArray[np.int64]
    domains: tuple[str, ...]
    outputs: Mapping[tuple[str, float], tuple[Outputs, ...]]
    columns: npt.NDArray[np.int64] | None = None
    pixels: PixelLoader | None = None

    def batch(self, item: StreamBatch, /, *, with_pixels: bool = False) -> Batch:
        """Features and logits of one batch of a stream, as float32; pixel values if asked for.

        Raises
        ------
        ConfigError
            If a domain was not recorded at a severity of the batch.
        """
        feature_dim = self.head.weight.shape[1]
        features = np.empty((len(item.images), feature_dim), dtype=np.float32)
        logits = np.empty((len(item.images), self.head.num_classes), dtype=np.float32)
        cells = np.unique(np.stack([item.domains, item.severities]), axis=1).T
        for domain, severity in cells:
            at_cell = (item.domains == domain) & (item.severities == severity)
            views = self._views(self.domains[int(domain)], float(severity))
            view, image = np.divmod(item.images, len(views[0].features))
            for number, outputs in enumerate(views):
                rows = np.flatnonzero(at_cell & (view == number))
                if len(rows):
                    features[rows] = outputs.features[image[rows]]
                    logits[rows] = self._logits(outputs, features[rows], image[rows])
        pixel_values = self._pixel_values(item) if with_pixels else None
        return Batch(features=features, logits=logits, pixel_values=pixel_values)

    def _pixel_values(self, item: StreamBatch) -> npt.NDArray[np.float32] | None:
        """Pixel values of one batch, (B, 3, H, W), or None where there are none."""
        if self.pixels is None:
            return None
        domains = [self.domains[int(domain)] for domain in item.domains]
        num_images = [
            len(self._views(domain, float(severity))[0].features)
            for domain, severity in zip(domains, item.severities, strict=True)
        ]
        return np.stack(
            [
                self.pixels(int(row % count), domain, float(severity), view=int(row // count))
                for row, count, domain, severity in zip(
                    item.images, num_images, domains, item.severities, strict=True
                )
            ]
        )

    def _logits(self, outputs: Outputs, features: Floats, images: npt.NDArray[np.int64]) -> Floats:
        """Recorded logits of some images, or the head's."""
        if outputs.logits is None:
            return self.head.logits(features)
        logits: Floats = outputs.logits[images]
        return logits if self.columns is None else logits[:, self.columns]

    def _views(self, domain: str, severity: float) -> tuple[Outputs, ...]:
        """The views recorded for a domain at a severity, or at its only one."""
        for key in ((domain, severity), (domain, ANY_SEVERITY)):
            if key in self.outputs:
                return self.outputs[key]
        known = sorted({level for name, level in self.outputs if name == domain})
        raise ConfigError(
            f"severity: {domain} is recorded at {', '.join(f'{level:g}' for level in known)}, "
            f"not at {severity:g}"
        )

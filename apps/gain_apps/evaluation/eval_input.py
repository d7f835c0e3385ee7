"""What an evaluation is of: features to stream, out of a feature dump or of a network on images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.methods.protocol import Batch, Floats, Head, TorchNetwork
from gain_apps.evaluation.streams import Order, StreamBatch
from gain_core.errors import ConfigError

if TYPE_CHECKING:
    from gain_apps.evaluation.executor import Executor

Normalise = Literal["timm", "unit", "imagenet"]
# A title and a number of steps to what is called after every step.
OnImages = Callable[[str, int], Callable[[], None]]

# Key of a domain that was recorded at one severity only, which the file does not state.
ANY_SEVERITY = -1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs:
    """What the frozen network says about all images of one domain at one severity.

    Features (N, D) and logits (N, K) of any floating dtype, in memory or mapped from a file; no
    logits where they are the head applied to the features. The name is the cache entry's; empty for
    a dump.
    """

    features: Floats
    logits: Floats | None = None
    name: str = ""


# (index, domain, severity, view) to one image as the network takes it, (3, H, W).
PixelLoader = Callable[[int, str, float, int], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureStore:
    """Everything a stream of features is made of.

    The labels are of the images, which are the same in every domain. The outputs of a domain's name
    and severity (`ANY_SEVERITY` stands for whatever is asked for) are views: a view is the outputs
    for all images seen one way, and N counts the images of all views, one view after the other.
    """

    head: Head
    labels: npt.NDArray[np.int64]
    domains: tuple[str, ...]
    outputs: Mapping[tuple[str, float], tuple[Outputs, ...]]
    # Which of the recorded logits belong to the head's K classes; None means all, in order.
    columns: npt.NDArray[np.int64] | None = None
    pixels: PixelLoader | None = None  # None for a feature dump
    # (D,), of the features of clean images: the noise of a camera's frames is measured by it.
    deviation: Floats | None = None

    def batch(
        self,
        item: StreamBatch,
        /,
        *,
        with_pixels: bool = False,
        noise: np.random.Generator | None = None,
    ) -> Batch:
        """Features and logits of one batch of a stream, as float32; pixel values if asked for.

        Noise adds a tenth of the features' deviation, as two frames of one object differ. Raises
        `ConfigError` if a domain was not recorded at a severity of the batch, or noise was asked
        for and there are no clean images, or together with pixel values.
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
        if noise is not None:
            if with_pixels or self.deviation is None or self.head.source_mean is None:
                raise ConfigError(
                    "stream: a camera's frames get noise on the features, as large as clean "
                    "images say, so it takes clean images and no method that trains the network"
                )
            features[item.images < 0] = self.head.source_mean
            features += (noise.normal(size=features.shape) * self.deviation).astype(np.float32)
            logits = self.head.logits(features)
        pixel_values = self._pixel_values(item) if with_pixels else None
        return Batch(features=features, logits=logits, pixel_values=pixel_values)

    def _pixel_values(self, item: StreamBatch) -> npt.NDArray[np.float32] | None:
        """Pixel values of one batch, (B, 3, H, W), or None where there are none."""
        if self.pixels is None:
            return None
        made = []
        for row, number, severity in zip(item.images, item.domains, item.severities, strict=True):
            domain = self.domains[int(number)]
            count = len(self._views(domain, float(severity))[0].features)
            made.append(self.pixels(int(row % count), domain, float(severity), int(row // count)))
        return np.stack(made)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """How a network is run on a data set.

    A feature dump takes `domains`, `severities`, `cache`, `device` and `num_threads` only.

    Attributes
    ----------
    domains : tuple of str, or None
        In order; default: those of the data, or the fifteen of ImageNet-C.
    severities : tuple of float
        Severities of the corruptions.
    views : int
        Crops and flips of each image.
    normalise : {"timm", "unit", "imagenet"}
        Mean and deviation of the pixels: the artifact's own, none, or ImageNet's.
    class_file : Path or None
        `classes.tsv` for WordNet ids.
    image_list : Path or None
        Which images of a folder, and in which order.
    class_subset : {"all", "present"}
        Predict among all classes, or only among those with images.
    source_images : str or None
        Folder of clean images on which to measure the source.
    cache : str, Path or None
        Folder for features; default: in the user's cache folder. With several machines it may be
        an fsspec URL.
    device : {"cpu", "cuda", "tensorrt", "auto"}
        As for `open_session`.
    num_threads : int or None
        CPU threads within one operator; None lets the library choose.
    torch : (str, Path) or None
        timm's name of the network and the weights it was exported from, for methods that train it.

    Raises
    ------
    ConfigError
        If `views` is below 1.
    """

    domains: tuple[str, ...] | None = None
    severities: tuple[float, ...] = (5.0,)
    views: int = 1
    normalise: Normalise = "timm"
    class_file: Path | None = None
    image_list: Path | None = None
    class_subset: Literal["all", "present"] = "all"
    source_images: str | None = None
    cache: str | Path | None = None
    device: Literal["cpu", "cuda", "tensorrt", "auto"] = "cpu"
    num_threads: int | None = None
    torch: tuple[str, Path] | None = None

    def __post_init__(self) -> None:
        if self.views < 1:
            raise ConfigError(f"views: expected at least 1, got {self.views}")


# What a feature dump may be asked for besides; the rest is about images.
OF_DUMPS = frozenset({"domains", "severities", "cache", "device", "num_threads"})


class Origin(NamedTuple):
    """The arguments of `open_input`: enough to open an input again in another process."""

    model: str
    data: tuple[str, ...] | None
    settings: InputSettings
    recorded: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvalInput:
    """Features to stream, with their origin.

    `record` has `model` and `data` as plain values for the result file.
    """

    store: FeatureStore
    record: Mapping[str, Any]
    default_order: Order
    single_severity: bool
    # (N,), the domain of each image if the frames are streamed as recorded; the images of each
    # recording are counted.
    recorded: npt.NDArray[np.int64] | None = None
    recordings: tuple[int, ...] = ()
    # Builds the network in torch, if `InputSettings.torch` names it.
    network: Callable[[], TorchNetwork] | None = None
    origin: Origin | None = None


def open_input(
    model: str | Path,
    data: str | Path | tuple[str, ...] | None = None,
    settings: InputSettings | None = None,
    /,
    *,
    recorded: bool = False,
    executor: Executor | None = None,
    on_images: OnImages | None = None,
) -> EvalInput:
    """Open a feature dump, or an artifact with a data set; compute features not yet cached.

    Parameters
    ----------
    model : str or Path
        Artifact (.onnx) or feature dump (.npz).
    data : str, Path or tuple of str, optional
        Data set of an artifact; several `test://` sources are recordings, one after the other.
    settings : InputSettings, optional
    recorded : bool
        Stream the frames of `test://` sources as they were recorded.
    executor : Executor, optional
        Computes features; default: this process.
    on_images : callable, optional
        Called with a title and a number of steps before each forward pass over a domain; the
        callable that it returns is called after every step.

    Returns
    -------
    EvalInput

    Raises
    ------
    ConfigError
        If model and data do not fit each other, or a setting does not fit them.
    ArtifactError, StreamError
        If a file is missing or damaged.
    BackendUnavailableError
        If a library that the data set or device needs is not installed.
    """
    # Imported late: a feature dump needs no OpenCV and no ONNX Runtime.
    from gain_apps.evaluation.feature_dump import is_dump, load_dump

    settings = settings or InputSettings()
    if data is None:
        if Path(model).suffix != ".npz":
            raise ConfigError(f"{model}: expected DATA beside an artifact, got none")
        changed = [
            item.name
            for item in fields(settings)
            if item.name not in OF_DUMPS and getattr(settings, item.name) != item.default
        ]
        if changed:
            names = ", ".join(name.replace("_", "-") for name in changed)
            raise ConfigError(f"{names}: a dump holds features, not images; leave it out")
        if recorded:
            raise ConfigError("stream: recorded is for test:// sources only")
        opened = load_dump(model, domains=settings.domains)
        return replace(opened, origin=Origin(str(model), None, settings, recorded))
    locations = data if isinstance(data, tuple) else (str(data),)
    if is_dump(locations[0]):
        raise ConfigError(
            f"{locations[0]}: a dump holds its own network's features; give it alone, as MODEL"
        )
    from gain_apps.evaluation.executor import Executor
    from gain_apps.evaluation.image_input import open_images

    opened = open_images(
        model,
        locations,
        settings,
        recorded=recorded,
        executor=executor or Executor(),
        on_images=on_images,
    )
    return replace(opened, origin=Origin(str(model), locations, settings, recorded))

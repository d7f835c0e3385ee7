"""The manifest: everything the runtime needs to know about an artifact, inside the file itself.

It is stored in the ONNX file's `metadata_props` under `gain.*` keys, one key per field, JSON
where the value is not a plain string. `gain_export` writes it, `gain_runtime` reads it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from gain_core.errors import ArtifactError, ConfigError
from gain_core.shift.clean import checked_moments

_EARLIER = {
    "single_asymmetry": "one_class_skewness",
    "mixed_asymmetry": "mixture_skewness",
    "single_images": "one_class_images",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """What unlabelled clean images said about a network.

    Attributes
    ----------
    num_images : int
    num_classes : int
        K.
    confidence : float
        Mean of the largest probability.
    effective_classes : float
        1 / sum of squared shares of the predicted classes.
    one_class_skewness, mixture_skewness : float or None
        Skewness of the logits about their mean over the images of one class, and over all
        images: what a stream of one class is told from a mixture by. None, both, where it was not
        measured.
    one_class_images : int
        Images behind `one_class_skewness`; 0 where no class has enough and it is the default.
    clean_moments : tuple of float, (2, K), or None
        What shift and scale are counted from, see `gain_core.shift.clean.clean_moments`; measured
        where the skewness is.

    Raises
    ------
    ValueError
        If a number is not finite, only one skewness is there, or the clean moments are not
        two rows of K.
    """

    num_images: int
    num_classes: int
    confidence: float
    effective_classes: float
    one_class_skewness: float | None = None
    mixture_skewness: float | None = None
    one_class_images: int = 0
    clean_moments: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        moments = checked_moments(self.clean_moments, num_classes=self.num_classes)
        object.__setattr__(self, "clean_moments", moments)
        numbers = [value for value in asdict(self).values() if isinstance(value, float)]
        if not all(map(math.isfinite, numbers)):
            raise ValueError("fitness: expected finite numbers")
        if (self.one_class_skewness is None) != (self.mixture_skewness is None):
            raise ValueError("fitness: expected the skewness of one class and of all, or neither")

    @property
    def measured(self) -> dict[str, Any]:
        """The values that `gain_core.make_method` takes, by keyword."""
        if self.one_class_skewness is None:
            return {}
        skewness = self.one_class_skewness, self.mixture_skewness
        return {"skewness": skewness, "clean_moments": self.clean_moments}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], /) -> Fitness:
        """Read the record of a manifest.

        Parameters
        ----------
        record : mapping
            Parsed JSON; unknown keys are ignored.

        Returns
        -------
        Fitness

        Raises
        ------
        TypeError, ValueError
            If a key is missing, or a value has the wrong type or is out of range.
        """
        known = {item.name for item in fields(cls)}
        # Records of earlier versions call the skewness asymmetry, and hold what is not used now.
        values = {_EARLIER.get(key, key): value for key, value in record.items()}
        return cls(**{key: value for key, value in values.items() if key in known})


SCHEMA_VERSION = "2"
# Schema 1 always has features and says nothing of the model's own output.
_READABLE = ("1", "2")
PREFIX = "gain."

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
CropMode = Literal["center", "squash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess:
    """How a frame becomes `pixel_values`: resize, crop, scale to [0, 1], normalise.

    Attributes
    ----------
    height_px, width_px : int
        Input size of the network.
    interpolation : str
        Resize filter, antialiased as Pillow does it.
    crop_mode : str
        `center`: the shorter side becomes `floor(size / crop_fraction)`, then the centre is cut
        out (timm's evaluation transform). `squash`: both sides become `floor(size /
        crop_fraction)` whatever the aspect ratio, then the centre is cut out.
    crop_fraction : float
        In (0, 1].
    mean, std : 3 floats
        In units of [0, 1] pixels, in the order of `channel_order`.
    channel_order : str
        `RGB` or `BGR`: the order in which the network wants the planes.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    height_px: int
    width_px: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation = "bicubic"
    crop_mode: CropMode = "center"
    crop_fraction: float = 1.0
    channel_order: Literal["RGB", "BGR"] = "RGB"

    def __post_init__(self) -> None:
        if self.height_px < 1 or self.width_px < 1:
            raise ConfigError(
                f"input size: expected at least 1 x 1 px, got {self.width_px} x {self.height_px}"
            )
        if not 0.0 < self.crop_fraction <= 1.0:
            raise ConfigError(f"crop_fraction: expected (0, 1], got {self.crop_fraction}")
        if len(self.mean) != 3 or len(self.std) != 3:
            raise ConfigError("mean, std: expected three numbers each")
        if any(not value > 0.0 for value in self.std):
            raise ConfigError(f"std: expected positive numbers, got {self.std}")
        for name, choices in (
            ("interpolation", get_args(Interpolation)),
            ("crop_mode", get_args(CropMode)),
            ("channel_order", ("RGB", "BGR")),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name}: expected one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLocation:
    """The initializers of the graph that hold the classifier head.

    The weight is stored as (K, D) or transposed; its trailing axes of length one (a 1x1
    convolution) are dropped. `bias` is None if the head has none.
    """

    weight: str
    layout: Literal["KD", "DK"]
    bias: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The record behind the `gain.*` metadata.

    Attributes
    ----------
    source : str
        timm tag or the name of the original ONNX file.
    weights_sha256 : str
        Hash of the source weights (checkpoint state or original ONNX file), hexadecimal.
    input_name, logits_name : str
        Names of the graph's input and of its output (B, K).
    features_name : str or None
        Name of its output (B, D); None if the artifact has logits only.
    num_classes : int
        K.
    feature_dim : int or None
        D; None as for `features_name`.
    labels : tuple of str
        K class names; empty strings are not allowed.
    head : HeadLocation or None
        None as for `features_name`.
    preprocess : Preprocess
        How a frame becomes the graph's input.
    tool_versions : mapping
        Library versions at export.
    verification : mapping
        The numbers the export's own check measured.
    fitness : Fitness or None
        What the export measured on clean images; None if none were given.
    labels_source : str
        Where the class names come from.
    activation : str
        What the exported model computes from `logits`: "none", "softmax", "log_softmax",
        "sigmoid", "probabilities" (its output, of which `logits` is the logarithm) or
        "class_number".
    notes : tuple of str
        What the export read from the model, changed and folded.

    Raises
    ------
    ConfigError
        If only some of `features_name`, `feature_dim` and `head` are given, or `labels` or
        `fitness` is not of K classes.
    """

    source: str
    weights_sha256: str
    input_name: str
    features_name: str | None
    logits_name: str
    num_classes: int
    feature_dim: int | None
    labels: tuple[str, ...]
    head: HeadLocation | None
    preprocess: Preprocess
    tool_versions: Mapping[str, str] = field(default_factory=dict)
    verification: Mapping[str, float | int | str] = field(default_factory=dict)
    fitness: Fitness | None = None
    labels_source: str = ""
    activation: str = "none"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parts = (self.features_name, self.feature_dim, self.head)
        if any(part is None for part in parts) and any(part is not None for part in parts):
            raise ConfigError(
                "features_name, feature_dim, head: expected all of them, or none for logits only"
            )
        if len(self.labels) != self.num_classes:
            raise ConfigError(
                f"labels: expected {self.num_classes} (one per class), got {len(self.labels)}"
            )
        if self.fitness is not None and self.fitness.num_classes != self.num_classes:
            raise ConfigError(
                f"fitness: expected that of a network of {self.num_classes} classes, "
                f"got {self.fitness.num_classes}"
            )

    @property
    def outputs(self) -> tuple[tuple[str, int], ...]:
        """Name and width of the graph's outputs: of the features, if it has any, and the logits."""
        logits = (self.logits_name, self.num_classes)
        if self.features_name is None or self.feature_dim is None:
            return (logits,)
        return (self.features_name, self.feature_dim), logits

    def to_metadata(self) -> dict[str, str]:
        """The record as `gain.*` strings for `metadata_props`.

        Returns
        -------
        dict of str to str
        """
        record = {key: value for key, value in asdict(self).items() if value is not None}
        metadata = {PREFIX + "schema": SCHEMA_VERSION}
        for key, value in record.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            metadata[PREFIX + key] = text
        return metadata

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], /, *, path: str) -> Manifest:
        """Read the record from a model's metadata.

        Parameters
        ----------
        metadata : mapping of str to str
            Keys that do not begin with `gain.` are ignored.
        path : str
            Named in messages.

        Returns
        -------
        Manifest

        Raises
        ------
        ArtifactError
            If the keys are absent (not an artifact), of another schema, or malformed.
        """
        if PREFIX + "schema" not in metadata:
            raise ArtifactError(
                f"{path}: no gain.* metadata, so this is not an artifact; "
                f"make one with: gain-export {path}"
            )
        schema = metadata[PREFIX + "schema"]
        if schema not in _READABLE:
            raise ArtifactError(
                f"{path}: expected manifest schema {' or '.join(_READABLE)}, got {schema}; "
                "export the model again with this version of gain-export"
            )
        try:
            return cls._from_strings(metadata)
        except (KeyError, TypeError, ValueError) as err:
            raise ArtifactError(
                f"{path}: malformed gain.* metadata ({type(err).__name__}: {err}); "
                "export the model again"
            ) from err

    @classmethod
    def _from_strings(cls, metadata: Mapping[str, str]) -> Manifest:
        def text(key: str) -> str:
            return metadata[PREFIX + key]

        def parsed(key: str) -> Any:
            return json.loads(metadata[PREFIX + key])

        def optional(key: str, default: Any) -> Any:
            return parsed(key) if PREFIX + key in metadata else default

        preprocess = parsed("preprocess")
        head = optional("head", None)
        for key in ("mean", "std"):
            preprocess[key] = tuple(float(value) for value in preprocess[key])
        return cls(
            source=text("source"),
            weights_sha256=text("weights_sha256"),
            input_name=text("input_name"),
            features_name=metadata.get(PREFIX + "features_name"),
            logits_name=text("logits_name"),
            num_classes=int(parsed("num_classes")),
            feature_dim=optional("feature_dim", None),
            labels=tuple(str(label) for label in parsed("labels")),
            head=None if head is None else HeadLocation(**head),
            preprocess=Preprocess(**preprocess),
            tool_versions=parsed("tool_versions"),
            verification=parsed("verification"),
            fitness=(
                Fitness.from_record(parsed("fitness")) if PREFIX + "fitness" in metadata else None
            ),
            labels_source=metadata.get(PREFIX + "labels_source", ""),
            activation=metadata.get(PREFIX + "activation", "none"),
            notes=tuple(str(note) for note in optional("notes", ())),
        )

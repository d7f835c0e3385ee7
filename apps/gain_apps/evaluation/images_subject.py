"""An artifact and a data set as the subject of an experiment."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gain_apps.corruptions import CORRUPTIONS
from gain_apps.evaluation.cache import FeatureCache, default_cache_dir
from gain_apps.evaluation.datasets import open_data
from gain_apps.evaluation.features import FeatureMaker
from gain_apps.evaluation.image_data import CLEAN, ImageData
from gain_apps.evaluation.methods.protocol import Floats
from gain_apps.evaluation.methods.registry import parse_method
from gain_apps.evaluation.methods.torch_network import SourcePixels, TorchNetwork, timm_network
from gain_apps.evaluation.source_head import source_head
from gain_apps.evaluation.store import ANY_SEVERITY, FeatureStore, Outputs, PixelLoader
from gain_apps.evaluation.streams import RAMP
from gain_apps.evaluation.subject import OnImages, Subject
from gain_core.errors import ConfigError
from gain_runtime.artifact import Artifact, load_artifact, require_head
from gain_runtime.open_session import open_session
from gain_runtime.session import Session

__all__ = ["open_images"]

FOA_SHIFT = "foa-shift"


def open_images(args: Namespace, /, *, on_images: OnImages | None = None) -> Subject:
    """Open artifact and data and make sure that all features are there.

    Parameters
    ----------
    args : Namespace
        Of `gain-eval`.
    on_images : callable, optional
        See `open_subject`.

    Returns
    -------
    Subject

    Raises
    ------
    ConfigError, ArtifactError, StreamError, NumericsError, BackendUnavailableError, EngineError
        If model, data or cache are missing, damaged or do not fit each other.
    """
    if args.views < 1:
        raise ConfigError(f"views: expected at least 1, got {args.views}")
    artifact = load_artifact(args.model)
    severities = tuple(sorted(set(map(float, RAMP)))) if args.stream == "ramp" else args.severity
    data = _open(args, args.data, artifact, severities=severities)
    with open_session(artifact, device=args.device, num_threads=args.num_threads) as session:
        maker = _maker(args, session, data)
        if args.stream == "recorded":
            outputs, domains = _recorded(args, maker, on_images)
        else:
            domains = _domains(args, data)
            outputs = {
                (domain, ANY_SEVERITY if domain == CLEAN else severity): _views(
                    maker, domain, severity, count=args.views, on_images=on_images
                )
                for domain in domains
                for severity in severities
            }
        clean = _clean_features(args, maker, on_images)
    labels = np.tile(data.labels, args.views)
    columns, labels = _subset(args.class_subset, labels, artifact.manifest.num_classes)
    rows = slice(None) if columns is None else columns
    weight, bias = require_head(artifact, what="gain-eval")
    head = source_head(weight[rows], bias[rows], clean=clean)
    return Subject(
        store=FeatureStore(
            head=head,
            labels=labels,
            domains=domains,
            outputs=outputs,
            columns=columns,
            pixels=_pixels(args, maker),
        ),
        network=_network(args, artifact, columns, source=_source_pixels(args, maker)),
        record=_record(args, artifact, data, num_classes=len(head.bias)),
        default_order=data.default_order,
        single_severity=False,
        recorded=_recorded_domains(data, domains) if args.stream == "recorded" else None,
    )


def _pixels(args: Namespace, maker: FeatureMaker) -> PixelLoader:
    """Pixel values on demand; a recording's conditions are names of clean images only."""

    def pixels(index: int, domain: str, severity: float, *, view: int) -> npt.NDArray[np.float32]:
        shown = CLEAN if args.stream == "recorded" else domain
        return maker.pixel_values(index, shown, severity, view=view)

    return pixels


def _network(
    args: Namespace,
    artifact: Artifact,
    columns: npt.NDArray[np.int64] | None,
    *,
    source: SourcePixels | None,
) -> Callable[[], TorchNetwork] | None:
    """The network in torch, where it was named."""
    if args.torch_model is None and args.torch_weights is None:
        return None
    if args.torch_model is None or args.torch_weights is None:
        raise ConfigError("--torch-model and --torch-weights: expected both or none")
    make = timm_network(args.torch_model, args.torch_weights, artifact.manifest.num_classes)
    return lambda: TorchNetwork(make, columns=columns, source=source)


def _source_pixels(args: Namespace, maker: FeatureMaker) -> SourcePixels | None:
    """Pixel values of uncorrupted images spread over the data, where there are some."""
    clean = _clean_maker(args, maker)
    if clean is None:
        return None

    def pixels(count: int) -> npt.NDArray[np.float32]:
        total = len(clean.data.labels)
        chosen = np.linspace(0, total - 1, min(count, total)).astype(int)
        return np.stack([clean.pixel_values(int(index), CLEAN, 0.0) for index in chosen])

    return pixels


def _open(
    args: Namespace, location: str, artifact: Artifact, *, severities: tuple[float, ...]
) -> ImageData:
    """The data set at a location."""
    return open_data(
        location,
        artifact.manifest.labels,
        domains=args.domains,
        severities=severities,
        class_file=args.classes,
        image_list=args.image_list,
    )


def _maker(args: Namespace, session: Session, data: ImageData) -> FeatureMaker:
    manifest = session.artifact.manifest
    weight, _ = require_head(session.artifact, what="gain-eval")
    cache = FeatureCache(
        folder=args.cache or default_cache_dir(),
        feature_dim=weight.shape[1],
        num_classes=manifest.num_classes,
    )
    return FeatureMaker(session=session, data=data, cache=cache, normalise=args.normalise)


def _domains(args: Namespace, data: ImageData) -> tuple[str, ...]:
    """The domains of the stream, in order."""
    if args.domains is not None:
        return tuple(args.domains)
    return data.domains if data.domains is not None else CORRUPTIONS


def _views(
    maker: FeatureMaker, domain: str, severity: float, *, count: int, on_images: OnImages | None
) -> tuple[Outputs, ...]:
    """The outputs of all views of one domain."""
    on_rows = None
    if on_images is not None:
        title = f"features of {domain}, severity {severity:g}"
        on_rows = on_images(title, count * len(maker.data.labels))
    return tuple(
        maker.outputs(domain, severity, view=view, on_rows=on_rows) for view in range(count)
    )


def _recorded(
    args: Namespace, maker: FeatureMaker, on_images: OnImages | None
) -> tuple[dict[tuple[str, float], tuple[Outputs, ...]], tuple[str, ...]]:
    """Frames as they were recorded: every condition looks its frames up in the same outputs."""
    if maker.data.recorded is None:
        raise ConfigError(f"{args.data}: --stream recorded is for test:// sources only")
    if args.views != 1 or args.domains is not None or args.order not in (None, "list"):
        raise ConfigError(
            "--stream recorded: shows each frame once, in order; drop --views, "
            "--domains and --order"
        )
    views = _views(maker, CLEAN, 0.0, count=1, on_images=on_images)
    conditions = tuple(dict.fromkeys(maker.data.recorded))
    return {(name, ANY_SEVERITY): views for name in conditions}, conditions


def _recorded_domains(data: ImageData, conditions: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Index of each frame's condition."""
    assert data.recorded is not None
    return np.asarray([conditions.index(name) for name in data.recorded], dtype=np.int64)


def _clean_features(
    args: Namespace, maker: FeatureMaker, on_images: OnImages | None
) -> Floats | None:
    """Features of clean images, where a method needs them and there are some."""
    specs = [parse_method(text) for text in args.methods]
    if not any(spec.name == FOA_SHIFT or spec.options.get("measured") is True for spec in specs):
        return None
    clean_maker = _clean_maker(args, maker)
    if clean_maker is None:
        return None
    (clean,) = _views(clean_maker, CLEAN, 0.0, count=1, on_images=on_images)
    return clean.features


def _clean_maker(args: Namespace, maker: FeatureMaker) -> FeatureMaker | None:
    """The maker for uncorrupted images: of --source-data, or of the data itself."""
    if args.source_data is None:
        return maker if maker.data.domains is None else None
    labels = maker.session.artifact.manifest.labels
    data = open_data(args.source_data, labels, class_file=args.classes)
    if data.domains is not None:
        raise ConfigError(f"{args.source_data}: expected clean images, got a corrupted tree")
    return FeatureMaker(
        session=maker.session, data=data, cache=maker.cache, normalise=maker.normalise
    )


def _subset(
    choice: str, labels: npt.NDArray[np.int64], num_classes: int
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64]]:
    """Columns of the classes with images, and the labels among them."""
    present = np.unique(labels)
    if choice == "all" or len(present) == num_classes:
        return None, labels
    if len(present) < 2:
        raise ConfigError("--class-subset present: expected images of at least two classes")
    return present, np.searchsorted(present, labels).astype(np.int64)


def _record(
    args: Namespace, artifact: Artifact, data: ImageData, *, num_classes: int
) -> dict[str, object]:
    """Model and data as plain values."""
    manifest = artifact.manifest
    return {
        "model": {
            "kind": "artifact",
            "path": args.model,
            "sha256": artifact.sha256,
            "source": manifest.source,
            "weights_sha256": manifest.weights_sha256,
            "num_classes": num_classes,
            "feature_dim": manifest.feature_dim,
            "normalise": args.normalise,
        },
        "data": {
            "kind": data.kind,
            "path": args.data,
            "images": len(data.labels),
            "views": args.views,
            "classes_present": len(np.unique(data.labels)),
            "class_subset": args.class_subset,
            "corruption_seed": 0 if data.domains is None else None,
        },
    }

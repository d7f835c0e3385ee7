"""An artifact run over a data set, as the input of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.datasets import open_data
from gain_apps.evaluation.eval_input import (
    ANY_SEVERITY,
    EvalInput,
    FeatureStore,
    InputSettings,
    OnImages,
    Outputs,
    PixelLoader,
)
from gain_apps.evaluation.feature_dump import measured_head, noise_deviation
from gain_apps.evaluation.features import FeatureCache, FeatureMaker, default_cache_dir
from gain_apps.evaluation.image_data import CLEAN, ImageData
from gain_apps.evaluation.methods.protocol import Floats
from gain_apps.evaluation.methods.torch_network import SourcePixels, TorchNetwork, timm_network
from gain_core.errors import ConfigError
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.sessions.session import Session, open_session
from gain_scenes.corruptions import CORRUPTIONS

__all__ = ["open_images"]


def open_images(
    model: str | Path,
    locations: Sequence[str],
    settings: InputSettings,
    /,
    *,
    recorded: bool,
    on_images: OnImages | None = None,
) -> EvalInput:
    """Open artifact and data and make sure that all features are there.

    Parameters
    ----------
    model : str or Path
    locations : sequence of str
        One data set, or recordings.
    settings : InputSettings
    recorded : bool
        See `open_input`.
    on_images : callable, optional
        See `open_input`.

    Returns
    -------
    EvalInput

    Raises
    ------
    ConfigError, ArtifactError, StreamError, NumericsError, BackendUnavailableError, EngineError
        If model, data or cache are missing, damaged or do not fit each other.
    """
    artifact = load_artifact(model)
    if len(locations) > 1 and not recorded:
        raise ConfigError(f"{locations[1]}: several data sets are for --stream recorded only")
    sets = [_open(settings, location, artifact) for location in locations]
    data = sets[0]
    with open_session(
        artifact, device=settings.device, num_threads=settings.num_threads
    ) as session:
        makers = [_maker(settings, session, each) for each in sets]
        if recorded:
            outputs, domains = _recorded(settings, makers, on_images)
        else:
            domains = _domains(settings, data)
            outputs = {
                (domain, ANY_SEVERITY if domain == CLEAN else severity): _views(
                    makers[0], domain, severity, count=settings.views, on_images=on_images
                )
                for domain in domains
                for severity in settings.severities
            }
        clean = _clean_features(settings, makers[0], recorded=recorded, on_images=on_images)
    labels = np.tile(np.concatenate([each.labels for each in sets]), settings.views)
    columns, labels = _subset(settings.class_subset, labels, artifact.manifest.num_classes)
    rows = slice(None) if columns is None else columns
    weight, bias = _head(artifact)
    head = measured_head(
        weight[rows],
        bias[rows],
        clean=clean,
        skewness=artifact.skewness if columns is None else None,
        logits_only=artifact.head_weight is None,
    )
    names = [name for each in sets for name in each.recorded or ()]
    return EvalInput(
        store=FeatureStore(
            head=head,
            labels=labels,
            domains=domains,
            outputs=outputs,
            columns=columns,
            pixels=_pixels(makers[0], recorded=recorded) if len(sets) == 1 else None,
            deviation=noise_deviation(clean),
        ),
        network=_network(settings, artifact, columns, source=_source_pixels(settings, makers[0])),
        record=_record(settings, artifact, sets, num_classes=len(head.bias)),
        default_order=data.default_order,
        single_severity=False,
        recorded=np.array([domains.index(name) for name in names]) if recorded else None,
        recordings=tuple(len(each.labels) for each in sets),
    )


def _pixels(maker: FeatureMaker, *, recorded: bool) -> PixelLoader:
    """Pixel values on demand; a recording's conditions are names of clean images only."""

    def pixels(index: int, domain: str, severity: float, *, view: int) -> npt.NDArray[np.float32]:
        shown = CLEAN if recorded else domain
        return maker.pixel_values(index, shown, severity, view=view)

    return pixels


def _network(
    settings: InputSettings,
    artifact: Artifact,
    columns: npt.NDArray[np.int64] | None,
    *,
    source: SourcePixels | None,
) -> Callable[[], TorchNetwork] | None:
    """The network in torch, where it was named."""
    if settings.torch is None:
        return None
    make = timm_network(*settings.torch, artifact.manifest.num_classes)
    return lambda: TorchNetwork(make, columns=columns, source=source)


def _source_pixels(settings: InputSettings, maker: FeatureMaker) -> SourcePixels | None:
    """Pixel values of uncorrupted images spread over the data, where there are some."""
    clean = _clean_maker(settings, maker)
    if clean is None:
        return None

    def pixels(count: int) -> npt.NDArray[np.float32]:
        total = len(clean.data.labels)
        chosen = np.linspace(0, total - 1, min(count, total)).astype(int)
        return np.stack([clean.pixel_values(int(index), CLEAN, 0.0) for index in chosen])

    return pixels


def _open(settings: InputSettings, location: str, artifact: Artifact) -> ImageData:
    """The data set at a location."""
    return open_data(
        location,
        artifact.manifest.labels,
        domains=settings.domains,
        severities=settings.severities,
        class_file=settings.class_file,
        image_list=settings.image_list,
        seed=0,
        cache=settings.cache,
    )


def _head(artifact: Artifact) -> tuple[Floats, Floats]:
    """The head; where there are logits only they take the place of features, and it is 1."""
    if artifact.head_weight is None or artifact.head_bias is None:
        num_classes = artifact.manifest.num_classes
        return np.eye(num_classes, dtype=np.float32), np.zeros(num_classes, dtype=np.float32)
    return artifact.head_weight, artifact.head_bias


def _maker(settings: InputSettings, session: Session, data: ImageData) -> FeatureMaker:
    manifest = session.artifact.manifest
    cache = FeatureCache(
        folder=settings.cache or default_cache_dir(),
        feature_dim=_head(session.artifact)[0].shape[1],
        num_classes=manifest.num_classes,
    )
    return FeatureMaker(session=session, data=data, cache=cache, normalise=settings.normalise)


def _domains(settings: InputSettings, data: ImageData) -> tuple[str, ...]:
    """The domains of the stream, in order."""
    if settings.domains is not None:
        return tuple(settings.domains)
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
    settings: InputSettings, makers: Sequence[FeatureMaker], on_images: OnImages | None
) -> tuple[dict[tuple[str, float], tuple[Outputs, ...]], tuple[str, ...]]:
    """Frames as they were recorded: every condition looks its frames up in the same outputs."""
    for maker in makers:
        if maker.data.recorded is None:
            raise ConfigError(f"{maker.data.path}: --stream recorded is for test:// sources only")
    if settings.views != 1 or settings.domains is not None:
        raise ConfigError(
            "--stream recorded: shows each frame once, in order; drop --set views and --domains"
        )
    made = [_views(maker, CLEAN, 0.0, count=1, on_images=on_images)[0] for maker in makers]
    outputs = made[0]
    if len(made) > 1:
        features = np.concatenate([each.features for each in made])
        logits = np.concatenate([each.logits for each in made if each.logits is not None])
        outputs = Outputs(features=features, logits=logits)
    names = [name for maker in makers for name in maker.data.recorded or ()]
    conditions = tuple(dict.fromkeys(names))
    return {(name, ANY_SEVERITY): (outputs,) for name in conditions}, conditions


def _clean_features(
    settings: InputSettings, maker: FeatureMaker, *, recorded: bool, on_images: OnImages | None
) -> Floats | None:
    """Features of clean images, where there are some; those of a recording are of any weather."""
    clean_maker = _clean_maker(settings, maker)
    if clean_maker is None or (recorded and clean_maker is maker):
        return None
    (clean,) = _views(clean_maker, CLEAN, 0.0, count=1, on_images=on_images)
    return clean.features


def _clean_maker(settings: InputSettings, maker: FeatureMaker) -> FeatureMaker | None:
    """The maker for uncorrupted images: of --source-images, or of the data itself."""
    if settings.source_images is None:
        return maker if maker.data.domains is None else None
    labels = maker.session.artifact.manifest.labels
    data = open_data(
        settings.source_images, labels, class_file=settings.class_file, cache=settings.cache
    )
    if data.domains is not None:
        raise ConfigError(f"{settings.source_images}: expected clean images, got a corrupted tree")
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
        raise ConfigError("--set class-subset=present: expected images of at least two classes")
    return present, np.searchsorted(present, labels).astype(np.int64)


def _record(
    settings: InputSettings, artifact: Artifact, sets: Sequence[ImageData], *, num_classes: int
) -> dict[str, object]:
    """Model and data as plain values."""
    manifest, data = artifact.manifest, sets[0]
    return {
        "model": {
            "kind": "artifact",
            "path": str(artifact.path),
            "sha256": artifact.sha256,
            "source": manifest.source,
            "weights_sha256": manifest.weights_sha256,
            "num_classes": num_classes,
            "feature_dim": manifest.feature_dim,
            "normalise": settings.normalise,
        },
        "data": {
            "kind": data.kind,
            "path": ", ".join(each.path for each in sets),
            "images": sum(len(each.labels) for each in sets),
            "views": settings.views,
            "classes_present": len(np.unique(data.labels)),
            "class_subset": settings.class_subset,
            "corruption_seed": 0 if data.domains is None else None,
        },
    }

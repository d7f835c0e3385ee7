"""An artifact run over a data set, as the input of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
from gain_apps.evaluation.executor import ONE_BLAS_THREAD, Executor
from gain_apps.evaluation.feature_dump import measured_head, noise_deviation
from gain_apps.evaluation.features import FeatureCache, FeatureMaker, cache_folder
from gain_apps.evaluation.image_data import CLEAN, ImageData
from gain_apps.evaluation.methods.protocol import Floats, SourcePixels, TorchNetwork, timm_network
from gain_core.errors import ConfigError
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.sessions.session import Session
from gain_scenes.corruptions import CORRUPTIONS


def open_images(
    model: str | Path,
    locations: Sequence[str],
    settings: InputSettings,
    /,
    *,
    recorded: bool,
    executor: Executor,
    on_images: OnImages | None = None,
) -> EvalInput:
    """Open artifact and data, a data set or recordings, and see to it that all features are there.

    Raises `ConfigError`, `ArtifactError`, `StreamError`, `NumericsError`, `BackendUnavailableError`
    or `EngineError` if model, data or cache are missing, damaged or do not fit each other.
    """
    artifact = load_artifact(model)
    if len(locations) > 1 and not recorded:
        raise ConfigError(f"{locations[1]}: several data sets are for --stream recorded only")
    with executor.open_network(artifact, settings) as session:
        work = _Work(settings, executor, on_images)
        makers = [open_maker(settings, location, session) for location in locations]
        sets = [maker.data for maker in makers]
        data = sets[0]
        clean_maker = _clean_maker(settings, makers[0])
        # Corrupted on the way, the data have clean images: made in one go with the others.
        own = not recorded and clean_maker is makers[0]
        if recorded:
            outputs, domains = _recorded(work, makers)
        else:
            named = data.domains if settings.domains is None else settings.domains
            domains = CORRUPTIONS if named is None else tuple(named)
            wanted = [(domain, severity) for domain in domains for severity in settings.severities]
            found = _views(work, makers[0], wanted, with_clean=own)
            outputs = {
                (domain, ANY_SEVERITY if domain == CLEAN else severity): views
                for (domain, severity), views in zip(wanted, found, strict=False)
            }
        clean = None
        if own:
            clean = found[-1][0].features
        elif clean_maker is not None and settings.source_images is not None:
            only_one = work._replace(settings=replace(settings, views=1))
            clean = _views(only_one, clean_maker, [(CLEAN, 0.0)])[0][0].features
    labels = np.tile(np.concatenate([each.labels for each in sets]), settings.views)
    columns, labels = _subset(settings.class_subset, labels, artifact.manifest.num_classes)
    rows = slice(None) if columns is None else columns
    weight, bias = _head(artifact)
    head = ONE_BLAS_THREAD(measured_head)(
        weight[rows],
        bias[rows],
        clean=clean,
        measured=artifact.measured if columns is None else None,
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
        network=_network(settings, artifact, columns, source=_source_pixels(clean_maker)),
        record=_record(settings, artifact, sets, num_classes=len(head.bias)),
        default_order=data.default_order,
        single_severity=False,
        recorded=np.array([domains.index(name) for name in names]) if recorded else None,
        recordings=tuple(len(each.labels) for each in sets),
    )


class _Work(NamedTuple):
    """How features are computed, and who is told of it."""

    settings: InputSettings
    executor: Executor
    on_images: OnImages | None


def _pixels(maker: FeatureMaker, *, recorded: bool) -> PixelLoader:
    """Pixel values on demand; a recording's conditions are names of clean images only."""

    def pixels(index: int, domain: str, severity: float, view: int) -> npt.NDArray[np.float32]:
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


def _source_pixels(clean: FeatureMaker | None) -> SourcePixels | None:
    """Pixel values of uncorrupted images spread over the data, where there are some."""
    if clean is None:
        return None

    def pixels(count: int) -> npt.NDArray[np.float32]:
        total = len(clean.data.labels)
        chosen = np.linspace(0, total - 1, min(count, total)).astype(int)
        return np.stack([clean.pixel_values(int(index), CLEAN, 0.0) for index in chosen])

    return pixels


def open_maker(settings: InputSettings, location: str, session: Session, /) -> FeatureMaker:
    """What makes the features of the data set at a location; raises as `open_data`."""
    manifest = session.artifact.manifest
    data = open_data(
        location,
        manifest.labels,
        domains=settings.domains,
        severities=settings.severities,
        class_file=settings.class_file,
        image_list=settings.image_list,
        cache=cache_folder(settings.cache),
    )
    cache = FeatureCache(
        folder=cache_folder(settings.cache),
        feature_dim=_head(session.artifact)[0].shape[1],
        num_classes=manifest.num_classes,
    )
    return FeatureMaker(session=session, data=data, cache=cache, normalise=settings.normalise)


def _head(artifact: Artifact) -> tuple[Floats, Floats]:
    """The head; where there are logits only they take the place of features, and it is 1."""
    if artifact.head_weight is None or artifact.head_bias is None:
        num_classes = artifact.manifest.num_classes
        return np.eye(num_classes, dtype=np.float32), np.zeros(num_classes, dtype=np.float32)
    return artifact.head_weight, artifact.head_bias


def _views(
    work: _Work,
    maker: FeatureMaker,
    wanted: Sequence[tuple[str, float]],
    *,
    with_clean: bool = False,
) -> list[tuple[Outputs, ...]]:
    """The outputs of all views of some domains at some severities, and one of clean images last."""
    each = [(domain, severity, work.settings.views) for domain, severity in wanted]
    each += [(CLEAN, 0.0, 1)] if with_clean else []
    cells = [
        maker.cell(domain, severity, view=view)
        for domain, severity, count in each
        for view in range(count)
    ]
    compute = work.executor.rows(maker, tuple(dict.fromkeys(cells)), work.settings)
    found = []
    for domain, severity, count in each:
        on_rows = None
        if work.on_images is not None:
            title = f"features of {domain}, severity {severity:g}"
            on_rows = work.on_images(title, count * len(maker.data.labels))
        found.append(
            tuple(
                maker.outputs(domain, severity, view=view, on_rows=on_rows, compute=compute)
                for view in range(count)
            )
        )
    return found


def _recorded(
    work: _Work, makers: Sequence[FeatureMaker]
) -> tuple[dict[tuple[str, float], tuple[Outputs, ...]], tuple[str, ...]]:
    """Frames as they were recorded: every condition looks its frames up in the same outputs."""
    for maker in makers:
        if maker.data.recorded is None:
            raise ConfigError(f"{maker.data.path}: --stream recorded is for test:// sources only")
    if work.settings.views != 1 or work.settings.domains is not None:
        raise ConfigError(
            "--stream recorded: shows each frame once, in order; drop --set views and --domains"
        )
    made = [_views(work, maker, [(CLEAN, 0.0)])[0][0] for maker in makers]
    outputs = made[0]
    if len(made) > 1:
        features = np.concatenate([each.features for each in made])
        logits = np.concatenate([each.logits for each in made if each.logits is not None])
        name = " ".join(each.name for each in made)
        outputs = Outputs(features=features, logits=logits, name=name)
    names = [name for maker in makers for name in maker.data.recorded or ()]
    conditions = tuple(dict.fromkeys(names))
    return {(name, ANY_SEVERITY): (outputs,) for name in conditions}, conditions


def _clean_maker(settings: InputSettings, maker: FeatureMaker) -> FeatureMaker | None:
    """The maker for uncorrupted images: of --source-images, or of the data itself."""
    if settings.source_images is None:
        return maker if maker.data.domains is None else None
    plain = replace(settings, domains=None, image_list=None)
    clean = open_maker(plain, settings.source_images, maker.session)
    if clean.data.domains is not None:
        raise ConfigError(f"{settings.source_images}: expected clean images, got a corrupted tree")
    return clean


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

"""The frames of a run: a source, with true classes and corruptions laid over it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from gain_apps.app_sources import app_schemes
from gain_apps.corrupting_source import CorruptingSource, Stretch, parse_schedule
from gain_apps.stream_config import NO_TRUTH, StreamConfig
from gain_apps.truth import TruthSource, read_truth
from gain_core.errors import ConfigError, GainError
from gain_runtime.class_list import ClassList
from gain_runtime.engine import EngineArtifact
from gain_runtime.frame import FrameSource
from gain_runtime.image_source import ImageSource, open_images
from gain_runtime.reconnecting_source import ConnectionWatch
from gain_runtime.sources import open_source

__all__ = ["open_input"]


def open_input(
    config: StreamConfig, artifact: EngineArtifact, /, *, watch: ConnectionWatch | None = None
) -> FrameSource:
    """Open the source with truth and corruption laid over it.

    Parameters
    ----------
    config : StreamConfig
    artifact : EngineArtifact
        Its number of classes bounds the truth.
    watch : ConnectionWatch, optional
        Is told how the connection to a live source stands.

    Returns
    -------
    FrameSource
        Open.

    Raises
    ------
    ConfigError
        If the settings do not fit the source or each other.
    StreamError, ArtifactError
        If the source or the truth file cannot be read.
    """
    num_classes = artifact.manifest.num_classes
    schedule = None if config.corrupt is None else parse_schedule(config.corrupt)
    truth = (
        None
        if config.truth in (None, NO_TRUTH)
        else read_truth(str(config.truth), num_classes=num_classes)
    )
    classes = truth if isinstance(truth, ClassList) else None
    # What the user says of the truth wins; a file beside the photos may be of another label set.
    own_classes = config.truth is None
    source: FrameSource
    if config.photos:
        source = open_images(
            [Path(photo) for photo in config.photos],
            classes=classes,
            own_classes=own_classes,
            shuffle_seed=config.seed if config.shuffle else None,
        )
    else:
        source = open_source(
            config.input,
            schemes=app_schemes(),
            seed=config.seed,
            shuffle=config.shuffle,
            classes=classes,
            own_classes=own_classes,
            camera=config.camera_request(),
            patience_s=math.inf if config.reconnect is None else config.reconnect,
            hwaccel=config.hwaccel,
            watch=watch,
        )
    try:
        return _dressed(source, truth, schedule, config=config, num_classes=num_classes)
    except GainError:
        source.close()
        raise


def _dressed(
    source: FrameSource,
    truth: ClassList | Mapping[str, int] | None,
    schedule: tuple[Stretch, ...] | None,
    *,
    config: StreamConfig,
    num_classes: int,
) -> FrameSource:
    """Check the open source against the settings and wrap it."""
    info = source.info
    if config.shuffle and not isinstance(source, ImageSource):
        raise ConfigError(
            f"--shuffle: expected photos as INPUT, got {info.source_id}; leave it out"
        )
    if info.live and config.batch > 1:
        raise ConfigError(
            f"--batch {config.batch}: a live source would wait for its own frames; use "
            f"--update-every {config.batch}, which answers at once and learns in batches"
        )
    names = info.class_names
    if names is not None and len(names) > num_classes and config.truth != NO_TRUTH:
        raise ConfigError(
            f"truth of {info.source_id}: expected at most {num_classes} classes (the artifact's), "
            f"got {len(names)}; pass --truth FILE, or --truth none to run without"
        )
    if config.truth == NO_TRUTH:
        source = TruthSource(source)
    elif truth is not None and not isinstance(truth, ClassList):
        source = TruthSource(source, table=truth)
    if schedule is not None:
        source = CorruptingSource(source, schedule, max_frames=config.max_frames, seed=config.seed)
    return source

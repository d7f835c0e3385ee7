"""The source of a run: opened, corrupted, reconnecting, with true classes where known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gain_apps.streaming.config import NO_TRUTH, StreamConfig
from gain_core.errors import ArtifactError, ConfigError, GainError
from gain_runtime.engine import EngineArtifact
from gain_runtime.frames import Frame, FrameSource, WrappingSource
from gain_runtime.sources.images import (
    COLUMNS,
    ClassList,
    ImageSource,
    open_images,
    read_class_list,
)
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.reconnecting import ConnectionWatch
from gain_scenes.sources import CorruptingSource, Stretch, app_schemes, parse_schedule

NameTable = Mapping[str, int]


class TruthSource(WrappingSource):
    """Another source's frames with `truth` looked up by file name, or taken away.

    `table` maps a file name, with or without its folders, to a class index; None removes every
    truth. The source is owned: closing this closes it.
    """

    def __init__(self, source: FrameSource, /, *, table: NameTable | None = None) -> None:
        super().__init__(source)
        self._table: NameTable = {} if table is None else table

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._source:
            truth = self._table.get(frame.source_id)
            if truth is None:
                truth = self._table.get(Path(frame.source_id).name)
            yield replace(frame, truth=truth)


def _read_truth(path: str | Path, /, *, num_classes: int) -> ClassList | NameTable:
    """Read a `truth` file and check that its classes are the artifact's."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        reason = getattr(err, "strerror", None) or "it is no UTF-8 text"
        raise ArtifactError(
            f"--set truth={path}: cannot be read ({reason}); check the path"
        ) from err
    header = lines[0].split("\t") if lines else []
    if set(COLUMNS) <= set(header):
        classes = read_class_list(path)
        _check_range(max(classes.names), num_classes, where=f"--set truth={path}")
        return classes
    table: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"--set truth={path}, line {number}"
        name, tab, index = line.rpartition("\t")
        if not tab or not name or not (index.isascii() and index.strip().isdigit()):
            raise ArtifactError(
                f"{where}: expected 'file name<TAB>class index', got {line!r}; "
                f"or a class list with the columns {', '.join(COLUMNS)}"
            )
        _check_range(int(index), num_classes, where=where)
        table[name] = int(index)
    if not table:
        raise ArtifactError(f"--set truth={path}: expected at least one line, got none")
    return table


def check_truth(frame: Frame, num_classes: int, /) -> None:
    """ConfigError if a truth the source found by itself is none of the artifact's classes."""
    if frame.truth is not None and frame.truth >= num_classes:
        raise ConfigError(
            f"truth of {frame.source_id}: expected a class below {num_classes} (the artifact's "
            f"number), got {frame.truth}; it is of another label set: pass --set truth=FILE, or "
            "--set truth=none to run without"
        )


def _check_range(index: int, num_classes: int, *, where: str) -> None:
    if index >= num_classes:
        raise ConfigError(
            f"{where}: expected class indices below {num_classes} (the artifact's number of "
            f"classes), got {index}; it belongs to another label set"
        )


def open_input(
    config: StreamConfig, artifact: EngineArtifact, /, *, watch: ConnectionWatch | None = None
) -> FrameSource:
    """Open the source with truth and corruption laid over it.

    `watch` is told how the connection to a live source stands. ConfigError if the settings do not
    fit the source or each other; StreamError or ArtifactError if the source or the truth file
    cannot be read.
    """
    num_classes = artifact.manifest.num_classes
    schedule = None if config.corrupt is None else parse_schedule(config.corrupt)
    truth = (
        None
        if config.truth in (None, NO_TRUTH)
        else _read_truth(str(config.truth), num_classes=num_classes)
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
    if info.live and config.batch_size > 1:
        raise ConfigError(
            f"--batch-size {config.batch_size}: a live source would wait for its own frames; use "
            f"--update-every {config.batch_size}, which answers at once and learns in batches"
        )
    names = info.class_names
    if names is not None and len(names) > num_classes and config.truth != NO_TRUTH:
        raise ConfigError(
            f"truth of {info.source_id}: expected at most {num_classes} classes (the artifact's), "
            f"got {len(names)}; pass --set truth=FILE, or --set truth=none to run without"
        )
    if config.truth == NO_TRUTH:
        source = TruthSource(source)
    elif truth is not None and not isinstance(truth, ClassList):
        source = TruthSource(source, table=truth)
    if schedule is not None:
        source = CorruptingSource(source, schedule, max_frames=config.max_frames, seed=config.seed)
    return source

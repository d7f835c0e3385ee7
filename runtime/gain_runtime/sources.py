"""Opening any source by its URI."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import urlsplit

from gain_core.errors import ConfigError
from gain_runtime.camera_source import CameraRequest, CameraSource
from gain_runtime.class_list import ClassList
from gain_runtime.frame import FrameSource
from gain_runtime.image_file import IMAGE_SUFFIXES
from gain_runtime.image_source import open_folder, open_glob, open_image
from gain_runtime.pattern_source import open_pattern
from gain_runtime.pipe_source import PipeSource
from gain_runtime.reconnecting_source import ConnectionWatch, ReconnectingSource
from gain_runtime.uri import SourceUri, parse_uri
from gain_runtime.video_source import VideoSource

__all__ = ["SourceFactory", "open_source"]

SourceFactory: TypeAlias = Callable[[dict[str, str], int], FrameSource]

# A URL that ends so is a recording: every frame is wanted and its end is no loss of signal.
RECORDING_SUFFIXES = frozenset((".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg"))


def open_source(
    uri: str,
    /,
    *,
    schemes: Mapping[str, SourceFactory] | None = None,
    seed: int = 0,
    shuffle: bool = False,
    classes: ClassList | None = None,
    camera: CameraRequest | None = None,
    patience_s: float = 0.0,
    watch: ConnectionWatch | None = None,
) -> FrameSource:
    """Open a source of frames.

    Parameters
    ----------
    uri : str
        A video file, an image, a folder or glob of images, a camera (`0`, `/dev/video0`,
        `v4l2:///dev/video0`, `csi://0`), a GStreamer pipeline, `rtsp://`, `http(s)://`, `-` for
        JPEGs on standard input, or `test://NAME?key=value`.
    schemes : mapping of str to callable
        More names after `test://`, each with a factory `(params, seed) -> FrameSource`.
    seed : int
        For the factories and for `shuffle`.
    shuffle : bool
        Photos in an order drawn from `seed`; other sources ignore it.
    classes : ClassList or None
        Gives the truth of photos by file or folder name; None uses a `classes.tsv` beside them.
    camera : CameraRequest or None
        What to ask cameras and live streams for.
    patience_s : float
        Seconds for which the lost signal of a camera or live stream is waited for.
    watch : ConnectionWatch or None
        Is told how the connection to it stands.

    Returns
    -------
    FrameSource
        Open; close it or use it as a context manager.

    Raises
    ------
    ConfigError
        If the URI is malformed or names an unknown scheme, test source or parameter.
    StreamError
        If the source is missing, unreadable or yields no frame.
    ArtifactError
        If a `classes.tsv` found beside photos is malformed.
    """
    parsed = parse_uri(uri)
    if parsed.kind == "test":
        return _open_test(parsed, schemes or {}, seed=seed)
    if parsed.kind == "network" and _is_recording(parsed.target):
        return VideoSource(parsed.target)
    if parsed.kind in ("camera", "network", "pipeline"):

        def open_camera() -> FrameSource:
            return CameraSource(
                parsed.target,
                shown=parsed.shown,
                is_pipeline=parsed.kind == "pipeline",
                request=camera,
            )

        if patience_s > 0.0:
            return ReconnectingSource(
                open_camera, patience_s=patience_s, watch=watch, shown=parsed.shown
            )
        return open_camera()
    if parsed.kind == "pipe":
        # Unbuffered: a thread that waits in a buffered read at exit would abort the process.
        return PipeSource(FileIO(sys.stdin.fileno(), closefd=False))
    shuffle_seed = seed if shuffle else None
    if parsed.kind == "glob":
        return open_glob(parsed.target, classes=classes, shuffle_seed=shuffle_seed)
    return _open_path(Path(parsed.target), classes=classes, shuffle_seed=shuffle_seed)


def _open_test(uri: SourceUri, schemes: Mapping[str, SourceFactory], *, seed: int) -> FrameSource:
    factories = {"pattern": open_pattern, **schemes}
    if uri.target not in factories:
        known = ", ".join(f"test://{name}" for name in sorted(factories))
        raise ConfigError(f"{uri.shown}: unknown test source; expected one of {known}")
    return factories[uri.target](dict(uri.params), seed)


def _open_path(path: Path, *, classes: ClassList | None, shuffle_seed: int | None) -> FrameSource:
    if path.is_dir():
        return open_folder(path, classes=classes, shuffle_seed=shuffle_seed)
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return open_image(path, classes=classes)
    return VideoSource(path)


def _is_recording(url: str) -> bool:
    """Whether a URL names a file of finite length."""
    parts = urlsplit(url)
    return (
        parts.scheme.lower() in ("http", "https")
        and PurePosixPath(parts.path).suffix.lower() in RECORDING_SUFFIXES
    )

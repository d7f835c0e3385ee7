"""Opening any source by its URI."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import urlsplit

from gain_core.errors import ConfigError, StreamError
from gain_runtime.files.images import IMAGE_SUFFIXES, RAW_SUFFIXES
from gain_runtime.files.paths import content_of, file_status, read_head
from gain_runtime.frames import FrameSource
from gain_runtime.sources.camera import CameraRequest, CameraSource
from gain_runtime.sources.images import ClassList, open_folder, open_glob, open_images
from gain_runtime.sources.pattern import open_pattern
from gain_runtime.sources.pipe import open_pipe
from gain_runtime.sources.reader import PipeReader
from gain_runtime.sources.reconnecting import ConnectionWatch, ReconnectingSource
from gain_runtime.sources.uri import SourceUri, parse_uri
from gain_runtime.sources.video import NetworkSource, VideoSource

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
    own_classes: bool = True,
    camera: CameraRequest | None = None,
    patience_s: float = 0.0,
    hwaccel: str | None = None,
    watch: ConnectionWatch | None = None,
) -> FrameSource:
    """Open a source of frames.

    Parameters
    ----------
    uri : str
        A video file, an image, a folder or glob of images, a camera (`0`, `/dev/video0`,
        `v4l2:///dev/video0`, `csi://0`), a GStreamer pipeline, `rtsp://`, `http(s)://`, `udp://`
        and others, `-` or a named pipe for JPEGs or a video, or `test://NAME?key=value`.
    schemes : mapping of str to callable
        More names after `test://`, each with a factory `(params, seed) -> FrameSource`.
    seed : int
        For the factories and for `shuffle`.
    shuffle : bool
        Photos in an order drawn from `seed`; other sources ignore it.
    classes : ClassList or None
        Gives the truth of photos by file or folder name.
    own_classes : bool
        Whether a `classes.tsv` beside photos is used where `classes` is None.
    camera : CameraRequest or None
        What to ask cameras and live streams for.
    patience_s : float
        Seconds to wait for the signal of a camera or live stream to return.
    hwaccel : str or None
        FFmpeg's hardware decoder for videos and network streams (`cuda`, `vaapi`,
        `videotoolbox`).
    watch : ConnectionWatch or None
        Called with the state of the connection.

    Returns
    -------
    FrameSource
        Open; close it or use it as a context manager.

    Raises
    ------
    ConfigError
        If the URI is malformed or names an unknown scheme, test source or parameter.
    StreamError
        If the source is missing, unreadable or yields no frame, or `hwaccel` cannot be used.
    ArtifactError
        If a `classes.tsv` found beside photos is malformed.
    """
    parsed = parse_uri(uri)
    if parsed.kind == "test":
        factories = {"pattern": open_pattern, **(schemes or {})}
        if parsed.target not in factories:
            known = ", ".join(f"test://{name}" for name in sorted(factories))
            raise ConfigError(f"{parsed.shown}: unknown test source; expected one of {known}")
        return factories[parsed.target](dict(parsed.params), seed)
    if hwaccel is not None and parsed.kind in ("camera", "pipeline", "glob"):
        raise _no_video(hwaccel, parsed)
    if parsed.kind == "network" and _is_recording(parsed.target):
        return VideoSource(parsed.target, hwaccel=hwaccel)
    if parsed.kind in ("camera", "network", "pipeline"):
        return _open_live(parsed, camera, patience_s=patience_s, hwaccel=hwaccel, watch=watch)
    if parsed.kind == "pipe":
        if sys.stdin is None or sys.stdin.closed:
            raise StreamError("stdin: expected a pipe, but standard input is closed")
        # Unbuffered: a thread that waits in a buffered read at exit would abort the process.
        return open_pipe(PipeReader(sys.stdin.fileno(), shown="stdin"), hwaccel=hwaccel)
    shuffle_seed = seed if shuffle else None
    if parsed.kind == "glob":
        return open_glob(
            parsed.target, classes=classes, own_classes=own_classes, shuffle_seed=shuffle_seed
        )
    path = Path(parsed.target)
    status = file_status(path, error=StreamError)
    is_folder = status is not None and stat.S_ISDIR(status.st_mode)
    if hwaccel is not None and (is_folder or is_picture(path)):
        raise _no_video(hwaccel, parsed)
    if is_folder:
        return open_folder(
            path, classes=classes, own_classes=own_classes, shuffle_seed=shuffle_seed
        )
    if status is not None and stat.S_ISFIFO(status.st_mode):
        return open_pipe(PipeReader.open(path), hwaccel=hwaccel)
    if is_picture(path):
        return open_images([path], classes=classes, own_classes=own_classes)
    return VideoSource(path, hwaccel=hwaccel)


def _no_video(hwaccel: str, parsed: SourceUri) -> ConfigError:
    """What is said where there is nothing to decode by hardware."""
    return ConfigError(
        f"--set hwaccel={hwaccel}: expected a video file or a network stream as INPUT, got "
        f"{parsed.shown}; leave it out"
    )


def is_picture(path: Path, /) -> bool:
    """Whether a file is a picture: by its first bytes, and where they say nothing by its name.

    Raises StreamError if the system does not tell.
    """
    status = file_status(path, error=StreamError)
    if status is None or not stat.S_ISREG(status.st_mode):
        return path.suffix.lower() in IMAGE_SUFFIXES
    content = content_of(read_head(path))
    if content in ("picture", "heif", "raw"):
        return True
    return content != "video" and path.suffix.lower() in IMAGE_SUFFIXES | RAW_SUFFIXES


def _open_live(
    parsed: SourceUri,
    camera: CameraRequest | None,
    *,
    patience_s: float,
    hwaccel: str | None,
    watch: ConnectionWatch | None,
) -> FrameSource:
    """A camera or a network stream, opened again where its signal is waited for."""

    def open_once() -> FrameSource:
        if parsed.kind == "network":
            return NetworkSource(parsed.target, shown=parsed.shown, hwaccel=hwaccel)
        return CameraSource(
            parsed.target,
            shown=parsed.shown,
            is_pipeline=parsed.kind == "pipeline",
            request=camera,
        )

    if patience_s > 0.0:
        return ReconnectingSource(open_once, patience_s=patience_s, watch=watch, shown=parsed.shown)
    return open_once()


def _is_recording(url: str) -> bool:
    """Whether a URL names a file of finite length."""
    parts = urlsplit(url)
    return (
        parts.scheme.lower() in ("http", "https")
        and PurePosixPath(parts.path).suffix.lower() in RECORDING_SUFFIXES
    )

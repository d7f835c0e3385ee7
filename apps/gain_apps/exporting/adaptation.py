"""What gain-export makes for adaptation: the fitness report of clean images, the adaptive file."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from gain_apps.exporting.deployment import precision_target
from gain_apps.exporting.settings import flag, refuse_without
from gain_core import DEFAULT_PRESET, UPDATE_EVERY, Config, preset
from gain_core import WARMUP_FRAMES as WARM_UP
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files.paths import check_output

if TYPE_CHECKING:
    from gain_export.adaptive import AdaptiveReport
    from gain_export.adaptive.triton import TritonBackend

# As gain_scenes.roadsigns.sources has it; spelt out because --help draws no signs.
_SIGNS = "test://signs"


def check_calibration(location: str | None) -> None:
    """Refuse what holds no clean images, before anything is exported.

    Raises ArtifactError if it is a folder that is missing, or in which fewer than two images can be
    read, and ConfigError if it is a test source other than `test://signs`, or a parameter is wrong.
    """
    if location is None:
        return
    if not location.startswith("test://"):
        from gain_export.images import check_clean_images

        check_clean_images(Path(location))
        return
    if location.partition("?")[0] != _SIGNS:
        raise ConfigError(
            f"--calibrate {location}: expected a folder of clean images, or {_SIGNS}, the only "
            "test source of clean ones"
        )
    from gain_runtime.sources.opening import open_source
    from gain_scenes.sources import app_schemes

    open_source(location, schemes=app_schemes()).close()


@contextmanager
def calibration_folder(location: str | None) -> Iterator[Path | None]:
    """The images as a folder; rendered ones lie in it for as long as this is open.

    Raises ArtifactError if the rendered images cannot be written.
    """
    if location is None or not location.startswith("test://"):
        yield None if location is None else Path(location)
        return
    with tempfile.TemporaryDirectory(prefix="gain-export-") as scratch:
        # Its name is what the report calls the images.
        folder = Path(scratch) / "signs"
        _draw(location, folder)
        yield folder


def _draw(uri: str, folder: Path) -> None:
    """Write every frame of a test source as a file without loss."""
    from PIL import Image

    from gain_runtime.sources.opening import open_source
    from gain_scenes.sources import app_schemes

    try:
        folder.mkdir()
        with open_source(uri, schemes=app_schemes()) as source:
            for frame in source:
                path = folder / f"{frame.index:08d}.png"
                Image.fromarray(frame.image).save(path, compress_level=1)
    except OSError as err:
        if isinstance(err, ArtifactError):
            raise
        raise ArtifactError(
            f"{folder}: the images of {uri} cannot be written ({err.strerror or err}); free some "
            "space or name another folder in TMPDIR"
        ) from err


_NEEDS_ADAPTIVE = ("preset", "update_every", "warm_up", "features_only")
_NEEDS_ARTIFACT = ("output", "precision", "engine", "calibrate")


def add_adaptive_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the flag."""
    group.add_argument(
        "--adaptive",
        action="store_true",
        help="write NAME.adaptive.onnx too: the network with GAIN's step behind it, its state as "
        "inputs and outputs (docs/reference/adaptive-file.md); of an artifact, write only that",
    )
    group.add_argument(
        "--triton",
        type=Path,
        metavar="DIR",
        help="write the adaptive file into a model repository of NVIDIA's Triton, a sequence for "
        "each camera (docs/how-to/grow.md); of an adaptive file, only that",
    )


def check_adaptive_arguments(args: argparse.Namespace) -> None:
    """Refuse what cannot be written, before anything is exported.

    Raises ArtifactError if the adaptive file or the repository's model exists and --force is not
    given, or is something else; ConfigError if a flag needs --adaptive, --triton or an adaptive
    file, is out of its range or names no preset.
    """
    if args.triton is not None:
        _check_triton(args)
    else:
        refuse_without("--triton", args, ["triton_backend"])
    if not args.adaptive:
        refuse_without("--adaptive", args, _NEEDS_ADAPTIVE)
        return
    _settings(args)
    check_output(_target(args), force=args.force)


def check_adaptive_source(args: argparse.Namespace) -> None:
    """Refuse an artifact that cannot be made adaptive, before anything is done with it."""
    from gain_export.adaptive import check_adaptable

    check_adaptable(args.target, **_settings(args))


def write_adaptive(args: argparse.Namespace, artifact_path: Path, /) -> AdaptiveReport:
    """Write the adaptive file beside an artifact; raises as `add_adaptation`."""
    from gain_export.adaptive import adaptive_path, add_adaptation

    return add_adaptation(artifact_path, adaptive_path(artifact_path), **_settings(args))


def write_triton_model(args: argparse.Namespace, adaptive: AdaptiveReport | None, /) -> Path | None:
    """Write the model for Triton if wanted, of the adaptive file that was written or named."""
    if args.triton is None:
        return None
    from gain_export.adaptive import write_triton

    path = args.target if adaptive is None else adaptive.path
    backend: TritonBackend = args.triton_backend or "onnxruntime"
    return write_triton(path, args.triton, backend=backend, force=args.force)


def _check_triton(args: argparse.Namespace) -> None:
    """There is an adaptive file, or will be, and the repository can take it."""
    from gain_export.adaptive import check_triton
    from gain_runtime.files.adaptive import is_adaptive

    path = args.target
    if args.adaptive:
        path = _target(args)
    elif not is_adaptive(path):
        raise ConfigError(f"--triton: expected an adaptive file, got {path}; add --adaptive")
    else:
        for name in _NEEDS_ARTIFACT:
            if getattr(args, name):
                raise ConfigError(f"--{name}: has no effect on an adaptive file; leave it out")
    check_triton(path, args.triton, force=args.force)


class _Settings(TypedDict):
    """What is baked in, by `add_adaptation`'s names."""

    config: Config
    update_every: int
    warmup_frames: int
    features_only: bool


def _settings(args: argparse.Namespace) -> _Settings:
    """The settings that were asked for."""
    from gain_export.adaptive import check_waiting

    config = preset(args.preset or DEFAULT_PRESET)
    update_every = UPDATE_EVERY if args.update_every is None else args.update_every
    warmup_frames = WARM_UP if args.warm_up is None else args.warm_up
    check_waiting(flag("update_every"), update_every)
    check_waiting(flag("warm_up"), warmup_frames)
    return {
        "config": config,
        "update_every": update_every,
        "warmup_frames": warmup_frames,
        "features_only": bool(args.features_only),
    }


def _target(args: argparse.Namespace) -> Path:
    """Where --adaptive writes: beside the lower precision where one is wanted."""
    from gain_export.adaptive import adaptive_path

    if args.precision in (None, "fp32"):
        return adaptive_path(args.output or args.target)
    return adaptive_path(precision_target(args))

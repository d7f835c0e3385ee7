"""The clean images that gain-export --calibrate is given: a folder, or rendered road signs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gain_core.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from gain_runtime.files.manifest import Fitness

__all__ = [
    "calibration_folder",
    "check_calibration",
    "write_fitness",
]

# As gain_scenes.roadsigns.sources has it; spelt out because --help draws no signs.
_SIGNS = "test://signs"


def check_calibration(location: str | None) -> None:
    """Refuse what holds no clean images, before anything is exported.

    Raises
    ------
    ArtifactError
        If it is a folder that is missing, or in which fewer than two images can be read.
    ConfigError
        If it is a test source other than `test://signs`, or a parameter of that is wrong.
    """
    if location is None:
        return
    if not location.startswith("test://"):
        from gain_export.source_statistics import check_clean_images

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

    Parameters
    ----------
    location : str or None
        A folder, `test://signs`, or None for no images.

    Yields
    ------
    Path or None

    Raises
    ------
    ArtifactError
        If the rendered images cannot be written.
    """
    if location is None or not location.startswith("test://"):
        yield None if location is None else Path(location)
        return
    with tempfile.TemporaryDirectory(prefix="gain-export-") as scratch:
        # Its name is what the report calls the images.
        folder = Path(scratch) / "signs"
        _draw(location, folder)
        yield folder


def write_fitness(artifact_path: Path, images: Path, /) -> Fitness:
    """Write the fitness report into an artifact.

    Raises
    ------
    ArtifactError, EngineError
        As `gain_export.source_statistics.add_fitness`.
    """
    from gain_export.source_statistics import add_fitness

    return add_fitness(artifact_path, images)


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

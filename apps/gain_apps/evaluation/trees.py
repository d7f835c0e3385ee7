"""Corrupted images on disk: ImageNet-C and ImageNet-3DCC, `DOMAIN/SEVERITY/CLASS/FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from gain_apps.corruptions import CORRUPTIONS
from gain_apps.evaluation.class_names import ClassNames
from gain_apps.evaluation.image_data import Image, ImageData, files_fingerprint, image_files
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.file_kind import is_folder
from gain_runtime.image_file import load_image

__all__ = ["DOMAINS_3DCC", "is_tree", "open_tree"]

# The order in which ImageNet-3DCC's domains are streamed.
DOMAINS_3DCC = (
    "near_focus",
    "far_focus",
    "color_quant",
    "iso_noise",
    "low_light",
    "flash",
    "fog_3d",
    "bit_error",
    "h265_abr",
    "h265_crf",
    "xy_motion_blur",
    "z_motion_blur",
)
SEVERITIES = ("1", "2", "3", "4", "5")
SHOWN = 3


def is_tree(root: Path, /) -> bool:
    """Whether a folder has subfolders that have severities as subfolders."""
    return any(is_folder(folder / level) for folder in _folders(root) for level in SEVERITIES)


def open_tree(
    root: Path,
    names: ClassNames,
    /,
    *,
    domains: Sequence[str] | None,
    severities: Sequence[float],
    image_list: Path | None = None,
) -> ImageData:
    """A tree of corrupted images.

    Parameters
    ----------
    root : Path
    names : ClassNames
    domains : sequence of str, optional
        By default ImageNet-C's fifteen or 3DCC's twelve, in their usual order, whichever the tree
        has one of; all of them must be there.
    severities : sequence of float
        Whole numbers from 1 to 5; all of them must be there.
    image_list : Path, optional
        `CLASS/FILE`, one a line, in the order of the stream; what follows a space or a comma is
        ignored. By default the files of the first domain, sorted.

    Returns
    -------
    ImageData

    Raises
    ------
    ArtifactError
        If a domain, a severity or an image is missing: the message says which.
    ConfigError
        If a severity is not among those that trees have.
    """
    wanted = tuple(domains) if domains is not None else _usual_domains(root)
    levels = [_level(severity) for severity in severities]
    cells = [(domain, level) for domain in wanted for level in levels]
    missing = [
        f"{domain}/{level}" for domain, level in cells if not is_folder(root / domain / level)
    ]
    if missing:
        raise ArtifactError(
            f"{root}: {len(missing)} of {len(cells)} folders missing: {', '.join(missing)}; "
            "extract them, or choose with --domains and --severity"
        )
    first = root / wanted[0] / levels[0]
    images = _listed(image_list) if image_list is not None else _found(first)
    _check_cells(root, cells, images)
    classes = [PurePosixPath(name).parent.name for name in images]
    indices = names.indices(sorted(set(classes)), where=str(root))

    def path(index: int, domain: str, severity: float) -> Path:
        return root / domain / _level(severity) / images[index]

    def load(index: int, domain: str, severity: float) -> Image:
        return load_image(path(index, domain, severity))

    def fingerprint(domain: str, severity: float) -> str:
        paths = [path(index, domain, severity) for index in range(len(images))]
        return files_fingerprint(root, paths)

    return ImageData(
        kind="tree",
        path=str(root),
        labels=np.asarray([indices[name] for name in classes], dtype=np.int64),
        load=load,
        fingerprint=fingerprint,
        domains=wanted,
        default_order="list" if image_list is not None else "shuffled",
    )


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if is_folder(path))


def _usual_domains(root: Path) -> tuple[str, ...]:
    """The set of domains the tree seems to be meant for."""
    present = {folder.name for folder in _folders(root)}
    for usual in (CORRUPTIONS, DOMAINS_3DCC):
        if present & set(usual):
            return tuple(usual)
    return tuple(sorted(present))


def _level(severity: float) -> str:
    """Folder name of a severity."""
    level = f"{severity:g}"
    if level not in SEVERITIES:
        raise ConfigError(f"severity: a tree has {', '.join(SEVERITIES)}, got {level}")
    return level


def _listed(path: Path) -> list[str]:
    """`CLASS/FILE` entries of an image list."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise ArtifactError(f"{path}: image list cannot be read ({err}); check the path") from err
    images = [line.replace(",", " ").split()[0] for line in lines if line.strip(" ,\t")]
    bad = [name for name in images if len(PurePosixPath(name).parts) != 2 or ".." in name]
    if bad or not images:
        raise ArtifactError(
            f"{path}: expected CLASS/FILE on every line, "
            + (f"got {bad[0]!r}" if bad else "got an empty list")
        )
    return images


def _found(folder: Path) -> list[str]:
    """`CLASS/FILE` of every image in one cell, sorted."""
    images = [f"{each.name}/{path.name}" for each in _folders(folder) for path in image_files(each)]
    if not images:
        raise ArtifactError(f"{folder}: expected CLASS/FILE images, found none")
    return images


def _check_cells(root: Path, cells: Sequence[tuple[str, str]], images: Sequence[str]) -> None:
    """Every image is there in every domain and severity."""
    faults = []
    for domain, level in cells:
        folder = root / domain / level
        present = {
            f"{each.name}/{entry.name}" for each in _folders(folder) for entry in each.iterdir()
        }
        absent = [name for name in images if name not in present]
        if absent:
            faults.append(
                f"{domain}/{level} lacks {len(absent)} of {len(images)} images, first {absent[0]}"
            )
    if faults:
        shown = "; ".join(faults[:SHOWN])
        more = f"; and {len(faults) - SHOWN} more folders" if len(faults) > SHOWN else ""
        raise ArtifactError(f"{root}: {shown}{more}; extract the missing files")

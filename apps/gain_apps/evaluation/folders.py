"""Clean images in folders: a folder per class, or one flat folder with WordNet ids in the names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gain_apps.evaluation.class_names import CLASS_FILE, WNID, ClassNames
from gain_apps.evaluation.image_data import Image, ImageData, files_fingerprint, image_files
from gain_core.errors import ArtifactError
from gain_runtime.file_kind import is_folder
from gain_runtime.image_file import load_image

__all__ = ["open_flat_folder", "open_image_folder"]


def open_image_folder(root: Path, names: ClassNames, /) -> ImageData:
    """Images in one folder per class (ImageFolder, ImageNet-R, V2, Sketch).

    Parameters
    ----------
    root : Path
    names : ClassNames

    Returns
    -------
    ImageData
        Classes and files sorted by name.

    Raises
    ------
    ArtifactError
        If a folder stands for no class or holds no image.
    """
    folders = sorted(path for path in root.iterdir() if is_folder(path) and path.name[0] != ".")
    files = {folder: image_files(folder) for folder in folders}
    empty = [folder.name for folder, found in files.items() if not found]
    if empty:
        raise ArtifactError(
            f"{root}: expected images in every class folder, found none in {len(empty)} of "
            f"{len(folders)}, {empty[0]} the first; for one of several data sets name its folder"
        )
    indices = names.indices([folder.name for folder in folders], where=str(root))
    paths = [path for folder in folders for path in files[folder]]
    labels = [indices[folder.name] for folder in folders for _ in files[folder]]
    return _clean_files(root, paths, labels, kind="folders")


def open_flat_folder(root: Path, names: ClassNames, /) -> ImageData:
    """Images named `WNID_anything.jpg` in one folder.

    Parameters
    ----------
    root : Path
    names : ClassNames

    Returns
    -------
    ImageData
        Sorted by file name.

    Raises
    ------
    ArtifactError
        If there are no images, or a name begins with no WordNet id of a class.
    """
    paths = image_files(root)
    wnids = [path.name.partition("_")[0] for path in paths]
    strange = [path.name for path, wnid in zip(paths, wnids, strict=True) if not WNID.match(wnid)]
    if strange or not paths:
        raise ArtifactError(
            f"{root}: expected class folders, or images named WNID_*.jpg beside a {CLASS_FILE}, "
            + (f"got {strange[0]}" if strange else "found neither")
        )
    indices = names.indices(sorted(set(wnids)), where=str(root))
    return _clean_files(root, paths, [indices[wnid] for wnid in wnids], kind="flat folder")


def _clean_files(root: Path, paths: list[Path], labels: list[int], *, kind: str) -> ImageData:
    """Files as data."""
    fingerprint = files_fingerprint(root, paths)

    def load(index: int, domain: str, severity: float) -> Image:
        return load_image(paths[index])

    return ImageData(
        kind=kind,
        path=str(root),
        labels=np.asarray(labels, dtype=np.int64),
        load=load,
        fingerprint=lambda domain, severity: fingerprint,
    )

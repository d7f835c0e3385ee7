"""Opening a data set, whatever its layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gain_apps.evaluation.class_names import ClassNames
from gain_apps.evaluation.folders import open_flat_folder, open_image_folder
from gain_apps.evaluation.image_data import ImageData, image_files
from gain_apps.evaluation.recordings import open_arrays, open_test_source
from gain_apps.evaluation.trees import is_tree, open_tree
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.file_kind import exists, is_file, is_folder

__all__ = ["open_data"]


def open_data(
    location: str,
    labels: Sequence[str],
    /,
    *,
    domains: Sequence[str] | None = None,
    severities: Sequence[float] = (5.0,),
    class_file: Path | None = None,
    image_list: Path | None = None,
    seed: int = 0,
) -> ImageData:
    """Open a data set by its path, telling its layout by what lies there.

    Parameters
    ----------
    location : str
        Folder, `.npz` file or `test://` URI.
    labels : sequence of K str
        Of the artifact.
    domains, severities
        What is wanted of a tree, see `open_tree`.
    class_file : Path, optional
        `classes.tsv` with WordNet ids.
    image_list : Path, optional
        Which images of a tree.
    seed : int
        For `test://` sources.

    Returns
    -------
    ImageData

    Raises
    ------
    ArtifactError
        If nothing is there, or it is damaged, incomplete or of no known layout.
    ConfigError, StreamError
        As the openers.
    """
    root = Path(location)
    if image_list is not None and not (is_folder(root) and is_tree(root)):
        raise ConfigError("--image-list: for ImageNet-C and ImageNet-3DCC trees only")
    if location.startswith("test://"):
        return open_test_source(location, seed=seed, num_classes=len(labels))
    if is_file(root) and root.suffix == ".npz":
        return open_arrays(root, num_classes=len(labels))
    if not is_folder(root):
        raise ArtifactError(
            f"{location}: expected a folder, a .npz file or test://NAME, "
            + ("got another file" if exists(root) else "found nothing there")
        )
    names = ClassNames(labels, root=root, class_file=class_file)
    if is_tree(root):
        return open_tree(root, names, domains=domains, severities=severities, image_list=image_list)
    if image_files(root):
        return open_flat_folder(root, names)
    if any(is_folder(path) for path in root.iterdir()):
        return open_image_folder(root, names)
    return open_flat_folder(root, names)

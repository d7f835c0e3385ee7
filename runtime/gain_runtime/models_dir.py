"""Where the project's model data (manifests, hashes, labels) lies."""

from __future__ import annotations

from pathlib import Path

from gain_core.errors import ArtifactError

__all__ = ["find_models_dir"]


def find_models_dir() -> Path:
    """The `models/` data folder of this installation.

    Returns
    -------
    Path
        `gain_runtime/_models` in an installed wheel, the repository's `models/` in a source
        checkout.

    Raises
    ------
    ArtifactError
        If neither is there.
    """
    package = Path(__file__).resolve().parent
    packaged = package / "_models"
    if packaged.is_dir():
        return packaged
    root = package.parents[1]
    # The pyproject check keeps a stranger's `models` folder near site-packages out.
    if (root / "models").is_dir() and (root / "pyproject.toml").is_file():
        return root / "models"
    raise ArtifactError(
        f"models: expected the folder {packaged}, found none; install gain-edge again"
    )

"""What lies already where gain-export is to write beside an artifact."""

from __future__ import annotations

from pathlib import Path

from gain_core.errors import ArtifactError
from gain_runtime.file_kind import exists, is_folder

__all__ = ["refuse_existing"]


def refuse_existing(path: Path, /, *, force: bool) -> None:
    """Refuse a folder, and a file that is not to be replaced.

    Raises
    ------
    ArtifactError
        If there is one.
    """
    if is_folder(path, error=ArtifactError):
        raise ArtifactError(f"{path}: expected a file to write, got a folder; remove or rename it")
    if exists(path, error=ArtifactError) and not force:
        raise ArtifactError(f"{path}: exists already; --force replaces it")

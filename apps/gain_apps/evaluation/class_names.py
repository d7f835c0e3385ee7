"""Which class of the artifact a folder or file name stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gain_core._optional import require
from gain_core.errors import ArtifactError, BackendUnavailableError, ConfigError
from gain_runtime.class_list import ClassList, class_list_from_names, read_class_list
from gain_runtime.file_kind import is_file, is_folder

__all__ = ["ClassNames"]

WNID = re.compile(r"^n\d{8}$")
CLASS_FILE = "classes.tsv"
SHOWN = 5


class ClassNames:
    """Looks class names up: in a class list, among the artifact's labels, in ImageNet's order.

    Parameters
    ----------
    labels : sequence of K str
        Of the artifact.
    root : Path
        Of the data; a `classes.tsv` in it is read where no other is named.
    class_file : Path, optional

    Raises
    ------
    ArtifactError
        If the class list is missing or malformed.
    """

    def __init__(
        self, labels: Sequence[str], /, *, root: Path, class_file: Path | None = None
    ) -> None:
        beside = root / CLASS_FILE
        if class_file is None and is_folder(root) and is_file(beside):
            class_file = beside
        self._num_classes = len(labels)
        self._listed: ClassList | None = None if class_file is None else read_class_list(class_file)
        self._labels = class_list_from_names(labels)

    def indices(self, names: Sequence[str], /, *, where: str) -> dict[str, int]:
        """Class index of every name.

        Parameters
        ----------
        names : sequence of str
            WordNet ids, class names, or class indices (as ImageNet-V2's folders are called, whose
            order by name is not that of the classes).
        where : str
            Of the data, for messages.

        Returns
        -------
        dict of str to int

        Raises
        ------
        ArtifactError
            If a name stands for no class, or for one the artifact does not have.
        """
        if names and all(name.isascii() and name.isdigit() for name in names):
            found: dict[str, int | None] = {name: int(name) for name in names}
        else:
            found = {name: self._index(name) for name in names}
        if any(index is None for index in found.values()) and all(map(WNID.match, names)):
            synsets = self._imagenet(names, where=where)
            found = {name: synsets.get(name) for name in names}
        unknown = [
            name for name, index in found.items() if index is None or index >= self._num_classes
        ]
        if unknown:
            shown = ", ".join(unknown[:SHOWN]) + (", ..." if len(unknown) > SHOWN else "")
            raise ArtifactError(
                f"{where}: {len(unknown)} of {len(names)} class names are none of the artifact's "
                f"{self._num_classes} classes: {shown}; name a classes.tsv with --classes"
            )
        return {name: index for name, index in found.items() if index is not None}

    def _index(self, name: str) -> int | None:
        """Class of one name, by the list where there is one."""
        if self._listed is not None:
            index = self._listed.index_of(name)
            if index is not None:
                return index
        return self._labels.index_of(name)

    def _imagenet(self, names: Sequence[str], *, where: str) -> dict[str, int]:
        """WordNet ids in ImageNet's order, which is their own: sorted."""
        if self._num_classes != 1000:
            return {}
        if len(set(names)) == 1000:
            return {name: index for index, name in enumerate(sorted(names))}
        try:
            info = require("timm.data", extra="eval").ImageNetInfo("imagenet-1k")
        except BackendUnavailableError as err:
            raise ConfigError(
                f"{where}: folders named by WordNet id and fewer than 1000 of them; name a "
                "classes.tsv with --classes, or pip install 'gain-edge[eval]', which has the list"
            ) from err
        return {name: index for index, name in enumerate(info.label_names())}

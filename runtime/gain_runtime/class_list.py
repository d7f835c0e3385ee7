"""Class lists: which index a name, WordNet id or folder stands for."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gain_core.errors import ArtifactError

__all__ = ["ClassList", "class_list_from_names", "read_class_list"]

COLUMNS = ("index", "wnid", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassList:
    """Names and identifiers of classes.

    Attributes
    ----------
    names : mapping of int to str
        Name by class index; need not be contiguous (a subset of ImageNet's 1,000).
    wnids : mapping of str to int
        Index by WordNet id; empty where there are none.
    """

    names: Mapping[int, str]
    wnids: Mapping[str, int] = field(default_factory=dict)

    def index_of(self, label: str, /) -> int | None:
        """Class with this WordNet id or name; None for none and for a name two classes share."""
        if label in self.wnids:
            return self.wnids[label]
        matches = [index for index, name in self.names.items() if name == label]
        return matches[0] if len(matches) == 1 else None

    def dense_names(self) -> tuple[str, ...] | None:
        """Names in order of index, or None if an index is missing."""
        if sorted(self.names) != list(range(len(self.names))):
            return None
        return tuple(self.names[index] for index in range(len(self.names)))


def class_list_from_names(names: Sequence[str], /) -> ClassList:
    """Class list whose indices are positions.

    Parameters
    ----------
    names : sequence of K str
        An artifact's labels, for example.

    Returns
    -------
    ClassList
    """
    return ClassList(names=dict(enumerate(names)))


def read_class_list(path: Path, /) -> ClassList:
    """Read `classes.tsv`: tab-separated, with the columns `index`, `wnid` and `name`.

    Parameters
    ----------
    path : Path

    Returns
    -------
    ClassList

    Raises
    ------
    ArtifactError
        If the file is missing, not UTF-8, lacks a column, or repeats an index or a WordNet id.
    """
    names: dict[int, str] = {}
    wnids: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ArtifactError(
                    f"{path}: expected the tab-separated columns {', '.join(COLUMNS)}, "
                    f"{', '.join(missing)} missing"
                )
            for row in reader:
                index, wnid, name = _row(row, where=f"{path}, line {reader.line_num}")
                if index in names or wnid in wnids:
                    raise ArtifactError(
                        f"{path}, line {reader.line_num}: index {index} or wnid {wnid} repeated"
                    )
                names[index], wnids[wnid] = name, index
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        if isinstance(err, ArtifactError):
            raise
        reason = getattr(err, "strerror", None) or str(err)
        raise ArtifactError(f"{path}: expected a class list (classes.tsv), {reason}") from err
    if not names:
        raise ArtifactError(f"{path}: expected at least one class, got none")
    return ClassList(names=names, wnids=wnids)


def _row(row: Mapping[str, str | None], *, where: str) -> tuple[int, str, str]:
    """Values of one line."""
    index, wnid, name = (row[column] for column in COLUMNS)
    if index is None or not index.isascii() or not index.isdigit() or not wnid or not name:
        raise ArtifactError(
            f"{where}: expected an index from 0, a wnid and a name, got {dict(row)}"
        )
    return int(index), wnid, name

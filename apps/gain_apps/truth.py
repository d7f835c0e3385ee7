"""Where the true classes of frames come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.class_list import COLUMNS, ClassList, read_class_list
from gain_runtime.closing import Closing
from gain_runtime.frame import Frame, FrameSource, SourceInfo

__all__ = ["TruthSource", "check_truth", "read_truth"]

NameTable = Mapping[str, int]


class TruthSource(Closing):
    """Another source's frames with `truth` looked up by file name, or taken away.

    Parameters
    ----------
    source : FrameSource
        Owned: closing this closes it.
    table : mapping of str to int, optional
        File name, with or without its folders, to class index; None removes every truth.
    """

    def __init__(self, source: FrameSource, /, *, table: NameTable | None = None) -> None:
        self._source = source
        self._table: NameTable = {} if table is None else table

    @property
    def info(self) -> SourceInfo:
        """The inner source's."""
        return self._source.info

    @property
    def skipped(self) -> int:
        """The inner source's."""
        return self._source.skipped

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._source:
            truth = self._table.get(frame.source_id)
            if truth is None:
                truth = self._table.get(Path(frame.source_id).name)
            yield replace(frame, truth=truth)

    def close(self) -> None:
        """Close the inner source."""
        self._source.close()


def read_truth(path: str | Path, /, *, num_classes: int) -> ClassList | NameTable:
    """Read a `--truth` file and check that its classes are the artifact's.

    Parameters
    ----------
    path : str or Path
        Either a class list (`classes.tsv`), which tells the classes of photos by the WordNet id
        in their names, or lines of `file name<TAB>class index`.
    num_classes : int
        K of the artifact.

    Returns
    -------
    ClassList, or mapping of str to int

    Raises
    ------
    ArtifactError
        If the file cannot be read or is neither.
    ConfigError
        If a class index is not below K.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        reason = getattr(err, "strerror", None) or "it is no UTF-8 text"
        raise ArtifactError(f"--truth {path}: cannot be read ({reason}); check the path") from err
    header = lines[0].split("\t") if lines else []
    if set(COLUMNS) <= set(header):
        classes = read_class_list(path)
        _check_range(max(classes.names), num_classes, where=f"--truth {path}")
        return classes
    table: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"--truth {path}, line {number}"
        name, tab, index = line.rpartition("\t")
        if not tab or not name or not (index.isascii() and index.strip().isdigit()):
            raise ArtifactError(
                f"{where}: expected 'file name<TAB>class index', got {line!r}; "
                f"or a class list with the columns {', '.join(COLUMNS)}"
            )
        _check_range(int(index), num_classes, where=where)
        table[name] = int(index)
    if not table:
        raise ArtifactError(f"--truth {path}: expected at least one line, got none")
    return table


def check_truth(frame: Frame, num_classes: int, /) -> None:
    """A truth the source found by itself must be one of the artifact's classes.

    Raises
    ------
    ConfigError
        If it is not below K.
    """
    if frame.truth is not None and frame.truth >= num_classes:
        raise ConfigError(
            f"truth of {frame.source_id}: expected a class below {num_classes} (the artifact's "
            f"number), got {frame.truth}; it is of another label set: pass --truth FILE, or "
            "--truth none to run without"
        )


def _check_range(index: int, num_classes: int, *, where: str) -> None:
    if index >= num_classes:
        raise ConfigError(
            f"{where}: expected class indices below {num_classes} (the artifact's number of "
            f"classes), got {index}; it belongs to another label set"
        )

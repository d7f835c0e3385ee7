"""A folder of numbered state files; a crash never damages the ones already written."""

from __future__ import annotations

import logging
import os
import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.adapter import Adapter
from gain_runtime.files.paths import lock_alone
from gain_runtime.frames import Closing

logger = logging.getLogger(__name__)

KEPT = 3
# Numbers, not times, order the snapshots: a device without a battery starts in 1970.
PATTERN = re.compile(r"snapshot-(\d{10,})-(\d+)\.safetensors(\.set-aside)?")
TEMPORARY = ".snapshot-*.tmp"
SET_ASIDE = ".set-aside"
LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One snapshot file, its rising number, and the frames that its state has learned from."""

    path: Path
    number: int
    frames: int


class SnapshotStore(Closing):
    """The snapshots of one stream, in a folder that it locks (a context manager).

    Each snapshot is a file of its own, so that writing one cannot damage another. The last three
    are kept.

    Parameters
    ----------
    folder : str or Path
        Created if it is missing.

    Raises
    ------
    ArtifactError
        If the folder cannot be created or written, or another process uses it.
    """

    def __init__(self, folder: str | Path, /) -> None:
        self._folder = Path(folder)
        self._set_aside_lines: list[str] = []
        self._lock: IO[bytes] | None = _locked(self._folder)
        with ExitStack() as stack:
            stack.callback(self.close)
            for leftover in self._folder.glob(TEMPORARY):
                with suppress(OSError):
                    leftover.unlink()
            numbers = [item.number for item in self._listed(set_aside=True)]
            self._next = 1 + max([0, *numbers, *(item.number for item in self.snapshots())])
            stack.pop_all()

    @property
    def folder(self) -> Path:
        """The folder of the snapshots."""
        return self._folder

    @property
    def set_aside(self) -> tuple[str, ...]:
        """Snapshots that this store set aside, and why; one line each."""
        return tuple(self._set_aside_lines)

    def snapshots(self) -> list[Snapshot]:
        """The snapshots that were not set aside, newest first.

        Returns
        -------
        list of Snapshot

        Raises
        ------
        ArtifactError
            If the folder cannot be listed.
        """
        return self._listed(set_aside=False)

    def write(self, adapter: Adapter, /) -> Snapshot:
        """Write a snapshot of the adapter's state; pending frames stay pending.

        Parameters
        ----------
        adapter : Adapter

        Returns
        -------
        Snapshot

        Raises
        ------
        ArtifactError
            If it cannot be written or holds NaN or infinity, which leaves the older ones as they
            are, or if the folder cannot be listed.
        """
        frames = adapter.frames
        path = self._folder / f"snapshot-{self._next:010d}-{frames}.safetensors"
        adapter.save_state(path, flush=False)
        written = Snapshot(path=path, number=self._next, frames=frames)
        self._next += 1
        for old in self.snapshots()[KEPT:]:
            with suppress(OSError):
                old.path.unlink()
        return written

    def restore(self, adapter: Adapter, /, *, before: int | None = None) -> Snapshot | None:
        """Load the newest snapshot that belongs to the adapter's artifact and config.

        Damaged snapshots, and those of another artifact or config, are set aside: renamed, logged,
        and not tried again.

        Parameters
        ----------
        adapter : Adapter
            Its state changes only if a snapshot is loaded.
        before : int or None
            Only snapshots with a lower number.

        Returns
        -------
        Snapshot or None
            The one that was loaded.

        Raises
        ------
        ArtifactError
            If the folder cannot be listed, or a snapshot must not be read: starting without it
            would lose what was learned.
        """
        for snapshot in self.snapshots():
            if before is not None and snapshot.number >= before:
                continue
            _refuse_unreadable(snapshot.path)
            try:
                adapter.load_state(snapshot.path)
            except (ArtifactError, ConfigError) as err:
                self._set_aside(snapshot, err)
                continue
            return snapshot
        return None

    def forget_after(self, number: int, /) -> None:
        """Delete the snapshots with a higher number, after a roll-back.

        Parameters
        ----------
        number : int
            Of the newest snapshot to keep.

        Raises
        ------
        ArtifactError
            If the folder cannot be listed.
        """
        for snapshot in self.snapshots():
            if snapshot.number > number:
                with suppress(OSError):
                    snapshot.path.unlink()

    def close(self) -> None:
        """Unlock the folder; may be called twice."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _listed(self, *, set_aside: bool) -> list[Snapshot]:
        """Snapshots that were or were not set aside, newest first."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError as err:
            raise ArtifactError(
                f"{self._folder}: the snapshots cannot be listed ({err.strerror}); "
                "check the folder and its permissions"
            ) from err
        found = []
        for name in names:
            match = PATTERN.fullmatch(name)
            if match is not None and (match[3] is not None) == set_aside:
                path = self._folder / name
                found.append(Snapshot(path=path, number=int(match[1]), frames=int(match[2])))
        return sorted(found, key=lambda item: item.number, reverse=True)

    def _set_aside(self, snapshot: Snapshot, err: Exception) -> None:
        """Rename a snapshot that is of no use here; a person may still want it."""
        target = snapshot.path.with_name(snapshot.path.name + SET_ASIDE)
        try:
            snapshot.path.replace(target)
        except OSError:
            target = snapshot.path
        logger.warning("%s: set aside: %s", target, err)
        self._set_aside_lines.append(f"{target.name}: {err}")
        for old in self._listed(set_aside=True)[KEPT:]:
            with suppress(OSError):
                old.path.unlink()


def _refuse_unreadable(path: Path) -> None:
    """An error for a file that the system does not let us read: no fault of its content."""
    try:
        path.open("rb").close()
    except FileNotFoundError:
        return
    except OSError as err:
        owner = path.stat().st_uid
        raise ArtifactError(
            f"{path}: a snapshot that cannot be read ({err.strerror}; it belongs to user {owner}); "
            "run as that user, or give it to this one with chown; nothing was changed"
        ) from err


def _touch(lock: Path) -> None:
    """Make the file to lock; an error where nothing can be written beside it."""
    try:
        lock.touch()
    except PermissionError:
        # Another user's, in a folder that several may write to.
        if not lock.exists() or not os.access(lock.parent, os.W_OK):
            raise


def _locked(folder: Path) -> IO[bytes]:
    """The folder, made if need be, locked until the file is closed or the process dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _touch(folder / LOCK)
        # Read only, or the disk could not be made read-only while the stream runs.
        lock = (folder / LOCK).open("rb")
    except OSError as err:
        raise ArtifactError(
            f"{folder}: no snapshot can be written there ({err.strerror}); "
            "name a folder on a writable disk"
        ) from err
    with suppress(OSError):
        if lock_alone(lock.fileno()):
            return lock
    lock.close()
    raise ArtifactError(
        f"{folder}: another stream keeps its snapshots there; give each stream a folder of its own"
    )

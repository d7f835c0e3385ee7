"""When snapshots are taken, and what a failed one means: one line, and the stream goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from gain_apps.progress import NOTE
from gain_core.errors import GainError
from gain_runtime.snapshots import Snapshot, SnapshotStore
from gain_runtime.stream_adapter import StreamAdapter

__all__ = ["SnapshotKeeper"]

logger = logging.getLogger(__name__)

# A full disk is tried again after this many seconds, not at every frame.
RETRY_S = 10.0


class SnapshotKeeper:
    """Takes a snapshot every so many learned frames or seconds, whichever comes first.

    Parameters
    ----------
    store : SnapshotStore
        Not owned.
    adapter : StreamAdapter
    every_frames : int
        Frames of learning that a crash may cost at most.
    every_s : float
        Seconds of learning that it may cost at most.
    clock : callable, optional
        Monotonic seconds; the time of day may jump.
    """

    def __init__(
        self,
        store: SnapshotStore,
        adapter: StreamAdapter,
        /,
        *,
        every_frames: int,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._adapter = adapter
        self._every_frames = every_frames
        self._every_s = every_s
        self._clock = clock
        self._base: Snapshot | None = None
        self._kept_frames = adapter.frames
        self._kept_s = clock()
        self._retry_s = 0.0
        self._failing = False
        self._written = 0

    @property
    def written(self) -> int:
        """Snapshots taken by this one."""
        return self._written

    @property
    def failing(self) -> bool:
        """Whether the last one could not be written."""
        return self._failing

    @property
    def frames_not_kept(self) -> int:
        """Learned frames that are in no snapshot."""
        return abs(self._adapter.frames - self._kept_frames)

    @property
    def folder(self) -> Path:
        """Where the snapshots lie."""
        return self._store.folder

    def restore(self) -> bool:
        """Continue from the newest snapshot that fits; whether there was one.

        Raises
        ------
        ArtifactError
            If the folder cannot be listed.
        """
        self._rest_on(self._store.restore(self._adapter))
        if self._base is not None:
            logger.info("%s: continued after %d learned frames", self._base.path, self._base.frames)
        return self._base is not None

    def tick(self, *, end: bool = False) -> None:
        """Take a snapshot if one is due, and at the end if anything was learned."""
        learned = self.frames_not_kept
        if learned == 0:
            return
        now = self._clock()
        due = learned >= self._every_frames or now - self._kept_s >= self._every_s
        if end or (due and now >= self._retry_s):
            self.take(end=end)

    def take(self, *, end: bool = False) -> bool:
        """Take a snapshot now, unless nothing was learned since the last; whether it is there.

        A failure is said once, until it is over; at the end of the stream in any case, because
        what was learned since the last snapshot is gone then.
        """
        if self._base is not None and self._adapter.frames == self._kept_frames:
            return True
        try:
            written = self._store.write(self._adapter)
        except GainError as err:
            self._retry_s = self._clock() + RETRY_S
            level = logging.DEBUG if self._failing and not end else logging.ERROR
            then = "it will be tried again"
            if end:
                then = f"the last {self.frames_not_kept} learned frames are in none"
            logger.log(level, "no snapshot: %s; %s", err, then)
            self._failing = True
            return False
        if self._failing:
            logger.warning("%s: snapshots can be written again", written.path)
        self._failing = False
        self._written += 1
        self._rest_on(written)
        logger.debug("%s: kept", written.path)
        return True

    def roll_back(self) -> bool:
        """Return to the last snapshot, or where nothing was learned since it, to the one before.

        The newer ones are deleted, or the next start would load what was rolled back.

        Raises
        ------
        ArtifactError
            If the folder cannot be listed.
        """
        before = None
        if self._base is not None and self._adapter.frames == self._kept_frames:
            before = self._base.number
        found = self._store.restore(self._adapter, before=before)
        if found is None:
            logger.warning("%s: no earlier snapshot to roll back to", self._store.folder)
            return False
        self._store.forget_after(found.number)
        self._rest_on(found)
        logger.log(NOTE, "%s: rolled back to %d learned frames", found.path, found.frames)
        return True

    def _rest_on(self, snapshot: Snapshot | None) -> None:
        """What the adapter holds is this snapshot, from now on."""
        self._base = snapshot
        self._kept_frames = self._adapter.frames
        self._kept_s = self._clock()

"""When snapshots are taken, and what a failed one means: one line, and the stream goes on."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

from gain_core.errors import ArtifactError, GainError
from gain_runtime.adapter import Adapter
from gain_runtime.files.paths import write_atomically
from gain_runtime.files.snapshots import Snapshot, SnapshotStore

logger = logging.getLogger(__name__)

# A full disk is tried again after this many seconds, not at every frame.
RETRY_S = 10.0
# Beside the snapshots while a person wants no learning.
HELD = "learning-paused.json"


class SnapshotKeeper:
    """Takes a snapshot every so many learned frames or seconds, whichever comes first.

    That many a crash costs at most. The store is not owned. `clock` gives monotonic seconds; the
    time of day may jump.
    """

    def __init__(
        self,
        store: SnapshotStore,
        adapter: Adapter,
        /,
        *,
        every_frames: int,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        # Lies there while learning is paused.
        self._held = store.folder / HELD
        self._adapter = adapter
        self._every_frames = every_frames
        self._every_s = every_s
        self._clock = clock
        self._base: Snapshot | None = None
        self._kept_frames = adapter.frames
        self._kept_s = clock()
        self._retry_s = 0.0
        # Whether the last one could not be written, and how many were.
        self.failing, self.written = False, 0
        # When the last one was taken or, after a start, written; in seconds since 1970.
        self.last_utc_s: float | None = None

    @property
    def frames_not_kept(self) -> int:
        """Learned frames that are in no snapshot."""
        return abs(self._adapter.frames - self._kept_frames)

    def hold(self, who: str, /) -> None:
        """Remember over a restart that learning was paused.

        ArtifactError if that cannot be written; learning is paused until the next start only.
        """
        record = {"since_s": time.time(), "who": who}
        try:
            write_atomically(self._held, json.dumps(record).encode())
        except OSError as err:
            raise ArtifactError(
                f"{self._held}: cannot be written ({err.strerror}); learning is paused, "
                "but not over a restart"
            ) from err

    def release(self) -> None:
        """Forget that learning was paused.

        ArtifactError if that cannot be done; the next start pauses again.
        """
        try:
            self._held.unlink(missing_ok=True)
        except OSError as err:
            raise ArtifactError(
                f"{self._held}: cannot be removed ({err.strerror}); the next start pauses "
                "learning again"
            ) from err

    def held(self) -> str | None:
        """Who paused learning in an earlier run and when, in words; None where nobody did."""
        try:
            record = json.loads(self._held.read_text("utf-8"))
            since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(float(record["since_s"])))
            who = str(record["who"]) or "a key"
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            # Whatever it says, it lies there because somebody wanted no learning.
            return "an earlier run"
        return f"{who}, {since}"

    def restore(self) -> bool:
        """Continue from the newest snapshot that fits; whether there was one.

        ArtifactError if the folder cannot be listed.
        """
        self._rest_on(self._store.restore(self._adapter))
        if self._base is not None:
            self.last_utc_s = self._base.path.stat().st_mtime
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
            level = logging.DEBUG if self.failing and not end else logging.ERROR
            lost = f"the last {self.frames_not_kept} learned frames are in none"
            then = lost if end else "it will be tried again"
            logger.log(level, "no snapshot: %s; %s", err, then)
            self.failing = True
            return False
        if self.failing:
            logger.warning("%s: snapshots can be written again", written.path)
        self.failing = False
        self.written += 1
        self.last_utc_s = time.time()
        self._rest_on(written)
        logger.debug("%s: kept", written.path)
        return True

    def roll_back(self) -> str:
        """Return to the last snapshot, or where nothing was learned since it, to the one before.

        The newer ones are deleted, or the next start would load what was rolled back. What was
        done, in words; ArtifactError if the folder cannot be listed.
        """
        before = None
        if self._base is not None and self._adapter.frames == self._kept_frames:
            before = self._base.number
        found = self._store.restore(self._adapter, before=before)
        if found is None:
            return "no earlier snapshot to roll back to"
        self._store.forget_after(found.number)
        self._rest_on(found)
        return f"rolled back to {found.frames} learned frames (snapshot {found.number})"

    def _rest_on(self, snapshot: Snapshot | None) -> None:
        """What the adapter holds is this snapshot, from now on."""
        self._base = snapshot
        self._kept_frames = self._adapter.frames
        self._kept_s = self._clock()

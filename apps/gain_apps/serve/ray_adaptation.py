"""The adaptation of each camera behind Ray Serve, its states, and the application's settings."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from gain_core import UPDATE_EVERY, WARMUP_FRAMES, Gain, Prediction
from gain_core.errors import ArtifactError, ConfigError, GainError
from gain_runtime.engine import artifact_method
from gain_runtime.files.artifact import load_artifact
from gain_runtime.files.paths import FsspecFolder
from gain_runtime.files.state import LoadedState, load_state, save_state

logger = logging.getLogger(__name__)

STATE = ".safetensors"
# Beside the cameras' own files; no key can name them. The first has a merge for each group, the
# second the snapshots of cameras that began from one: no merge reads these, or they would count
# twice what the others have learned.
GROUPS, FROM_MERGE = "_groups", "_from_merge"
# A hash's first letters are enough to name an artifact.
SHOWN = 12

Floats = npt.NDArray[np.float32]


class ServingSettings(BaseModel):
    """Arguments of the application, `args` in the config file.

    Attributes
    ----------
    artifact : str
        Of `gain-export`, on a path that every node sees.
    snapshots : str
        Folder or fsspec URL of the cameras' states.
    shards : int
        Deployments that hold states. May be changed at a restart: states are found by key.
    device : {"cpu", "cuda", "tensorrt"}
    batch_size : int
        Frames that the network runs on at most together.
    snapshot_frames : int
        A camera's state is written at the first update after so many frames, so that no more than
        these are lost with a replica. A multiple of `UPDATE_EVERY`, at least `WARMUP_FRAMES`.
    snapshot_s : float
        Or at the first update after so long.
    merge_s : float or None
        Seconds between two merges of each group's snapshots; a camera's group is what its key has
        before the first dot, so that `yard.north` and `yard.south` are of one. A new camera of a
        group begins with the merged state, and is left out of later merges. None merges nothing.
    idle_s : float
        A camera that sends nothing for so long is written and dropped from memory; its next frame
        restores it. One that is still in its warm-up begins anew, so this is long.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    artifact: str
    snapshots: str
    shards: int = Field(2, ge=1)
    device: Literal["cpu", "cuda", "tensorrt"] = "cpu"
    batch_size: int = Field(16, ge=1)
    snapshot_frames: int = Field(WARMUP_FRAMES, ge=WARMUP_FRAMES, multiple_of=UPDATE_EVERY)
    snapshot_s: float = Field(60.0, gt=0)
    merge_s: float | None = Field(None, gt=0)
    idle_s: float = Field(3600.0, gt=0)


class Seen(NamedTuple):
    """What the network says of one frame: features (1, D) or None, logits (1, K) float32."""

    features: Floats | None
    logits: Floats


@dataclass(slots=True)
class _Camera:
    """A camera's adaptation, and what of it lies in the store."""

    gain: Gain
    from_merge: bool = False
    frames: int = 0
    saved_frames: int = 0
    saved_s: float = field(default_factory=time.monotonic)
    seen_s: float = 0.0


class Adaptation:
    """The states of some cameras; one replica, or a state would live in two places.

    `shard` is its number among `settings.shards`.
    """

    def __init__(self, settings: ServingSettings, shard: int = 0, /) -> None:
        self._settings, self._shard = settings, shard
        self._artifact = load_artifact(settings.artifact)
        self._method = artifact_method(self._artifact)
        # Other artifacts have other states: a folder of its own for each.
        self._store = FsspecFolder(
            f"{settings.snapshots.rstrip('/')}/{self._artifact.sha256[:SHOWN]}"
        )
        # Whoever is first has sent nothing for longest.
        self._cameras: dict[str, _Camera] = {}
        # A lock is here while a request holds it or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        if settings.merge_s is not None:
            # It ends with the replica: a merge is written whole or not at all.
            threading.Thread(target=self._merge_on, args=(settings.merge_s,), daemon=True).start()

    async def step(self, key: str, seen: Seen) -> dict[str, Any]:
        """Adapt to the next frame of the camera `key`; what `Front` replies.

        The state is restored where this replica does not have it yet: ArtifactError if there is a
        snapshot that cannot be read; starting without it would lose it. ArrayError and
        NumericsError as `Gain.step`.
        """
        await self._forget_idlest(besides=key)
        # A camera's frames are taken one after the other, also while its snapshot is written.
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            camera = self._cameras.get(key)
            if camera is None:
                camera = await asyncio.to_thread(self._restored, key)
            self._touch(key, camera)
            prediction = camera.gain.step(*seen)
            camera.frames += 1
            if self._is_due(camera):
                await asyncio.to_thread(self._save, key, camera)
            return _reply(key, camera, prediction, self._artifact.manifest.labels)

    def merge_groups(self) -> dict[str, int]:
        """Merge the snapshots of every group whose hash is this deployment's; cameras by group.

        States that have learned nothing are left out: they would only make a merge wait to be
        confirmed. So are those that began from a merge: what they were given counts already, and
        cannot be taken out of a state that forgets. Cameras that run keep their own states, which
        are better for them. ArtifactError if the store cannot be read or written.
        """
        groups: dict[str, list[LoadedState]] = {}
        for name in self._store.names():
            group = _group_of(name.removesuffix(STATE)) if name.endswith(STATE) else None
            if group is None or shard_of(group, self._settings.shards) != self._shard:
                continue
            data = self._store.read(name)
            if data is None:
                continue
            try:
                loaded = self._parsed(data)
            except (ArtifactError, ConfigError) as err:
                logger.warning("%s: left out of the merge: %s", name, err)
                continue
            if self._has_learned(loaded.state):
                groups.setdefault(group, []).append(loaded)
        for group, members in groups.items():
            state = reduce(self._method.merge, [each.state for each in members])
            frames = sum(each.frames for each in members)
            self._store.write(f"{GROUPS}/{group}{STATE}", self._as_bytes(state, frames))
        return {group: len(members) for group, members in groups.items()}

    def _merge_on(self, every_s: float) -> None:
        """Thread: merge again and again; a store that is away is tried again."""
        while True:
            time.sleep(every_s)
            try:
                self.merge_groups()
            except GainError as err:
                logger.error("merging: %s", err)

    async def _forget_idlest(self, *, besides: str) -> None:
        """Write the camera that was idle for longest and drop it, if that was too long.

        One at each frame is enough, for no frame adds more than one.
        """
        key = next(iter(self._cameras), besides)
        camera = self._cameras.get(key)
        lock = self._locks.setdefault(key, asyncio.Lock())
        if key == besides or lock.locked() or camera is None or not self._is_idle(camera):
            return
        async with lock:
            if self._cameras.get(key) is not camera or not self._is_idle(camera):
                return
            if await asyncio.to_thread(self._put_away, key, camera):
                del self._cameras[key]
            else:
                self._touch(key, camera)

    def _is_idle(self, camera: _Camera) -> bool:
        """Whether it has sent nothing for too long."""
        return time.monotonic() - camera.seen_s >= self._settings.idle_s

    def _touch(self, key: str, camera: _Camera) -> None:
        """Note that it was there just now."""
        self._cameras.pop(key, None)
        self._cameras[key] = camera
        camera.seen_s = time.monotonic()

    def _put_away(self, key: str, camera: _Camera) -> bool:
        """Whether everything it has learned is in the store; frames that wait are learned first."""
        # Too few frames for a first update teach nothing.
        if camera.gain.frames:
            camera.gain.flush()
        return camera.gain.frames == camera.saved_frames or self._save(key, camera)

    def _has_learned(self, state: Any) -> bool:
        """Whether there is anything in it; the paper's methods learn from every frame."""
        return float(np.asarray(self._method.summary(state).get("draws", 1.0))) > 0

    def _is_due(self, camera: _Camera) -> bool:
        """Whether to write the state: between updates it would lack the frames that wait."""
        if camera.gain.pending_frames or camera.gain.frames == camera.saved_frames:
            return False
        waited = camera.gain.frames - camera.saved_frames
        late = time.monotonic() - camera.saved_s >= self._settings.snapshot_s
        return waited >= self._settings.snapshot_frames or late

    def _restored(self, key: str) -> _Camera:
        """The camera as its last snapshot has it, else as its group has learned, or fresh."""
        camera = _Camera(Gain(self._method))
        places = [(f"{key}{STATE}", False), (f"{FROM_MERGE}/{key}{STATE}", True)]
        if self._settings.merge_s is not None and (group := _group_of(key)) is not None:
            places.append((f"{GROUPS}/{group}{STATE}", True))
        for name, from_merge in places:
            loaded = self._loaded(name)
            if loaded is not None:
                camera.gain.load_state(loaded.state, frames=loaded.frames)
                camera.frames = camera.saved_frames = loaded.frames
                camera.from_merge = from_merge
                break
        return camera

    def _loaded(self, name: str) -> LoadedState | None:
        """A state in the store; None where there is none, or one that is damaged and set aside."""
        data = self._store.read(name)
        if data is None:
            return None
        try:
            return self._parsed(data)
        except (ArtifactError, ConfigError) as err:
            self._store.write(f"{name}.set-aside", data)
            self._store.remove(name)
            logger.warning("%s: set aside, the camera starts anew: %s", name, err)
            return None

    def _parsed(self, data: bytes) -> LoadedState:
        """The state in a file's bytes."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            path.write_bytes(data)
            return load_state(path, method=self._method, artifact_sha256=self._artifact.sha256)

    def _save(self, key: str, camera: _Camera) -> bool:
        """Write the state; whether that went well. If not, it is tried again later."""
        folder = f"{FROM_MERGE}/" if camera.from_merge else ""
        try:
            data = self._as_bytes(camera.gain.state, camera.gain.frames)
            self._store.write(f"{folder}{key}{STATE}", data)
        except ArtifactError as err:
            logger.error("%s: the snapshot failed: %s", key, err)
            return False
        camera.saved_frames, camera.saved_s = camera.gain.frames, time.monotonic()
        return True

    def _as_bytes(self, state: Any, frames: int) -> bytes:
        """A state as a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state"
            save_state(
                path,
                state,
                config=self._method.config,
                artifact_sha256=self._artifact.sha256,
                frames=frames,
            )
            return path.read_bytes()


def _group_of(key: str) -> str | None:
    """What a key has before its first dot."""
    group, dot, _ = key.partition(".")
    return group if dot else None


def _reply(
    key: str, camera: _Camera, prediction: Prediction, labels: tuple[str, ...] | list[str]
) -> dict[str, Any]:
    """One frame's answer as plain values."""

    def top(log_probs: Any) -> dict[str, Any]:
        probs = np.exp(np.asarray(log_probs)[0])
        index = int(probs.argmax())
        return {"label": labels[index], "index": index, "probability": float(probs[index])}

    return {
        "camera": key,
        "frame": camera.frames,
        "learned": camera.gain.frames,
        "saved": camera.saved_frames,
        "source": top(prediction.source_log_probs),
        "adapted": top(prediction.log_probs),
        "strength": float(np.asarray(prediction.strength)[0]),
    }


def shard_of(key: str, shards: int, /) -> int:
    """The number of the deployment that holds a camera's state: the same in every process."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % shards

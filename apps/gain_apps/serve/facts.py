"""What the loop knows beside the newest result, and what is worth telling when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gain_apps.serve.event_log import EventKind
from gain_apps.streaming.backpressure import Load, step_words

__all__ = ["DeviceFacts", "KeptFacts", "Scalar", "StreamFacts", "changes"]

Scalar: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Whether the device keeps up, and what gives way where it does not.

    Attributes
    ----------
    load : {"keeping-up", "updating-less", "skipping"}
    level : int
        Steps taken to keep up.
    update_every : int
        Frames between two updates at present.
    stride : int
        One frame in so many is classified.
    left_out : int
        Frames skipped by it so far.
    throttled : bool
        Whether the device slows itself down.
    celsius : float or None
        Its hottest zone; None where none can be read.
    """

    load: Load = "keeping-up"
    level: int = 0
    update_every: int = 1
    stride: int = 1
    left_out: int = 0
    throttled: bool = False
    celsius: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFacts:
    """Snapshots: taken so far, whether the last failed, learned frames that are in none.

    `last_utc_s` is when the last one was written, in seconds since 1970.
    """

    written: int = 0
    failing: bool = False
    frames_not_kept: int = 0
    last_utc_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """What the loop knows beside the newest result; asked for on the loop's own thread.

    Attributes
    ----------
    frozen : bool
    frames_learned, dropped, rejected, skipped : int
        Frames in the state; left out because the network was busy; not classifiable; unreadable.
    reconnects : int
        Times a lost source came back.
    outputs_lost : int
        Outputs that failed and were left out.
    not_learned : mapping
        Frames that were predicted but not learned from, by what was wrong with them.
    adaptation : mapping
        Numbers of the adapter's status.
    device : DeviceFacts
    kept : KeptFacts or None
        None where no snapshots are taken.
    """

    frozen: bool = False
    frames_learned: int = 0
    dropped: int = 0
    rejected: int = 0
    skipped: int = 0
    reconnects: int = 0
    outputs_lost: int = 0
    not_learned: Mapping[str, int] = field(default_factory=dict)
    adaptation: Mapping[str, Scalar] = field(default_factory=dict)
    device: DeviceFacts = field(default_factory=DeviceFacts)
    kept: KeptFacts | None = None


def changes(before: StreamFacts, after: StreamFacts, /) -> list[tuple[EventKind, str]]:
    """Kind and text of what is different; numbers that change with every frame are left out.

    Parameters
    ----------
    before, after : StreamFacts

    Returns
    -------
    list of (kind, str)
    """
    found: list[tuple[EventKind, str]] = []
    if after.frames_learned < before.frames_learned:
        found.append(
            ("state", f"from {before.frames_learned} learned frames to {after.frames_learned}")
        )
    if after.outputs_lost > before.outputs_lost:
        found.append(("stream", "an output failed; the stream continues without it"))
    for fault in after.not_learned:
        if fault not in before.not_learned:
            found.append(("stream", f"broken frame ({fault}); such frames are not learned from"))
    found += _device_changes(before.device, after.device)
    failed = before.kept is not None and before.kept.failing
    fails = after.kept is not None and after.kept.failing
    if failed != fails:
        words = ("snapshots can be written again", "no snapshot can be written")
        found.append(("state", words[fails]))
    return found


def _device_changes(before: DeviceFacts, after: DeviceFacts) -> list[tuple[EventKind, str]]:
    """The device got slower, or what it does about it has changed."""
    found: list[tuple[EventKind, str]] = []
    if before.throttled != after.throttled:
        speeds = ("the device runs at full speed again", "the device slows itself down")
        found.append(("device", speeds[after.throttled]))
    if before.level != after.level:
        words = step_words(after.update_every, after.stride)
        found.append(("device", f"{after.load}: {words}"))
    return found

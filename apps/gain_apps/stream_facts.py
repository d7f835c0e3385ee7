"""What a running stream tells its board."""

from __future__ import annotations

import dataclasses

from gain_apps.running_stream import RunningStream
from gain_apps.serve.board import StreamIdentity
from gain_apps.serve.facts import DeviceFacts, KeptFacts, Scalar, StreamFacts
from gain_core import __version__

__all__ = ["facts_of", "identity_of", "status_words"]


def identity_of(run: RunningStream, /) -> StreamIdentity:
    """What does not change while the stream runs."""
    artifact = run.adapter.artifact
    return StreamIdentity(
        source_id=run.source.info.source_id,
        artifact=artifact.path.name,
        artifact_sha256=artifact.sha256,
        provider=run.adapter.provider,
        version=__version__,
        labels=tuple(artifact.manifest.labels),
    )


def facts_of(run: RunningStream, /) -> StreamFacts:
    """The present counts and states; on the loop's own thread."""
    words = status_words(run.adapter)
    # Told as frames learned already.
    words.pop("frames", None)
    return StreamFacts(
        frozen=run.adapter.frozen,
        frames_learned=run.adapter.frames,
        dropped=run.reader.dropped,
        rejected=run.record.rejected,
        skipped=run.source.skipped,
        reconnects=int(getattr(run.source, "reconnects", 0)),
        outputs_lost=len(run.outputs.lost),
        not_learned=dict(run.record.faults),
        adaptation=words,
        device=_device_facts(run),
        kept=_kept_facts(run),
    )


def _device_facts(run: RunningStream) -> DeviceFacts:
    """What gives way, and how warm it is."""
    pressure, thermal = run.backpressure, run.host.thermal
    if pressure is None:
        return DeviceFacts(
            update_every=run.adapter.update_every,
            throttled=thermal.throttled,
            celsius=thermal.celsius,
        )
    return DeviceFacts(
        load=pressure.load,
        level=pressure.level,
        update_every=run.adapter.update_every,
        stride=pressure.stride,
        left_out=run.record.left_out,
        throttled=thermal.throttled,
        celsius=thermal.celsius,
    )


def _kept_facts(run: RunningStream) -> KeptFacts | None:
    """The snapshots, where there are any."""
    keeper = run.keeper
    if keeper is None:
        return None
    return KeptFacts(
        written=keeper.written,
        failing=keeper.failing,
        frames_not_kept=keeper.frames_not_kept,
        last_utc_s=keeper.last_utc_s,
    )


def status_words(adapter: object, /) -> dict[str, Scalar]:
    """Numbers and words of an adapter's `status()`; empty where it has none.

    Parameters
    ----------
    adapter : object
        `status`, where there is one, returns a mapping or a dataclass.

    Returns
    -------
    dict
        Name to number, word or None; anything else is left out.
    """
    status = getattr(adapter, "status", None)
    if status is None:
        return {}
    told = status()
    if dataclasses.is_dataclass(told) and not isinstance(told, type):
        told = {item.name: getattr(told, item.name) for item in dataclasses.fields(told)}
    return {
        str(name): value
        for name, value in dict(told).items()
        if value is None or isinstance(value, bool | int | float | str)
    }

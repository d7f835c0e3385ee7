"""One run of `gain-stream`: opening everything, the loop, and finishing in good order."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.outputs import Outputs, PacedSink
from gain_apps.overlay import Overlay
from gain_apps.progress import RunProgress
from gain_apps.stop_request import StopRequest
from gain_apps.stream_config import NO_TRUTH, StreamConfig
from gain_apps.stream_input import open_input
from gain_apps.stream_loop import StreamLoop
from gain_apps.summary import RunRecord
from gain_apps.timeline import TimelineSink
from gain_core import __version__
from gain_core.errors import GainError, StreamError
from gain_runtime.adapter import Adapter
from gain_runtime.artifact import load_artifact
from gain_runtime.display_sink import DisplayAction, DisplaySink
from gain_runtime.frame import FrameSource
from gain_runtime.jsonl_sink import JsonlSink
from gain_runtime.open_session import open_session
from gain_runtime.reader import FrameReader
from gain_runtime.video_sink import DEFAULT_RATE_HZ, VideoSink

__all__ = ["run_stream"]

logger = logging.getLogger(__name__)

# Photos have no rate of their own; slow enough to look at.
PHOTO_RATE_HZ = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one run holds open, and what it has counted."""

    config: StreamConfig
    stop: StopRequest
    source: FrameSource
    reader: FrameReader
    adapter: Adapter
    outputs: Outputs
    record: RunRecord


def run_stream(
    config: StreamConfig,
    stop: StopRequest,
    console: Console,
    /,
    *,
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Run one stream to its end, to a stop request or to a failure.

    Parameters
    ----------
    config : StreamConfig
    stop : StopRequest
    console : Console
        For progress.
    report : callable
        Receives the summary once everything is finished, also after a failure in mid-stream.

    Raises
    ------
    GainError
        If something cannot be opened or fails in mid-stream. In the latter case the outputs are
        finished, the state is saved and the summary reported first.
    """
    logger.info("config: %s", json.dumps(config.to_dict()))
    with ExitStack() as stack:
        # A step's products are too small to share out, and BLAS threads that wait by spinning take
        # the cores from ONNX Runtime's: 1.1 ms against 33 ms a step, seen on two busy cores.
        stack.enter_context(threadpool_limits(limits=1, user_api="blas"))
        run = _open(config, stop, stack)
        failures = _drive(run, console)
        run.reader.close()
        if not run.record.frames and not stop and not failures:
            failures.append(_nothing_classified(run))
        named = config.truth not in (None, NO_TRUTH)
        if named and run.record.frames and not run.record.scores.source.count:
            logger.warning("--truth %s: no frame is named in it", config.truth)
        report(_summary(run))
    for further in failures[1:]:
        logger.error("%s", further)
    if failures:
        raise failures[0]


def _open(config: StreamConfig, stop: StopRequest, stack: ExitStack) -> _Run:
    """Open everything, what fails soonest first; `stack` closes it."""
    artifact = load_artifact(config.model)
    source = stack.enter_context(open_input(config, artifact))
    session = stack.enter_context(
        open_session(artifact, device=config.device, num_threads=config.threads)
    )
    adapter = Adapter(
        session,
        config.gain_config(),
        update_every=config.update_every,
        warmup_frames=config.warm_up,
        frozen=config.freeze,
    )
    if config.state_in is not None:
        adapter.load_state(config.state_in)
    adapter.warm_up(config.batch)
    outputs = Outputs()
    stack.callback(_close_quietly, outputs)
    _open_outputs(outputs, source, config, on_action=_actions(adapter, config, stop))
    return _Run(
        config=config,
        stop=stop,
        source=source,
        reader=stack.enter_context(FrameReader(source)),
        adapter=adapter,
        outputs=outputs,
        record=RunRecord(),
    )


def _drive(run: _Run, console: Console) -> list[GainError]:
    """Run the loop, then finish the outputs and the state whatever happened; what went wrong."""
    config = run.config
    failures: list[GainError] = []
    try:
        with RunProgress(run.record, console, total=config.max_frames) as progress:
            loop = StreamLoop(
                run.adapter,
                run.outputs,
                run.record,
                stop=run.stop,
                batch=config.batch,
                max_frames=config.max_frames,
                top_k=config.top_k,
                on_batch=progress.update,
            )
            loop.run(run.reader)
    except GainError as err:
        failures.append(err)
    finally:
        # Also where a bug ends the loop: its traceback follows, the files are whole.
        for finish in (run.outputs.close, lambda: _save_state(run)):
            try:
                finish()
            except GainError as err:
                failures.append(err)
    return failures


def _open_outputs(
    outputs: Outputs,
    source: FrameSource,
    config: StreamConfig,
    *,
    on_action: Callable[[DisplayAction], None],
) -> None:
    """Open every sink the settings ask for; those already open stay in `outputs`."""
    info = source.info
    overlay = Overlay(info, side_by_side=config.side_by_side)
    if config.output is not None:
        rate_hz = info.rate_hz or (DEFAULT_RATE_HZ if info.live else PHOTO_RATE_HZ)
        video = VideoSink(config.output, render=overlay.render, rate_hz=rate_hz)
        outputs.add("--output", PacedSink(video, rate_hz=rate_hz) if info.live else video)
    if config.display:
        window = DisplaySink("gain-stream", render=overlay.render, on_action=on_action)
        outputs.add("--display", window, poll=window.poll)
    if config.timeline is not None:
        outputs.add("--timeline", TimelineSink(Path(config.timeline)))
    # Last, because opening it empties an earlier file, and the others may yet fail to open.
    if config.jsonl is not None:
        outputs.add("--jsonl", JsonlSink(config.jsonl))


def _actions(
    adapter: Adapter, config: StreamConfig, stop: StopRequest
) -> Callable[[DisplayAction], None]:
    """What the window's keys do."""

    def act(action: DisplayAction) -> None:
        if action == "quit":
            stop.quit()
        elif action == "reset":
            adapter.reset()
            logger.info("reset: back to the source")
        elif action == "freeze":
            (adapter.unfreeze if adapter.frozen else adapter.freeze)()
            logger.info("frozen" if adapter.frozen else "learning again")
        elif config.state_out is None:
            logger.warning("nothing saved: name a file with --state-out")
        else:
            adapter.save_state(config.state_out)
            logger.info("%s: saved", config.state_out)

    return act


def _save_state(run: _Run) -> None:
    """Write the state where it is wanted and something was classified."""
    path = run.config.state_out
    if path is not None and run.record.frames:
        run.adapter.save_state(path)
        logger.info("%s: state after %d frames", path, run.adapter.frames)


def _nothing_classified(run: _Run) -> StreamError:
    """The error for a stream that ended before its first result."""
    record = run.record
    why = f"{run.source.skipped} unreadable, {record.rejected} rejected"
    first = "" if record.first_rejection is None else f"; first: {record.first_rejection}"
    return StreamError(
        f"{run.source.info.source_id}: expected at least one frame to classify, got none "
        f"({why}){first}"
    )


def _summary(run: _Run) -> dict[str, Any]:
    """What `--json` prints."""
    config, record, artifact = run.config, run.record, run.adapter.artifact
    written = {
        "output": config.output,
        "jsonl": config.jsonl,
        "timeline": config.timeline,
    }
    if record.frames:
        written["state_out"] = config.state_out
    return {
        "source": run.source.info.source_id,
        **record.to_dict(),
        "skipped": run.source.skipped,
        "dropped": run.reader.dropped,
        "frames_learned": run.adapter.frames,
        "stopped_by": run.stop.reason,
        "artifact": {
            "path": str(artifact.path),
            "sha256": artifact.sha256,
            "source": artifact.manifest.source,
        },
        "provider": run.adapter.provider,
        "config": config.to_dict(),
        "outputs": {name: path for name, path in written.items() if path is not None},
        "version": __version__,
    }


def _close_quietly(outputs: Outputs) -> None:
    """Release what was opened before something else failed; after a whole run, nothing is left."""
    with contextlib.suppress(GainError):
        outputs.close()

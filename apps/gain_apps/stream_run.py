"""One run of `gain-stream`: opening everything, the loop, and finishing in good order."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.backpressure import Backpressure
from gain_apps.commands import Command
from gain_apps.outputs import Outputs
from gain_apps.progress import NOTE, RunProgress
from gain_apps.running_stream import RunningStream
from gain_apps.snapshot_keeper import SnapshotKeeper
from gain_apps.stop_request import StopRequest
from gain_apps.stream_commands import carry_out, drain_commands
from gain_apps.stream_config import NO_TRUTH, StreamConfig
from gain_apps.stream_input import open_input
from gain_apps.stream_loop import StreamLoop
from gain_apps.stream_outputs import open_outputs
from gain_apps.stream_page import make_board, open_page
from gain_apps.watchdog import Watchdog
from gain_core import __version__
from gain_core.errors import GainError, StreamError
from gain_runtime.adapter import Adapter
from gain_runtime.adaptive_adapter import AdaptiveAdapter
from gain_runtime.adaptive_artifact import AdaptiveArtifact, load_adaptive
from gain_runtime.artifact import load_artifact
from gain_runtime.display_sink import DisplayAction
from gain_runtime.frame import FrameSource
from gain_runtime.frame_health import FrameHealth
from gain_runtime.open_lane import open_adapting_session
from gain_runtime.open_session import open_adaptive_session
from gain_runtime.reader import FrameReader
from gain_runtime.session import Session
from gain_runtime.snapshots import SnapshotStore
from gain_runtime.stream_adapter import StreamAdapter

__all__ = ["run_stream"]

logger = logging.getLogger(__name__)


def run_stream(
    config: StreamConfig,
    stop: StopRequest,
    console: Console,
    /,
    *,
    report: Callable[[dict[str, Any]], None],
    session: Session | None = None,
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
    session : Session, optional
        The network, where several streams share it; not closed. None opens the settings' own.

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
        run = _open(config, stop, stack, session=session)
        _say_opened(run, shared=session is not None)
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


def _open(
    config: StreamConfig, stop: StopRequest, stack: ExitStack, *, session: Session | None
) -> RunningStream:
    """Open everything, what fails soonest first; `stack` closes it."""
    source, adapter = _open_adapter(config, stack, session)
    keeper = _open_snapshots(config, adapter, stack)
    adapter.warm_up(config.batch)
    policy = config.sink_errors or ("drop" if source.info.live else "stop")
    outputs = Outputs(drop_failing=policy == "drop")
    stack.callback(_close_quietly, outputs)
    on_action = _actions(adapter, config, stop, keeper=keeper)
    open_outputs(outputs, source, config, on_action=on_action)
    reader = stack.enter_context(FrameReader(source))
    run = RunningStream(
        config=config,
        stop=stop,
        source=source,
        reader=reader,
        adapter=adapter,
        outputs=outputs,
        keeper=keeper,
        backpressure=Backpressure(adapter, lambda: reader.dropped) if source.info.live else None,
    )
    if config.serve is not None:
        board = make_board(run)
        outputs.add("--serve", board, poll=board.poll)
        stack.enter_context(open_page(run, board))
    return run


def _open_adapter(
    config: StreamConfig, stack: ExitStack, session: Session | None
) -> tuple[FrameSource, StreamAdapter]:
    """The source, and what classifies its frames."""
    if config.adaptive is not None:
        baked = load_adaptive(config.adaptive)
        source = stack.enter_context(open_input(config, baked))
        graph = open_adaptive_session(baked, device=config.device, num_threads=config.threads)
        baked_in = AdaptiveAdapter(
            stack.enter_context(graph),
            frozen=config.freeze,
            preprocess_threads=config.threads,
            exact_preprocess=not config.fast_preprocess,
        )
        return source, stack.enter_context(baked_in)
    artifact = load_artifact(config.model or "") if session is None else session.artifact
    source = stack.enter_context(open_input(config, artifact))
    # Streams that share a session have a thread each already.
    preprocess_threads = config.threads if session is None else 1
    if session is None:
        session = stack.enter_context(
            open_adapting_session(
                artifact,
                device=config.device,
                num_threads=config.threads,
                allow_host_code=config.allow_host_code,
            )
        )
    adapter = Adapter(
        session,
        config.gain_config(),
        update_every=config.update_every,
        warmup_frames=config.warm_up,
        frozen=config.freeze,
        device_preprocess=config.device_preprocess,
        preprocess_threads=preprocess_threads,
        exact_preprocess=not config.fast_preprocess,
    )
    return source, stack.enter_context(adapter)


def _open_snapshots(
    config: StreamConfig, adapter: StreamAdapter, stack: ExitStack
) -> SnapshotKeeper | None:
    """Continue from where the last run or the file named for it stopped."""
    keeper = None
    if config.snapshots is not None:
        keeper = SnapshotKeeper(
            stack.enter_context(SnapshotStore(config.snapshots)),
            adapter,
            every_frames=config.snapshot_every,
            every_s=config.snapshot_seconds,
        )
        if keeper.restore():
            return keeper
    if config.state_in is not None:
        adapter.load_state(config.state_in)
    return keeper


def _between(run: RunningStream, watchdog: Watchdog | None) -> Callable[[], None]:
    """What is done after every batch, and while there is none."""

    def act() -> None:
        if watchdog is not None:
            watchdog.beat()
        run.thermal.tick()
        drain_commands(
            run.queue, run.adapter, run.stop, state_out=run.config.state_out, keeper=run.keeper
        )
        if run.keeper is not None:
            run.keeper.tick()

    return act


def _say_opened(run: RunningStream, *, shared: bool) -> None:
    """One line of what is looked at, one of what it runs on, unless several streams share that."""
    info = run.source.info
    facts = [f"{info.width_px} x {info.height_px} px"]
    if info.timed:
        facts.append("rate unknown" if info.rate_hz is None else f"{info.rate_hz:.5g} Hz")
    if info.num_frames is not None:
        facts.append(f"{info.num_frames} {'frames' if info.timed else 'photos'}")
    if info.detail is not None:
        facts.append(info.detail)
    logger.log(NOTE, "%s: %s", info.source_id, ", ".join(facts))
    if not shared:
        logger.log(NOTE, "%s on %s", run.adapter.artifact.path, run.adapter.provider)


def _drive(run: RunningStream, console: Console) -> list[GainError]:
    """Run the loop, then finish the outputs and the state whatever happened; what went wrong."""
    config = run.config
    failures: list[GainError] = []
    live = run.source.info.live
    check = live if config.check_frames is None else config.check_frames
    watchdog, silence_s = None, None
    if config.watchdog is not None:
        watchdog = Watchdog(config.watchdog)
        # A source that waits for its camera to come back is silent, and does not hang.
        silence_s = config.watchdog + (config.reconnect if live else 0.0)
    try:
        with (
            watchdog or nullcontext(),
            RunProgress(run.record, console, total=config.max_frames) as progress,
        ):
            loop = StreamLoop(
                run.adapter,
                run.outputs,
                run.record,
                stop=run.stop,
                batch=config.batch,
                max_frames=config.max_frames,
                top_k=config.top_k,
                on_batch=progress.update,
                between=_between(run, watchdog),
                health=FrameHealth() if check else None,
                silence_s=silence_s,
                backpressure=run.backpressure,
            )
            loop.run(run.reader)
    except GainError as err:
        failures.append(err)
    finally:
        # Also where a bug ends the loop: its traceback follows, the files are whole.
        failures += _finish(run)
    return failures


def _finish(run: RunningStream) -> list[GainError]:
    """Keep what was learned and complete the files; what went wrong."""
    failures: list[GainError] = []
    finishes: tuple[Callable[[], None], ...] = (
        lambda: _last_snapshot(run),
        run.outputs.close,
        lambda: _save_state(run),
    )
    for finish in finishes:
        try:
            finish()
        except GainError as err:
            failures.append(err)
    return failures


def _actions(
    adapter: StreamAdapter,
    config: StreamConfig,
    stop: StopRequest,
    /,
    *,
    keeper: SnapshotKeeper | None = None,
) -> Callable[[DisplayAction], None]:
    """What the window's keys do."""

    def act(action: DisplayAction) -> None:
        command: Command = "unfreeze" if action == "freeze" and adapter.frozen else action
        carry_out(command, adapter, stop, state_out=config.state_out, keeper=keeper)

    return act


def _last_snapshot(run: RunningStream) -> None:
    """Keep what was learned since the last snapshot."""
    if run.keeper is not None:
        run.keeper.tick(end=True)


def _save_state(run: RunningStream) -> None:
    """Write the state where it is wanted and something was classified."""
    path = run.config.state_out
    if path is not None and run.record.frames:
        run.adapter.save_state(path)
        logger.info("%s: state after %d frames", path, run.adapter.frames)


def _nothing_classified(run: RunningStream) -> StreamError:
    """The error for a stream that ended before its first result."""
    record = run.record
    why = f"{run.source.skipped} unreadable, {record.rejected} rejected"
    first = "" if record.first_rejection is None else f"; first: {record.first_rejection}"
    return StreamError(
        f"{run.source.info.source_id}: expected at least one frame to classify, got none "
        f"({why}){first}"
    )


def _summary(run: RunningStream) -> dict[str, Any]:
    """What `--json` prints."""
    config, record, artifact = run.config, run.record, run.adapter.artifact
    record.reconnects = int(getattr(run.source, "reconnects", 0))
    settings = config.to_dict() | {"gain": run.adapter.config.to_dict()}
    if isinstance(artifact, AdaptiveArtifact):
        settings |= {
            "preset": None,
            "update_every": artifact.update_every,
            "warm_up": artifact.warmup_frames,
        }
    written = {
        "output": config.output,
        "jsonl": config.jsonl,
        "timeline": config.timeline,
        "save_changed": config.save_changed,
        "snapshots": config.snapshots,
    }
    if record.frames:
        written["state_out"] = config.state_out
    named = {} if config.name is None else {"name": config.name}
    return {
        **named,
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
        "config": settings,
        "outputs": {name: path for name, path in written.items() if path is not None},
        "version": __version__,
    }


def _close_quietly(outputs: Outputs) -> None:
    """Release what was opened before something else failed; after a whole run, nothing is left."""
    with contextlib.suppress(GainError):
        outputs.close()

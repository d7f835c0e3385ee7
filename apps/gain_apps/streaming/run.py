"""One run of `gain-stream`: opening everything, the loop, and finishing in good order."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.streaming.config import NO_TRUTH, StreamConfig
from gain_apps.streaming.control import Command, StopRequest, Watchdog
from gain_apps.streaming.input import open_input
from gain_apps.streaming.loop import Backpressure, RunningStream, StreamHost, StreamLoop
from gain_apps.streaming.outputs import Outputs, open_outputs
from gain_apps.streaming.settings import flag
from gain_apps.streaming.snapshots import SnapshotKeeper
from gain_apps.streaming.summary import NOTE, RunProgress
from gain_core import UPDATE_EVERY, WARMUP_FRAMES, __version__, config_to_dict
from gain_core.errors import GainError, StreamError
from gain_runtime.adapter import Adapter
from gain_runtime.classifier import open_engine
from gain_runtime.engine import Engine, EngineArtifact, NetworkEngine
from gain_runtime.files.snapshots import SnapshotStore
from gain_runtime.frames import FrameSource
from gain_runtime.sinks.pictures import DisplayAction
from gain_runtime.sources.reader import FrameReader
from gain_runtime.sources.reconnecting import Connection, ConnectionWatch

logger = logging.getLogger(__name__)


def run_stream(
    config: StreamConfig,
    stop: StopRequest,
    console: Console,
    /,
    *,
    report: Callable[[dict[str, Any]], None],
    host: StreamHost | None = None,
) -> None:
    """Run one stream to its end, to a stop request or to a failure.

    `console` shows progress; `report` receives the summary once everything is finished, also after
    a failure in mid-stream; `host` is what the stream shares with the others of a service.
    GainError if something cannot be opened or fails in mid-stream: in the latter case the outputs
    are finished, the state is saved and the summary reported first.
    """
    logger.info("config: %s", json.dumps(config.to_dict()))
    # Until something is open, there is nothing to finish: a signal ends the process at once.
    stop.nothing_to_lose = host is None
    with ExitStack() as stack:
        # A step's products are too small to share out, and BLAS threads that wait by spinning take
        # the cores from ONNX Runtime's: 1.1 ms against 33 ms a step, seen on two busy cores.
        stack.enter_context(threadpool_limits(limits=1, user_api="blas"))
        run = _open(config, stop, stack, StreamHost() if host is None else host)
        _say_opened(run)
        failures = _drive(run, console)
        # Its end ends a read that waits, for which the reader would wait.
        run.source.close()
        run.reader.close()
        if not run.record.frames and not stop and not failures:
            failures.append(_nothing_classified(run))
        named = config.truth not in (None, NO_TRUTH)
        if named and run.record.frames and not run.record.scores.source.count:
            logger.warning("%s %s: no frame is named in it", flag("truth"), config.truth)
        report(_summary(run))
    for further in failures[1:]:
        logger.error("%s", further)
    if failures:
        raise failures[0]


def _open(
    config: StreamConfig, stop: StopRequest, stack: ExitStack, host: StreamHost
) -> RunningStream:
    """Open everything, what fails soonest first; `stack` closes it."""
    engine = _open_engine(config, stack, host)
    source = _open_source(config, engine.artifact, stop, stack, host)
    adapter = stack.enter_context(
        Adapter(
            engine,
            frozen=config.freeze,
            # Streams that share a session have a thread each already.
            preprocess_threads=config.num_threads if host.session is None else 1,
        )
    )
    keeper = _open_snapshots(config, adapter, stack, host)
    adapter.warm_up(config.batch_size)
    stop.nothing_to_lose = False
    live = source.info.live
    policy = config.sink_errors or ("drop" if live else "stop")
    outputs = Outputs(drop_failing=policy == "drop")

    @stack.callback
    def let_go() -> None:
        # Where something else fails; after a whole run, nothing is left to close.
        with suppress(GainError):
            outputs.close()

    def on_key(action: DisplayAction) -> None:
        command: Command = "unfreeze" if action == "freeze" and adapter.frozen else action
        host.queue.submit(command, who="the window")

    open_outputs(outputs, source, config, on_action=on_key, mqtt=host.mqtt)
    reader = stack.enter_context(FrameReader(source))
    run = RunningStream(
        config=config,
        stop=stop,
        host=host,
        source=source,
        reader=reader,
        adapter=adapter,
        outputs=outputs,
        keeper=keeper,
        backpressure=Backpressure(adapter, lambda: reader.dropped) if live else None,
        watchdog=Watchdog(config.watchdog) if host.watchdog is None else host.watchdog,
    )
    if host.board is not None:
        host.board.attach(run.identity(), probe=run.facts)
        outputs.add("--serve", host.board, poll=host.board.poll)
    return run


def _open_engine(config: StreamConfig, stack: ExitStack, host: StreamHost) -> Engine:
    """What classifies the frames: the network that streams share, or the settings' own file."""
    if host.session is None:
        return open_engine(
            config.model or "",
            stack,
            device=config.device,
            config=config.gain_config(),
            update_every=config.update_every,
            warmup_frames=config.warm_up,
            num_threads=config.num_threads,
            allow_host_code=config.allow_host_code,
        )
    return NetworkEngine(
        host.session,
        config.gain_config(),
        update_every=UPDATE_EVERY if config.update_every is None else config.update_every,
        warmup_frames=WARMUP_FRAMES if config.warm_up is None else config.warm_up,
    )


def _open_source(
    config: StreamConfig,
    artifact: EngineArtifact,
    stop: StopRequest,
    stack: ExitStack,
    host: StreamHost,
) -> FrameSource:
    """The source; one that is away is waited for where the stream is one of a service."""
    board = host.board
    watch = ConnectionWatch(
        changed=(lambda connection: None) if board is None else board.connect,
        stopping=lambda: bool(stop),
        waits_at_start=host.waits,
    )
    source = stack.enter_context(open_input(config, artifact, watch=watch))
    if board is not None and board.view().connection.state != "connected":
        # Files and pictures made by code have no connection to lose.
        board.connect(Connection(state="connected"))
    return source


def _open_snapshots(
    config: StreamConfig, adapter: Adapter, stack: ExitStack, host: StreamHost
) -> SnapshotKeeper | None:
    """Continue from where the last run or the file named for it stopped."""
    keeper = None
    if config.snapshots is not None:
        store = stack.enter_context(SnapshotStore(config.snapshots))
        keeper = SnapshotKeeper(
            store,
            adapter,
            every_frames=config.snapshot_every,
            every_s=config.snapshot_seconds,
        )
        restored = keeper.restore()
        for line in store.set_aside:
            host.note("state", f"a snapshot was set aside: {line}")
        held = keeper.held()
        if held is not None:
            adapter.freeze()
            logger.warning("learning is paused, as before the restart (by %s)", held)
            host.note("state", f"learning is still paused, as before the restart (by {held})")
        if restored:
            host.note("state", f"continued after {adapter.frames} learned frames")
            return keeper
    if config.state_in is not None:
        adapter.load_state(config.state_in)
    return keeper


def _say_opened(run: RunningStream) -> None:
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
    if run.host.session is None:
        logger.log(NOTE, "%s on %s", run.adapter.artifact.path, run.adapter.provider)


def _drive(run: RunningStream, console: Console) -> list[GainError]:
    """Run the loop, then finish the outputs and the state whatever happened; what went wrong."""
    config, name = run.config, run.config.name or ""
    failures: list[GainError] = []
    run.watchdog.beat(name)
    try:
        with (
            run.watchdog if run.host.watchdog is None else nullcontext(),
            RunProgress(run.record, console, total=config.max_frames) as progress,
        ):
            StreamLoop(run, on_batch=progress.update).run()
    except GainError as err:
        failures.append(err)
    finally:
        run.watchdog.forget(name)
        # Also where a bug ends the loop: its traceback follows, the files are whole.
        failures += _finish(run)
    return failures


def _finish(run: RunningStream) -> list[GainError]:
    """Keep what was learned and complete the files; what went wrong."""
    path = run.config.state_out

    def save_state() -> None:
        if path is not None and run.record.frames:
            run.adapter.save_state(path)
            logger.info("%s: state after %d frames", path, run.adapter.frames)

    failures: list[GainError] = []
    finishes: tuple[Callable[[], None], ...] = (
        lambda: None if run.keeper is None else run.keeper.tick(end=True),
        run.outputs.close,
        save_state,
    )
    for finish in finishes:
        try:
            finish()
        except GainError as err:
            failures.append(err)
    return failures


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
    """What `--json` writes."""
    config, record, artifact = run.config, run.record, run.adapter.artifact
    record.reconnects = run.reconnects
    settings = config.to_dict() | {
        "gain": config_to_dict(run.adapter.config),
        "update_every": run.adapter.update_every,
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

"""One run of `gain-stream`: opening everything, the loop, and finishing in good order."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.serve.board import LiveBoard
from gain_apps.streaming.backpressure import Backpressure
from gain_apps.streaming.config import NO_TRUTH, StreamConfig
from gain_apps.streaming.control import Command, StopRequest, Watchdog, carry_out, drain_commands
from gain_apps.streaming.input import open_input
from gain_apps.streaming.loop import RunningStream, StreamHost, StreamLoop, facts_of, identity_of
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
from gain_runtime.frames import FrameHealth, FrameSource
from gain_runtime.sinks.pictures import DisplayAction
from gain_runtime.sources.reader import FrameReader
from gain_runtime.sources.reconnecting import Connection, ConnectionWatch

__all__ = [
    "run_stream",
]

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
        run = _open(config, stop, stack, host=StreamHost() if host is None else host)
        _say_opened(run, shared=run.host.session is not None)
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
    config: StreamConfig, stop: StopRequest, stack: ExitStack, *, host: StreamHost
) -> RunningStream:
    """Open everything, what fails soonest first; `stack` closes it."""
    source, adapter = _open_adapter(config, stop, stack, host)
    keeper = _open_snapshots(config, adapter, stack, host)
    adapter.warm_up(config.batch_size)
    stop.nothing_to_lose = False
    policy = config.sink_errors or ("drop" if source.info.live else "stop")
    outputs = Outputs(drop_failing=policy == "drop")
    stack.callback(_close_quietly, outputs)
    on_action = _actions(adapter, config, stop, keeper=keeper, board=host.board)
    open_outputs(outputs, source, config, on_action=on_action, mqtt=host.mqtt)
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
        backpressure=Backpressure(adapter, lambda: reader.dropped) if source.info.live else None,
    )
    if host.board is not None:
        host.board.attach(identity_of(run), probe=lambda: facts_of(run))
        outputs.add("--serve", host.board, poll=host.board.poll)
    return run


def _open_adapter(
    config: StreamConfig, stop: StopRequest, stack: ExitStack, host: StreamHost
) -> tuple[FrameSource, Adapter]:
    """The source, and what classifies its frames."""
    engine: Engine
    if host.session is not None:
        engine = NetworkEngine(
            host.session,
            config.gain_config(),
            update_every=UPDATE_EVERY if config.update_every is None else config.update_every,
            warmup_frames=WARMUP_FRAMES if config.warm_up is None else config.warm_up,
        )
    else:
        engine = open_engine(
            config.model or "",
            stack,
            device=config.device,
            config=config.gain_config(),
            update_every=config.update_every,
            warmup_frames=config.warm_up,
            num_threads=config.num_threads,
            allow_host_code=config.allow_host_code,
        )
    source = _open_source(config, engine.artifact, stop, stack, host)
    # Streams that share a session have a thread each already.
    threads = config.num_threads if host.session is None else 1
    adapter = Adapter(
        engine,
        frozen=config.freeze,
        preprocess_threads=threads,
        exact_preprocess=not config.fast_preprocess,
    )
    return source, stack.enter_context(adapter)


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

    def say(text: str) -> None:
        if host.board is not None:
            host.board.note("state", text)

    keeper = None
    if config.snapshots is not None:
        keeper = SnapshotKeeper(
            stack.enter_context(SnapshotStore(config.snapshots)),
            adapter,
            every_frames=config.snapshot_every,
            every_s=config.snapshot_seconds,
        )
        restored = keeper.restore()
        for line in keeper.set_aside:
            say(f"a snapshot was set aside: {line}")
        held = keeper.held()
        if held is not None:
            adapter.freeze()
            logger.warning("learning is paused, as before the restart (by %s)", held)
            say(f"learning is still paused, as before the restart (by {held})")
        if restored:
            say(f"continued after {adapter.frames} learned frames")
            return keeper
    if config.state_in is not None:
        adapter.load_state(config.state_in)
    return keeper


def _between(run: RunningStream, watchdog: Watchdog) -> Callable[[], None]:
    """What is done after every batch, and while there is none."""
    host, board = run.host, run.host.board
    hangups = run.stop.hangups

    def note(outcome: str, who: str) -> None:
        if board is not None:
            board.note("command", outcome, who=who)

    def act() -> None:
        nonlocal hangups
        watchdog.beat(run.config.name or "")
        host.thermal.tick()
        drain_commands(
            host.queue,
            run.adapter,
            run.stop,
            state_out=run.config.state_out,
            keeper=run.keeper,
            note=note,
        )
        if run.keeper is not None:
            run.keeper.tick()
        if run.stop.hangups != hangups:
            hangups = run.stop.hangups
            run.outputs.reopen()

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
    silence_s = None
    if config.watchdog is not None:
        # A source that waits for its camera to come back is silent, and does not hang.
        waits_s = math.inf if config.reconnect is None else config.reconnect
        silence_s = config.watchdog + (waits_s if live else 0.0)
    own = Watchdog(config.watchdog) if run.host.watchdog is None else None
    watchdog = own or run.host.watchdog
    assert watchdog is not None
    watchdog.beat(config.name or "")
    try:
        with (
            own or nullcontext(),
            RunProgress(run.record, console, total=config.max_frames) as progress,
        ):
            loop = StreamLoop(
                run.adapter,
                run.outputs,
                run.record,
                stop=run.stop,
                batch=config.batch_size,
                max_frames=config.max_frames,
                top_k=config.top_k,
                on_batch=progress.update,
                between=_between(run, watchdog),
                health=FrameHealth() if check else None,
                silence_s=silence_s,
                backpressure=run.backpressure,
                live=live,
            )
            loop.run(run.reader)
    except GainError as err:
        failures.append(err)
    finally:
        watchdog.forget(config.name or "")
        # Also where a bug ends the loop: its traceback follows, the files are whole.
        failures += _finish(run)
    return failures


def _finish(run: RunningStream) -> list[GainError]:
    """Keep what was learned and complete the files; what went wrong."""
    failures: list[GainError] = []
    finishes: tuple[Callable[[], None], ...] = (
        lambda: None if run.keeper is None else run.keeper.tick(end=True),
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
    adapter: Adapter,
    config: StreamConfig,
    stop: StopRequest,
    /,
    *,
    keeper: SnapshotKeeper | None = None,
    board: LiveBoard | None = None,
) -> Callable[[DisplayAction], None]:
    """What the window's keys do."""

    def act(action: DisplayAction) -> None:
        command: Command = "unfreeze" if action == "freeze" and adapter.frozen else action
        outcome = carry_out(
            command, adapter, stop, state_out=config.state_out, keeper=keeper, who="the window"
        )
        logger.log(NOTE, "%s", outcome)
        if board is not None:
            board.note("command", outcome, who="the window")

    return act


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


def _close_quietly(outputs: Outputs) -> None:
    """Release what was opened before something else failed; after a whole run, nothing is left."""
    with contextlib.suppress(GainError):
        outputs.close()

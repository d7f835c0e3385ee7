"""The reader thread: order, back-pressure, dropping, errors, and never hanging."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from results import make_info

from gain_core.errors import ConfigError, StreamError
from gain_runtime.frames import Frame
from gain_runtime.sources.reader import FrameReader, ReadStatus

IMAGE = np.zeros((2, 2, 3), dtype=np.uint8)
PATIENCE_S = 120.0


class ScriptedSource:
    """Yields frames 0, 1, 2, ...; `before(index)` runs before each and may block or raise."""

    def __init__(
        self, count: int, *, live: bool = False, before: Callable[[int], None] = lambda index: None
    ) -> None:
        self.count = count
        self.before = before
        self.produced = 0
        self.thread: threading.Thread | None = None
        self.info = make_info(live=live)
        self.skipped = 0

    def __iter__(self) -> Iterator[Frame]:
        self.thread = threading.current_thread()
        for index in range(self.count):
            self.before(index)
            self.produced = index + 1
            yield Frame(image=IMAGE, index=index, timestamp_ns=index, source_id="scripted")
        self.before(self.count)


def held_at(index: int) -> tuple[threading.Event, Callable[[int], None]]:
    """What lets a source go on, and what holds it before this frame until then."""
    go_on = threading.Event()

    def stall(at: int) -> None:
        if at == index:
            go_on.wait(PATIENCE_S)

    return go_on, stall


def assert_thread_gone(source: ScriptedSource) -> None:
    assert source.thread is not None
    assert source.thread is not threading.current_thread()
    assert not source.thread.is_alive()


@pytest.mark.parametrize("queue_size", [1, 2, 50])
def test_block_delivers_every_frame_in_order(queue_size):
    source = ScriptedSource(200)
    with FrameReader(source, policy="block", queue_size=queue_size) as reader:
        assert [frame.index for frame in reader] == list(range(200))
        assert reader.dropped == 0
    assert_thread_gone(source)


def test_block_reads_no_further_ahead_than_the_queue(until):
    source = ScriptedSource(100)
    with FrameReader(source, policy="block", queue_size=3) as reader:
        frames = iter(reader)
        next(frames)
        # Three queued and one in the thread's hand, beside the one taken.
        until(lambda: source.produced == 5)
        time.sleep(0.02)
        assert source.produced == 5
    assert_thread_gone(source)


def test_drop_oldest_keeps_the_newest_and_counts():
    taken, stall = held_at(1)
    source = ScriptedSource(50, before=stall)
    with FrameReader(source, policy="drop_oldest", queue_size=4) as reader:
        first = reader.get(timeout_s=PATIENCE_S)
        assert isinstance(first, Frame)
        assert first.index == 0
        taken.set()
        assert source.thread is not None
        source.thread.join(PATIENCE_S)
        assert [frame.index for frame in reader] == [46, 47, 48, 49]
        assert reader.dropped == 45


def test_drop_oldest_drops_nothing_for_a_fast_consumer():
    turn = threading.Semaphore(1)

    def wait_for_turn(index: int) -> None:
        assert turn.acquire(timeout=PATIENCE_S)

    source = ScriptedSource(30, before=wait_for_turn)
    seen = []
    with FrameReader(source, policy="drop_oldest", queue_size=1) as reader:
        for frame in reader:
            seen.append(frame.index)
            turn.release()
        assert reader.dropped == 0
    assert seen == list(range(30))


@pytest.mark.parametrize(
    ("live", "policy"),
    [pytest.param(True, "drop_oldest", id="live"), pytest.param(False, "block", id="recorded")],
)
def test_the_default_policy_follows_the_source(live, policy):
    assert FrameReader(ScriptedSource(1, live=live)).policy == policy


def test_frames_before_an_error_arrive_then_the_error_itself():
    failure = StreamError("camera 0: signal lost")

    def fail_at_three(index: int) -> None:
        if index == 3:
            raise failure

    source = ScriptedSource(10, before=fail_at_three)
    seen = []
    with FrameReader(source, queue_size=2) as reader, pytest.raises(StreamError) as caught:
        seen.extend(frame.index for frame in reader)
    assert caught.value is failure
    assert seen == [0, 1, 2]
    assert_thread_gone(source)


def test_an_error_that_is_no_exception_class_of_ours_is_raised_too():
    def exit_at_once(index: int) -> None:
        raise SystemExit(3)

    reader = FrameReader(ScriptedSource(1, before=exit_at_once))
    with reader, pytest.raises(SystemExit):
        next(iter(reader))
    assert reader.get(timeout_s=0.0) is ReadStatus.END


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_a_consumer_that_stops_early_hangs_nothing(policy):
    source = ScriptedSource(10_000_000)
    started = time.monotonic()
    with FrameReader(source, policy=policy, queue_size=2) as reader:  # type: ignore[arg-type]
        for frame in reader:
            if frame.index >= 5:
                break
    assert time.monotonic() - started < PATIENCE_S
    assert_thread_gone(source)


def test_a_blocked_source_is_a_timeout_and_then_goes_on():
    go_on, stall = held_at(1)
    with FrameReader(ScriptedSource(2, before=stall)) as reader:
        first = reader.get(timeout_s=PATIENCE_S)
        assert isinstance(first, Frame)
        assert reader.get(timeout_s=0.01) is ReadStatus.TIMEOUT
        go_on.set()
        assert [frame.index for frame in reader] == [1]


def test_close_gives_up_on_a_source_that_stays_blocked(monkeypatch, caplog):
    monkeypatch.setattr("gain_runtime.sources.reader.JOIN_S", 0.05)
    go_on, stall = held_at(1)
    source = ScriptedSource(3, before=stall)
    reader = FrameReader(source)
    with caplog.at_level(logging.WARNING):
        next(iter(reader))
        reader.close()
    assert "still blocked" in caplog.text
    assert source.thread is not None
    assert source.thread.daemon
    go_on.set()
    source.thread.join(PATIENCE_S)
    assert not source.thread.is_alive()
    assert source.produced == 2


def test_close_from_another_thread_ends_a_waiting_consumer(until):
    go_on, stall = held_at(0)
    source = ScriptedSource(3, before=stall)
    reader = FrameReader(source)
    seen: list[Frame] = []
    consumer = threading.Thread(target=lambda: seen.extend(reader))
    consumer.start()
    until(lambda: source.thread is not None)
    closer = threading.Thread(target=reader.close)
    closer.start()
    consumer.join(PATIENCE_S)
    assert not consumer.is_alive()
    go_on.set()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert seen == []


def test_close_may_be_repeated_and_ends_everything():
    source = ScriptedSource(100)
    reader = FrameReader(source)
    next(iter(reader))
    reader.close()
    reader.close()
    assert list(reader) == []
    assert reader.get(timeout_s=0.0) is ReadStatus.END
    assert_thread_gone(source)


def test_close_before_the_start_reads_nothing():
    source = ScriptedSource(100)
    reader = FrameReader(source)
    reader.close()
    assert list(reader) == []
    assert source.thread is None


@pytest.mark.parametrize(("name", "value"), [("policy", "newest"), ("queue_size", 0)])
def test_bad_settings_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        FrameReader(ScriptedSource(1), **{name: value})

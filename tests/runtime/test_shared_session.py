"""One session for several streams: who is answered with what, together or in turn."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gain_core.errors import ArrayError, ConfigError, EngineError
from gain_runtime.sessions.onnx import CUDA_PROVIDER, OnnxSession
from gain_runtime.sessions.session import Features
from gain_runtime.sessions.shared import SharedSession, StreamSession

LONG_S = 120.0


@pytest.fixture
def session(tiny_artifact: Path) -> Iterator[OnnxSession]:
    with OnnxSession(tiny_artifact, num_threads=1) as opened:
        yield opened


class Recording:
    """A session that notes the batch sizes it is given; `gate` holds a pass, `fails` ends it."""

    def __init__(self, session: OnnxSession) -> None:
        self._session = session
        self.artifact, self.provider = session.artifact, session.provider
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.fails: Callable[[np.ndarray], None] = lambda pixel_values: None

    def infer(self, pixel_values: np.ndarray, /) -> Features:
        self.sizes.append(len(pixel_values))
        self.entered.set()
        assert self.gate.wait(LONG_S)
        self.fails(pixel_values)
        return self._session.infer(pixel_values)


@pytest.fixture
def recording(session: OnnxSession) -> Recording:
    return Recording(session)


@pytest.fixture
def batch(session: OnnxSession) -> Callable[..., np.ndarray]:
    size = session.artifact.manifest.preprocess

    def make(seed: int, rows: int = 1) -> np.ndarray:
        shape = (rows, 3, size.height_px, size.width_px)
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    return make


def ask_all(streams: list[StreamSession], batches: list[np.ndarray]) -> list[Features | Exception]:
    """All at once, each in its own thread; what each got."""

    def ask(stream: StreamSession, pixel_values: np.ndarray) -> Features | Exception:
        try:
            return stream.infer(pixel_values)
        except (KeyError, ArrayError, EngineError) as err:
            return err

    with ThreadPoolExecutor(len(streams)) as pool:
        asked = [pool.submit(ask, *pair) for pair in zip(streams, batches, strict=True)]
        return [future.result(timeout=LONG_S) for future in asked]


def meet(
    shared: SharedSession, streams: list[StreamSession], batches: list[np.ndarray]
) -> list[Features]:
    """The pass of the first is held until all the others wait for the next; what each got."""
    recording = shared._session
    recording.gate.clear()
    recording.entered.clear()
    with ThreadPoolExecutor(len(streams)) as pool:
        asked = [pool.submit(streams[0].infer, batches[0])]
        assert recording.entered.wait(LONG_S)
        later = zip(streams[1:], batches[1:], strict=True)
        asked += [pool.submit(stream.infer, pixel_values) for stream, pixel_values in later]
        while len(shared._waiting) < len(streams) - 1:
            time.sleep(0.001)
        recording.gate.set()
        return [future.result(timeout=LONG_S) for future in asked]


def assert_same(answer: Features | Exception, expected: Features) -> None:
    assert isinstance(answer, Features), answer
    for got, wanted in zip(answer, expected, strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_streams_that_are_ready_together_share_a_pass(session, recording, batch):
    shared = SharedSession(recording, wait_s=LONG_S)
    streams = [shared.join() for _ in range(3)]
    batches = [batch(0), batch(1, rows=3), batch(2, rows=2)]
    answers = ask_all(streams, batches)
    # The last of three to ask ends the wait, long before its time.
    assert recording.sizes == [6]
    assert (shared.passes, shared.rows) == (1, 6)
    for answer, pixel_values in zip(answers, batches, strict=True):
        assert_same(answer, session.infer(pixel_values))


def test_one_stream_alone_waits_for_nobody(recording, batch):
    shared = SharedSession(recording, wait_s=LONG_S)
    with shared.join() as stream, shared.join() as other:
        other.close()
        other.close()
        started = time.monotonic()
        assert_same(stream.infer(batch(0)), recording.infer(batch(0)))
        assert time.monotonic() - started < LONG_S / 2


def test_the_wait_for_a_stream_that_has_nothing_ends(recording, batch):
    shared = SharedSession(recording, wait_s=0.05)
    stream, _idle = shared.join(), shared.join()
    started = time.monotonic()
    stream.infer(batch(0))
    assert 0.05 <= time.monotonic() - started < LONG_S


def test_streams_that_are_never_ready_together_do_not_wait(recording, batch):
    shared = SharedSession(recording, wait_s=0.5)
    streams = [shared.join() for _ in range(3)]
    streams[0].infer(batch(0))
    # However long it may.
    shared._wait_s = LONG_S
    started = time.monotonic()
    for stream in streams * 4:
        stream.infer(batch(0))
    assert time.monotonic() - started < LONG_S
    # Two that meet by chance are waited for again, and the third has nothing.
    shared._wait_s = 0.5
    meet(shared, streams, [batch(0)] * 3)
    shared._wait_s = LONG_S
    recording.sizes.clear()
    ask_all(streams, [batch(n) for n in range(3)])
    assert recording.sizes == [3]


def test_what_is_asked_during_a_pass_shares_the_next(recording, batch):
    shared = SharedSession(recording, wait_s=0.0)
    streams = [shared.join() for _ in range(4)]
    meet(shared, streams, [batch(n) for n in range(4)])
    assert recording.sizes == [1, 3]


def test_a_pass_is_no_larger_than_asked_and_a_batch_never_split(recording, batch):
    shared = SharedSession(recording, wait_s=0.05, most_rows=4)
    batches = [batch(n, rows=2) for n in range(4)]
    answers = meet(shared, [shared.join() for _ in batches], batches)
    assert max(recording.sizes) <= 4
    assert sum(recording.sizes) == 8
    for answer, pixel_values in zip(answers, batches, strict=True):
        assert_same(answer, recording.infer(pixel_values))
    recording.sizes.clear()
    large = SharedSession(recording, wait_s=0.0, most_rows=1)
    large.join().infer(batch(9, rows=5))
    assert recording.sizes == [5]


def test_a_network_with_a_fixed_batch_is_used_in_turns(recording, batch, caplog):
    def only_one(pixel_values: np.ndarray) -> None:
        if len(pixel_values) != 1:
            raise ArrayError("pixel_values: expected (1, 3, 16, 16) float32")

    recording.fails = only_one
    shared = SharedSession(recording, wait_s=LONG_S)
    streams = [shared.join() for _ in range(2)]
    for _ in range(2):
        for n, answer in enumerate(ask_all(streams, [batch(0), batch(1)])):
            assert_same(answer, recording._session.infer(batch(n)))
    # Tried together once, and never again.
    assert recording.sizes == [2, 1, 1, 1, 1]
    assert [record.message for record in caplog.records] == [
        "streams cannot share a forward pass and take turns: "
        "pixel_values: expected (1, 3, 16, 16) float32"
    ]


def test_an_error_is_that_of_the_stream_that_caused_it(recording, batch, caplog):
    poison = batch(1)

    def refuses(pixel_values: np.ndarray) -> None:
        if any(np.array_equal(row, poison[0]) for row in pixel_values):
            raise EngineError("tiny.onnx: failed")

    recording.fails = refuses
    shared = SharedSession(recording, wait_s=LONG_S)
    streams = [shared.join() for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        answers = ask_all(streams, [batch(0), poison, batch(2)])
    assert_same(answers[0], recording._session.infer(batch(0)))
    assert_same(answers[2], recording._session.infer(batch(2)))
    assert isinstance(answers[1], EngineError)
    assert str(answers[1]) == "tiny.onnx: failed"
    assert not caplog.records


def test_another_shape_is_refused_alone(recording, batch):
    shared = SharedSession(recording, wait_s=0.2)
    streams = [shared.join() for _ in range(2)]
    answers = ask_all(streams, [batch(0), np.zeros((1, 3, 5, 5), np.float32)])
    assert_same(answers[0], recording._session.infer(batch(0)))
    assert isinstance(answers[1], ArrayError)


def test_a_bug_in_a_pass_leaves_nobody_waiting(recording, batch):
    def breaks(pixel_values: np.ndarray) -> None:
        raise KeyError("a bug")

    recording.fails = breaks
    shared = SharedSession(recording, wait_s=LONG_S)
    streams = [shared.join() for _ in range(2)]
    kinds = {type(answer) for answer in ask_all(streams, [batch(0), batch(1)])}
    assert kinds == {KeyError, EngineError}
    # And the next pass is like any other.
    recording.fails = lambda pixel_values: None
    for answer in ask_all(streams, [batch(0), batch(1)]):
        assert isinstance(answer, Features)


def test_a_stream_that_left_is_told(session, batch):
    stream = SharedSession(session).join()
    stream.close()
    with pytest.raises(EngineError, match="has left the session"):
        stream.infer(batch(0))


@pytest.mark.parametrize("setting", [{"wait_s": -1.0}, {"wait_s": np.nan}, {"most_rows": 0}])
def test_bad_settings_are_refused(session, setting):
    with pytest.raises(ConfigError, match=f"{next(iter(setting))}: expected"):
        SharedSession(session, **setting)


@pytest.mark.gpu
def test_rows_of_a_device_outlast_its_later_passes(tiny_artifact, session, batch):
    rounds = [[batch(3 * n), batch(3 * n + 1), batch(3 * n + 2, rows=3)] for n in range(4)]
    with OnnxSession(tiny_artifact, provider=CUDA_PROVIDER) as device:
        shared = SharedSession(Recording(device), wait_s=0.0)
        streams = [shared.join() for _ in range(3)]
        answers = [meet(shared, streams, batches) for batches in rounds]
    for batches, given in zip(rounds, answers, strict=True):
        for pixel_values, answer in zip(batches, given, strict=True):
            for got, expected in zip(answer, session.infer(pixel_values), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)

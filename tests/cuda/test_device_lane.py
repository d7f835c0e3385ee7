"""Batches ahead of their results, on streams that work as late and as oddly as allowed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lazy_streams import (
    GET_MS,
    SET_MS,
    UPLOAD_MS,
    LazyArray,
    LazyDevice,
    LazyStream,
    OutOfMemoryError,
    lazy_cupy,
)
from numpy.testing import assert_array_equal

from gain_core.errors import ArrayError, EngineError
from gain_runtime.batch_preprocess import BatchPreprocessor
from gain_runtime.cuda.cuda_preprocess import CudaPreprocessor
from gain_runtime.cuda.frame_uploads import FrameUploads
from gain_runtime.cuda.prediction_block import PredictionBlock, layout_of, new_block
from gain_runtime.cuda_memory import CudaMemory
from gain_runtime.device_buffers import OutputRing
from gain_runtime.device_lane import DeviceLane
from gain_runtime.manifest import Preprocess
from gain_runtime.session import Features

NUM_CLASSES, FEATURE_DIM, SIZE_PX = 5, 3, 6
FORWARD_MS, STEP_MS, KERNEL_MS = 10.0, 3.0, 2.0
SPEC = Preprocess(height_px=SIZE_PX, width_px=SIZE_PX, mean=(0.5,) * 3, std=(0.5,) * 3)
F32 = np.dtype(np.float32)


class LazySession:
    """A session whose network sums pixels, on `CudaMemory` and a ring of outputs."""

    def __init__(self, device: LazyDevice) -> None:
        self.artifact = SimpleNamespace(path=Path("net.onnx"))
        self._device = device
        self._memory = CudaMemory()
        self._ring = OutputRing(self._memory, (FEATURE_DIM, NUM_CLASSES), length=3)
        self.stream = self._memory.stream

    def infer(self, pixel_values: Any, /) -> Features:
        if pixel_values.shape[2:] != (SIZE_PX, SIZE_PX):
            raise ArrayError("pixel_values: expected another size")
        with self._memory.ordered():
            features, logits = self._ring.next(len(pixel_values))
            if len(pixel_values):
                # As a network does, whoever owns the memory by then.
                work = partial(forward, pixel_values.values, features.values, logits.values)
                self._device.current.add(work, took_ms=FORWARD_MS)
            return Features(features, logits)


def forward(pixels: np.ndarray, features: np.ndarray, logits: np.ndarray) -> None:
    features[...] = pixels[:, :, 0, 0]
    logits[...] = -pixels.sum(axis=(1, 2))[:, :NUM_CLASSES]


@dataclass
class State:
    """What the method remembers: the order of the batches is in it."""

    number: float = 1.0
    steps: int = 0

    def predict(self, block: PredictionBlock, logits: np.ndarray) -> None:
        """Fill a block of NumPy arrays."""
        made = block.prediction
        made.log_probs[...] = logits - self.number
        made.source_log_probs[...] = logits
        made.strength[...] = 0.5
        made.gain[...] = self.number
        made.finite[...] = True
        block.trips[...] = self.steps

    def learn(self, logits: np.ndarray) -> None:
        self.number = (3 * self.number - logits.sum()) % 101
        self.steps += 1


class LazyGain:
    """A method whose state is on the device."""

    def __init__(self, device: LazyDevice) -> None:
        self._device, self._state = device, State()
        self._like = lazy_cupy_array((NUM_CLASSES,), np.float32)
        self.fails_with: Exception | None = None

    def predict(self, features: LazyArray, logits: LazyArray) -> Any:
        return self._enqueue(logits, learn=False)

    def step(self, features: LazyArray, logits: LazyArray) -> Any:
        return self._enqueue(logits, learn=True)

    @property
    def guard_trips(self) -> LazyArray:
        trips = lazy_cupy_array((), np.float32)
        self._device.current.add(partial(self._count, trips.values))
        return trips

    def _enqueue(self, logits: LazyArray, *, learn: bool) -> Any:
        made = new_block(len(logits), like=self._like)
        memory = made.block.values

        def work(rows: np.ndarray) -> None:
            if learn:
                before = rows.copy()
            self._state.predict(PredictionBlock.over(memory, made.layout), rows)
            if learn:
                self._state.learn(before)
                PredictionBlock.over(memory, made.layout).trips[...] = self._state.steps

        self._device.current.add(partial(work, logits.values), took_ms=STEP_MS)
        if self.fails_with is not None:
            err, self.fails_with = self.fails_with, None
            raise err
        return made.prediction

    def _count(self, trips: np.ndarray) -> None:
        trips[...] = self._state.steps


def lazy_cupy_array(shape: tuple[int, ...], dtype: Any) -> LazyArray:
    return sys.modules["cupy"].empty(shape, dtype)


class LazyPreprocessKernels:
    """`PreprocessKernels` on the device; what they write is a mark of the frame."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self.array_type = cupy.ndarray
        self.uploads = FrameUploads(cupy)

    def address(self, array: LazyArray, /) -> int:
        return array.data.ptr

    def empty(self, shape: tuple[int, ...], dtype: Any, /) -> LazyArray:
        return self._cupy.empty(shape, dtype)

    def launch(self, name: str, arguments: Sequence[Any], /, *, blocks: int, threads: int) -> None:
        target = arguments[-1].values if name == "resample_lines" else None
        work = (lambda: None) if target is None else partial(target.fill, 1.0)
        self._cupy.cuda.get_current_stream().add(work, took_ms=KERNEL_MS)


@pytest.fixture
def make_lane(monkeypatch) -> Callable[..., tuple[LazyDevice, DeviceLane, LazyGain]]:
    def make(seed: int = 0, *, on_device: bool = False) -> tuple[LazyDevice, DeviceLane, LazyGain]:
        device = LazyDevice(seed)
        cupy = lazy_cupy(device)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        session, gain = LazySession(device), LazyGain(device)
        prototypes = SimpleNamespace(
            shape=(NUM_CLASSES, FEATURE_DIM), row_squares=cupy.empty((NUM_CLASSES,), np.float32)
        )
        preprocessor: Any = BatchPreprocessor(SPEC)
        if on_device:
            with session.stream:
                preprocessor = CudaPreprocessor(SPEC, kernels=LazyPreprocessKernels(cupy))
        return device, DeviceLane(session, prototypes, gain, preprocessor=preprocessor), gain

    return make


def batch_of(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.integers(0, 4, (size, 3, SIZE_PX, SIZE_PX)).astype(np.float32)


class Expected:
    """What the batches give, one after another."""

    def __init__(self) -> None:
        self._state = State()

    def of(self, pixel_values: np.ndarray, *, learn: bool) -> PredictionBlock:
        layout = layout_of(len(pixel_values), NUM_CLASSES, F32)
        block = PredictionBlock.over(np.empty(layout.nbytes, np.uint8), layout)
        logits = np.empty((len(pixel_values), NUM_CLASSES), np.float32)
        forward(pixel_values, np.empty((len(pixel_values), FEATURE_DIM), np.float32), logits)
        self._state.predict(block, logits)
        if learn:
            self._state.learn(logits)
            block.trips[...] = self._state.steps
        return block


def assert_result(result: Any, expected: PredictionBlock) -> None:
    for name in ("log_probs", "source_log_probs", "strength", "gain", "finite"):
        wanted = getattr(expected.prediction, name)
        assert_array_equal(getattr(result.prediction, name), wanted, err_msg=name)
    assert_array_equal(result.prediction.probs, np.exp(expected.prediction.log_probs))
    assert result.trips == int(expected.trips)


@pytest.mark.parametrize("seed", range(30))
def test_every_batch_gets_its_own_result(make_lane, seed):
    device, lane, _ = make_lane(seed)
    rng, expected = np.random.default_rng(seed), Expected()
    under_way: list[tuple[Any, PredictionBlock]] = []
    for _ in range(40):
        pixel_values, learn = batch_of(rng, rng.integers(1, 5)), bool(rng.random() < 0.8)
        wanted = expected.of(pixel_values, learn=learn)
        under_way.append((lane.submit(pixel_values, learn=learn), wanted))
        pixel_values[:] = -100.0
        disturb([device.default, lane._session.stream][rng.integers(2)], rng.random())
        # Some are read at once, some late, and some only after their memory was used again.
        while under_way and rng.random() < 0.4:
            awaited, wanted = under_way.pop(rng.integers(len(under_way)))
            assert_result(awaited(), wanted)
    for awaited, wanted in under_way:
        assert_result(awaited(), wanted)
        assert_result(awaited(), wanted)


def disturb(stream: LazyStream, value: float) -> None:
    """The stream is behind with writing memory that was freed on it already."""
    with stream:
        scratch = lazy_cupy_array((4 * 3 * SIZE_PX * SIZE_PX,), np.float32)
    stream.add(partial(scratch.values.fill, value))


@pytest.mark.parametrize("whose", ["caller", "session"])
def test_memory_that_another_stream_still_writes_is_left_alone(make_lane, whose):
    device, lane, _ = make_lane()
    rng, expected = np.random.default_rng(0), Expected()
    stream = device.default if whose == "caller" else lane._session.stream
    disturb(stream, 7.0)
    late = stream.queue.pop()[1]
    pixel_values = batch_of(rng, 2)
    wanted = expected.of(pixel_values, learn=True)
    awaited = lane.submit(pixel_values, learn=True)
    # It comes to that between the copy and the forward pass, as it may.
    copies = device.streams[-1]
    while copies.queue:
        copies.go_on()
    late()
    assert_result(awaited(), wanted)


def test_host_waits_for_no_batch_but_one_whose_room_it_needs(make_lane):
    device, lane, _ = make_lane()
    pixel_values = batch_of(np.random.default_rng(0), 2)
    for _ in range(3):
        lane.submit(pixel_values, learn=True)
    assert device.host_ms == 0.0
    lane.submit(pixel_values, learn=True)
    # The first batch: its copy, and all of it on the session's stream.
    assert device.host_ms == SET_MS + FORWARD_MS + STEP_MS + GET_MS


def test_stages_of_batches_ahead_hold_their_own_time_and_no_others(make_lane):
    device, lane, _ = make_lane()
    pixel_values = batch_of(np.random.default_rng(0), 2)
    awaited = [lane.submit(pixel_values, learn=True) for _ in range(6)]
    for wait in awaited:
        assert wait().stage_ns == {
            "preprocess": 0,
            "forward": round(1e6 * (SET_MS + FORWARD_MS)),
            "adapt": round(1e6 * (STEP_MS + GET_MS)),
        }
    # Every copy but the first is under a forward pass, in no stage twice and in none left out.
    device.finish()
    busy_ms = sum(sum(wait().stage_ns.values()) for wait in awaited) / 1e6
    assert busy_ms == max(stream.now_ms for stream in device.streams) + 5 * SET_MS


def test_preprocessing_on_the_device_is_a_stage_of_its_own(make_lane):
    device, lane, _ = make_lane(on_device=True)
    frames = [np.zeros((9, 9, 3), np.uint8)] * 2
    awaited = []
    for _ in range(4):
        prepared = lane.prepare(frames, regions=None)
        awaited.append(lane.submit(prepared, learn=True))
    stages = [wait().stage_ns for wait in awaited]
    for spent in stages:
        assert spent["forward"] == round(1e6 * FORWARD_MS)
        assert spent["adapt"] == round(1e6 * (STEP_MS + GET_MS))
    # Where the device is idle it waits for the copies of the frames and of what is known of them.
    assert stages[0]["preprocess"] == round(1e6 * (3 * UPLOAD_MS + 2 * KERNEL_MS))
    assert [spent["preprocess"] for spent in stages[1:]] == [round(1e6 * 2 * KERNEL_MS)] * 3
    assert sum(sum(spent.values()) for spent in stages) == round(
        1e6 * max(stream.now_ms for stream in device.streams)
    )


@pytest.mark.parametrize("place", ["host", "device"])
def test_batch_of_no_frame_gives_no_row_and_takes_no_room(make_lane, place):
    device, lane, _ = make_lane(on_device=place == "device")
    rng, expected = np.random.default_rng(0), Expected()
    before = [batch_of(rng, 2) for _ in range(2)]
    wanted = [expected.of(pixel_values, learn=True) for pixel_values in before]
    awaited = [lane.submit(pixel_values, learn=True) for pixel_values in before]
    empty = [lane.submit(lane.prepare([], regions=None), learn=True) for _ in range(3)]
    assert device.host_ms == 0.0
    for wait in empty:
        result = wait()
        assert result.prediction.probs.shape == (0, NUM_CLASSES)
        assert result.prediction.strength.shape == (0,)
        assert {
            getattr(result.prediction, name).dtype
            for name in ("probs", "log_probs", "source_log_probs", "strength", "gain")
        } == {F32}
        assert bool(result.prediction.finite)
        assert result.trips == 2
        assert set(result.stage_ns.values()) == {0}
    for wait, block in zip(awaited, wanted, strict=True):
        assert_result(wait(), block)


def test_batch_that_fails_half_way_leaves_the_others_right(make_lane):
    _, lane, gain = make_lane()
    rng, expected = np.random.default_rng(0), Expected()
    gain.fails_with = EngineError("half-way")
    pixel_values = batch_of(rng, 2)
    expected.of(pixel_values, learn=True)
    with pytest.raises(EngineError, match="half-way"):
        lane.submit(pixel_values, learn=True)
    under_way = []
    for _ in range(5):
        pixel_values = batch_of(rng, 2)
        wanted = expected.of(pixel_values, learn=True)
        under_way.append((lane.submit(pixel_values, learn=True), wanted))
    for awaited, wanted in under_way:
        assert_result(awaited(), wanted)


BROKEN = "cudaErrorIllegalAddress: an illegal memory access was encountered"


def test_device_that_fails_is_an_engine_error_wherever_it_is_noticed(make_lane):
    device, lane, _ = make_lane(on_device=True)
    frames = [np.zeros((9, 9, 3), np.uint8)]
    prepared = lane.prepare(frames, regions=None)
    awaited = lane.submit(lane.prepare(frames, regions=None), learn=True)
    empty = lane.submit(lane.prepare([], regions=None), learn=True)
    device.broken = BROKEN

    def look() -> None:
        with lane.queue():
            lane.gain.guard_trips.get(lane.gain._device.current)

    for action in (
        awaited,
        empty,
        look,
        lambda: lane.prepare(frames, regions=None),
        lambda: lane.submit(prepared, learn=True),
        lambda: lane.submit(np.ones((1, 3, SIZE_PX, SIZE_PX), np.float32), learn=False),
        lambda: DeviceLane(
            lane._session, lane.prototypes, lane.gain, preprocessor=BatchPreprocessor(SPEC)
        ),
    ):
        with pytest.raises(EngineError) as raised:
            action()
        assert str(raised.value) in (
            f"net.onnx: {BROKEN}; open the session again, in a new process if that fails",
            # The session is the first to notice.
            f"cuda:0: {BROKEN}; open the session again, in a new process if that fails",
        )
        assert raised.value.__cause__ is not None


def test_device_without_room_says_what_helps(make_lane):
    _, lane, gain = make_lane()
    gain.fails_with = OutOfMemoryError("Out of memory\nallocating 512 bytes")
    with pytest.raises(EngineError) as raised:
        lane.submit(batch_of(np.random.default_rng(0), 1), learn=True)
    assert str(raised.value) == (
        "net.onnx: Out of memory allocating 512 bytes; free device memory or use smaller batches"
    )


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError("the host's")])
def test_other_errors_pass_as_they_are(make_lane, error):
    _, lane, gain = make_lane()
    gain.fails_with = error
    with pytest.raises(type(error)) as raised:
        lane.submit(batch_of(np.random.default_rng(0), 1), learn=True)
    assert raised.value is error


def test_pixel_values_of_another_size_take_nothing_with_them(make_lane):
    _, lane, _ = make_lane()
    rng, expected = np.random.default_rng(0), Expected()
    for _ in range(5):
        with pytest.raises(ArrayError, match="another size"):
            lane.submit(np.zeros((1, 3, 2, 2), np.float32), learn=True)
        pixel_values = batch_of(rng, 2)
        wanted = expected.of(pixel_values, learn=True)
        assert_result(lane.submit(pixel_values, learn=True)(), wanted)

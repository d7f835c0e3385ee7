"""What is timed, what it is summed up to, and which frames are taken."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from lazy_streams import GET_MS, SET_MS
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.benchmarking.bench_config import BenchConfig
from gain_apps.benchmarking.device_memory import DevicePeak
from gain_apps.benchmarking.frozen_source import FrozenSource
from gain_apps.benchmarking.run_bench import _measure, _preprocess_threads, _ratios
from gain_apps.benchmarking.stages import (
    BENCH_STAGES,
    StageTimes,
    frame_batches,
    measure_stages,
    percentiles,
)
from gain_core.errors import ConfigError, EngineError, NumericsError, StreamError
from gain_runtime import preprocess
from gain_runtime.artifact import load_artifact
from gain_runtime.batch_preprocess import BatchPreprocessor
from gain_runtime.cuda.prediction_block import new_block
from gain_runtime.device_lane import DeviceLane
from gain_runtime.open_session import open_session
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.session import Features

# What a forward pass takes on the lazy device, in milliseconds.
FORWARD_MS = 10.0

PATTERN = "test://pattern?width=32&height=24&frames=5"


class ListSink:
    """Keeps what it receives."""

    def __init__(self):
        self.results = []

    def write(self, result, /):
        self.results.append(result)

    def close(self):
        pass


@pytest.fixture
def config(artifact_path):
    return BenchConfig(
        artifact=str(artifact_path), input=PATTERN, frames=7, warm_up=2, batch=3, threads=1
    )


@pytest.fixture
def session(artifact_path):
    with open_session(artifact_path, num_threads=1) as session:
        yield session


def test_percentiles_are_those_of_numpy():
    values = [float(value) for value in range(101)]
    assert percentiles(values) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}


def test_times_are_per_frame_and_the_rate_counts_whole_batches():
    times = StageTimes(4)
    for total_ms in (8, 12):
        times.add(dict.fromkeys(BENCH_STAGES, 0) | {"total": total_ms * 1_000_000})
    assert times.rate_hz == pytest.approx(400.0)
    assert times.to_dict()["stages_ms"]["total"]["max"] == 3.0


def test_ratios_tell_stalls_decoding_and_the_middle_apart():
    frozen, adapted = StageTimes(1), StageTimes(1)
    for mine, theirs in ((20, 20), (20, 40), (20, 20)):
        nothing = dict.fromkeys(BENCH_STAGES, 0)
        frozen.add(nothing | {"decode": 10, "total": mine})
        adapted.add(nothing | {"decode": 10, "total": theirs})
    assert _ratios(frozen, adapted) == {
        "throughput_ratio": 0.75,
        "throughput_ratio_without_decode": 0.6,
        "throughput_ratio_p50": 1.0,
    }


def test_both_variants_see_every_frame_and_every_stage_is_timed(session, config):
    sink, beats = ListSink(), []
    times = measure_stages(session, sink, config, on_batch=lambda: beats.append(1))
    assert len(beats) == 1 + 3
    assert len(sink.results) == 2 * 4 * 3
    for variant in ("frozen", "adapted"):
        spent = times[variant].stage_ns
        assert set(spent) == set(BENCH_STAGES)
        parts = np.array([spent[stage] for stage in BENCH_STAGES])
        assert parts.shape == (len(BENCH_STAGES), 3)
        assert np.all(parts > 0)
        assert np.all(parts[:-1].sum(axis=0) <= parts[-1])
    assert times["frozen"].stage_ns["decode"] == times["adapted"].stage_ns["decode"]


def test_variants_take_turns_in_going_first(session, config):
    sink = ListSink()
    # The Gaussians learn from the first signs; the shift waits until it has seen many.
    config = replace(config, batch=1, frames=8, warm_up=64, preset="balanced")
    measure_stages(session, sink, config)
    # Only the adapted variant ever answers with a strength, once it has learned.
    adapted = [result.strength > 0 for result in sink.results[-16:]]
    pairs = [tuple(adapted[index : index + 2]) for index in range(0, 16, 2)]
    assert set(pairs) == {(True, False), (False, True)}
    assert pairs[::2] == [pairs[0]] * 4


def frozen_source(session, *, on_device=False, threads=1):
    return FrozenSource(session, device_preprocess=on_device, preprocess_threads=threads)


def test_frozen_is_the_softmax_of_the_networks_logits(session, config):
    with closing(frame_batches(config)) as batches:
        frames = next(batches)
    batch = frozen_source(session).step(frames)
    assert_allclose(batch.probs.sum(axis=1), 1.0, rtol=0, atol=1e-6)
    assert_allclose(np.exp(batch.log_probs), batch.probs, rtol=1e-6)
    assert np.all(batch.strength == 0)
    assert not np.allclose(batch.probs[0], 1.0 / batch.probs.shape[1])


def test_frozen_refuses_nan(session, config):
    class Broken:
        artifact = session.artifact
        stream = None

        def infer(self, pixel_values, /):
            features, logits = session.infer(pixel_values)
            return Features(features, logits * np.float32(np.nan))

    with closing(frame_batches(config)) as batches, pytest.raises(NumericsError, match="logits"):
        frozen_source(Broken()).step(next(batches))


def behind(stream, module, *, when=lambda: True):
    """The stream has yet to write memory that was freed on it, for 7 ms."""
    with stream:
        freed = module.empty((4 * 3 * 64 * 64,), np.float32)
        stream.add(partial(freed.values.fill, 7.0), when=when, took_ms=7.0)


@pytest.mark.parametrize("lazy_device", range(4), indirect=True)
def test_frozen_copies_through_pinned_memory_and_reads_what_has_arrived(
    session, config, lazily, lazy_device, lazy_module
):
    device = lazily(session)
    on_device, on_host = frozen_source(device), frozen_source(session)
    copies = lazy_device.streams[-1]
    with closing(frame_batches(config)) as batches:
        for _ in range(4):
            # They come to that when the batch is copied, as they may.
            for stream in (lazy_device.default, device.stream):
                behind(stream, lazy_module, when=lambda: not copies.queue)
            frames = next(batches)
            result, expected = on_device.step(frames), on_host.step(frames)
            assert_array_equal(result.probs, expected.probs)
            assert all(spent > 0 for spent in result.stage_ns.values())
    # One block for the pixels, one for the logits, and one buffer that all batches went into.
    assert [len(memory) for memory in lazy_module.pinned] == [4 * 3 * 3 * 64 * 64, 4 * 3 * 53]
    assert len(set(device.read)) == 1


class LazyKernels:
    """`CudaPreprocessor` on the lazy device: 2 ms of kernels behind a copy of the frames."""

    def __init__(self, spec, /):
        self._spec = spec
        self._cupy = sys.modules["cupy"]

    def __call__(self, images, /, *, regions, began):
        made = self._cupy.empty((len(images), 3, 64, 64), np.float32)
        began.record()
        pixel_values = preprocess_batch(images, self._spec, regions=regions)
        stream = self._cupy.cuda.get_current_stream()
        stream.add(partial(np.copyto, made.values, pixel_values), took_ms=2.0)
        return made


def test_frozen_preprocesses_on_the_device_where_the_adapter_does(
    session, config, lazily, lazy_module, monkeypatch
):
    """Frames go to the kernels, and no pixel values are copied."""
    device = lazily(session)
    with closing(frame_batches(config)) as batches:
        frames = next(batches)
    expected = frozen_source(session).step(frames)
    monkeypatch.setattr("gain_runtime.cuda.cuda_preprocess.CudaPreprocessor", LazyKernels)
    result = frozen_source(device, on_device=True).step(frames)
    assert_array_equal(result.probs, expected.probs)
    assert [len(memory) for memory in lazy_module.pinned] == [4 * 3 * 53]


class LazyGain:
    """A method that does nothing, for 3 ms."""

    guard_trips = None

    def __init__(self, cupy, num_classes):
        self._cupy = cupy
        self._like = cupy.empty((num_classes,), np.float32)

    def step(self, features, logits):
        block = new_block(len(logits), like=self._like)
        self._cupy.cuda.get_current_stream().add(took_ms=3.0)
        return block.prediction


@pytest.mark.parametrize("on_device", [False, True])
def test_both_variants_are_timed_by_the_same_rule(
    session, config, lazily, lazy_device, lazy_module, monkeypatch, on_device
):
    """What the session's stream is behind with is in no stage of either."""
    # The host's own time is measured by another clock; here it stands still.
    monkeypatch.setattr("gain_apps.benchmarking.frozen_source.perf_counter_ns", lambda: 0)
    monkeypatch.setattr("gain_runtime.cuda.cuda_preprocess.CudaPreprocessor", LazyKernels)
    manifest, device = session.artifact.manifest, lazily(session)
    prototypes = SimpleNamespace(shape=(manifest.num_classes, manifest.feature_dim))
    spec = manifest.preprocess
    preprocessor = LazyKernels(spec) if on_device else BatchPreprocessor(spec)
    gain = LazyGain(lazy_module, manifest.num_classes)
    lane = DeviceLane(device, prototypes, gain, preprocessor=preprocessor)
    frozen = frozen_source(device, on_device=on_device)
    with closing(frame_batches(config)) as batches:
        frames = next(batches)
    for _ in range(3):
        behind(device.stream, lazy_module)
        prepared = lane.prepare([frame.image for frame in frames], regions=None)
        adapted = lane.submit(prepared, learn=True)().stage_ns
        behind(device.stream, lazy_module)
        timed = frozen.step(frames).stage_ns
        for stage in ("preprocess", "forward"):
            assert timed[stage] == adapted[stage], stage
        expected = (2.0, FORWARD_MS) if on_device else (0.0, SET_MS + FORWARD_MS)
        assert (timed["preprocess"], timed["forward"]) == tuple(1e6 * ms for ms in expected)
        assert timed["adapt"] == 1e6 * GET_MS == adapted["adapt"] - 3e6


def test_a_device_that_fails_is_an_error_of_ours(session, config, lazily, lazy_device):
    frozen = frozen_source(lazily(session))
    with closing(frame_batches(config)) as batches:
        frames = next(batches)
    lazy_device.broken = "cudaErrorIllegalAddress"
    with pytest.raises(EngineError, match=r"roadsigns\.gain\.onnx: cudaErrorIllegalAddress"):
        frozen.step(frames)


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("device_preprocess", [False, True])
def test_both_variants_preprocess_in_the_same_place_and_as_many_threads(
    session, config, monkeypatch, device_preprocess, threads
):
    asked = []

    class StoppedError(Exception):
        pass

    def frozen(_session, *, device_preprocess, preprocess_threads):
        asked.append((device_preprocess, preprocess_threads))
        raise StoppedError

    def adapter(_session, _config, *, update_every, device_preprocess, preprocess_threads):
        asked.append((device_preprocess, preprocess_threads))
        return nullcontext()

    monkeypatch.setattr("gain_apps.benchmarking.stages.Adapter", adapter)
    monkeypatch.setattr("gain_apps.benchmarking.stages.FrozenSource", frozen)
    config = replace(config, device="cuda", device_preprocess=device_preprocess, threads=threads)
    with pytest.raises(StoppedError):
        measure_stages(session, ListSink(), config)
    assert asked == [(device_preprocess, threads)] * 2


def test_threads_preprocess_in_both_variants_and_end_with_the_run(session, config, monkeypatch):
    used = []
    original = preprocess._write

    def noted(*given, **settings):
        used.append(threading.current_thread().name)
        return original(*given, **settings)

    monkeypatch.setattr(preprocess, "_write", noted)
    measure_stages(session, ListSink(), replace(config, threads=2))
    # Each frame twice, none of them in this thread.
    assert len(used) == 2 * 4 * 3
    assert all(name.startswith("preprocess") for name in used)
    assert not [t for t in threading.enumerate() if t.name.startswith("preprocess")]


def test_the_threads_that_preprocess_are_kept_with_the_numbers(config):
    on_gpu = replace(config, device="cuda", device_preprocess=True)
    assert _preprocess_threads(replace(config, threads=3)) == 3
    assert _preprocess_threads(replace(config, threads=None)) == len(os.sched_getaffinity(0))
    assert _preprocess_threads(on_gpu) is None


def test_device_memory_is_read_after_every_batch(artifact_path, config, monkeypatch):
    used = iter([3, 9, 5, 4])
    monkeypatch.setattr(DevicePeak, "__init__", lambda self, provider: None)
    readings = []
    monkeypatch.setattr(DevicePeak, "read", lambda self: readings.append(next(used)))
    monkeypatch.setattr(DevicePeak, "to_dict", lambda self: {"peak_used": max(readings)})
    heard = []
    measured = _measure(load_artifact(artifact_path), config, on_batch=lambda: heard.append(1))
    assert len(readings) == len(heard) == 1 + 3
    assert measured["device_memory"] == {"peak_used": 9}
    assert measured["adaptation"] == "host"
    assert measured["preprocess_threads"] == 1


def test_a_source_that_ends_is_read_again_in_whole_batches(config):
    with closing(frame_batches(config)) as batches:
        indices = [[frame.index for frame in next(batches)] for _ in range(4)]
    assert indices == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


def test_a_live_source_is_refused(config, monkeypatch):
    from gain_runtime.pattern_source import PatternSource

    info = replace(PatternSource().info, live=True)
    monkeypatch.setattr(PatternSource, "info", property(lambda _: info))
    with closing(frame_batches(config)) as batches, pytest.raises(ConfigError, match="live"):
        next(batches)


def test_a_source_without_frames_is_an_error(config, monkeypatch):
    from gain_runtime.pattern_source import PatternSource

    monkeypatch.setattr(PatternSource, "__iter__", lambda _: iter(()))
    with closing(frame_batches(config)) as batches, pytest.raises(StreamError, match="got none"):
        next(batches)

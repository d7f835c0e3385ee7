"""What is timed, what it is summed up to, and which frames are taken."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.bench import BenchConfig
from gain_apps.benchmarking.run import _ratios
from gain_apps.benchmarking.stages import (
    BENCH_STAGES,
    FrozenSource,
    StageTimes,
    frame_batches,
    measure_stages,
    percentiles,
)
from gain_core.errors import ConfigError, NumericsError, StreamError
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.session import Features, open_session
from gain_runtime.sources.pattern import PatternSource

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
        artifact=str(artifact_path), input=PATTERN, frames=7, warm_up=2, batch_size=3, num_threads=1
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


@pytest.mark.parametrize("num_threads", [1, 2])
def test_both_variants_see_every_frame_and_every_stage_is_timed(session, config, num_threads):
    sink, beats = ListSink(), []
    config = replace(config, num_threads=num_threads)
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
    # The paper's method answers from the second batch on; the shift waits for a mixture.
    config = replace(config, batch_size=1, frames=8, warm_up=64, preset="paper-l2")
    measure_stages(session, sink, config)
    # Only the adapted variant ever answers with a strength, once it has learned.
    adapted = [result.strength > 0 for result in sink.results[-16:]]
    assert adapted in ([True, False, False, True] * 4, [False, True, True, False] * 4)


def frozen_step(session, images):
    with FrozenSource(session, preprocess_threads=1) as frozen:
        return frozen.step(images)


def test_frozen_is_the_softmax_of_the_networks_logits(session, config):
    with closing(frame_batches(config)) as batches:
        images = [frame.image for frame in next(batches)]
    batch = frozen_step(session, images)
    logits = session.infer(preprocess_batch(images, session.artifact.manifest.preprocess)).logits
    assert_allclose(batch.probs.sum(axis=1), 1.0, rtol=0, atol=1e-6)
    assert_allclose(batch.log_probs, logits - np.log(np.exp(logits).sum(1, keepdims=True)), 1e-4)
    assert_array_equal(batch.source_probs, batch.probs)


def test_frozen_refuses_what_is_no_number(session):
    class Broken:
        artifact = session.artifact

        def infer(self, pixel_values, /):
            features, logits = session.infer(pixel_values)
            return Features(features, logits * np.float32(np.nan))

    with pytest.raises(NumericsError, match="logits"):
        frozen_step(Broken(), [np.zeros((24, 32, 3), np.uint8)])


def test_a_source_that_ends_is_read_again_in_whole_batches(config):
    with closing(frame_batches(config)) as batches:
        indices = [[frame.index for frame in next(batches)] for _ in range(4)]
    assert indices == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


def test_a_live_source_is_refused(config, monkeypatch):
    info = replace(PatternSource().info, live=True)
    monkeypatch.setattr(PatternSource, "info", property(lambda _: info))
    with closing(frame_batches(config)) as batches, pytest.raises(ConfigError, match="live"):
        next(batches)


def test_a_source_without_frames_is_an_error(config, monkeypatch):
    monkeypatch.setattr(PatternSource, "__iter__", lambda _: iter(()))
    with closing(frame_batches(config)) as batches, pytest.raises(StreamError, match="got none"):
        next(batches)

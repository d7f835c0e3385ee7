"""The adapter: a session and GAIN, one call per batch."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np
import pytest
from eager_adapter import eager

from gain_core import PRESETS, Gain, ShiftConfig
from gain_runtime.adapter import STAGES
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.session import open_session

CONFIG = ShiftConfig()
PRESET_CONFIGS = [pytest.param(config, id=name) for name, config in PRESETS.items()]


def photos(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, size=(20 + n, 31, 3), dtype=np.uint8) for n in range(count)]


@pytest.mark.parametrize("config", PRESET_CONFIGS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_step_is_the_session_and_gain_by_hand(artifact_path, batch_size, config):
    images = photos(6)
    with open_session(artifact_path, num_threads=1) as session:
        adapter = eager(session, config)
        gain = Gain(session.artifact.head_weight, config, update_every=1, warmup_frames=1)
        for start in range(0, 6, batch_size):
            batch = images[start : start + batch_size]
            got = adapter.step(batch)
            expected = gain.step(
                *session.infer(preprocess_batch(batch, session.artifact.manifest.preprocess))
            )
            for name in ("probs", "log_probs", "strength", "gain", "source_log_probs"):
                np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
            np.testing.assert_array_equal(got.source_probs, np.exp(expected.source_log_probs))
        assert adapter.frames == 6


def test_regions_are_cut_out_before_the_network_sees_them(artifact_path):
    image = photos(1)[0]
    with open_session(artifact_path, num_threads=1) as session:
        cut = eager(session, CONFIG).step([np.ascontiguousarray(image[2:18, 5:25])])
        region = eager(session, CONFIG).step([image], regions=[(5, 2, 25, 18)])
        whole = eager(session, CONFIG).step([image])
    np.testing.assert_array_equal(region.probs, cut.probs)
    assert not np.array_equal(region.probs, whole.probs)


def test_stage_times_add_up_to_less_than_the_call(artifact_path):
    with open_session(artifact_path, num_threads=1) as session:
        adapter = eager(session, CONFIG)
        started = perf_counter_ns()
        batch = adapter.step(photos(2))
        elapsed = perf_counter_ns() - started
    assert tuple(batch.stage_ns) == STAGES
    assert all(spent > 0 for spent in batch.stage_ns.values())
    assert sum(batch.stage_ns.values()) <= elapsed

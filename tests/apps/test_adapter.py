"""The adapter: a session and GAIN, one call per batch."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import numpy as np
import pytest
from eager_adapter import eager
from safetensors.numpy import load_file

from gain_core import PRESETS, Config, Gain, ShiftConfig
from gain_core.errors import NumericsError
from gain_runtime.adapter import STAGES
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.session import open_session

CONFIG = ShiftConfig()
PRESET_CONFIGS = [pytest.param(config, id=name) for name, config in PRESETS.items()]


def photos(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 256, size=(20 + n, 31, 3), dtype=np.uint8) for n in range(count)]


def assert_same_state(first: Path, second: Path) -> None:
    """The arrays are equal to the last bit (safetensors orders its metadata at random)."""
    one, other = load_file(first), load_file(second)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.parametrize("config", PRESET_CONFIGS)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_step_is_the_session_and_gain_by_hand(
    artifact_path: Path, batch_size: int, config: Config
) -> None:
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


def test_regions_are_cut_out_before_the_network_sees_them(artifact_path: Path) -> None:
    image = photos(1)[0]
    with open_session(artifact_path, num_threads=1) as session:
        cut = eager(session, CONFIG).step([np.ascontiguousarray(image[2:18, 5:25])])
        region = eager(session, CONFIG).step([image], regions=[(5, 2, 25, 18)])
        whole = eager(session, CONFIG).step([image])
    np.testing.assert_array_equal(region.probs, cut.probs)
    assert not np.array_equal(region.probs, whole.probs)


@pytest.mark.parametrize("config", PRESET_CONFIGS)
def test_a_frozen_adapter_is_the_source(artifact_path: Path, config: Config) -> None:
    with open_session(artifact_path, num_threads=1) as session:
        adapter = eager(session, config, frozen=True)
        for image in photos(5):
            batch = adapter.step([image])
            np.testing.assert_array_equal(batch.probs, batch.source_probs)
            assert batch.strength[0] == 0.0
            assert batch.gain[0] == 0.0
        assert adapter.frames == 0
        assert adapter.frozen


def test_stage_times_add_up_to_less_than_the_call(artifact_path: Path) -> None:
    with open_session(artifact_path, num_threads=1) as session:
        adapter = eager(session, CONFIG)
        started = perf_counter_ns()
        batch = adapter.step(photos(2))
        elapsed = perf_counter_ns() - started
    assert tuple(batch.stage_ns) == STAGES
    assert all(spent > 0 for spent in batch.stage_ns.values())
    assert sum(batch.stage_ns.values()) <= elapsed


@pytest.mark.parametrize("config", PRESET_CONFIGS)
def test_nan_from_the_network_leaves_the_state_untouched(
    nan_artifact_path: Path, tmp_path: Path, config: Config
) -> None:
    black = np.zeros((20, 20, 3), dtype=np.uint8)
    with open_session(nan_artifact_path, num_threads=1) as session:
        adapter = eager(session, config)
        for image in photos(3):
            adapter.step([image])
        adapter.save_state(tmp_path / "before")
        with pytest.raises(NumericsError, match=r"features|logits"):
            adapter.step([photos(1)[0], black])
        adapter.save_state(tmp_path / "after")
    assert_same_state(tmp_path / "before", tmp_path / "after")


@pytest.mark.parametrize("config", PRESET_CONFIGS)
@pytest.mark.parametrize("update_every", [1, 2, 4])
def test_a_saved_state_continues_bit_for_bit(
    artifact_path: Path, tmp_path: Path, update_every: int, config: Config
) -> None:
    images = photos(12)
    with open_session(artifact_path, num_threads=1) as session:
        whole = eager(session, config, update_every=update_every)
        expected = [whole.step([image]).probs for image in images]
        first = eager(session, config, update_every=update_every)
        got = [first.step([image]).probs for image in images[:8]]
        first.save_state(tmp_path / "state")
        second = eager(session, config, update_every=update_every)
        second.load_state(tmp_path / "state")
        assert second.frames == 8
        got += [second.step([image]).probs for image in images[8:]]
        whole.save_state(tmp_path / "whole")
        second.save_state(tmp_path / "second")
    np.testing.assert_array_equal(got, expected)
    assert_same_state(tmp_path / "whole", tmp_path / "second")


def test_saving_learns_from_pending_frames_first(artifact_path: Path, tmp_path: Path) -> None:
    with open_session(artifact_path, num_threads=1) as session:
        adapter = eager(session, CONFIG, update_every=100)
        for image in photos(3):
            adapter.step([image])
        assert adapter.frames == 0
        adapter.save_state(tmp_path / "state")
        assert adapter.frames == 3


@pytest.mark.parametrize("config", PRESET_CONFIGS)
def test_reset_and_unfreeze(artifact_path: Path, config: Config) -> None:
    image = photos(1)[0]
    with open_session(artifact_path, num_threads=1) as session:
        adapter = eager(session, config)
        fresh = adapter.step([image]).probs
        for other in photos(4):
            adapter.step([other])
        adapter.freeze()
        adapter.step([image])
        assert adapter.frames == 5
        adapter.unfreeze()
        adapter.step([image])
        assert adapter.frames == 6
        adapter.reset()
        assert adapter.frames == 0
        np.testing.assert_array_equal(adapter.step([image]).probs, fresh)

"""A batch's frames side by side: the same pixel values, and no thread left behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from eager_adapter import eager

from gain_core import ShiftConfig
from gain_core.errors import ArrayError, ConfigError
from gain_runtime import preprocess as one_by_one
from gain_runtime.files.manifest import Preprocess
from gain_runtime.preprocess import BatchPreprocessor, preprocess_batch
from gain_runtime.sessions.onnx import OnnxSession

SPEC = Preprocess(height_px=40, width_px=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
MEET_S = 20.0


def frames(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    sizes = rng.integers(20, 200, (count, 2))
    return [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


def threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("preprocess")]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 17])
@pytest.mark.parametrize("num_threads", [1, 2, 5, None])
def test_pixel_values_are_the_same_to_the_last_bit(count, num_threads):
    images = frames(count)
    regions = [None if index % 3 else (2, 3, 19, 18) for index in range(count)]
    with BatchPreprocessor(SPEC, threads=num_threads) as run:
        for _ in range(3):
            result = run(images, regions=regions)
            assert result.flags.c_contiguous
            np.testing.assert_array_equal(result, preprocess_batch(images, SPEC, regions=regions))
            np.testing.assert_array_equal(run(images), preprocess_batch(images, SPEC))


def test_frames_are_worked_on_at_the_same_time(monkeypatch):
    meet = threading.Barrier(3)
    write = one_by_one._write

    def wait_for_the_others(*args, **settings):
        meet.wait(MEET_S)
        write(*args, **settings)

    monkeypatch.setattr(one_by_one, "_write", wait_for_the_others)
    with BatchPreprocessor(SPEC, threads=3) as run:
        assert run(frames(3)).shape == (3, 3, 40, 32)


def test_no_more_threads_than_frames_and_than_were_asked_for():
    with BatchPreprocessor(SPEC, threads=3) as run:
        run(frames(1))
        assert threads() == []
        run(frames(2))
        assert 1 <= len(threads()) <= 2
        run(frames(9))
        assert len(threads()) <= 3
    assert threads() == []


def test_first_bad_frame_is_the_one_that_is_named():
    images = frames(6)
    images[2], images[4] = images[2][..., 0], images[4].astype(np.float32)
    with BatchPreprocessor(SPEC, threads=4) as run:
        with pytest.raises(ArrayError) as expected:
            preprocess_batch(images, SPEC)
        for _ in range(5):
            with pytest.raises(ArrayError) as raised:
                run(images)
            assert str(raised.value) == str(expected.value)
        with pytest.raises(ArrayError, match="regions: expected 6"):
            run(frames(6), regions=[None])
        assert run(frames(3)).shape == (3, 3, 40, 32)


def test_closed_twice_it_goes_on_in_the_callers_thread():
    run = BatchPreprocessor(SPEC, threads=2)
    images = frames(4)
    before = run(images)
    assert threads()
    run.close()
    run.close()
    assert threads() == []
    np.testing.assert_array_equal(run(images), before)
    assert threads() == []


def test_adapter_has_the_threads_it_was_given_until_it_is_closed(tiny_artifact):
    images = frames(4)
    with OnnxSession(tiny_artifact) as session:
        alone = eager(session, ShiftConfig())
        expected = alone.step(images)
        assert threads() == []
        with eager(session, ShiftConfig(), preprocess_threads=2) as adapter:
            result = adapter.step(images)
            assert 1 <= len(threads()) <= 2
        assert threads() == []
        np.testing.assert_array_equal(result.probs, expected.probs)
        with pytest.raises(ConfigError, match="preprocess_threads"):
            eager(session, ShiftConfig(), preprocess_threads=0)

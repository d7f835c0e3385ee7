"""The road-sign adaptive file on a CUDA device against the same file on the CPU."""

from __future__ import annotations

import time
from functools import cache
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.roadsigns.drive import drive_source
from gain_core import GainConfig
from gain_core.errors import ArrayError, EngineError, NumericsError
from gain_export.adaptive import add_adaptation
from gain_runtime.adaptive_session import AdaptiveSession
from gain_runtime.manifest import Preprocess
from gain_runtime.onnx_native import CUDA_PROVIDER
from gain_runtime.preprocess import preprocess
from gain_runtime.sources import open_source

pytestmark = pytest.mark.gpu

SIZE_PX = 64
NUM_FRAMES = 60
PRESETS = ("tracked", "balanced")
# Two orders of summation in float32, through a network and 60 updates. On the CPU ten threads
# against one leave 1e-6; TF32, which must be off, would leave 1e-2.
STATE = {"rtol": 1e-3, "atol": 1e-4}
PROBS = {"rtol": 0, "atol": 1e-3}


@pytest.fixture(scope="module")
def files(roadsigns_artifact: Path) -> dict[str, Path]:
    """An adaptive file for each kind of state."""
    paths = {p: roadsigns_artifact.with_name(f"{p}.adaptive.onnx") for p in PRESETS}
    for preset, path in paths.items():
        add_adaptation(roadsigns_artifact, path, config=GainConfig.preset(preset))
    return paths


@pytest.fixture(params=PRESETS)
def pair(request, cuda_provider, files):
    """The same file on the device and on the CPU."""
    path = files[request.param]
    with (
        AdaptiveSession(path, provider=cuda_provider) as card,
        AdaptiveSession(path, num_threads=1) as host,
    ):
        yield card, host


@cache
def drive_frames() -> tuple[np.ndarray, ...]:
    """Every tenth frame of the drive with a noisy sensor: many signs, to be corrected."""
    spec = Preprocess(
        height_px=SIZE_PX, width_px=SIZE_PX, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
    )
    rng = np.random.default_rng(0)
    with open_source("test://drive", schemes={"drive": drive_source}, seed=0) as source:
        seen = islice(source, 0, 10 * NUM_FRAMES, 10)
        sharp = [preprocess(frame.image, spec, region=frame.region) for frame in seen]
    return tuple(frame + rng.normal(0.0, 0.6, frame.shape).astype(np.float32) for frame in sharp)


def drive(sizes: tuple[int, ...] = (1,)) -> list[np.ndarray]:
    """Its frames in batches of these sizes in turn."""
    frames, batches = list(drive_frames()), []
    for size in cycle(sizes):
        if not frames:
            return batches
        batches.append(np.ascontiguousarray(np.stack(frames[:size])))
        del frames[:size]
    raise AssertionError("no sizes")


def assert_states_alike(card: AdaptiveSession, host: AdaptiveSession) -> None:
    expected = host.arrays()
    for field, array in card.arrays().items():
        peak = max(1.0, float(np.max(np.abs(expected[field]), initial=0.0)))
        assert_allclose(array / peak, expected[field] / peak, **STATE, err_msg=field)


@pytest.mark.parametrize("inputs", ["host", "device"])
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 8)], ids=["frames", "batches"])
def test_card_and_cpu_see_the_same_drive(pair, cupy, sizes, inputs):
    card, host = pair
    assert card.provider == CUDA_PROVIDER
    corrected = 0
    for pixel_values in drive(sizes):
        given = pixel_values if inputs == "host" else cupy.asarray(pixel_values)
        result, expected = card.step(given), host.step(pixel_values)
        assert all(isinstance(array, np.ndarray) for array in (result.probs, result.strength))
        assert_allclose(result.probs, expected.probs, **PROBS)
        assert_allclose(result.source_log_probs, expected.source_log_probs, rtol=1e-3, atol=1e-3)
        assert_labels_equal(result.probs, expected.probs)
        corrected += int(np.sum(expected.strength > 0.0))
    assert card.frames == host.frames == NUM_FRAMES
    assert corrected > NUM_FRAMES // 4
    assert_states_alike(card, host)


def assert_labels_equal(probs: np.ndarray, expected: np.ndarray) -> None:
    """Equal where the two best classes are further apart than the tolerance."""
    best = np.sort(expected, axis=1)
    clear = best[:, -1] - best[:, -2] > 2.0 * PROBS["atol"]
    assert_array_equal(np.argmax(probs, axis=1)[clear], np.argmax(expected, axis=1)[clear])


def test_without_an_update_the_state_stays_to_the_last_bit(pair):
    card, _ = pair
    batches = drive()
    for pixel_values in batches[:20]:
        card.step(pixel_values)
    before = card.arrays()
    first = [card.predict(pixel_values).probs for pixel_values in batches[20:30]]
    card.freeze()
    second = [card.step(pixel_values).probs for pixel_values in batches[20:30]]
    after = card.arrays()
    for field, array in before.items():
        assert_array_equal(after[field], array, err_msg=field)
    for one, other in zip(first, second, strict=True):
        assert_allclose(one, other, rtol=0, atol=1e-6)


def test_a_frame_that_is_not_finite_changes_nothing_on_the_card(pair):
    card, _ = pair
    batches = drive()
    for pixel_values in batches[:12]:
        card.step(pixel_values)
    before = card.arrays()
    broken = batches[12].copy()
    broken[0, 0, 3, 3] = np.nan
    with pytest.raises(NumericsError, match="state is untouched"):
        card.step(broken)
    for field, array in card.arrays().items():
        assert_array_equal(array, before[field], err_msg=field)


def test_a_state_of_the_cpu_goes_on_on_the_card(pair):
    card, host = pair
    batches = drive()
    for pixel_values in batches[:40]:
        host.step(pixel_values)
    card.load_state(host.state, frames=host.frames)
    for pixel_values in batches[40:]:
        assert_allclose(card.step(pixel_values).probs, host.step(pixel_values).probs, **PROBS)


def test_the_network_waits_for_the_callers_stream(files, cupy, cuda_provider):
    pixel_values = drive()[0]
    with (
        AdaptiveSession(files["tracked"], provider=cuda_provider) as card,
        AdaptiveSession(files["tracked"], num_threads=1) as host,
        cupy.cuda.Stream(non_blocking=True) as stream,
    ):
        source, given = cupy.asarray(pixel_values), cupy.zeros(pixel_values.shape, np.float32)
        stream.launch_host_func(time.sleep, 0.2)
        given[...] = source
        result = card.predict(given)
        assert_allclose(result.probs, host.predict(pixel_values).probs, **PROBS)


def test_other_arrays_are_refused(files, cupy, cuda_provider):
    with AdaptiveSession(files["tracked"], provider=cuda_provider) as card:
        shape = (1, 3, SIZE_PX, SIZE_PX)
        with pytest.raises(ArrayError, match=r"pixel_values: .*float64"):
            card.step(cupy.zeros(shape))
        with pytest.raises(ArrayError, match=r"cupy\.ascontiguousarray"):
            card.step(cupy.zeros((4, 3, SIZE_PX, SIZE_PX), np.float32)[::2])
        card.close()
        with pytest.raises(EngineError, match="closed"):
            card.step(cupy.zeros(shape, np.float32))

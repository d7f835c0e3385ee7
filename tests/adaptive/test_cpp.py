"""The C++ example, compiled where ONNX Runtime's headers are, against Python on the same frames."""

import os
import shutil
import subprocess
from itertools import islice
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import PRESETS
from gain_export.adaptive import add_adaptation
from gain_runtime.files.artifact import load_artifact
from gain_runtime.preprocess import preprocess
from gain_runtime.sessions.adaptive import AdaptiveSession
from gain_runtime.sources.opening import open_source
from gain_scenes.roadsigns.sources import drive_source

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "cpp" / "adaptive_stream.cpp"
# Debian 13's package libonnxruntime-dev, installed or unpacked by .ci/onnxruntime-headers;
# ONNXRUNTIME_INCLUDE names another place.
INCLUDES = (
    os.environ.get("ONNXRUNTIME_INCLUDE", ""),
    "/usr/include/onnxruntime",
    str(ROOT / "build" / "onnxruntime" / "usr" / "include" / "onnxruntime"),
)
SIZE_PX = 8
EACH_FRAME = {"update_every": 1, "warmup_frames": 1}
WEIGHT = (np.random.default_rng(2).integers(-16, 17, size=(24, 32)) / 24).astype(np.float32)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The example, compiled and linked to the library inside the Python package."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    headers = "onnxruntime_cxx_api.h"
    include = next((path for path in INCLUDES if path and (Path(path) / headers).is_file()), None)
    if include is None:
        pytest.skip(f"no {headers}; run .ci/onnxruntime-headers build/onnxruntime")
    capi = Path(onnxruntime.__file__).parent / "capi"
    libraries = sorted(capi.glob("libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("this onnxruntime package has no library to link to")
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "libonnxruntime.so.1").symlink_to(libraries[0])
    subprocess.run(
        [
            *(compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", str(SOURCE)),
            *(f"-isystem{include}", str(folder / "libonnxruntime.so.1")),
            *(f"-Wl,-rpath,{folder}", "-o", str(folder / "adaptive_stream")),
        ],
        check=True,
        capture_output=True,
        timeout=200,
    )
    return folder / "adaptive_stream"


def stream(program, path, frames, *state, size=SIZE_PX):
    """Run it over frames (N, 3, size, size); its rows (index, label, strength) and its messages."""
    frames.tofile(path.with_name("frames.f32"))
    done = subprocess.run(
        [program, path, path.with_name("frames.f32"), str(size), str(size), *state],
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return np.array(rows, dtype=np.float64), done.stderr


@pytest.fixture
def tiny(make_artifact, make_fitness, write_clip, tmp_path):
    """An adaptive file that corrects most frames of noise, and such frames."""
    # Noise has no skewness; here that is what a mixture of classes looks like.
    artifact = make_artifact(WEIGHT, fitness=make_fitness(24, (-0.5, 0.0)))
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(artifact, path, **EACH_FRAME)
    return path, write_clip(tmp_path / "clip", num_frames=100, num_classes=24)


def test_cpp_streams_as_python_does(program, tiny):
    path, pixel_values = tiny
    pixel_values[7, 0, 0, 0] = np.nan
    rows, messages = stream(program, path, pixel_values)
    kept = np.delete(np.arange(100), 7)
    with AdaptiveSession(path, num_threads=1) as session:
        predictions = [session.step(pixel_values[index][None]) for index in kept]
    assert_array_equal(rows[:, 0], kept)
    labels = [int(np.argmax(prediction.probs)) for prediction in predictions]
    assert_array_equal(rows[:, 1], labels)
    strength = np.array([float(prediction.strength[0]) for prediction in predictions])
    assert_allclose(rows[:, 2], strength, rtol=0, atol=1e-3)
    assert np.mean(strength > 0.0) > 0.5, "nothing was corrected, so the comparison shows little"
    assert "frame 7: not finite" in messages
    assert "learned from 99 frames" in messages


def test_cpp_goes_on_where_it_was_stopped(program, tiny, tmp_path):
    path, pixel_values = tiny
    whole, _ = stream(program, path, pixel_values, tmp_path / "whole.state")
    first, _ = stream(program, path, pixel_values[:60], tmp_path / "kept.state")
    second, messages = stream(program, path, pixel_values[60:], tmp_path / "kept.state")
    assert "learned from 100 frames" in messages
    assert_array_equal(np.concatenate([first, second])[:, 1:], whole[:, 1:])
    assert np.mean(second[:, 2] > 0.0) > 0.5
    forgetful, _ = stream(program, path, pixel_values[60:])
    assert np.max(np.abs(forgetful[:, 2] - second[:, 2])) > 0.1
    kept, expected = (tmp_path / name for name in ("kept.state", "whole.state"))
    assert kept.read_bytes() == expected.read_bytes()
    assert not list(tmp_path.glob("*.new"))
    with AdaptiveSession(path, num_threads=1) as session:
        for pixels in pixel_values:
            session.step(pixels[None])
        size_bytes = sum(array.nbytes for array in session.arrays().values())
    assert kept.stat().st_size == 8 + size_bytes


@pytest.mark.parametrize("damage", ["other-model", "cut", "longer"])
def test_cpp_refuses_a_state_that_does_not_fit(program, tiny, make_artifact, tmp_path, damage):
    path, pixel_values = tiny
    state = tmp_path / "kept.state"
    stream(program, path, pixel_values[:4], state)
    if damage == "other-model":
        # As many classes, so as many bytes.
        add_adaptation(make_artifact(2.0 * WEIGHT), path, **EACH_FRAME)
    else:
        kept = state.read_bytes()
        state.write_bytes(kept[:-1] if damage == "cut" else kept + b"\0")
    before = state.read_bytes()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        stream(program, path, pixel_values[4:], state)
    assert failed.value.returncode == 1
    assert "kept.state: expected" in failed.value.stderr
    assert "remove it" in failed.value.stderr
    assert state.read_bytes() == before


def test_cpp_drives_the_road_signs(program, roadsigns, tmp_path):
    path = tmp_path / "signs.adaptive.onnx"
    # A file that reads features; it corrects from the first frames on.
    add_adaptation(roadsigns, path, config=PRESETS["paper-l2"], update_every=4, warmup_frames=16)
    spec = load_artifact(roadsigns).manifest.preprocess
    with open_source("test://drive?resolution=crop", schemes={"drive": drive_source}) as source:
        seen = list(islice(source, 240))
    frames = np.stack([preprocess(frame.image, spec, region=frame.region) for frame in seen])
    rows, _ = stream(program, path, frames, size=64)
    with AdaptiveSession(path, num_threads=1) as session:
        predictions = [session.step(frame[None]) for frame in frames]
    assert_array_equal(rows[:, 1], [int(np.argmax(item.probs)) for item in predictions])
    assert np.mean(rows[:, 1] == [frame.truth for frame in seen]) > 0.7
    strength = np.array([float(item.strength[0]) for item in predictions])
    assert_allclose(rows[:, 2], strength, rtol=0, atol=1e-3)
    assert np.mean(strength > 0.0) > 0.5, "nothing was corrected, so the comparison shows little"

"""The C++ example, compiled where ONNX Runtime's headers are, against Python on the same frames."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import GainConfig
from gain_export.adaptive import add_adaptation
from gain_runtime.adaptive_session import AdaptiveSession

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "cpp" / "adaptive_stream.cpp"
# Debian 13's package libonnxruntime-dev; ONNXRUNTIME_INCLUDE names another place.
INCLUDES = (os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime")
WEIGHT = (np.random.default_rng(2).integers(-16, 17, size=(5, 12)) / 8).astype(np.float32)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The example, compiled and linked to the library inside the Python package."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    headers = "onnxruntime_cxx_api.h"
    include = next((path for path in INCLUDES if path and (Path(path) / headers).is_file()), None)
    if include is None:
        pytest.skip(f"no {headers}; install libonnxruntime-dev or set ONNXRUNTIME_INCLUDE")
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


def test_cpp_streams_as_python_does(program, make_artifact, write_clip, tmp_path):
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT), path, config=GainConfig())
    pixel_values = write_clip(tmp_path / "clip", num_frames=40, num_classes=5)
    pixel_values[7, 0, 0, 0] = np.nan
    pixel_values.tofile(tmp_path / "frames.f32")
    done = subprocess.run(
        [program, path, tmp_path / "frames.f32", "8", "8"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    rows = np.array([line.split("\t") for line in done.stdout.splitlines()], dtype=np.float64)
    kept = np.delete(np.arange(40), 7)
    with AdaptiveSession(path, num_threads=1) as session:
        predictions = [session.step(pixel_values[index][None]) for index in kept]
    assert_array_equal(rows[:, 0], kept)
    labels = [int(np.argmax(prediction.probs)) for prediction in predictions]
    assert_array_equal(rows[:, 1], labels)
    strength = [float(prediction.strength[0]) for prediction in predictions]
    assert_allclose(rows[:, 2], strength, rtol=0, atol=1e-3)
    assert "frame 7: not finite" in done.stderr
    assert "learned from 39 frames" in done.stderr

"""The C++ example, compiled where ONNX Runtime's headers are, against Python on the same frames."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import islice
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_apps.roadsigns.drive import drive_source
from gain_core import GainConfig
from gain_export import PreprocessOverrides, export_onnx
from gain_export.adaptive import add_adaptation
from gain_runtime.adaptive_session import AdaptiveSession
from gain_runtime.artifact import load_artifact
from gain_runtime.preprocess import preprocess
from gain_runtime.sources import open_source

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "cpp" / "adaptive_stream.cpp"
ROAD_SIGNS = ROOT / "models" / "roadsigns" / "roadsigns.onnx"
# Debian 13's package libonnxruntime-dev, installed or unpacked by .ci/onnxruntime-headers;
# ONNXRUNTIME_INCLUDE names another place.
INCLUDES = (
    os.environ.get("ONNXRUNTIME_INCLUDE", ""),
    "/usr/include/onnxruntime",
    str(ROOT / "build" / "onnxruntime" / "usr" / "include" / "onnxruntime"),
)
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


def test_cpp_drives_the_road_signs(program, tmp_path):
    overrides = PreprocessOverrides(
        img_size=(64, 64),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        crop_fraction=1.0,
        interpolation="bicubic",
    )
    artifact = export_onnx(ROAD_SIGNS, output=tmp_path / "signs.onnx", preprocess=overrides).path
    path = tmp_path / "signs.adaptive.onnx"
    add_adaptation(artifact, path, config=GainConfig.preset("balanced"))
    spec = load_artifact(artifact).manifest.preprocess
    with open_source("test://drive?resolution=crop", schemes={"drive": drive_source}) as source:
        frames = [preprocess(frame.image, spec) for frame in islice(source, 120)]
    np.stack(frames).tofile(tmp_path / "frames.f32")
    done = subprocess.run(
        [program, path, tmp_path / "frames.f32", "64", "64"],
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    )
    rows = np.array([line.split("\t") for line in done.stdout.splitlines()], dtype=np.float64)
    with AdaptiveSession(path, num_threads=1) as session:
        predictions = [session.step(frame[None]) for frame in frames]
    assert_array_equal(rows[:, 1], [int(np.argmax(item.probs)) for item in predictions])
    strength = np.array([float(item.strength[0]) for item in predictions])
    assert_allclose(rows[:, 2], strength, rtol=0, atol=1e-3)
    assert np.mean(strength > 0.0) > 0.5, "nothing was corrected, so the comparison shows little"

"""The Node and the web example against Python, on the same frames."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import PRESETS
from gain_export.adaptive import add_adaptation
from gain_runtime.files.artifact import load_artifact
from gain_runtime.preprocess import preprocess, preprocess_batch
from gain_runtime.sessions.adaptive import AdaptiveSession
from gain_runtime.sources.opening import open_source
from gain_scenes.roadsigns.sources import drive_source

# They install npm packages, of 150 MB for the page, which needs a browser as well.
pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
# The default learns nothing from a short clip of a few classes.
NUM_CLASSES = 24
WEIGHT = np.random.default_rng(2).integers(-16, 17, (NUM_CLASSES, 12)).astype(np.float32) / 8


def copy_installed(source: Path, target: Path, package: str = ".") -> Path:
    """A copy of a folder with the npm packages of one inside it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("node_modules", "demo"))
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"],
        cwd=target / package,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"npm ci failed, probably without a registry: {done.stderr[-300:]}")
    return target / package


@pytest.fixture(scope="module")
def node_example(tmp_path_factory):
    """The Node example among copies of the others."""
    return copy_installed(EXAMPLES, tmp_path_factory.mktemp("node") / "examples", "node")


@pytest.fixture
def artifact(make_artifact, make_fitness):
    """Noise has no skewness; here that is what a mixture of classes looks like."""
    return make_artifact(WEIGHT, fitness=make_fitness(NUM_CLASSES, (-0.5, 0.0)))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("update_every", "batch_size"), [(1, 1), (6, 4)])
def test_node_streams_as_python_does(
    node_example, artifact, write_clip, tmp_path, preset, update_every, batch_size
):
    path = tmp_path / "tiny.adaptive.onnx"
    waits = {"update_every": update_every, "warmup_frames": update_every}
    add_adaptation(artifact, path, config=PRESETS[preset], **waits)
    pixel_values = write_clip(tmp_path / "clip", num_frames=150, num_classes=NUM_CLASSES)
    result = stream(node_example, path, tmp_path / "clip", batch_size=batch_size)
    assert_is_pythons(result, path, pixel_values, batch_size=batch_size)


def stream(example, path, clip, *, batch_size=1):
    """Run the example over a clip; what it answered, with the final state's arrays as `state`."""
    out = clip.with_name("result")
    subprocess.run(
        ["node", "stream.mjs", path, clip, "--out", out, "--batch", str(batch_size)],
        cwd=example,
        check=True,
        capture_output=True,
        timeout=200,
    )
    result = json.loads((out / "result.json").read_text())
    result["state"] = {
        item["name"].removeprefix("state."): np.fromfile(
            out / f"{item['name']}.bin", dtype=item["type"]
        ).reshape(item["dims"])
        for item in result["state"]
    }
    return result


def assert_is_pythons(result, path, pixel_values, *, batch_size=1):
    """Labels, strengths and the final state are those of a session on the same frames."""
    with AdaptiveSession(path, num_threads=1) as session:
        predictions = [
            session.step(pixel_values[first : first + batch_size])
            for first in range(0, len(pixel_values), batch_size)
        ]
        probs = np.concatenate([prediction.probs for prediction in predictions])
        strength = np.concatenate([prediction.strength for prediction in predictions])
        gain = np.concatenate([prediction.gain for prediction in predictions])
        assert result["learned"] == session.frames
        expected = session.arrays()
    rows = result["results"]
    assert_array_equal([row["adapted"] for row in rows], np.argmax(probs, axis=1))
    assert_allclose([row["gain"] for row in rows], gain, rtol=1e-4, atol=1e-4)
    assert_allclose([row["strength"] for row in rows], strength, rtol=0, atol=1e-3)
    assert np.mean(strength > 0) > 0.2, "hardly anything was corrected"
    assert result["state"].keys() == expected.keys()
    for name, array in result["state"].items():
        peak = 1.0 + np.max(np.abs(expected[name]))
        assert_allclose(array / peak, expected[name] / peak, rtol=0, atol=2e-5, err_msg=name)


def test_node_drives_past_road_signs_as_python_does(node_example, roadsigns, tmp_path):
    """The drive as `record_clip.py` records it, through the network that is shipped with it."""
    path, clip = tmp_path / "signs.adaptive.onnx", tmp_path / "clip"
    add_adaptation(roadsigns, path, update_every=4, warmup_frames=16)
    subprocess.run(
        [
            *(sys.executable, EXAMPLES / "record_clip.py", path),
            *("test://drive?resolution=crop", clip, "--frames", "600"),
        ],
        check=True,
        capture_output=True,
        timeout=200,
    )
    header = json.loads((clip / "clip.json").read_text())
    frames = np.fromfile(clip / "clip.bin", np.uint8).reshape(-1, 64, 64, 3)
    assert len(frames) == header["frames"] == 600
    pixel_values = preprocess_batch(list(frames), load_artifact(roadsigns).manifest.preprocess)
    result = stream(node_example, path, clip)
    assert_is_pythons(result, path, pixel_values)
    labels = [row["adapted"] for row in result["results"]]
    assert np.mean(np.equal(labels, header["truth"])) > 0.7


def find_browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Copies of the page and of its driver with their packages."""
    if find_browser() is None:
        pytest.skip("chromium is not installed")
    root = tmp_path_factory.mktemp("web")
    copy_installed(EXAMPLES / "web", root / "site")
    copy_installed(HERE / "page", root / "driver")
    return root


@pytest.fixture
def served(installed):
    """The page's address, its server running."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "serve.py", "--port", str(port)],
        cwd=installed / "site",
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=60)


def write_camera(path: Path, frames: list[np.ndarray]) -> None:
    """A raw video that Chromium takes for a camera; pixels are doubled, so that colours stay."""
    height, width = (2 * size for size in frames[0].shape[:2])
    with path.open("wb") as video:
        video.write(f"YUV4MPEG2 W{width} H{height} F10:1 Ip A1:1 C420jpeg\n".encode())
        for frame in frames:
            doubled = np.ascontiguousarray(frame.repeat(2, axis=0).repeat(2, axis=1))
            video.write(b"FRAME\n" + cv2.cvtColor(doubled, cv2.COLOR_RGB2YUV_I420).tobytes())


def write_road_signs(demo: Path, artifact: Path) -> list[np.ndarray]:
    """Model and clip of a drive past road signs with a noisy sensor; returns its frames."""
    demo.mkdir()
    # It corrects from the first frames on.
    settings = {"config": PRESETS["paper-l2"], "update_every": 1, "warmup_frames": 1}
    add_adaptation(artifact, demo / "model.adaptive.onnx", **settings)
    manifest = load_artifact(artifact).manifest
    spec = manifest.preprocess
    rng = np.random.default_rng(0)
    with open_source("test://drive?resolution=crop", schemes={"drive": drive_source}) as source:
        # Every fifth frame: many signs, for of a few nothing would be learned.
        seen = islice(source, 0, 200, 5)
        planes = [preprocess(frame.image, spec, region=frame.region) for frame in seen]
    sharp = [(array + 1.0) * 127.5 for array in planes]
    noisy = [frame.transpose(1, 2, 0) + rng.normal(0.0, 50.0, (64, 64, 3)) for frame in sharp]
    frames = [np.clip(frame, 0, 255).astype(np.uint8) for frame in noisy]
    header = {
        "frames": len(frames),
        "height": 64,
        "width": 64,
        "mean": list(spec.mean),
        "std": list(spec.std),
        "channel_order": "RGB",
        "labels": list(manifest.labels),
        "truth": [0] * len(frames),
        "conditions": ["noise"] * len(frames),
    }
    (demo / "clip.json").write_text(json.dumps(header))
    (demo / "clip.bin").write_bytes(np.stack(frames).tobytes())
    return frames


def test_page_adapts_on_a_camera_and_remembers(installed, served, roadsigns, tmp_path):
    demo = installed / "site" / "demo"
    shutil.rmtree(demo, ignore_errors=True)
    frames = write_road_signs(demo, roadsigns)
    write_camera(tmp_path / "camera.y4m", frames)
    seen = drive(installed, served, tmp_path, camera=tmp_path / "camera.y4m")
    first, second = seen["first"], seen["second"]
    assert second["frames"] == first["learned"]
    strongest = 0.0
    with AdaptiveSession(demo / "model.adaptive.onnx", num_threads=1) as session:
        for played in (first, second):
            assert played["title"] == "Confidence over the last 100 frames"
            assert all(score.endswith("sure, on average") for score in played["scores"])
            assert len(played["recorded"]) == len(played["history"]) >= 60
            for recorded, item in zip(played["recorded"], played["history"], strict=True):
                frame = np.array(recorded, np.uint8).reshape(64, 64, 3)
                pixel_values = (frame.transpose(2, 0, 1)[None] / 255.0 - 0.5) / 0.5
                expected = session.step(np.ascontiguousarray(pixel_values, np.float32))
                assert item["adapted"] == int(np.argmax(expected.probs))
                assert item["strength"] == pytest.approx(float(expected.strength[0]), abs=1e-3)
                strongest = max(strongest, item["strength"])
            assert session.frames == played["learned"]
    assert strongest > 0.5, "nothing was corrected, so the comparison shows little"
    # What was classified is what the camera showed.
    for recorded in (*first["recorded"][::20], *second["recorded"][::20]):
        taken = np.array(recorded, np.float64).reshape(64, 64, 3)
        distance = min(float(np.mean(np.abs(taken - frame))) for frame in frames)
        assert distance < 12.0


def drive(installed: Path, served: str, folder: Path, *, camera: Path | None = None) -> dict:
    """What the driver saw on the page, which it loaded twice and then let forget."""
    command = ["node", "drive.mjs", find_browser(), served, folder]
    done = subprocess.run(
        [*command, camera] if camera else command,
        cwd=installed / "driver",
        env=os.environ | {"HOME": str(folder)},
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads((folder / "seen.json").read_text())
    assert seen["errors"] == []
    assert (seen["first"]["restored"], seen["first"]["frames"]) == (False, 0)
    assert (seen["second"]["restored"], seen["afterReset"]) == (True, False)
    # The screenshot is of a page with content, not of an empty one.
    assert (folder / "page.png").stat().st_size > 20_000
    return seen


def test_page_adapts_as_python_does_and_remembers(
    installed, served, artifact, write_clip, tmp_path
):
    demo = installed / "site" / "demo"
    shutil.rmtree(demo, ignore_errors=True)
    pixel_values = write_clip(demo, num_frames=60, num_classes=NUM_CLASSES)
    path = demo / "model.adaptive.onnx"
    add_adaptation(artifact, path, update_every=1, warmup_frames=1)
    seen = drive(installed, served, tmp_path)
    assert seen["hosts"] == [served.removeprefix("http://").rstrip("/")]
    first, second = seen["first"], seen["second"]
    assert first["isolated"], "the server's headers allow threads"
    assert second["frames"] == 60
    with AdaptiveSession(path, num_threads=1) as session:
        for played in (first, second):
            predictions = [session.step(pixels[None]) for pixels in pixel_values]
            labels = [int(np.argmax(prediction.probs)) for prediction in predictions]
            assert_array_equal([item["adapted"] for item in played["history"]], labels)
            strength = np.array([float(prediction.strength[0]) for prediction in predictions])
            assert_allclose(
                [item["strength"] for item in played["history"]], strength, rtol=0, atol=1e-3
            )
            assert np.mean(strength > 0.0) > 0.4, "the strength's curve is a flat line"
            for item in played["state"]:
                wanted = session.arrays()[item["name"].removeprefix("state.")]
                peak = 1.0 + np.max(np.abs(wanted))
                array = np.array(item["data"]).reshape(item["dims"])
                assert_allclose(array / peak, wanted / peak, rtol=0, atol=2e-5)

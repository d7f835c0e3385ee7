"""The Node example against Python, on the same clip: labels, strengths and the final state."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import PRESETS
from gain_export.adaptive import add_adaptation
from gain_runtime.files.artifact import load_artifact
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.adaptive import AdaptiveSession

# Installing onnxruntime-node takes half a minute and the registry.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WEIGHT = (np.random.default_rng(2).integers(-16, 17, size=(5, 12)) / 8).astype(np.float32)


@pytest.fixture(scope="module")
def node_example(tmp_path_factory):
    """A copy of the examples with Node's packages installed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node") / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("node_modules", "demo"))
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"],
        cwd=folder / "node",
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"npm ci failed, probably without a registry: {done.stderr[-300:]}")
    return folder / "node"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("update_every", "batch_size"), [(1, 1), (6, 4)])
def test_node_streams_as_python_does(
    node_example,
    make_artifact,
    make_fitness,
    write_clip,
    tmp_path,
    preset,
    update_every,
    batch_size,
):
    path = tmp_path / "tiny.adaptive.onnx"
    # Noise has no skewness; here that is what a mixture of classes looks like.
    artifact = make_artifact(WEIGHT, fitness=make_fitness(5, (-0.5, 0.0)))
    waits = {"update_every": update_every, "warmup_frames": update_every}
    add_adaptation(artifact, path, config=PRESETS[preset], **waits)
    pixel_values = write_clip(tmp_path / "clip", num_frames=150, num_classes=5)
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

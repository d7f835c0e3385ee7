"""The Node example against Python, on the same clip: labels, strengths and the final state."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import PRESETS
from gain_export.adaptive import add_adaptation
from gain_runtime.adaptive_session import AdaptiveSession

# Installing onnxruntime-node takes half a minute and the registry.
pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
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
    # Noise has no asymmetry; here that is what a mixture of classes looks like.
    artifact = make_artifact(WEIGHT, fitness=make_fitness(5, (-0.5, 0.0)))
    add_adaptation(artifact, path, config=PRESETS[preset], update_every=update_every)
    pixel_values = write_clip(tmp_path / "clip", num_frames=150, num_classes=5)
    subprocess.run(
        [
            *("node", "stream.mjs", path, tmp_path / "clip"),
            *("--out", tmp_path / "result", "--batch", str(batch_size)),
        ],
        cwd=node_example,
        check=True,
        capture_output=True,
        timeout=120,
    )
    result = json.loads((tmp_path / "result" / "result.json").read_text())
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
    assert np.any(strength > 0)
    assert {item["name"] for item in result["state"]} == {f"state.{name}" for name in expected}
    for item in result["state"]:
        array = np.fromfile(tmp_path / "result" / f"{item['name']}.bin", dtype=item["type"])
        wanted = expected[item["name"].removeprefix("state.")]
        peak = 1.0 + np.max(np.abs(wanted))
        assert_allclose(
            array.reshape(item["dims"]) / peak,
            wanted / peak,
            rtol=0,
            atol=2e-5,
            err_msg=item["name"],
        )

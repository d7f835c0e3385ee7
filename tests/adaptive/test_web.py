"""The web example in headless Chromium against Python, with its state kept across a reload."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import GainConfig
from gain_export.adaptive import add_adaptation
from gain_runtime.adaptive_session import AdaptiveSession

# Two npm packages of 150 MB and a browser.
pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
WEB = HERE.parents[1] / "examples" / "web"
WEIGHT = (np.random.default_rng(2).integers(-16, 17, size=(5, 12)) / 8).astype(np.float32)


def find_browser() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Copies of the page and of its driver with their packages."""
    if find_browser() is None or shutil.which("npm") is None:
        pytest.skip("chromium, node and npm are not all installed")
    root = tmp_path_factory.mktemp("web")
    for source, name in ((WEB, "site"), (HERE / "page", "driver")):
        shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("node_modules", "demo"))
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund"],
            cwd=root / name,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"npm ci failed, probably without a registry: {done.stderr[-300:]}")
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
        for _ in range(100):
            try:
                urllib.request.urlopen(address, timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=10)


def test_page_adapts_as_python_does_and_remembers(
    installed, served, make_artifact, write_clip, tmp_path
):
    demo = installed / "site" / "demo"
    shutil.rmtree(demo, ignore_errors=True)
    pixel_values = write_clip(demo, num_frames=60, num_classes=5)
    path = demo / "model.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT), path, config=GainConfig())
    subprocess.run(
        ["node", "drive.mjs", find_browser(), served, tmp_path],
        cwd=installed / "driver",
        env=os.environ | {"HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        timeout=280,
    )
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["errors"] == []
    assert seen["hosts"] == [served.removeprefix("http://").rstrip("/")]
    first, second = seen["first"], seen["second"]
    assert first["isolated"], "the server's headers allow threads"
    assert (first["restored"], first["frames"]) == (False, 0)
    assert (second["restored"], second["frames"]) == (True, 60)
    assert seen["afterReset"] is False
    with AdaptiveSession(path, num_threads=1) as session:
        for played in (first, second):
            predictions = [session.step(pixels[None]) for pixels in pixel_values]
            labels = [int(np.argmax(prediction.probs)) for prediction in predictions]
            assert_array_equal([item["adapted"] for item in played["history"]], labels)
            strength = [float(prediction.strength[0]) for prediction in predictions]
            assert_allclose(
                [item["strength"] for item in played["history"]], strength, rtol=0, atol=1e-3
            )
            for item in played["state"]:
                wanted = session.arrays()[item["name"].removeprefix("state.")]
                peak = 1.0 + np.max(np.abs(wanted))
                array = np.array(item["data"]).reshape(item["dims"])
                assert_allclose(array / peak, wanted / peak, rtol=0, atol=2e-5)
    # The screenshot is of a page with content, not of an empty one.
    assert (tmp_path / "page.png").stat().st_size > 20_000

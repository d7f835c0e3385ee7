"""JPEGs and a clip made on the spot, and the command run on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from results import make_result

from gain_apps.stream import main
from gain_runtime.frames import FrameResult

LABELS = ("apple", "crème brûlée", "cassis", "date", "elderberry")
WNIDS = tuple(f"n{index:08d}" for index in range(len(LABELS)))


def make_photo(index: int) -> np.ndarray:
    """A smooth random picture; sizes differ."""
    rng = np.random.default_rng([7, index])
    coarse = rng.integers(0, 256, size=(4, 5, 3), dtype=np.uint8)
    size = (int(rng.integers(60, 100)), int(rng.integers(60, 100)))
    return cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)


@pytest.fixture(scope="session")
def result() -> Callable[..., FrameResult]:
    """Makes results; see `make_result`."""
    return make_result


@pytest.fixture(scope="session")
def nan_artifact_path(
    tmp_path_factory: pytest.TempPathFactory, write_artifact: Callable[..., Path]
) -> Path:
    return write_artifact(tmp_path_factory.mktemp("artifact") / "nan.onnx", nan_on_black=True)


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve JPEGs and the class list that tells their truth."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(12):
        name = f"{WNIDS[index % len(LABELS)]}_{index:02d}.jpg"
        Image.fromarray(make_photo(index)).save(folder / name, quality=92)
    lines = [f"{index}\t{wnid}\t{LABELS[index]}" for index, wnid in enumerate(WNIDS)]
    (folder / "classes.tsv").write_text("\n".join(["index\twnid\tname", *lines]) + "\n", "utf-8")
    return folder


@pytest.fixture(scope="session")
def clip_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-four frames of a real MPEG-4 clip."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 12.0, (96, 64))
    for index in range(24):
        frame = cv2.resize(make_photo(index // 4), (96, 64))
        writer.write(cv2.add(frame, np.full_like(frame, index)))
    writer.release()
    return path


@pytest.fixture(scope="session")
def process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command in a process of its own, as a user starts it."""

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gain_apps.stream", *map(str, args)],
            capture_output=True,
            text=True,
            timeout=120.0,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            check=False,
        )

    return run


@pytest.fixture
def command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command called in this process, with what it and the libraries below it wrote."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: object) -> subprocess.CompletedProcess[str]:
        argv = [*map(str, args)]
        capfd.readouterr()
        status = main(argv)
        return subprocess.CompletedProcess(argv, status, *capfd.readouterr())

    return run


@pytest.fixture
def run(command: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., dict]:
    """Run the command with --json and expect success; its summary, stderr under `stderr`."""

    def run_json(*args: object) -> dict:
        done = command(*args, "--json=-")
        assert done.returncode == 0, done.stderr
        return {**json.loads(done.stdout), "stderr": done.stderr}

    return run_json

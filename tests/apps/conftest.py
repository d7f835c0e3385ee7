"""A tiny artifact, JPEGs and a clip made on the spot, and the command run on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from gain_apps.stream import main
from gain_runtime.files.artifact import write_metadata
from gain_runtime.files.manifest import HeadLocation, Manifest, Preprocess
from gain_runtime.frames import Frame, FrameResult, Ranked

NUM_CLASSES, FEATURE_DIM, SIZE_PX = 5, 16, 16
LABELS = ("apple", "crème brûlée", "cassis", "date", "elderberry")
WNIDS = tuple(f"n{index:08d}" for index in range(NUM_CLASSES))


def write_artifact(path: Path, *, nan_on_black: bool = False, seed: int = 0) -> Path:
    """A random convolution, pooled to D = 16, under a head of K = 5.

    With `nan_on_black`, the features of an all-black image are 0/0.
    """
    rng = np.random.default_rng(seed)
    weights = {
        "patches": rng.normal(size=(FEATURE_DIM, 3, 4, 4)) / 4,
        "offsets": rng.normal(size=FEATURE_DIM) / 2,
        "head.weight": rng.normal(size=(NUM_CLASSES, FEATURE_DIM)),
        "head.bias": rng.normal(size=NUM_CLASSES) / 4,
        "one": np.ones(1),
    }
    pooled = "pooled" if nan_on_black else "features"
    nodes = [
        helper.make_node("Conv", ["pixel_values", "patches", "offsets"], ["maps"], strides=[4, 4]),
        helper.make_node("Relu", ["maps"], ["positive"]),
        helper.make_node("GlobalAveragePool", ["positive"], ["column"]),
        helper.make_node("Flatten", ["column"], [pooled]),
    ]
    if nan_on_black:
        nodes += [
            helper.make_node("Add", ["pixel_values", "one"], ["light"]),
            helper.make_node("ReduceMean", ["light"], ["mean"], axes=[2, 3], keepdims=0),
            helper.make_node("ReduceMean", ["mean"], ["level"], axes=[1], keepdims=1),
            helper.make_node("Div", ["level", "level"], ["unit"]),
            helper.make_node("Mul", [pooled, "unit"], ["features"]),
        ]
    nodes.append(
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], transB=1)
    )
    shapes = {
        "pixel_values": ["B", 3, SIZE_PX, SIZE_PX],
        "features": ["B", FEATURE_DIM],
        "logits": ["B", NUM_CLASSES],
    }
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    graph = helper.make_graph(
        nodes,
        "tiny",
        [values["pixel_values"]],
        [values["features"], values["logits"]],
        [numpy_helper.from_array(array.astype(np.float32), n) for n, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    manifest = Manifest(
        source="tiny",
        weights_sha256="0" * 64,
        input_name="pixel_values",
        features_name="features",
        logits_name="logits",
        num_classes=NUM_CLASSES,
        feature_dim=FEATURE_DIM,
        labels=LABELS,
        head=HeadLocation(weight="head.weight", layout="KD", bias="head.bias"),
        preprocess=Preprocess(
            height_px=SIZE_PX, width_px=SIZE_PX, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
        ),
        tool_versions={"onnx": onnx.__version__},
    )
    write_metadata(model, manifest)
    path.write_bytes(model.SerializeToString())
    return path


def make_photo(index: int) -> np.ndarray:
    """A smooth random picture; sizes differ."""
    rng = np.random.default_rng([7, index])
    coarse = rng.integers(0, 256, size=(4, 5, 3), dtype=np.uint8)
    size = (int(rng.integers(60, 100)), int(rng.integers(60, 100)))
    return cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)


@pytest.fixture(scope="session")
def result() -> Callable[..., FrameResult]:
    """Makes results: a grey picture, and the classes of the source and of the adaptation."""

    def make_result(index: int = 0, *, source: int = 0, adapted: int = 0) -> FrameResult:
        image = np.full((20, 30, 3), 40 + index % 200, dtype=np.uint8)
        frame = Frame(image=image, index=index, timestamp_ns=index, source_id="cam")
        return FrameResult(
            frame=frame,
            source_top=(Ranked(index=source, label=f"class {source}", prob=0.5),),
            adapted_top=(Ranked(index=adapted, label=f"class {adapted}", prob=0.75),),
            strength=0.5,
            gain=0.1,
        )

    return make_result


@pytest.fixture(scope="session")
def artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("artifact") / "tiny.onnx")


@pytest.fixture(scope="session")
def other_artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shapes, other weights."""
    return write_artifact(tmp_path_factory.mktemp("artifact") / "other.onnx", seed=1)


@pytest.fixture(scope="session")
def nan_artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("artifact") / "nan.onnx", nan_on_black=True)


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve JPEGs and the class list that tells their truth."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(12):
        name = f"{WNIDS[index % NUM_CLASSES]}_{index:02d}.jpg"
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

"""What the adaptive file's tests share: a features-only file in ONNX Runtime, driven by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx_text import network
from tiny_manifest import write_manifest

from gain_core import Config
from gain_core.records import arrays_of
from gain_export.adaptive import add_adaptation
from gain_runtime.files.manifest import Fitness, HeadLocation, Preprocess
from gain_runtime.preprocess import preprocess_batch

SIZE_PX = 8


@dataclass
class GraphStream:
    """A file's graph with the state fed back by hand, as any runtime would."""

    path: Path
    session: onnxruntime.InferenceSession
    state: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        self.state = {
            item.name: np.zeros(item.shape, kinds[item.type])
            for item in self.session.get_inputs()
            if item.name.startswith("state.")
        }

    def step(self, *, update: bool = True, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """One call; every output by name, the state already advanced."""
        names = [item.name for item in self.session.get_outputs()]
        feeds = self.state | inputs | {"update": np.array(update)}
        outputs = dict(zip(names, self.session.run(names, feeds), strict=True))
        self.state = {
            name.removeprefix("next_"): value
            for name, value in outputs.items()
            if name.startswith("next_")
        }
        return outputs

    def load(self, state: Any) -> None:
        """A state of `gain_core`."""
        for name, array in arrays_of(state).items():
            self.state[f"state.{name}"] = np.asarray(array, dtype=np.float32)


def write_artifact(
    path: Path,
    weight: np.ndarray,
    *,
    logits_only: bool = False,
    layout: str = "KD",
    data_type: int = TensorProto.FLOAT,
    batch: str | int = "B",
    hidden: str = "pooled",
    opset: int = 17,
    fitness: Fitness | None = None,
) -> Path:
    """An artifact whose features are D linear maps of the image; `hidden` names a value inside.

    With `logits_only` it does not say that it has features.
    """
    K, D = weight.shape
    rng = np.random.default_rng(5)
    maps = rng.normal(size=(D, 3, SIZE_PX, SIZE_PX)).astype(np.float32) / SIZE_PX
    stored = weight if layout == "KD" else weight.T
    tensor = helper.make_tensor("head.weight", data_type, stored.shape, stored.ravel().tolist())
    outputs = {"features": [batch, D], "logits": [batch, K]}
    if logits_only:
        del outputs["features"]
    model = network(
        f"{hidden} = Conv(pixel_values, maps); features = Flatten({hidden});"
        "head = Cast<to=1>(head.weight);"
        f"logits = Gemm<transB={int(layout == 'KD')}>(features, head)",
        {"maps": maps, "head.weight": tensor},
        inputs={"pixel_values": [batch, 3, SIZE_PX, SIZE_PX]},
        outputs=outputs,
        opset=opset,
    )
    head = None if logits_only else HeadLocation(weight="head.weight", layout=layout, bias=None)
    labels = [f"class {k}" for k in range(K)]
    write_manifest(model, labels, head=head, std=(0.25, 0.25, 0.25), fitness=fitness)
    path.write_bytes(model.SerializeToString())
    return path


def measured(
    num_classes: int,
    skewness: tuple[float, float],
    clean_moments: tuple[tuple[float, ...], ...] | None = None,
) -> Fitness:
    """A report with this measurement."""
    return Fitness(
        num_images=400,
        num_classes=num_classes,
        confidence=0.6,
        effective_classes=4.0,
        one_class_skewness=skewness[0],
        mixture_skewness=skewness[1],
        clean_moments=clean_moments,
    )


def open_graph(path: Path) -> GraphStream:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        path.read_bytes(), options, providers=["CPUExecutionProvider"]
    )
    return GraphStream(path, session)


@pytest.fixture
def make_artifact(tmp_path: Path) -> Callable[..., Path]:
    """`write_artifact` into this test's folder."""

    def make(weight: np.ndarray, **settings: Any) -> Path:
        return write_artifact(tmp_path / "tiny.onnx", weight, **settings)

    return make


@pytest.fixture(scope="session")
def make_fitness() -> Callable[..., Fitness]:
    """`measured`, for tests that write the artifact themselves."""
    return measured


@pytest.fixture(scope="session")
def open_file() -> Callable[[Path], GraphStream]:
    """Open any file by hand."""
    return open_graph


@pytest.fixture
def make_graph(tmp_path: Path) -> Callable[..., GraphStream]:
    """A features-only file for a head and config, and what was measured if given, open."""

    def make(
        weight: np.ndarray,
        config: Config,
        *,
        skewness: tuple[float, float] | None = None,
        clean_moments: tuple[tuple[float, ...], ...] | None = None,
        opset: int = 17,
        **settings: Any,
    ) -> GraphStream:
        fitness = None if skewness is None else measured(len(weight), skewness, clean_moments)
        artifact = write_artifact(
            tmp_path / "tiny.onnx", weight.astype(np.float32), fitness=fitness, opset=opset
        )
        path = tmp_path / "tiny.adaptive.onnx"
        add_adaptation(artifact, path, config=config, features_only=True, **settings)
        return open_graph(path)

    return make


@pytest.fixture(scope="session")
def write_clip() -> Callable[..., np.ndarray]:
    """Write a clip as `examples/record_clip.py` does; returns its pixel values."""

    def write(folder: Path, *, num_frames: int, num_classes: int) -> np.ndarray:
        rng = np.random.default_rng(num_frames)
        tint = np.linspace(0, 60, num_frames)[:, None, None, None]
        frames = rng.integers(0, 190, (num_frames, SIZE_PX, SIZE_PX, 3)) + tint
        frames = frames.astype(np.uint8)
        header = {
            "frames": num_frames,
            "height": SIZE_PX,
            "width": SIZE_PX,
            "mean": [0.5, 0.5, 0.5],
            "std": [0.25, 0.25, 0.25],
            "channel_order": "RGB",
            "labels": [f"class {k}" for k in range(num_classes)],
            "truth": rng.integers(0, num_classes, num_frames).tolist(),
            "conditions": ["plain"] * num_frames,
        }
        folder.mkdir()
        (folder / "clip.bin").write_bytes(frames.tobytes())
        (folder / "clip.json").write_text(json.dumps(header))
        spec = Preprocess(
            height_px=SIZE_PX, width_px=SIZE_PX, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)
        )
        return preprocess_batch(list(frames), spec)

    return write


@pytest.fixture(scope="session")
def checked() -> Callable[[Path], onnx.ModelProto]:
    """A file's model, after ONNX's checker and strict shape inference."""

    def check(path: Path) -> onnx.ModelProto:
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        return onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )

    return check

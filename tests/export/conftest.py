"""Small ONNX classifiers, built node by node, and places of the test data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gain_export import PreprocessOverrides

SIZE, WIDTH, CLASSES = 8, 6, 5


class Classifier:
    """A two-layer perceptron on tiny images whose last nodes a test writes itself.

    `features` is the value `hidden`, (B, WIDTH); `weight` (CLASSES, WIDTH) and `bias` (CLASSES,)
    are the arrays the head should have.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.weight = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32)
        self.bias = rng.normal(size=CLASSES).astype(np.float32)
        self._first = rng.normal(scale=0.1, size=(3 * SIZE * SIZE, WIDTH)).astype(np.float32)

    def model(
        self,
        head: Sequence[onnx.NodeProto],
        arrays: dict[str, np.ndarray[Any, Any]],
        *,
        outputs: Sequence[str] = ("out",),
        batch: str | int = "N",
        opset: int = 18,
        dtype: int = TensorProto.FLOAT,
    ) -> onnx.ModelProto:
        """Backbone plus `head`, which reads `hidden`."""
        nodes = [
            helper.make_node("Flatten", ["input"], ["flat"]),
            helper.make_node("MatMul", ["flat", "first"], ["linear"], name="first_matmul"),
            helper.make_node("Tanh", ["linear"], ["hidden"]),
            *head,
        ]
        tensors = {"first": self._first, **arrays}
        graph = helper.make_graph(
            nodes,
            "classifier",
            [helper.make_tensor_value_info("input", dtype, [batch, 3, SIZE, SIZE])],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in tensors.items()],
        )
        for value in graph.output:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def plain(self, **settings: Any) -> onnx.ModelProto:
        """The classifier with an ordinary MatMul and Add as its head."""
        nodes = [
            helper.make_node("MatMul", ["hidden", "w"], ["scores"], name="head_matmul"),
            helper.make_node("Add", ["scores", "b"], ["out"], name="head_add"),
        ]
        return self.model(nodes, {"w": self.weight.T.copy(), "b": self.bias}, **settings)


@pytest.fixture
def classifier() -> Classifier:
    return Classifier()


@pytest.fixture
def spec() -> PreprocessOverrides:
    """Settings that turn any frame into a SIZE x SIZE input."""
    colours = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    return PreprocessOverrides(**colours, crop_fraction=1.0, interpolation="bilinear")


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model into the test's own folder."""

    def save(model: onnx.ModelProto, name: str = "net.onnx") -> Path:
        path = tmp_path / name
        path.write_bytes(model.SerializeToString())
        return path

    return save


@pytest.fixture(scope="session")
def photographs() -> Path:
    """The folder of ImageNet sample photographs, where this checkout has it."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "data" / "imagenet_samples"
    if not folder.is_dir():
        pytest.skip(f"no sample photographs in {folder}")
    return folder

"""The shipped classifier: a plain ONNX file that knows its signs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from gain_runtime.files.manifest import Preprocess
from gain_runtime.preprocess import preprocess_batch
from gain_scenes.roadsigns.designs import LABELS
from gain_scenes.roadsigns.sample import render_labelled
from gain_scenes.roadsigns.sources import DriveParams, DriveSource

FOLDER = Path(__file__).resolve().parents[2] / "models" / "roadsigns"
MODEL = FOLDER / "roadsigns.onnx"
SPEC = Preprocess(
    height_px=64, width_px=64, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), crop_mode="squash"
)


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(MODEL), options, providers=["CPUExecutionProvider"])


def predict(session: onnxruntime.InferenceSession, images: list[np.ndarray]) -> np.ndarray:
    (logits,) = session.run(["logits"], {"pixel_values": preprocess_batch(images, SPEC)})
    return logits.argmax(axis=1)


def test_the_file_is_plain_onnx_of_the_promised_kind():
    model = onnx.load(str(MODEL))
    assert MODEL.stat().st_size <= 10_000_000
    assert model.ir_version <= 10
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [17]
    assert not model.metadata_props
    assert [entry.name for entry in model.graph.input] == ["pixel_values"]
    assert [entry.name for entry in model.graph.output] == ["logits"]


def test_the_head_is_a_float_initializer_that_feeds_the_last_node():
    graph = onnx.load(str(MODEL)).graph
    head = next(node for node in graph.node if "logits" in node.output)
    weights = {entry.name: entry for entry in graph.initializer}
    assert head.op_type == "Gemm"
    assert tuple(weights[head.input[1]].dims) == (len(LABELS), 192)
    assert weights[head.input[1]].data_type == onnx.TensorProto.FLOAT


def test_the_labels_file_lists_the_classes_in_order():
    assert (FOLDER / "labels.txt").read_text().splitlines() == list(LABELS)


def test_the_classifier_reads_held_out_signs(session):
    pairs = [render_labelled(index, seed=2_000_004) for index in range(300)]
    truths = np.array([truth for _, truth in pairs])
    predicted = np.concatenate(
        [predict(session, [image for image, _ in pairs[i : i + 50]]) for i in range(0, 300, 50)]
    )
    assert (predicted == truths).mean() >= 0.95


def test_a_clear_drive_is_read_and_fog_is_not(session):
    def accuracy(conditions: str) -> float:
        params = DriveParams(
            frames=150, rate=5.0, speed=110.0, conditions=conditions, resolution="crop", seed=21
        )
        with DriveSource(params) as source:
            frames = list(source)
        crops = []
        for frame in frames:
            assert frame.region is not None
            left, top, right, bottom = frame.region
            crops.append(frame.image[top:bottom, left:right])
        return float((predict(session, crops) == [frame.truth for frame in frames]).mean())

    assert accuracy("clear") > 0.9
    assert accuracy("fog") < 0.8

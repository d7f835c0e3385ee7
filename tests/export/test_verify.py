"""The export's check must notice what it is there to notice."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gain_core.errors import ArtifactError, ParityError
from gain_export import export_onnx
from gain_export.photographs import read_photographs
from gain_export.synthetic import synthetic_images
from gain_export.verify import Expected, Reference, verify
from gain_runtime.artifact import load_artifact
from gain_runtime.onnx_session import OnnxSession


@pytest.fixture
def artifact(classifier, saved, spec):
    return load_artifact(export_onnx(saved(classifier.plain()), preprocess=spec).path)


def check(artifact, change):
    """Verify against the artifact itself, its outputs changed by `change`."""

    def run(pixel_values):
        with OnnxSession(artifact) as session:
            features, logits = session.infer(pixel_values)
        return change(Expected(features=features, logits=logits))

    return verify(
        artifact,
        Reference(name="the original", run=run),
        images=synthetic_images(4),
        image_source="synthetic",
    )


def test_identical_networks_pass(artifact):
    numbers = check(artifact, lambda expected: expected)
    assert numbers["logits_max_abs_diff"] < 1e-5
    assert numbers["top1_agreement"] == 1.0
    assert numbers["logits_cosine_min"] > 0.999999
    assert numbers["images"] == 4


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        pytest.param(
            lambda e: dataclasses.replace(e, logits=e.logits + np.float32(0.01)),
            "logits: largest difference 0.01",
            id="offset",
        ),
        pytest.param(
            lambda e: dataclasses.replace(e, features=e.features * np.float32(1.01)),
            "features: largest difference",
            id="scale",
        ),
        pytest.param(
            lambda e: dataclasses.replace(e, logits=e.logits[:, ::-1]),
            "smallest cosine",
            id="class-order",
        ),
        pytest.param(
            lambda e: dataclasses.replace(e, logits=np.full_like(e.logits, np.nan)),
            "NaN or infinity in the reference",
            id="nan",
        ),
        pytest.param(
            lambda e: dataclasses.replace(e, logits=e.logits[:, :-1]), "expected shape", id="shape"
        ),
        pytest.param(
            lambda e: dataclasses.replace(e, output=e.logits * np.float32(0.5)),
            "output: largest difference",
            id="output",
        ),
    ],
)
def test_a_difference_is_a_failure(artifact, change, failure):
    with pytest.raises(ParityError, match=failure):
        check(artifact, change)


def test_a_head_that_is_not_the_graphs_own_is_a_failure(artifact, tmp_path):
    """The bias the manifest points at must be the one the graph adds."""
    model = onnx.load(artifact.path)
    for tensor in model.graph.initializer:
        if tensor.name == artifact.manifest.head.bias:
            moved = numpy_helper.to_array(tensor) + np.float32(0.5)
            tensor.name = "elsewhere"
    model.graph.node[-1].input[2] = "elsewhere"
    model.graph.initializer.append(numpy_helper.from_array(moved, artifact.manifest.head.bias))
    path = tmp_path / "wrong.onnx"
    onnx.save(model, path)
    with pytest.raises(ParityError, match="head: logits differ from features"):
        check(load_artifact(path), lambda expected: expected)


def test_synthetic_images_are_structured_varied_and_repeatable():
    images = synthetic_images(12)
    again = synthetic_images(12)
    assert all(np.array_equal(a, b) for a, b in zip(images, again, strict=True))
    assert not np.array_equal(images[0], synthetic_images(1, seed=1)[0])
    assert sum(image.shape[0] != image.shape[1] for image in images) >= 8
    for image in images:
        assert image.dtype == np.uint8
        neighbours = np.abs(np.diff(image.astype(int), axis=1)).mean()
        shuffled = np.random.default_rng(0).permutation(image.reshape(-1, 3)).astype(int)
        assert neighbours < 0.8 * np.abs(np.diff(shuffled, axis=0)).mean()
        assert image.std() > 15


def test_photographs_skip_what_is_broken(tmp_path, photographs, caplog):
    source = min(photographs.glob("*.jpg"))
    (tmp_path / "good.jpg").write_bytes(source.read_bytes())
    (tmp_path / "cut.jpg").write_bytes(source.read_bytes()[:500])
    (tmp_path / "note.txt").write_text("no image")
    images = read_photographs(tmp_path)
    assert [image.ndim for image in images] == [3]
    assert "cut.jpg" in caplog.text


def test_a_folder_without_photographs_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="none that can be read"):
        read_photographs(tmp_path)
    with pytest.raises(ArtifactError, match="expected a folder"):
        read_photographs(tmp_path / "nowhere")

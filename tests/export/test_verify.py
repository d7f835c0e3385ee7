"""The export's check must notice what it is there to notice."""

import functools

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gain_core.errors import ArtifactError, ParityError
from gain_export import export_onnx
from gain_export.images import read_photographs, synthetic_images
from gain_export.outputs import activate
from gain_export.verify import Reference, verify
from gain_runtime.files.artifact import load_artifact
from gain_runtime.preprocess import preprocess_batch
from gain_runtime.sessions.onnx import OnnxSession


@pytest.fixture
def artifact(classifier, saved, spec):
    return load_artifact(export_onnx(saved(classifier.plain()), preprocess=spec).path)


@functools.cache
def drawn():
    """The images that all of these networks are compared on."""
    return tuple(synthetic_images(12))


def check(artifact, change, activation="none"):
    """Verify against the artifact's own logits, changed by `change`."""
    pixel_values = preprocess_batch(list(drawn()), artifact.manifest.preprocess)
    with OnnxSession(artifact) as session:
        logits = session.infer(pixel_values).logits
    reference = Reference(
        name="the original",
        pixel_values=pixel_values,
        images=12,
        image_source="synthetic",
        output=change(logits),
        activation=activation,
    )
    return verify(artifact, reference)


def test_identical_networks_pass(artifact):
    numbers = check(artifact, lambda logits: logits)
    assert numbers["verified"] == "yes"
    assert numbers["output_max_abs_diff"] < 1e-5
    assert numbers["top1_agreement"] == 1.0
    assert numbers["classes_seen"] > 1
    assert numbers["output_cosine_min"] > 0.999999
    assert numbers["confidence"] == pytest.approx(numbers["reference_confidence"], abs=1e-6)


@pytest.mark.parametrize("activation", ["softmax", "log_softmax", "sigmoid"])
def test_the_activation_of_the_original_is_applied_to_the_logits(artifact, activation):
    numbers = check(artifact, lambda logits: activate(logits, activation), activation)
    assert numbers["verified"] == "yes"
    with pytest.raises(ParityError):
        check(artifact, lambda logits: activate(logits * 1.01, activation), activation)


def test_saturated_probabilities_do_not_hide_other_logits(classifier, saved, spec):
    """Probabilities of 1 and 1e-20 look alike whatever the logits behind them are."""
    classifier.weight *= 200.0
    artifact = load_artifact(export_onnx(saved(classifier.plain()), preprocess=spec).path)
    with pytest.raises(ParityError, match="log_output"):
        check(artifact, lambda logits: activate(logits * 1.01, "softmax"), "softmax")


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        pytest.param(lambda logits: logits + np.float32(0.01), "largest difference 0.01", id="add"),
        pytest.param(lambda logits: logits[:, ::-1], "smallest cosine", id="class-order"),
        pytest.param(lambda logits: logits * np.nan, "NaN or infinity in the orig", id="nan"),
        pytest.param(lambda logits: logits[:, :-1], "expected shape", id="shape"),
    ],
)
def test_a_difference_is_a_failure(artifact, change, failure):
    with pytest.raises(ParityError, match=failure):
        check(artifact, change)


def test_where_only_the_class_is_known_only_that_is_compared(artifact):
    numbers = check(artifact, lambda logits: logits.argmax(axis=1), "class_number")
    assert numbers["verified"] == "class"
    assert "output_max_abs_diff" not in numbers
    with pytest.raises(ParityError, match="top-1"):
        check(artifact, lambda logits: logits.argmin(axis=1), "class_number")


def test_a_network_that_answers_always_the_same_is_not_called_verified(classifier, saved, spec):
    classifier.weight *= 0.0
    report = export_onnx(saved(classifier.plain()), preprocess=spec)
    assert report.verification["verified"] == "no"
    assert "same for every image" in report.verification["reason"]


def test_saturated_probabilities_still_tell_images_apart(classifier, saved, spec):
    """Of a class that is always sure only the logarithms of the others differ between images."""
    classifier.bias += np.float32([40.0, 0.0, 0.0, 0.0, 0.0])
    artifact = load_artifact(export_onnx(saved(classifier.plain()), preprocess=spec).path)
    numbers = check(artifact, lambda logits: activate(logits, "softmax"), "softmax")
    assert numbers["confidence"] == 1.0
    assert numbers["verified"] == "yes"


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
        check(load_artifact(path), lambda logits: logits)


def test_synthetic_images_are_structured_varied_and_repeatable():
    images = drawn()
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


def test_a_folder_without_photographs_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="none that can be read"):
        read_photographs(tmp_path)

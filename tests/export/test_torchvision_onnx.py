"""Surgery on what torch's two exporters make of torchvision models."""

import contextlib
import io
import logging
import warnings

import numpy as np
import pytest

from gain_export import PreprocessOverrides, export_onnx
from gain_runtime.sessions.onnx import OnnxSession

torch = pytest.importorskip("torch", reason="the extra export is not installed")
models = pytest.importorskip("torchvision.models", reason="the extra export is not installed")

SIDE = 64
SPEC = PreprocessOverrides(
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    crop_fraction=0.875,
    interpolation="bilinear",
)


def torch_export(model, path, *, dynamo, dynamic=True):
    """What a user does: torch.onnx.export, nothing else."""
    example = torch.zeros(2, 3, SIDE, SIDE)
    if not dynamic:
        axes = {}
    elif dynamo:
        axes = {"dynamic_shapes": ({0: torch.export.Dim("n")},)}
    else:
        axes = {"dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}}
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (example,), path, input_names=["x"], output_names=["y"], dynamo=dynamo, **axes
        )
    logging.disable(logging.NOTSET)
    return path


def network(name, classes=7):
    """A random torchvision model in evaluation mode; its batch norms have seen data.

    `resnet10` is a ResNet of one block a stage.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "resnet10":
            block = models.resnet.BasicBlock
            model = models.ResNet(block, [1, 1, 1, 1], num_classes=classes)
        else:
            model = getattr(models, name)(weights=None, num_classes=classes)
        model.train()
        with torch.no_grad():
            model(torch.randn(8, 3, SIDE, SIDE))
    return model.eval()


def assert_same_logits(model, artifact):
    values = np.random.default_rng(5).normal(size=(3, 3, SIDE, SIDE)).astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(values)).numpy()
    with OnnxSession(artifact) as session:
        logits = session.infer(values).logits
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    ("name", "dynamo"),
    [
        pytest.param("resnet10", True, id="resnet10-dynamo"),
        pytest.param("resnet18", False, id="resnet18-torchscript", marks=pytest.mark.slow),
        pytest.param("mobilenet_v3_small", True, id="mobilenet-dynamo", marks=pytest.mark.slow),
        pytest.param("mobilenet_v3_small", False, id="mobilenet-torchscript"),
    ],
)
def test_a_plain_export_becomes_an_artifact_for_any_batch(tmp_path, name, dynamo, dynamic):
    model = network(name)
    path = torch_export(model, tmp_path / "net.onnx", dynamo=dynamo, dynamic=dynamic)
    report = export_onnx(path, preprocess=SPEC)
    assert ("changed: batches of 2 to any" in report.notes) != dynamic
    assert report.num_classes == 7
    assert report.verification["output_max_abs_diff"] < 1e-3
    assert report.feature_dim is not None
    assert_same_logits(model, report.path)


def test_a_convolution_before_a_nonlinear_pooling_gives_logits_only(tmp_path):
    model = network("squeezenet1_1")
    path = torch_export(model, tmp_path / "net.onnx", dynamo=False)
    report = export_onnx(path, preprocess=SPEC)
    assert report.feature_dim is None
    assert any("no features: " in note and "Relu" in note for note in report.notes)
    assert_same_logits(model, report.path)

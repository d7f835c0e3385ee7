"""Finding the classifier head in the forms exporters give it, and refusing what is none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError, ConfigError
from gain_export.head import find_head

node = helper.make_node


def cast(source: str, target: str) -> onnx.NodeProto:
    return node("Cast", [source], [target], to=TensorProto.FLOAT)


def head_forms(w: np.ndarray, b: np.ndarray) -> dict[str, tuple[list[onnx.NodeProto], dict]]:
    """Ways to write hidden @ w.T + b."""
    k, d = w.shape
    two = np.float32(2.0)
    return {
        "gemm-transposed": (
            [node("Gemm", ["hidden", "w", "b"], ["out"], transB=1)],
            {"w": w, "b": b},
        ),
        "gemm": ([node("Gemm", ["hidden", "w", "b"], ["out"])], {"w": w.T.copy(), "b": b}),
        "gemm-factors": (
            [node("Gemm", ["hidden", "w", "b"], ["out"], transB=1, alpha=2.0, beta=0.5)],
            {"w": w / two, "b": b * two},
        ),
        "gemm-row-bias": (
            [node("Gemm", ["hidden", "w", "b"], ["out"], transB=1)],
            {"w": w, "b": b[None]},
        ),
        "gemm-then-add": (
            [
                node("Gemm", ["hidden", "w", "b"], ["scores"], transB=1),
                node("Add", ["more", "scores"], ["out"]),
            ],
            {"w": w, "b": b / two, "more": b - b / two},
        ),
        "matmul-add": (
            [node("MatMul", ["hidden", "w"], ["s"]), node("Add", ["s", "b"], ["out"])],
            {"w": w.T.copy(), "b": b},
        ),
        "add-first": (
            [node("MatMul", ["hidden", "w"], ["s"]), node("Add", ["b", "s"], ["out"])],
            {"w": w.T.copy(), "b": b},
        ),
        "weight-behind-transpose": (
            [
                node("Identity", ["w"], ["w1"]),
                node("Transpose", ["w1"], ["w2"], perm=[1, 0]),
                node("MatMul", ["hidden", "w2"], ["s"]),
                node("Add", ["s", "b"], ["out"]),
            ],
            {"w": w, "b": b},
        ),
        "weight-in-constant": (
            [
                node("Constant", [], ["w"], value=numpy_helper.from_array(w)),
                node("Gemm", ["hidden", "w", "b"], ["out"], transB=1),
            ],
            {"b": b},
        ),
        "weight-cast-from-half": (
            [cast("w", "w1"), node("Gemm", ["hidden", "w1", "b"], ["out"], transB=1)],
            {"w": w.astype(np.float16), "b": b},
        ),
        "convolution": (
            [
                node("Reshape", ["hidden", "map"], ["pixel"]),
                node("Conv", ["pixel", "w", "b"], ["scores"]),
                node("Flatten", ["scores"], ["out"]),
            ],
            {"map": np.array([-1, d, 1, 1]), "w": w.reshape(k, d, 1, 1), "b": b},
        ),
        "convolution-then-squeeze": (
            [
                node("Reshape", ["hidden", "map"], ["pixel"]),
                node("Conv", ["pixel", "w"], ["scores"]),
                node("Add", ["scores", "b"], ["biased"]),
                node("Squeeze", ["biased", "axes"], ["out"]),
            ],
            {
                "map": np.array([-1, d, 1, 1]),
                "w": w.reshape(k, d, 1, 1),
                "b": b.reshape(1, k, 1, 1),
                "axes": np.array([2, 3]),
            },
        ),
    }


FORMS = tuple(head_forms(np.zeros((5, 6), np.float32), np.zeros(5, np.float32)))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_head_gives_its_arrays(classifier, form):
    nodes, arrays = head_forms(classifier.weight, classifier.bias)[form]
    head = find_head(classifier.model(nodes, arrays))
    rtol = 1e-3 if "half" in form else 1e-6
    np.testing.assert_allclose(head.weight, classifier.weight, rtol=rtol)
    np.testing.assert_allclose(head.bias, classifier.bias, rtol=rtol)
    assert head.features == ("pixel" if "convolution" in form else "hidden")
    assert head.output == "out"
    assert head.activation == "none"


def test_a_head_without_bias_has_none(classifier):
    nodes = [node("MatMul", ["hidden", "w"], ["out"])]
    assert find_head(classifier.model(nodes, {"w": classifier.weight.T.copy()})).bias is None


@pytest.mark.parametrize(
    ("tail", "activation"),
    [
        pytest.param([node("Softmax", ["scores"], ["out"])], "softmax", id="softmax"),
        pytest.param([node("LogSoftmax", ["scores"], ["out"])], "log_softmax", id="log-softmax"),
        pytest.param(
            [node("Identity", ["scores"], ["x"]), cast("x", "y"), node("Dropout", ["y"], ["out"])],
            "none",
            id="identity-cast-dropout",
        ),
        pytest.param(
            [
                node("Reshape", ["scores", "shape"], ["x"]),
                node("Softmax", ["x"], ["y"]),
                node("Flatten", ["y"], ["out"]),
            ],
            "softmax",
            id="reshape-softmax-flatten",
        ),
    ],
)
def test_the_walk_passes_what_keeps_the_classes(classifier, tail, activation):
    nodes = [node("Gemm", ["hidden", "w", "b"], ["scores"], transB=1), *tail]
    arrays = {"w": classifier.weight, "b": classifier.bias, "shape": np.array([-1, 5])}
    head = find_head(classifier.model(nodes, arrays))
    assert (head.logits, head.activation, head.output) == ("scores", activation, "out")


def gemm(output: str, name: str = "") -> onnx.NodeProto:
    return node("Gemm", ["hidden", "w", "b"], [output], transB=1, name=name)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        pytest.param([gemm("s"), node("Sigmoid", ["s"], ["out"])], "multi-label", id="sigmoid"),
        pytest.param([gemm("s"), node("ArgMax", ["s"], ["out"])], "class numbers", id="argmax"),
        pytest.param([gemm("s"), node("Relu", ["s"], ["out"])], "no linear layer", id="relu"),
        pytest.param(
            [gemm("s", "one"), gemm("t", "two"), node("Add", ["s", "t"], ["out"])],
            "several heads averaged",
            id="two-heads-added",
        ),
        pytest.param(
            [node("MatMul", ["hidden", "flat"], ["out"])], "computed values", id="computed-weight"
        ),
        pytest.param(
            [
                node("DequantizeLinear", ["wq", "scale"], ["wf"]),
                node("Gemm", ["hidden", "wf", "b"], ["out"], transB=1),
            ],
            "quantised",
            id="quantised-weight",
        ),
        pytest.param(
            [
                gemm("s"),
                node("QuantizeLinear", ["s", "scale"], ["q"]),
                node("DequantizeLinear", ["q", "scale"], ["out"]),
            ],
            "quantised",
            id="quantised-output",
        ),
        pytest.param(
            [node("MatMulInteger", ["hidden", "wq"], ["i"]), cast("i", "out")],
            "quantised",
            id="integer-product",
        ),
        pytest.param(
            [
                node("Cast", ["hidden"], ["h"], to=TensorProto.FLOAT16),
                node("Gemm", ["h", "wh"], ["s"], transB=1),
                cast("s", "out"),
            ],
            "float32",
            id="half-precision",
        ),
        pytest.param(
            [node("FusedGemm", ["hidden", "w", "b"], ["out"], domain="com.microsoft")],
            "outside the ONNX standard",
            id="runtime-operator",
        ),
    ],
)
def test_what_is_no_head_is_refused_with_the_reason(classifier, nodes, reason):
    arrays = {
        "w": classifier.weight,
        "b": classifier.bias,
        "wq": np.ones((5, 6), np.int8),
        "wh": classifier.weight.astype(np.float16),
        "scale": np.float32(0.1),
    }
    with pytest.raises(ArtifactError, match=reason):
        find_head(classifier.model(nodes, arrays))


def two_heads(classifier) -> onnx.ModelProto:
    nodes = [gemm("main", "/main/Gemm"), node("Gemm", ["hidden", "v"], ["aux"], name="/aux/Gemm")]
    arrays = {"w": classifier.weight, "b": classifier.bias, "v": np.ones((6, 3), np.float32)}
    return classifier.model(nodes, arrays, outputs=("main", "aux"))


def test_two_heads_are_listed_with_shapes_and_the_flag(classifier):
    with pytest.raises(ConfigError) as caught:
        find_head(two_heads(classifier))
    message = str(caught.value)
    assert "Gemm '/main/Gemm' (5 classes x 6 features) -> output 'main'" in message
    assert "Gemm '/aux/Gemm' (3 classes x 6 features)" in message
    assert "--head" in message


@pytest.mark.parametrize("name", ["/aux/Gemm", "aux"])
def test_a_head_is_chosen_by_node_or_output(classifier, name):
    assert find_head(two_heads(classifier), name=name).weight.shape == (3, 6)


def test_a_name_that_fits_several_heads_is_refused(classifier):
    with pytest.raises(ConfigError, match="fits several layers"):
        find_head(two_heads(classifier), name="hidden")


def test_an_unknown_name_lists_the_candidates(classifier):
    with pytest.raises(ConfigError, match=r"no linear layer of that name.*/main/Gemm"):
        find_head(two_heads(classifier), name="nowhere")


def test_logits_and_probabilities_of_one_head_are_not_ambiguous(classifier):
    nodes = [gemm("logits"), node("Softmax", ["logits"], ["probs"])]
    arrays = {"w": classifier.weight, "b": classifier.bias}
    head = find_head(classifier.model(nodes, arrays, outputs=("probs", "logits")))
    assert (head.output, head.activation) == ("logits", "none")


def test_an_inner_layer_can_be_named_and_keeps_its_bias(classifier):
    nodes = [
        node("MatMul", ["hidden", "w"], ["s"], name="inner"),
        node("Add", ["s", "b"], ["t"], name="inner_bias"),
        node("Sigmoid", ["t"], ["out"]),
    ]
    model = classifier.model(nodes, {"w": classifier.weight.T.copy(), "b": classifier.bias})
    for name in ("inner", "inner_bias"):
        head = find_head(model, name=name)
        assert (head.logits, head.output) == ("t", None)
        np.testing.assert_array_equal(head.bias, classifier.bias)
    with pytest.raises(ArtifactError, match=r"--head NODE: .*inner"):
        find_head(model)

"""Composing everything affine before the logits into one layer, checked by running the model."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from gain_export.graph import Graph
from gain_export.head import NotLinearError, affine_values, compose_head
from gain_export.outputs import run_values

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


def more_forms(w: np.ndarray, b: np.ndarray) -> dict[str, tuple[list[onnx.NodeProto], dict]]:
    """Ways to compute scores that are linear in `hidden`, whatever the linear layer is."""
    k, d = w.shape
    rng = np.random.default_rng(1)
    v, c = rng.normal(size=(k, d)).astype(np.float32), rng.normal(size=k).astype(np.float32)
    stats = {
        "scale": rng.normal(size=k).astype(np.float32),
        "shift": rng.normal(size=k).astype(np.float32),
        "mean": rng.normal(size=k).astype(np.float32),
        "var": rng.uniform(0.5, 2.0, size=k).astype(np.float32),
    }
    wide = {f"{name}_d": np.resize(array, d) for name, array in stats.items()}
    norm = ["scale", "shift", "mean", "var"]
    one, other = gemm("s"), node("Gemm", ["hidden", "v", "c"], ["t"], transB=1)
    both = {"w": w, "b": b, "v": v, "c": c}
    pixel = node("Reshape", ["hidden", "map"], ["pixels"])
    return {
        "temperature": ([one, node("Div", ["s", "two"], ["out"])], both),
        "scale-per-class": ([one, node("Mul", ["c", "s"], ["out"])], both),
        "subtracted": ([one, node("Sub", ["s", "c"], ["out"])], both),
        "subtracted-from": ([one, node("Sub", ["c", "s"], ["out"])], both),
        "negated": ([one, node("Neg", ["s"], ["out"])], both),
        "keras": (
            [
                node("MatMul", ["hidden", "wt"], ["x"]),
                cast("x", "y"),
                node("Add", ["y", "b"], ["z"]),
                cast("z", "out"),
            ],
            both | {"wt": w.T.copy()},
        ),
        "reshape-before-the-bias": (
            [
                node("MatMul", ["hidden", "wt"], ["x"]),
                node("Reshape", ["x", "column"], ["y"]),
                node("Squeeze", ["y", "last"], ["z"]),
                node("Add", ["z", "b"], ["out"]),
            ],
            both | {"wt": w.T.copy(), "column": np.array([0, -1, 1]), "last": np.array([2])},
        ),
        "averaged-heads": (
            [one, other, node("Add", ["s", "t"], ["u"]), node("Div", ["u", "two"], ["out"])],
            both,
        ),
        "mean-of-heads": ([one, other, node("Mean", ["s", "t"], ["out"])], both),
        "difference-of-heads": ([one, other, node("Sub", ["s", "t"], ["out"])], both),
        "stacked-heads": (
            [
                one,
                other,
                node("Unsqueeze", ["s", "front"], ["s1"]),
                node("Unsqueeze", ["t", "front"], ["t1"]),
                node("Concat", ["s1", "t1"], ["u"], axis=0),
                node("ReduceMean", ["u", "front"], ["out"], keepdims=0),
            ],
            both | {"front": np.array([0])},
        ),
        "lora": (
            [
                one,
                node("MatMul", ["hidden", "down"], ["x"]),
                node("MatMul", ["x", "up"], ["y"]),
                node("Mul", ["y", "two"], ["z"]),
                node("Add", ["s", "z"], ["out"]),
            ],
            both | {"down": v[:2].T.copy(), "up": np.ones((2, k), np.float32)},
        ),
        "batch-norm-after": (
            [one, node("BatchNormalization", ["s", *norm], ["out"])],
            both | stats,
        ),
        "batch-norm-before-two-heads": (
            [
                node("BatchNormalization", ["hidden", *(f"{n}_d" for n in norm)], ["x"]),
                node("Gemm", ["x", "w", "b"], ["s"], transB=1),
                other,
                node("Add", ["s", "t"], ["out"]),
            ],
            both | wide,
        ),
        "einsum": (
            [
                node("Einsum", ["hidden", "w"], ["x"], equation="bd,kd->bk"),
                node("Add", ["x", "b"], ["out"]),
            ],
            both,
        ),
        "einsum-weight-first": (
            [node("Einsum", ["w", "hidden"], ["out"], equation="kd, bd -> bk")],
            both,
        ),
        "weight-from-the-left": (
            [
                node("Unsqueeze", ["hidden", "last"], ["column"]),
                node("MatMul", ["w", "column"], ["x"]),
                node("Squeeze", ["x", "last"], ["out"]),
            ],
            both | {"last": np.array([2])},
        ),
        "1001-classes": (
            [one, node("Slice", ["s", "from", "to", "axis"], ["out"])],
            both | {"from": np.array([1]), "to": np.array([9**9]), "axis": np.array([1])},
        ),
        "classes-in-another-order": (
            [one, node("Gather", ["s", "order"], ["out"], axis=1)],
            both | {"order": np.array([3, 0, 1, 4, 2])},
        ),
        "split-off-classes": (
            [one, node("Split", ["s", "parts"], ["first_two", "out"], axis=1)],
            both | {"parts": np.array([2, 3])},
        ),
        "convolution-then-pooling": (
            [
                pixel,
                node("Conv", ["pixels", "kernel", "b"], ["x"]),
                node("GlobalAveragePool", ["x"], ["y"]),
                node("Flatten", ["y"], ["out"]),
            ],
            {"map": np.array([0, 2, 3, 1]), "kernel": w[:, :2].reshape(k, 2, 1, 1), "b": b},
        ),
        "convolution-over-the-whole-map": (
            [
                pixel,
                node("Conv", ["pixels", "kernel", "b"], ["x"]),
                node("Flatten", ["x"], ["out"]),
            ],
            {"map": np.array([0, 2, 3, 1]), "kernel": w.reshape(k, 2, 3, 1), "b": b},
        ),
        "mean-of-token-scores": (
            [
                node("Reshape", ["hidden", "map"], ["tokens"]),
                node("MatMul", ["tokens", "small"], ["x"]),
                node("ReduceMean", ["x", "middle"], ["out"], keepdims=0),
            ],
            {"map": np.array([0, 3, 2]), "small": w[:, :2].T.copy(), "middle": np.array([1])},
        ),
        "dequantised-weight": (
            [
                node("DequantizeLinear", ["q", "step"], ["weight"]),
                node("Gemm", ["hidden", "weight", "b"], ["out"], transB=1),
            ],
            {"q": np.clip(w * 50, -127, 127).astype(np.int8), "step": np.float32(0.02), "b": b},
        ),
        "bottleneck-without-activation": (
            [
                node("MatMul", ["hidden", "down"], ["x"]),
                node("MatMul", ["x", "up"], ["out"]),
            ],
            {"down": v[:2].T.copy(), "up": np.ones((2, k), np.float32)},
        ),
    }


def gemm(output: str, name: str = "") -> onnx.NodeProto:
    return node("Gemm", ["hidden", "w", "b"], [output], transB=1, name=name)


TWO = {"two": np.float32(2.0)}
ZEROS = np.zeros((5, 6), np.float32), np.zeros(5, np.float32)
FORMS, MORE = tuple(head_forms(*ZEROS)), tuple(more_forms(*ZEROS))
IMAGES = np.random.default_rng(3).normal(size=(3, 3, 8, 8)).astype(np.float32)


def composed(model):
    """The head of a model's output, and its logits from the values it names, in float64."""
    graph = Graph(model)
    values = run_values(model, affine_values(graph, "out"), IMAGES)
    head = compose_head(graph, "out", values=values)
    parts = []
    for part in head.parts:
        value = values[part.value].astype(np.float64)
        value = value.mean(axis=part.mean_axes, keepdims=True) if part.mean_axes else value
        parts.append(value.reshape(len(value), -1))
    logits = np.concatenate(parts, axis=1) @ head.weight.T.astype(np.float64)
    return head, logits + (0.0 if head.bias is None else head.bias)


def own_output(model):
    """What the model itself gives."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(["out"], {"input": IMAGES})[0]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_layer_gives_its_arrays(classifier, form):
    nodes, arrays = head_forms(classifier.weight, classifier.bias)[form]
    model = classifier.model(nodes, arrays)
    head, logits = composed(model)
    rtol = 1e-3 if "half" in form else 1e-6
    np.testing.assert_allclose(head.weight, classifier.weight, rtol=rtol)
    np.testing.assert_allclose(head.bias, classifier.bias, rtol=rtol)
    assert [part.value for part in head.parts] == ["pixel" if "convolution" in form else "hidden"]
    np.testing.assert_allclose(logits, own_output(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", MORE)
def test_whatever_is_affine_is_folded_into_one_layer(classifier, form):
    nodes, arrays = more_forms(classifier.weight, classifier.bias)[form]
    model = classifier.model(nodes, arrays | TWO)
    head, logits = composed(model)
    np.testing.assert_allclose(logits, own_output(model), rtol=1e-4, atol=1e-5)
    assert len(head.parts) == 1
    assert head.weight.shape[1] == {
        "convolution-then-pooling": 2,
        "mean-of-token-scores": 2,
        "bottleneck-without-activation": 2,
    }.get(form, 6)


def test_heads_over_two_vectors_read_one_after_the_other(classifier):
    nodes = [
        node("Relu", ["hidden"], ["positive"]),
        node("Sigmoid", ["hidden"], ["squashed"]),
        node("Gemm", ["positive", "w", "b"], ["s"], transB=1),
        node("Gemm", ["squashed", "w"], ["t"], transB=1),
        node("Mean", ["s", "t"], ["out"]),
    ]
    model = classifier.model(nodes, {"w": classifier.weight, "b": classifier.bias})
    head, logits = composed(model)
    assert [part.value for part in head.parts] == ["positive", "squashed"]
    np.testing.assert_allclose(head.weight, np.tile(classifier.weight / 2, 2))
    np.testing.assert_allclose(logits, own_output(model), rtol=1e-4, atol=1e-5)


def test_a_head_without_bias_has_none(classifier):
    model = classifier.model(
        [node("MatMul", ["hidden", "w"], ["out"])], {"w": classifier.weight.T.copy()}
    )
    assert composed(model)[0].bias is None


def test_the_nodes_it_stands_for_are_named_in_their_order(classifier):
    nodes, arrays = more_forms(classifier.weight, classifier.bias)["temperature"]
    head, _ = composed(classifier.model(nodes, arrays | TWO))
    assert head.nodes == ("Gemm 's'", "Div 'out'")


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        pytest.param([gemm("s"), node("Relu", ["s"], ["out"])], "Relu 'out'", id="relu"),
        pytest.param(
            [gemm("s"), node("Div", ["two", "s"], ["out"])], "operands are all computed", id="ratio"
        ),
        pytest.param(
            [gemm("s"), node("Mul", ["s", "s"], ["out"])],
            "multiplies computed values",
            id="product",
        ),
        pytest.param(
            [
                node("Transpose", ["hidden"], ["turned"], perm=[1, 0]),
                node("Gemm", ["turned", "w", "b"], ["out"], transA=1, transB=1),
            ],
            "combines several images",
            id="turned-features",
        ),
        pytest.param(
            [
                gemm("s"),
                node("QuantizeLinear", ["s", "step"], ["q"]),
                node("DequantizeLinear", ["q", "step"], ["out"]),
            ],
            "DequantizeLinear 'out'",
            id="quantised-scores",
        ),
        pytest.param(
            [
                node("Reshape", ["hidden", "map"], ["pixels"]),
                node("Conv", ["pixels", "kernel"], ["x"], pads=[1, 1, 1, 1]),
                node("ReduceMean", ["x", "places"], ["out"], keepdims=0),
            ],
            "a convolution over a map",
            id="padded-convolution",
        ),
    ],
)
def test_what_is_not_affine_is_named(classifier, nodes, reason):
    arrays = {
        "w": classifier.weight,
        "b": classifier.bias,
        "step": np.float32(0.1),
        "map": np.array([0, 2, 3, 1]),
        "places": np.array([2, 3]),
        "kernel": np.ones((5, 2, 3, 3), np.float32),
    }
    model = classifier.model(nodes, arrays | TWO)
    with pytest.raises(NotLinearError, match=reason):
        composed(model)

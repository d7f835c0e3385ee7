"""Composing everything affine before the logits into one layer, checked by running the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_text import nodes

from gain_export.graph import Graph, open_native
from gain_export.head import NotLinearError, affine_values, compose_head
from gain_export.outputs import run_values

GEMM = "s = Gemm<transB=1>(hidden, w, b); "
HEADS = GEMM + "t = Gemm<transB=1>(hidden, v, c); "


def head_forms(w: np.ndarray, b: np.ndarray) -> dict[str, tuple[str, dict]]:
    """Ways to write hidden @ w.T + b."""
    k, d = w.shape
    half = b / np.float32(2)
    pixel = {"map": np.array([-1, d, 1, 1]), "w": w.reshape(k, d, 1, 1)}
    scores = "p = Reshape(hidden, map); x = Conv(p, w)"
    return {
        "gemm-transposed": ("out = Gemm<transB=1>(hidden, w, b)", {"w": w, "b": b}),
        "gemm": ("out = Gemm(hidden, w, b)", {"w": w.T.copy(), "b": b}),
        "gemm-factors": (
            "out = Gemm<transB=1, alpha=2.0, beta=0.5>(hidden, w, b)",
            {"w": w / np.float32(2), "b": b * np.float32(2)},
        ),
        "gemm-row-bias": ("out = Gemm<transB=1>(hidden, w, b)", {"w": w, "b": b[None]}),
        "gemm-then-add": (GEMM + "out = Add(more, s)", {"w": w, "b": half, "more": b - half}),
        "matmul-add": ("s = MatMul(hidden, w); out = Add(s, b)", {"w": w.T.copy(), "b": b}),
        "add-first": ("s = MatMul(hidden, w); out = Add(b, s)", {"w": w.T.copy(), "b": b}),
        "weight-behind-transpose": (
            "i = Identity(w); t = Transpose<perm=[1, 0]>(i); s = MatMul(hidden, t);out = Add(s, b)",
            {"w": w, "b": b},
        ),
        "weight-cast-from-half": (
            "f = Cast<to=1>(w); out = Gemm<transB=1>(hidden, f, b)",
            {"w": w.astype(np.float16), "b": b},
        ),
        "convolution": (
            "p = Reshape(hidden, map); x = Conv(p, w, b); out = Flatten(x)",
            pixel | {"b": b},
        ),
        "convolution-then-squeeze": (
            f"{scores}; y = Add(x, b); out = Squeeze(y, axes)",
            pixel | {"b": b.reshape(1, k, 1, 1), "axes": np.array([2, 3])},
        ),
    }


def forms(w: np.ndarray, b: np.ndarray) -> dict[str, tuple[str, dict]]:
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
    wide = {name: np.resize(array, d) for name, array in stats.items()}
    both = {"w": w, "b": b, "v": v, "c": c}
    turned = both | {"wt": w.T.copy()}
    low_rank = {"down": v[:2].T.copy(), "up": np.ones((2, k), np.float32)}
    spread = np.array([0, 2, 3, 1])
    return head_forms(w, b) | {
        "temperature": (GEMM + "out = Div(s, two)", both),
        "scale-per-class": (GEMM + "out = Mul(c, s)", both),
        "subtracted": (GEMM + "out = Sub(s, c)", both),
        "subtracted-from": (GEMM + "out = Sub(c, s)", both),
        "negated": (GEMM + "out = Neg(s)", both),
        "keras": (
            "x = MatMul(hidden, wt); y = Cast<to=1>(x); z = Add(y, b); out = Cast<to=1>(z)",
            turned,
        ),
        "reshape-before-the-bias": (
            "x = MatMul(hidden, wt); y = Reshape(x, column); z = Squeeze(y, last); out = Add(z, b)",
            turned | {"column": np.array([0, -1, 1]), "last": np.array([2])},
        ),
        "averaged-heads": (HEADS + "u = Add(s, t); out = Div(u, two)", both),
        "mean-of-heads": (HEADS + "out = Mean(s, t)", both),
        "difference-of-heads": (HEADS + "out = Sub(s, t)", both),
        "stacked-heads": (
            HEADS + "s1 = Unsqueeze(s, front); t1 = Unsqueeze(t, front);"
            "u = Concat<axis=0>(s1, t1); out = ReduceMean<keepdims=0>(u, front)",
            both | {"front": np.array([0])},
        ),
        "lora": (
            GEMM + "x = MatMul(hidden, down); y = MatMul(x, up); z = Mul(y, two); out = Add(s, z)",
            both | low_rank,
        ),
        "batch-norm-after": (
            GEMM + "out = BatchNormalization(s, scale, shift, mean, var)",
            both | stats,
        ),
        "batch-norm-before-two-heads": (
            "x = BatchNormalization(hidden, scale, shift, mean, var); s = Gemm<transB=1>(x, w, b);"
            "t = Gemm<transB=1>(hidden, v, c); out = Add(s, t)",
            both | wide,
        ),
        "einsum": ('x = Einsum<equation="bd,kd->bk">(hidden, w); out = Add(x, b)', both),
        "einsum-weight-first": ('out = Einsum<equation="kd, bd -> bk">(w, hidden)', both),
        "weight-from-the-left": (
            "column = Unsqueeze(hidden, last); x = MatMul(w, column); out = Squeeze(x, last)",
            both | {"last": np.array([2])},
        ),
        "1001-classes": (
            GEMM + "out = Slice(s, from, to, axis)",
            both | {"from": np.array([1]), "to": np.array([9**9]), "axis": np.array([1])},
        ),
        "classes-in-another-order": (
            GEMM + "out = Gather<axis=1>(s, order)",
            both | {"order": np.array([3, 0, 1, 4, 2])},
        ),
        "split-off-classes": (
            GEMM + "first_two, out = Split<axis=1>(s, parts)",
            both | {"parts": np.array([2, 3])},
        ),
        "convolution-then-pooling": (
            "p = Reshape(hidden, map); x = Conv(p, kernel, b); y = GlobalAveragePool(x);"
            "out = Flatten(y)",
            {"map": spread, "kernel": w[:, :2].reshape(k, 2, 1, 1), "b": b},
        ),
        "convolution-over-the-whole-map": (
            "p = Reshape(hidden, map); x = Conv(p, kernel, b); out = Flatten(x)",
            {"map": spread, "kernel": w.reshape(k, 2, 3, 1), "b": b},
        ),
        "mean-of-token-scores": (
            "p = Reshape(hidden, map); x = MatMul(p, small);"
            "out = ReduceMean<keepdims=0>(x, middle)",
            {"map": np.array([0, 3, 2]), "small": w[:, :2].T.copy(), "middle": np.array([1])},
        ),
        "dequantised-weight": (
            "f = DequantizeLinear(q, step); out = Gemm<transB=1>(hidden, f, b)",
            {"q": np.clip(w * 50, -127, 127).astype(np.int8), "step": np.float32(0.02), "b": b},
        ),
        "bottleneck-without-activation": (
            "x = MatMul(hidden, down); out = MatMul(x, up)",
            low_rank,
        ),
    }


TWO = {"two": np.float32(2.0)}
ZEROS = np.zeros((5, 6), np.float32), np.zeros(5, np.float32)
FORMS = tuple(forms(*ZEROS))
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
    return open_native(model.SerializeToString()).run(["out"], {"input": IMAGES})[0]


@pytest.mark.parametrize("form", FORMS)
def test_whatever_is_affine_is_folded_into_one_layer(classifier, form):
    text, arrays = forms(classifier.weight, classifier.bias)[form]
    model = classifier.model(nodes(text), arrays | TWO)
    head, logits = composed(model)
    np.testing.assert_allclose(logits, own_output(model), rtol=1e-4, atol=1e-5)
    assert len(head.parts) == 1
    if form == "temperature":
        assert head.nodes == ("Gemm 's'", "Div 'out'")
    if form in head_forms(*ZEROS):
        rtol = 1e-3 if "half" in form else 1e-6
        np.testing.assert_allclose(head.weight, classifier.weight, rtol=rtol)
        np.testing.assert_allclose(head.bias, classifier.bias, rtol=rtol)
    assert head.weight.shape[1] == {
        "convolution-then-pooling": 2,
        "mean-of-token-scores": 2,
        "bottleneck-without-activation": 2,
    }.get(form, 6)


def test_heads_over_two_vectors_read_one_after_the_other(classifier):
    text = (
        "positive = Relu(hidden); squashed = Sigmoid(hidden); s = Gemm<transB=1>(positive, w, b);"
        "t = Gemm<transB=1>(squashed, w); out = Mean(s, t)"
    )
    model = classifier.model(nodes(text), {"w": classifier.weight, "b": classifier.bias})
    head, logits = composed(model)
    assert [part.value for part in head.parts] == ["positive", "squashed"]
    np.testing.assert_allclose(head.weight, np.tile(classifier.weight / 2, 2))
    np.testing.assert_allclose(logits, own_output(model), rtol=1e-4, atol=1e-5)


def test_a_weight_in_a_constant_without_bias_is_a_head_without_bias(classifier):
    constant = onnx.helper.make_node(
        "Constant", [], ["w"], value=numpy_helper.from_array(classifier.weight.T.copy())
    )
    head, _ = composed(classifier.model([constant, *nodes("out = MatMul(hidden, w)")], {}))
    np.testing.assert_array_equal(head.weight, classifier.weight)
    assert head.bias is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GEMM + "out = Relu(s)", "Relu 'out'"),
        (GEMM + "out = Div(two, s)", "operands are all computed"),
        (GEMM + "out = Mul(s, s)", "multiplies computed values"),
        (
            "x = Transpose<perm=[1, 0]>(hidden); out = Gemm<transA=1, transB=1>(x, w, b)",
            "combines several images",
        ),
        (
            GEMM + "q = QuantizeLinear(s, step); out = DequantizeLinear(q, step)",
            "DequantizeLinear 'out'",
        ),
        (
            "p = Reshape(hidden, map); x = Conv<pads=[1, 1, 1, 1]>(p, kernel);"
            "out = ReduceMean<keepdims=0>(x, places)",
            "a convolution over a map",
        ),
    ],
)
def test_what_is_not_affine_is_named(classifier, text, reason):
    arrays = {
        "w": classifier.weight,
        "b": classifier.bias,
        "step": np.float32(0.1),
        "map": np.array([0, 2, 3, 1]),
        "places": np.array([2, 3]),
        "kernel": np.ones((5, 2, 3, 3), np.float32),
    }
    with pytest.raises(NotLinearError, match=reason):
        composed(classifier.model(nodes(text), arrays | TWO))

"""Lower precision computed in float32, against NumPy rounding the same values."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from onnx_text import network

from gain_export.precision.lower import emulated, lower


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 numbers to the nearest of 8 bits of mantissa, ties to even."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 256.0) / 256.0, exponent).astype(np.float32)


def two_products() -> tuple[onnx.ModelProto, list[np.ndarray]]:
    rng = np.random.default_rng(2)
    weights = [rng.normal(size=(16, 16)).astype(np.float32) for _ in range(2)]
    arrays, ends = {"first": weights[0], "second": weights[1]}, [4, 16]
    text = "a = MatMul(x, first); y = MatMul(a, second)"
    return network(
        text, arrays, inputs={"x": ends}, outputs={"y": ends}, opset=18, ir_version=9
    ), weights


def run(model: onnx.ModelProto, values: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": values})[0]


def test_every_product_reads_and_writes_rounded_values():
    model, weights = two_products()
    values = np.random.default_rng(3).normal(size=(4, 16)).astype(np.float32)
    lower(model, TensorProto.BFLOAT16)
    before = model.SerializeToString()
    got = run(emulated(model, TensorProto.BFLOAT16), values)
    assert model.SerializeToString() == before
    inner = rounded(rounded(values) @ rounded(weights[0]))
    wanted = rounded(inner @ rounded(weights[1]))
    # The order of a sum can decide to which side its last bit is rounded.
    assert np.mean(got == wanted) > 0.9
    np.testing.assert_allclose(got, wanted, rtol=2**-7)
    exact = values @ weights[0] @ weights[1]
    assert np.abs(got - exact).max() > 10 * np.abs(got - wanted).max()


def test_names_and_types_of_the_ends_stay():
    model, _ = two_products()
    lower(model, TensorProto.BFLOAT16)
    copy = emulated(model, TensorProto.BFLOAT16)
    assert list(copy.graph.input) == list(model.graph.input)
    assert list(copy.graph.output) == list(model.graph.output)
    onnx.checker.check_model(copy, full_check=True)

"""The prediction half of a step as graph: posteriors, gain, bisection (see `gain_core.step`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from gain_core.geometry import MIN_DIVISOR, MIN_SCALE
from onnx import TensorProto, helper

from gain_core import GainConfig
from gain_export.adaptive.expressions import (
    Value,
    arg_max,
    beside,
    log,
    log_softmax,
    maximum,
    not_finite,
    row,
    softmax,
    squeeze,
    total,
    where,
)
from gain_export.adaptive.head_graph import Head
from gain_export.adaptive.shift_graph import Proposed, shift_posteriors

__all__ = [
    "PREDICTION_NAMES",
    "PredictionValues",
    "answer_shift",
    "answer_types",
    "predict",
    "prediction_types",
    "scale_of",
]

# The graph outputs of a prediction that depend on the state, and all, in their order.
_ANSWER_NAMES = ("probs", "log_probs", "label", "strength", "gain")
PREDICTION_NAMES = (*_ANSWER_NAMES, "source_probs", "source_log_probs", "finite")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictionValues:
    """`gain_core.Prediction` as values of the graph.

    Attributes
    ----------
    answer : dict of str to Value
        Of `answer_types`, by name.
    source_log_probs : Value, (B, K)
    finite : Value, () bool
    label_column : Value, (B, 1)
    centered : Value or None, (B, K)
        The source's log-probabilities less their mean over classes, for the shift only.
    proposed : Proposed or None
        What the shift proposes.
    """

    answer: Mapping[str, Value]
    source_log_probs: Value
    finite: Value
    label_column: Value
    centered: Value | None
    proposed: Proposed | None


def predict(
    rows: Value,
    logits: Value,
    state: Mapping[str, Value],
    /,
    *,
    head: Head,
    config: GainConfig,
    revised: bool,
) -> PredictionValues:
    """Predict a batch against the state as it stands; a state of zeros gives the source.

    Parameters
    ----------
    rows : Value, (B, D)
        Features, normalised if the config says so.
    logits : Value, (B, K)
    state : mapping of str to Value
        By field, see `state_layout`.
    head : Head
    config : GainConfig
    revised : bool
        Leave the names of the answer's outputs to what may take its place.

    Returns
    -------
    PredictionValues
    """
    tape = rows.tape
    source = tape.apply("LogSoftmax", logits, name="source_log_probs", axis=-1)
    checked = [logits]
    centered = proposed = None
    if config.proposal == "shift":
        centered = source - total(source, axis=1) / float(head.num_classes)
        proposed = shift_posteriors(centered, state, num_classes=head.num_classes, config=config)
        log_proposal, evaluator = proposed.log_proposal, proposed.evaluator
        started = proposed.adapts
    else:
        started = state["sample_count"] > 0.0
        distances, norms = _distances(rows, state, started=started)
        checked.append(norms)
        log_proposal, evaluator = _posteriors(
            distances, state, started=started, head=head, config=config
        )
    answer, label_column = _answer(
        source, log_proposal, evaluator, started=started, config=config, named=not revised
    )
    bad = not_finite(rows)
    for values in (*checked, answer["gain"], answer["log_probs"]):
        bad = bad + not_finite(values)
    tape.apply("Exp", source, name="source_probs")
    return PredictionValues(
        answer=answer,
        source_log_probs=source,
        finite=tape.apply("Equal", bad, 0.0, name="finite"),
        label_column=label_column,
        centered=centered,
        proposed=proposed,
    )


def answer_shift(
    prediction: PredictionValues,
    state: Mapping[str, Value],
    /,
    *,
    num_classes: int,
    config: GainConfig,
) -> dict[str, Value]:
    """The same batch's answer against another tracked shift, under free names."""
    assert prediction.centered is not None
    proposed = shift_posteriors(prediction.centered, state, num_classes=num_classes, config=config)
    answer, _ = _answer(
        prediction.source_log_probs,
        proposed.log_proposal,
        proposed.evaluator,
        started=proposed.adapts,
        config=config,
        named=False,
    )
    return answer


def answer_types(shape: tuple[str | int, int], /) -> dict[str, onnx.TypeProto]:
    """ONNX's types of an answer's outputs by name; `shape` is (B, K)."""
    return {name: kind for name, kind in prediction_types(shape).items() if name in _ANSWER_NAMES}


def prediction_types(shape: tuple[str | int, int], /) -> dict[str, onnx.TypeProto]:
    """Of all outputs of a prediction, in their order."""
    wide = helper.make_tensor_type_proto(TensorProto.FLOAT, shape)
    narrow = helper.make_tensor_type_proto(TensorProto.FLOAT, shape[:1])
    other = {
        "label": helper.make_tensor_type_proto(TensorProto.INT64, shape[:1]),
        "strength": narrow,
        "gain": narrow,
        "finite": helper.make_tensor_type_proto(TensorProto.BOOL, ()),
    }
    return {name: other.get(name, wide) for name in PREDICTION_NAMES}


def _answer(
    source: Value,
    log_proposal: Value,
    evaluator: Value,
    /,
    *,
    started: Value,
    config: GainConfig,
    named: bool,
) -> tuple[dict[str, Value], Value]:
    """The corrected prediction, and its label as a column (B, 1)."""
    tape = source.tape
    names = {name: name if named else None for name in _ANSWER_NAMES}
    start = source
    if config.prob_floor > 0.0:
        floor = math.log(config.prob_floor)
        start = log_softmax(maximum(source, floor))
        log_proposal = log_softmax(maximum(log_proposal, floor))
    evidence = where(started, log_proposal - start, 0.0)
    gain = total(evaluator * evidence, axis=1)
    strength = _strength(start, evidence, gain=gain, num_iters=config.num_iters)
    adapted = log_softmax(start + strength * evidence)
    log_probs = tape.apply("Where", strength > 0.0, adapted, source, name=names["log_probs"])
    probs = tape.apply("Exp", log_probs, name=names["probs"])
    label_column = arg_max(probs)
    answer = {
        "probs": probs,
        "log_probs": log_probs,
        "label": squeeze(label_column, axis=1, name=names["label"]),
        "strength": squeeze(strength, axis=1, name=names["strength"]),
        "gain": squeeze(gain, axis=1, name=names["gain"]),
    }
    return answer, label_column


def scale_of(numerator: Value, denominator: Value, *, config: GainConfig) -> Value:
    """The anchor's scale a from the regression's memory; 1 while that is empty."""
    if config.anchor == "prototype":
        return numerator.tape.constant(1.0)
    ratio = numerator / maximum(denominator, MIN_DIVISOR)
    return where(denominator > MIN_DIVISOR, maximum(ratio, MIN_SCALE), 1.0)


def _distances(rows: Value, state: Mapping[str, Value], *, started: Value) -> tuple[Value, Value]:
    """Mahalanobis distances (B, K), eq:target_score, and the rows' own norms (B, 1)."""
    mean = state["feature_sum"] / maximum(state["sample_count"], MIN_DIVISOR)
    centered = rows - (state["origin"] + mean)
    # Zeros are the state before the first frame; any positive variance serves there.
    scaled = centered / where(started, state["variance"], 1.0)
    norms = total(centered * scaled, axis=1)
    cross = rows.tape.apply(
        "Gemm", scaled, state["centers"], state["center_norms"], alpha=-2.0, transB=1
    )
    return maximum(cross + norms, 0.0), norms


def _posteriors(
    distances: Value,
    state: Mapping[str, Value],
    *,
    started: Value,
    head: Head,
    config: GainConfig,
) -> tuple[Value, Value]:
    """log q_hat, eq:target_posterior, and q_bar, eq:posterior_predictive_target."""
    prior_strength = config.strength_of_prior(head.num_classes)
    precision = row(state["support"]) + prior_strength
    spread = 1.0 + 1.0 / precision
    log_prior = log(precision) - 2.0 * log(state["predicted_mass"] + prior_strength)
    half_temper: Value | float = 0.5
    if config.temper == "head":
        scale = scale_of(state["scale_numerator"], state["scale_denominator"], config=config)
        variance = where(started, state["variance"], 1.0)
        pull = scale * total(head.column_squares / variance)
        half_temper = 0.5 * total(head.column_squares) / maximum(pull, MIN_DIVISOR)
    volume = float(head.feature_dim) * log(spread)
    log_proposal = log_softmax(log_prior - half_temper * distances)
    return log_proposal, softmax(log_prior - half_temper * (volume + distances / spread))


def _strength(start: Value, evidence: Value, *, gain: Value, num_iters: int) -> Value:
    """lambda*, (B, 1), by a fixed number of halvings, eq:app_optimal_lambda."""
    at_zero = gain - _expected(start, evidence)
    at_one = gain - _expected(start + evidence, evidence)
    # `gain_core` keeps the lower end and adds half the bracket to it. The middle alone has the same
    # bits: up to 24 halvings all of its sums but the last are exact, later ones hardly count.
    # It is added to by a reduction, for TensorRT for RTX 1.7: that follows every way through
    # elementwise nodes, and where one halving leads to the next on two, 2^24 of them.
    middle = where(gain > _expected(start + 0.5 * evidence, evidence), 0.75, 0.25)
    for power in range(3, num_iters + 2):
        above = gain > _expected(start + middle * evidence, evidence)
        change = where(above, 0.5**power, -(0.5**power))
        middle = total(beside(middle, change), axis=1)
    inner = where(at_one >= 0.0, 1.0, middle)
    return where(at_zero > 0.0, inner, 0.0)


def _expected(log_probs: Value, evidence: Value) -> Value:
    """Mean of the evidence (B, 1) under log-probabilities that need not be normalised."""
    return total(softmax(log_probs) * evidence, axis=1)

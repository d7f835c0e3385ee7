"""What a batch taught and its second answer, as graph: against `gain_core.Gain.step`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from graph_state import assert_tensors_close, derived
from logit_streams import labels_of, logits_of
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto

from gain_core import Gain, GainConfig, state_to_arrays
from gain_runtime.adaptive_session import AdaptiveSession

# Largest difference of a probability from float64, and of a state tensor over one plus its peak.
FREE_PROBS, FREE_STATE = 1e-4, 1e-4
TRACKED = GainConfig()
NUM_CLASSES = 12
PROTOTYPES = np.eye(NUM_CLASSES, 14)
ANSWER = ("probs", "log_probs", "label", "strength", "gain")


def drawn(num_frames, *, seed=1):
    """Logits of independent frames of all classes, in float32, moved by a domain."""
    rng = np.random.default_rng(seed)
    logits = logits_of(labels_of(num_frames, seed=seed), seed=seed + 1)
    return (logits + 1.5 * rng.normal(size=NUM_CLASSES)).astype(np.float32)


def filmed(num_frames, *, seed=1, length=40):
    """The same of a video: every thing is seen for `length` frames, which differ a little."""
    scenes = np.repeat(drawn(num_frames // length + 1, seed=seed), length, axis=0)[:num_frames]
    noise = 0.3 * np.random.default_rng(seed).normal(size=scenes.shape)
    return (scenes + noise).astype(np.float32)


def in_batches(logits, *sizes):
    """Batches of these sizes, over and over, with features that say nothing."""
    start, index = 0, 0
    while start < len(logits):
        raw = logits[start : start + sizes[index % len(sizes)]]
        yield np.zeros((len(raw), 14), np.float32), raw
        start, index = start + len(raw), index + 1


def answers(outputs):
    return {name: outputs[name].tobytes() for name in ANSWER}


@pytest.mark.parametrize("prob_floor", [0.0, 1e-3])
@pytest.mark.parametrize("sizes", [(1,), (16, 3, 9)], ids=["B1", "uneven"])
def test_independent_frames_are_answered_with_what_they_taught(make_graph, sizes, prob_floor):
    config = replace(TRACKED, prob_floor=prob_floor)
    graph, double = make_graph(PROTOTYPES, config), Gain(PROTOTYPES, config)
    surest, furthest = 0.0, 0.0
    for z, raw in in_batches(drawn(600), *sizes):
        first, plain = graph.step(update=False, features=z, logits=raw), double.predict(z, raw)
        assert_allclose(first["probs"], plain.probs, rtol=0, atol=FREE_PROBS)
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        assert_allclose(result["gain"], expected.gain, rtol=1e-3, atol=1e-3)
        assert_allclose(np.exp(result["log_probs"]), result["probs"], rtol=1e-5)
        assert_array_equal(result["label"], np.argmax(result["probs"], axis=1))
        assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
        surest = max(surest, double.state.shift.independence)
        furthest = max(furthest, np.max(np.abs(expected.probs - plain.probs)))
    assert surest == 1.0
    assert furthest > 0.02, "no answer was revised, so the comparison shows nothing"


@pytest.mark.parametrize("sizes", [(1,), (8,)], ids=["B1", "B8"])
def test_a_video_keeps_its_first_answers_to_the_last_bit(make_graph, sizes):
    graph, double = make_graph(PROTOTYPES, TRACKED), Gain(PROTOTYPES, TRACKED)
    strongest = 0.0
    for z, raw in in_batches(filmed(1600), *sizes):
        first = graph.step(update=False, features=z, logits=raw)
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        # While there was one thing only, its frames are independent of each other.
        if double.frames > 60:
            assert double.state.shift.independence == 0.0
            assert answers(result) == answers(first)
        strongest = max(strongest, np.max(result["strength"]))
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    assert graph.state["state.step_count"] > 100.0
    assert strongest > 0.0


@pytest.mark.parametrize("update_every", [1, 6, 24])
def test_how_frames_are_cut_into_batches_does_not_change_their_steps(make_graph, update_every):
    """Compared are the frames on both sides of every cut, those around a rejected batch too."""
    logits = drawn(240)
    broken = np.full((2, NUM_CLASSES), np.nan, np.float32)
    graph = make_graph(PROTOTYPES, TRACKED, update_every=update_every)
    double = Gain(PROTOTYPES, TRACKED, update_every=update_every)
    for index, (z, raw) in enumerate(in_batches(logits, 1, 5, 2, 4)):
        if index % 3 == 1:
            kept = {name: array.tobytes() for name, array in graph.state.items()}
            refused = graph.step(features=np.zeros((2, 14), np.float32), logits=broken)
            assert not refused["finite"]
            assert {name: array.tobytes() for name, array in graph.state.items()} == kept
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
    assert double.pending_frames == 0
    assert_tensors_close(graph.state, double.state, tolerance=FREE_STATE)
    x = logits.astype(np.float64)
    x -= np.mean(x, axis=1, keepdims=True)
    assert_allclose(graph.state["state.last_logits"], x[-1], rtol=0, atol=1e-5)
    assert graph.state["state.last_known"] == 1.0
    endless = replace(TRACKED, half_life=1e9)
    graph = make_graph(PROTOTYPES, endless, update_every=update_every)
    for z, raw in in_batches(logits, 1, 5, 2, 4):
        graph.step(features=z, logits=raw)
    assert graph.state["state.step_count"] == len(logits) - 1
    power = 0.5 * np.sum((x[1:] - x[:-1]) ** 2)
    assert_allclose(graph.state["state.step_power"], power, rtol=1e-5)


def test_frames_that_wait_are_followed_by_the_next(make_graph):
    graph = make_graph(PROTOTYPES, TRACKED, update_every=6)
    (z, raw), (after, following), *_ = in_batches(drawn(8), 2)
    graph.step(features=z, logits=raw)
    # Nothing was learned yet, so nothing is there to follow but what waits.
    assert graph.state["state.last_known"] == 0.0
    assert graph.state["state.pending_last_known"] == 1.0
    assert graph.state["state.pending_step_count"] == 1.0
    graph.step(update=False, features=after, logits=following)
    assert graph.state["state.pending_step_count"] == 1.0
    x = raw[-1] - np.mean(raw[-1])
    assert_allclose(graph.state["state.pending_last_logits"], x, rtol=0, atol=1e-5)
    graph.step(features=after, logits=following)
    assert graph.state["state.pending_step_count"] == 3.0
    graph.step(features=z, logits=raw)
    assert graph.state["state.frames"] == 6
    assert graph.state["state.step_count"] == 5.0
    assert graph.state["state.last_known"] == 1.0
    assert_array_equal(graph.state["state.pending_last_logits"], 0.0)
    assert graph.state["state.pending_last_known"] == 0.0


def test_a_batch_that_waits_has_its_first_answer(make_graph):
    graph = make_graph(PROTOTYPES, TRACKED, update_every=32)
    double = Gain(PROTOTYPES, TRACKED, update_every=32)
    revised = []
    for z, raw in in_batches(drawn(640), 8):
        first, frames = graph.step(update=False, features=z, logits=raw), double.frames
        result, expected = graph.step(features=z, logits=raw), double.step(z, raw)
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=FREE_PROBS)
        if double.frames == frames:
            assert answers(result) == answers(first)
        else:
            revised.append(answers(result) != answers(first))
    assert len(revised) == 20
    assert all(revised[5:])


@pytest.mark.parametrize("update_every", [1, 50])
def test_sessions_go_on_with_cores_last_frame_and_core_with_theirs(make_graph, update_every):
    path = make_graph(PROTOTYPES, TRACKED, update_every=update_every).path
    weight, batches = PROTOTYPES.astype(np.float32), list(in_batches(drawn(400), 8))
    gain = Gain(weight, TRACKED, update_every=update_every)
    with AdaptiveSession(path, num_threads=1) as session:
        for z, raw in batches[:20]:
            gain.step(z, raw)
        gain.flush()
        session.load_state(gain.state, frames=gain.frames)
        assert_array_equal(session.arrays()["last_logits"], gain.state.last.logits)
        assert session.arrays()["last_known"] == 1.0
        for z, raw in batches[20:34]:
            expected = gain.step(z, raw)
            assert_allclose(session.step(z, raw).probs, expected.probs, rtol=0, atol=2e-5)
            plain = gain.predict(z, raw)
            assert_allclose(session.predict(z, raw).probs, plain.probs, rtol=0, atol=2e-5)
        assert session.pending_frames == gain.pending_frames
        session.flush()
        gain.flush()
        state = session.state
        for name, array in (state_to_arrays(gain.state) | derived(gain.state)).items():
            peak = 1.0 + np.max(np.abs(array))
            assert_allclose(session.arrays()[name] / peak, array / peak, rtol=0, atol=2e-5)
        assert gain.state.shift.independence == state.shift.independence == 1.0
        gain.load_state(state, frames=session.frames)
        z, raw = batches[34]
        assert_allclose(session.step(z, raw).probs, gain.step(z, raw).probs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("update_every", [1, 4])
@pytest.mark.parametrize(
    ("num_classes", "settings", "revises"),
    [
        pytest.param(12, {}, True, id="tracked"),
        pytest.param(12, {"guard": False}, True, id="unguarded"),
        pytest.param(12, {"independence_test": False}, False, id="no-independence-test"),
        pytest.param(12, {"mixture_test": False}, False, id="no-mixture-test"),
        pytest.param(2, {}, False, id="two-classes"),
        pytest.param(12, {"proposal": "gaussian", "guard": False}, False, id="gaussians"),
    ],
)
def test_second_answers_are_in_files_that_may_need_them(
    make_graph, checked, num_classes, settings, revises, update_every
):
    config = GainConfig(**settings)
    graph = make_graph(np.eye(num_classes, 14), config, update_every=update_every)
    conditionals = [node for node in checked(graph.path).graph.node if node.op_type == "If"]
    assert len(conditionals) == 1 + revises
    assert onnx.load(graph.path).graph.node[-1].op_type == "If"
    for node in conditionals:
        for branch in node.attribute:
            assert "If" not in {inner.op_type for inner in branch.g.node}
    assert (list(conditionals[-1].output) == list(ANSWER)) == revises


def test_a_second_answer_is_computed_only_where_it_differs(make_graph, open_file):
    path = make_graph(PROTOTYPES, TRACKED).path
    model = onnx.load(path)
    condition = model.graph.node[-1].input[0]
    model.graph.output.append(onnx.helper.make_tensor_value_info(condition, TensorProto.BOOL, []))
    path.write_bytes(model.SerializeToString())
    for logits in (drawn(200), filmed(600)):
        graph, double, computed = open_file(path), Gain(PROTOTYPES, TRACKED), []
        for z, raw in in_batches(logits, 8):
            assert not graph.step(update=False, features=z, logits=raw)[condition]
            double.step(z, raw)
            computed.append(bool(graph.step(features=z, logits=raw)[condition]))
            assert computed[-1] == (double.state.shift.independence > 0.0)
        assert any(computed)
        assert all(computed) == (len(logits) == 200)

"""The first update's wait, baked into a file: state and predictions are those of `Gain`."""

from __future__ import annotations

import json
import logging

import numpy as np
import onnx
import pytest
from gaussian_world import gaussian_world
from graph_state import assert_tensors_close
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import PRESETS, Gain, GainConfig, state_to_arrays
from gain_core.errors import ArtifactError, ConfigError, NumericsError
from gain_export.adaptive import add_adaptation
from gain_runtime.adapter import Adapter
from gain_runtime.adaptive_adapter import AdaptiveAdapter
from gain_runtime.adaptive_artifact import load_adaptive
from gain_runtime.adaptive_session import AdaptiveSession
from gain_runtime.onnx_session import OnnxSession

NUM_CLASSES, FEATURE_DIM = 6, 10
WORLD = gaussian_world(NUM_CLASSES, FEATURE_DIM, num_batches=1, batch_sizes=(240,), seed=31)
WEIGHT = WORLD.prototypes.astype(np.float32)
FEATURES, LOGITS = (array.astype(np.float32) for array in WORLD.batches[0][:2])
# Far enough from the head's own logits that the tracked shift proposes something.
LOGITS = LOGITS + 2.0 * np.random.default_rng(3).normal(size=NUM_CLASSES).astype(np.float32)
# Where any asymmetry is a mixture's, the tracked shift moves from the first update on.
ASYMMETRY = (-0.5, 0.0)
CONFIGS = [pytest.param(config, id=name) for name, config in PRESETS.items()]
KINDS = [pytest.param(PRESETS[name], id=name) for name in ("tracked", "balanced")]


def _gain(config, **waits):
    return Gain(WEIGHT, config, asymmetry=ASYMMETRY, **waits)


def batches(batch_size, *, frames=240):
    """The stream in pieces."""
    for begin in range(0, frames, batch_size):
        yield FEATURES[begin : begin + batch_size], LOGITS[begin : begin + batch_size]


@pytest.fixture
def make_session(make_artifact, make_fitness, tmp_path):
    """Open a file with the given settings; closed after the test."""
    opened = []

    def make(config, **settings):
        path = tmp_path / f"tiny{len(opened)}.adaptive.onnx"
        settings = {"features_only": True} | settings
        artifact = make_artifact(WEIGHT, fitness=make_fitness(NUM_CLASSES, ASYMMETRY))
        add_adaptation(artifact, path, config=config, **settings)
        opened.append(AdaptiveSession(path, num_threads=1))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize(
    ("update_every", "warmup_frames"), [(1, 20), (5, 20), (20, 5), (1, 1), (16, 64)]
)
@pytest.mark.parametrize("config", CONFIGS)
def test_the_graph_waits_as_gain_does(make_graph, config, update_every, warmup_frames, batch_size):
    waits = {"update_every": update_every, "warmup_frames": warmup_frames}
    graph = make_graph(WEIGHT, config, asymmetry=ASYMMETRY, **waits)
    gain = _gain(config, **waits)
    learned, num_corrected = [], 0
    for features, logits in batches(batch_size):
        expected, result = gain.step(features, logits), graph.step(features=features, logits=logits)
        assert graph.state["state.frames"] == gain.frames
        assert_allclose(result["probs"], expected.probs, rtol=0, atol=1e-4)
        if gain.frames == 0:
            assert_array_equal(result["probs"], result["source_probs"])
        learned.append(gain.frames)
        num_corrected += np.count_nonzero(expected.strength)
    assert num_corrected > 0.3 * len(FEATURES)
    assert_tensors_close(graph.state, gain.state, tolerance=1e-4)
    first = next(frames for frames in learned if frames)
    most = max(update_every, warmup_frames)
    assert first == -(-most // batch_size) * batch_size
    later = next(frames for frames in learned if frames > first) - first
    assert later == -(-update_every // batch_size) * batch_size


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize(("update_every", "warmup_frames"), [(1, 20), (5, 20)])
@pytest.mark.parametrize("config", CONFIGS)
def test_the_session_counts_as_the_graph_and_gain_do(
    make_session, config, update_every, warmup_frames, batch_size
):
    waits = {"update_every": update_every, "warmup_frames": warmup_frames}
    session, gain = make_session(config, **waits), _gain(config, **waits)
    waiting = "pending_window_count" if config.proposal == "shift" else "pending_accepted"
    for index, (features, logits) in enumerate(batches(batch_size, frames=60)):
        if index % 4 == 3:
            session.predict(features, logits)
            continue
        session.step(features, logits)
        gain.step(features, logits)
        held = session.arrays()
        assert session.frames == gain.frames == held["frames"]
        assert session.pending_frames == gain.pending_frames == held[waiting].sum()


@pytest.mark.parametrize("config", KINDS)
def test_what_is_refused_or_only_predicted_does_not_end_the_wait(make_session, config):
    waits = {"update_every": 2, "warmup_frames": 12}
    session, gain = make_session(config, **waits), _gain(config, **waits)
    for features, logits in batches(3, frames=60):
        broken = features.copy()
        broken[1, 0] = np.nan
        with pytest.raises(NumericsError):
            session.step(broken, logits)
        session.predict(features, logits)
        session.freeze()
        session.step(features, logits)
        session.unfreeze()
        expected, result = gain.step(features, logits), session.step(features, logits)
        assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-4)
        assert (session.frames, session.pending_frames) == (gain.frames, gain.pending_frames)
    assert session.frames > 12


@pytest.mark.parametrize("frames", [0, 240])
@pytest.mark.parametrize("config", KINDS)
def test_a_loaded_state_waits_only_where_nothing_was_learned(make_session, config, frames):
    waits = {"update_every": 2, "warmup_frames": 12}
    teacher = _gain(config)
    if frames:
        teacher.step(FEATURES, LOGITS)
    session, gain = make_session(config, **waits), _gain(config, **waits)
    session.step(FEATURES[:3], LOGITS[:3])
    for one in (session, gain):
        one.load_state(teacher.state, frames=frames)
        assert (one.frames, one.pending_frames) == (frames, 0)
    for features, logits in batches(1, frames=30):
        expected, result = gain.step(features, logits), session.step(features, logits)
        assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-4)
        assert (session.frames, session.pending_frames) == (gain.frames, gain.pending_frames)
        assert session.arrays()["frames"] == session.frames


@pytest.mark.parametrize("config", KINDS)
def test_flush_and_reset_are_gains(make_session, config):
    session, gain = (one(config, warmup_frames=50) for one in (make_session, _gain))
    for features, logits in batches(3, frames=30):
        session.step(features, logits)
        gain.step(features, logits)
    session.flush()
    gain.flush()
    assert (session.frames, session.pending_frames) == (gain.frames, 0) == (30, 0)
    for features, logits in batches(3, frames=30):
        expected, result = gain.step(features, logits), session.step(features, logits)
        assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-4)
    for name, array in state_to_arrays(gain.state).items():
        peak = 1.0 + np.max(np.abs(array))
        assert_allclose(state_to_arrays(session.state)[name] / peak, array / peak, atol=5e-5)
    session.reset()
    assert (session.frames, session.pending_frames) == (0, 0)
    session.step(FEATURES[:3], LOGITS[:3])
    assert (session.frames, session.pending_frames) == (0, 3)


@pytest.mark.parametrize("config", KINDS)
def test_state_files_are_continued_on_either_side(
    make_session, make_artifact, make_fitness, tmp_path, config
):
    rng = np.random.default_rng(8)
    # One colour each: noise of all colours is the same picture to a network.
    images = [[np.full((12, 16, 3), rng.integers(0, 256, 3), np.uint8)] for _ in range(30)]
    waits = {"update_every": 2, "warmup_frames": 10}
    adaptive = AdaptiveAdapter(make_session(config, features_only=False, **waits))
    artifact = make_artifact(WEIGHT, fitness=make_fitness(NUM_CLASSES, ASYMMETRY))
    with OnnxSession(artifact, num_threads=1) as plain:
        usual = Adapter(plain, config, **waits)
        for image in images[:9]:
            usual.step(image)
            adaptive.step(image)
        assert adaptive.frames == usual.frames == 0
        # Nothing was learned: whoever loads it waits again, for all that it waited for.
        usual.save_state(tmp_path / "usual.safetensors", flush=False)
        adaptive.save_state(tmp_path / "adaptive.safetensors", flush=False)
        usual.load_state(tmp_path / "adaptive.safetensors")
        adaptive.load_state(tmp_path / "usual.safetensors")
        learned = []
        for image in images[9:]:
            expected, result = usual.step(image), adaptive.step(image)
            assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-4)
            assert adaptive.frames == usual.frames
            learned.append(adaptive.frames)
        assert learned[8:12] == [0, 10, 10, 12]


@pytest.mark.parametrize(
    ("update_every", "warmup_frames", "rows"), [(1, 1, 0), (1, 20, 19), (5, 20, 19), (20, 5, 19)]
)
@pytest.mark.parametrize("config", CONFIGS)
def test_the_file_is_clean_and_says_how_long_it_waits(
    make_artifact, tmp_path, checked, config, update_every, warmup_frames, rows
):
    path = tmp_path / "tiny.adaptive.onnx"
    waits = {"update_every": update_every, "warmup_frames": warmup_frames}
    report = add_adaptation(make_artifact(WEIGHT), path, config=config, **waits)
    model = checked(path)
    assert report.to_dict()["warmup_frames"] == warmup_frames
    metadata = {item.key: item.value for item in model.metadata_props}
    assert metadata["gain.adaptive.warmup_frames"] == str(warmup_frames)
    assert (load_adaptive(path).update_every, load_adaptive(path).warmup_frames) == (
        update_every,
        warmup_frames,
    )
    shapes = {
        item["name"].removeprefix("state."): item["shape"]
        for item in json.loads(metadata["gain.adaptive.state"])
    }
    pending = {name for name in shapes if name.startswith("pending_")}
    assert bool(pending) == (rows > 0)
    if rows and config.proposal == "shift":
        assert shapes["pending_window_logits"] == [1, NUM_CLASSES]
    elif rows:
        assert shapes["pending_features"] == [rows, FEATURE_DIM]


@pytest.mark.parametrize("frames", [0, -1, 1025])
@pytest.mark.parametrize("name", ["update_every", "warmup_frames"])
def test_waits_out_of_range_are_refused(make_artifact, tmp_path, name, frames):
    with pytest.raises(ConfigError, match=f"{name}: expected 1 to 1024 .* got {frames}"):
        add_adaptation(
            make_artifact(WEIGHT), tmp_path / "out.onnx", config=GainConfig(), **{name: frames}
        )
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("value", [None, "0", "-1", "often", "7"])
@pytest.mark.parametrize("name", ["update_every", "warmup_frames"])
def test_a_file_that_does_not_say_how_long_it_waits_is_refused(
    make_artifact, tmp_path, name, value
):
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT), path, config=GainConfig())
    model = onnx.load(path)
    kept = [item for item in model.metadata_props if not item.key.endswith(name)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    if value is not None:
        model.metadata_props.add(key=f"gain.adaptive.{name}", value=value)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ArtifactError, match=r"malformed .*\* metadata"):
        load_adaptive(path)


def test_gaussians_have_no_guard_to_ask_even_where_the_config_says_so(make_session):
    config = GainConfig(proposal="gaussian", guard=True)
    session = make_session(config)
    session.step(FEATURES[:4], LOGITS[:4])
    assert session.guard_trips is None


class Reads:
    """Counts the state tensors that a session copies to the host."""

    def __init__(self, session, monkeypatch):
        self.fields = []
        read = session._read

        def counted(field):
            self.fields.append(field)
            return read(field)

        monkeypatch.setattr(session, "_read", counted)


@pytest.mark.parametrize("config", KINDS)
def test_the_state_is_read_only_where_an_update_may_have_tripped_the_guard(
    make_session, monkeypatch, config
):
    session = make_session(config, features_only=False, update_every=4, warmup_frames=8)
    adapter, reads = AdaptiveAdapter(session), Reads(session, monkeypatch)
    image = [np.zeros((12, 16, 3), np.uint8)]
    for _ in range(20):
        adapter.step(image)
        assert adapter.frames + session.pending_frames > 0
    # Updates after 8, 12, 16 and 20 frames.
    assert reads.fields == (["guard_trips"] * 4 if config.proposal == "shift" else [])
    adapter.freeze()
    adapter.step(image)
    adapter.step(image, learn=False)
    assert len(reads.fields) in (0, 4)


def test_status_of_gaussians_copies_nothing(make_session, monkeypatch):
    session = make_session(PRESETS["balanced"], features_only=False)
    adapter, reads = AdaptiveAdapter(session), Reads(session, monkeypatch)
    adapter.step([np.zeros((12, 16, 3), np.uint8)])
    status = adapter.status()
    assert (status.frames, status.guard, status.guard_trips, status.trust) == (1, "off", 0, 0.0)
    assert reads.fields == []


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("config", KINDS)
def test_a_file_never_measured_says_so(
    make_artifact, make_fitness, tmp_path, caplog, config, measured
):
    caplog.set_level(logging.INFO, logger="gain_runtime")
    fitness = make_fitness(NUM_CLASSES, (-0.125, 0.25)) if measured else None
    path = tmp_path / "tiny.adaptive.onnx"
    add_adaptation(make_artifact(WEIGHT, fitness=fitness), path, config=config)
    with AdaptiveSession(path) as session, AdaptiveAdapter(session):
        said = [line for line in caplog.messages if "never measured on clean images" in line]
    assert len(said) == (config.proposal == "shift" and not measured)
    assert all("--calibrate DIR --adaptive --force" in line for line in said)

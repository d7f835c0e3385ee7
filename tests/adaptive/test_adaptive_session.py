"""`AdaptiveSession`: `Gain`'s methods on an adaptive file, its buffers, an adapter on it."""

import numpy as np
import pytest
from gaussian_world import gaussian_world
from numpy.testing import assert_allclose, assert_array_equal

from gain_core import PRESETS, Gain
from gain_core.errors import ArrayError, EngineError, NumericsError
from gain_core.records import arrays_of
from gain_export.adaptive import add_adaptation
from gain_runtime.adapter import Adapter
from gain_runtime.engine import AdaptiveEngine, NetworkEngine
from gain_runtime.sessions.adaptive import AdaptiveBinding, AdaptiveSession
from gain_runtime.sessions.onnx import CPU_PROVIDER, OnnxSession, create_native

WORLD = gaussian_world(6, 10, num_batches=40, batch_sizes=(12, 4, 16), seed=21)
WEIGHT = WORLD.prototypes.astype(np.float32)
# Logits that have moved, and an artifact for which they look like those of a mixture of classes.
MOVED = 0.5 * np.random.default_rng(3).normal(size=6)
SKEWNESS = (-0.5, 0.0)
BATCHES = [(z.astype(np.float32), (raw + MOVED).astype(np.float32)) for z, raw, _ in WORLD.batches]
# All of them carry one pattern, which moves their logits.
PATTERN = np.random.default_rng(12).integers(0, 128, (12, 16, 3), np.uint8)
IMAGES = [
    list(np.random.default_rng(seed).integers(0, 128, (16, 12, 16, 3), np.uint8) + PATTERN)
    for seed in range(12)
]


@pytest.fixture(params=["shift", "paper-l2"])
def config(request):
    """One config of each method."""
    return PRESETS[request.param]


@pytest.fixture
def reads(config):
    """What a file without a network takes of a batch."""
    features = Gain(WEIGHT, config).method.feature_dim is not None
    return lambda batch: batch if features else batch[1:]


@pytest.fixture
def measured_artifact(make_artifact, make_fitness):
    """The artifact that all of these files are made from."""
    return make_artifact(WEIGHT, fitness=make_fitness(6, SKEWNESS))


@pytest.fixture
def make_session(measured_artifact, tmp_path, config):
    """Open a file with the given settings; closed after the test."""
    opened = []

    def make(**settings):
        path = tmp_path / f"tiny{len(opened)}.adaptive.onnx"
        settings = {"features_only": True, "update_every": 1, "warmup_frames": 1} | settings
        add_adaptation(measured_artifact, path, config=config, **settings)
        opened.append(AdaptiveSession(path, num_threads=1))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


def assert_corrected(predictions, *, share):
    """More than this share of the frames, or there was nothing to compare."""
    corrected = np.mean(np.concatenate([item.strength for item in predictions]) > 0.0)
    assert corrected > share, f"only {corrected:.0%} of the frames were corrected"


def bytes_of(state):
    return {name: np.asarray(array).tobytes() for name, array in arrays_of(state).items()}


def gain_of(config, *, update_every=1):
    """`Gain` with what the files have baked in."""
    return Gain(WEIGHT, config, skewness=SKEWNESS, update_every=update_every, warmup_frames=1)


@pytest.mark.parametrize("update_every", [1, 6])
def test_session_is_gain(make_session, config, reads, update_every):
    session = make_session(update_every=update_every)
    gain, predictions = gain_of(config, update_every=update_every), []
    assert (session.config, session.update_every) == (gain.config, update_every)
    for batch in BATCHES:
        expected, result = gain.step(*batch), session.step(*reads(batch))
        for name in ("probs", "gain", "source_log_probs"):
            assert_allclose(getattr(result, name), getattr(expected, name), rtol=1e-3, atol=1e-4)
        assert_allclose(np.exp(result.log_probs), result.probs, rtol=0, atol=1e-6)
        assert (session.frames, session.pending_frames) == (gain.frames, gain.pending_frames)
        predictions.append(expected)
    assert_corrected(predictions, share=0.5)
    for name, array in arrays_of(gain.state).items():
        peak = 1.0 + np.max(np.abs(array))
        assert_allclose(getattr(session.state, name) / peak, array / peak, rtol=0, atol=5e-5)
    assert session.summary().keys() == gain.summary().keys()


def test_predictions_are_not_overwritten_by_later_ones(make_session, reads):
    session = make_session()
    kept = [session.step(*reads(batch)) for batch in BATCHES[:26]]
    copies = [np.array(prediction.probs) for prediction in kept]
    for batch in BATCHES[26:32]:
        session.step(*reads(batch))
    assert_corrected(kept, share=0.2)
    for prediction, copy in zip(kept, copies, strict=True):
        assert_array_equal(prediction.probs, copy)


@pytest.mark.parametrize("update_every", [1, 6])
def test_predicting_and_frozen_steps_leave_the_state_as_it_is(make_session, update_every, reads):
    session = make_session(update_every=update_every)
    for batch in BATCHES[:24]:
        session.step(*reads(batch))
    before, pending = bytes_of(session.state), session.pending_frames
    predicted = [session.predict(*reads(batch)) for batch in BATCHES[24:28]]
    session.freeze()
    assert session.frozen
    frozen = [session.step(*reads(batch)) for batch in BATCHES[24:28]]
    assert bytes_of(session.state) == before
    assert session.pending_frames == pending
    assert_corrected(predicted, share=0.2)
    for first, second in zip(predicted, frozen, strict=True):
        assert_array_equal(first.probs, second.probs)
    session.unfreeze()
    for batch in BATCHES[24:28]:
        session.step(*reads(batch))
    assert bytes_of(session.state) != before


@pytest.mark.parametrize("update_every", [1, 6])
def test_a_batch_that_is_not_finite_is_refused_and_forgotten(make_session, update_every, reads):
    session = make_session(update_every=update_every)
    for batch in BATCHES[:25]:
        session.step(*reads(batch))
    before, pending = bytes_of(session.state), session.pending_frames
    broken = [array.copy() for array in reads(BATCHES[25])]
    broken[0][0, 1] = np.nan
    with pytest.raises(NumericsError, match="state is untouched"):
        session.step(*broken)
    assert (bytes_of(session.state), session.pending_frames) == (before, pending)
    other = make_session(update_every=update_every)
    for batch in BATCHES[:25]:
        other.step(*reads(batch))
    result, expected = session.step(*reads(BATCHES[25])), other.step(*reads(BATCHES[25]))
    assert_corrected([expected], share=0.0)
    assert_array_equal(result.probs, expected.probs)


def test_a_state_of_another_head_or_method_is_refused(make_session, config):
    session = make_session()
    with pytest.raises(ArrayError, match="made for another network"):
        session.load_state(Gain(WEIGHT[:4], config).state)
    other = PRESETS["paper-l2" if config == PRESETS["shift"] else "shift"]
    with pytest.raises(ArrayError, match="made by another method"):
        session.load_state(Gain(WEIGHT, other).state)


def test_no_frame_predicts_nothing(make_session, reads):
    session = make_session()
    empty = np.empty((0, 10), np.float32), np.empty((0, 6), np.float32)
    assert session.step(*reads(empty)).probs.shape == (0, 6)
    assert session.frames == 0


@pytest.mark.parametrize("config", [PRESETS["paper"]])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((BATCHES[0][0],), "expected 2 arrays"),
        ((BATCHES[0][0].tolist(), BATCHES[0][1]), "features.*list"),
        ((BATCHES[0][0].astype(np.float64), BATCHES[0][1]), "features.*float64"),
        ((BATCHES[0][0], BATCHES[1][1]), r"logits.*\(12, 6\)"),
        ((BATCHES[0][0][:, :4], BATCHES[0][1]), "features"),
        ((BATCHES[0][0].T.copy().T, BATCHES[0][1]), "contiguous"),
    ],
)
def test_inputs_that_do_not_fit_are_named(make_session, inputs, message):
    with pytest.raises(ArrayError, match=message):
        make_session().step(*inputs)


def test_a_closed_session_says_so(make_session, reads):
    session = make_session()
    session.close()
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.step(*reads(BATCHES[0]))


@pytest.mark.parametrize("update_every", [1, 24])
def test_state_files_of_adapters_are_interchangeable(
    make_session, measured_artifact, tmp_path, update_every, config
):
    session = make_session(features_only=False, update_every=update_every)
    predictions = []
    with OnnxSession(measured_artifact, num_threads=1) as plain:
        waits = {"update_every": update_every, "warmup_frames": 1}
        usual, adaptive = (
            Adapter(NetworkEngine(plain, config, **waits)),
            Adapter(AdaptiveEngine(session)),
        )
        for images in IMAGES[:6]:
            expected, result = usual.step(images), adaptive.step(images)
            assert_allclose(result.probs, expected.probs, rtol=0, atol=1e-4)
            assert_allclose(result.source_probs, expected.source_probs, rtol=0, atol=1e-5)
            predictions.append(expected)
        usual.save_state(tmp_path / "usual.safetensors")
        adaptive.save_state(tmp_path / "adaptive.safetensors")
        # Each continues what the other has learned.
        usual.load_state(tmp_path / "adaptive.safetensors")
        adaptive.load_state(tmp_path / "usual.safetensors")
        assert adaptive.frames == usual.frames == 96
        for images in IMAGES[6:]:
            expected = usual.step(images)
            assert_allclose(adaptive.step(images).probs, expected.probs, rtol=0, atol=1e-4)
            predictions.append(expected)
    assert_corrected(predictions, share=0.5)


@pytest.fixture
def artifact(make_session):
    """A file that each batch teaches something."""
    return make_session().artifact


@pytest.fixture
def binding(artifact):
    """Its two sets of buffers for the state, which change places."""
    return AdaptiveBinding(create_native(artifact.path, CPU_PROVIDER, 1), artifact, CPU_PROVIDER)


@pytest.fixture
def batches(reads):
    """What the file takes of every batch."""
    return [reads(batch) for batch in BATCHES]


def state_of(binding, artifact):
    return {item.field: binding.read(item.field) for item in artifact.state}


def test_a_call_that_is_not_followed_up_has_changed_nothing(binding, artifact, batches):
    for batch in batches[:4]:
        binding.run(batch, update=True)
        binding.advance()
    before = state_of(binding, artifact)
    first = binding.run(batches[4], update=True)
    second = binding.run(batches[4], update=True)
    assert_array_equal(first["probs"], second["probs"])
    for field, array in state_of(binding, artifact).items():
        assert_array_equal(array, before[field], err_msg=field)
    binding.advance()
    assert binding.read("frames") > before["frames"]


def test_without_an_update_the_other_set_is_not_written(binding, artifact, batches):
    for batch in batches[:3]:
        binding.run(batch, update=True)
        binding.advance()
    binding.advance()
    behind = state_of(binding, artifact)
    binding.advance()
    for batch in batches[3:6]:
        binding.run(batch, update=False)
    binding.advance()
    for field, array in state_of(binding, artifact).items():
        assert_array_equal(array, behind[field], err_msg=field)


def test_replaced_state_is_copied(binding, artifact):
    arrays = {item.field: item.zeros() for item in artifact.state}
    arrays["frames"] = np.array(7)
    binding.replace(arrays)
    arrays["frames"][...] = 9
    assert binding.read("frames") == 7
    read = binding.read("frames")
    read[...] = 3
    assert binding.read("frames") == 7

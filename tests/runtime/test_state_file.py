"""State files: exact on the way back, whole on disk, and refused wherever they do not fit."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from gain_core import (
    PRESETS,
    ArtifactError,
    ConfigError,
    Gain,
    GainConfig,
    __version__,
    init_state,
    state_to_arrays,
)
from gain_runtime import atomic_file
from gain_runtime.state_file import load_state, save_state

NUM_CLASSES, FEATURE_DIM = 6, 5
ARTIFACT = "a" * 64
PROTOTYPES = np.random.default_rng(1).normal(size=(NUM_CLASSES, FEATURE_DIM)).astype(np.float32)


def batch_of(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of all classes, whose mean is not the source's."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, size)
    features = 2.0 * PROTOTYPES[labels] + rng.normal(size=(size, FEATURE_DIM)) + 2.0
    features = features.astype(np.float32)
    return features, (features @ PROTOTYPES.T).astype(np.float32)


def learned(config: GainConfig, prototypes=PROTOTYPES) -> Gain:
    gain = Gain(prototypes, config)
    for seed in range(4):
        gain.step(*batch_of(8, seed))
    return gain


def saved(path: Path, config: GainConfig | None = None) -> Path:
    config = config or GainConfig()
    gain = learned(config)
    save_state(path, gain.state, config=config, artifact_sha256=ARTIFACT, frames=gain.frames)
    return path


def load(path: Path, **changes):
    arguments = {"prototypes": PROTOTYPES, "config": GainConfig(), "artifact_sha256": ARTIFACT}
    return load_state(path, **(arguments | changes))


def refusal(path: Path, error=ArtifactError, **changes) -> str:
    """The message with which a state is refused: one line that names the file."""
    with pytest.raises(error) as caught:
        load(path, **changes)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def rewrite(path: Path, *, arrays=None, **metadata: str | None) -> None:
    """Save the file again with other arrays or metadata; None drops an entry."""
    with safe_open(path, framework="numpy") as file:
        entries = file.metadata()
    for key, value in metadata.items():
        entries.pop(f"gain.state.{key}")
        if value is not None:
            entries[f"gain.state.{key}"] = value
    save_file(load_file(path) if arrays is None else arrays, path, metadata=entries)


@pytest.mark.parametrize("preset", PRESETS)
def test_loaded_state_is_the_saved_one(tmp_path, preset):
    config = GainConfig.preset(preset)
    path = tmp_path / "street.state"
    gain = learned(config)
    save_state(path, gain.state, config=config, artifact_sha256=ARTIFACT, frames=gain.frames)
    loaded = load(path, config=config)
    assert loaded.frames == gain.frames == 32
    expected, got = state_to_arrays(gain.state), state_to_arrays(loaded.state)
    assert expected.keys() == got.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype == array.dtype


@pytest.mark.parametrize("preset", PRESETS)
def test_prediction_goes_on_where_it_stopped(tmp_path, preset):
    config = GainConfig.preset(preset)
    gain = learned(config)
    loaded = load(saved(tmp_path / "state", config), config=config)
    resumed = Gain(PROTOTYPES, config)
    resumed.load_state(loaded.state, frames=loaded.frames)
    for seed in (10, 11):
        expected, got = gain.step(*batch_of(3, seed)), resumed.step(*batch_of(3, seed))
        np.testing.assert_allclose(got.probs, expected.probs, rtol=1e-5, atol=1e-7)
    assert resumed.frames == gain.frames
    assert float(np.max(expected.strength)) > 0.0


@pytest.mark.parametrize("preset", PRESETS)
def test_state_without_frames_loads(tmp_path, preset):
    path, config = tmp_path / "state", GainConfig.preset(preset)
    fresh = init_state(PROTOTYPES, config)
    save_state(path, fresh, config=config, artifact_sha256=ARTIFACT, frames=0)
    loaded = load(path, config=config)
    assert loaded.frames == 0
    gain = Gain(PROTOTYPES, config)
    gain.load_state(loaded.state)
    result = gain.predict(*batch_of(3, 0))
    np.testing.assert_array_equal(result.log_probs, result.source_log_probs)
    for name, array in state_to_arrays(fresh).items():
        np.testing.assert_array_equal(state_to_arrays(loaded.state)[name], array)


def test_metadata_say_what_the_file_is(tmp_path):
    with safe_open(saved(tmp_path / "state"), framework="numpy") as file:
        entries = file.metadata()
    assert entries["gain.state.schema"] == "2"
    assert json.loads(entries["gain.state.config"]) == GainConfig().to_dict()
    assert entries["gain.state.artifact_sha256"] == ARTIFACT
    assert entries["gain.state.frames"] == "32"
    assert entries["gain.state.version"] == __version__


@pytest.mark.parametrize("preset", ["tracked", "balanced"])
def test_states_of_other_libraries_are_saved_and_loaded(tmp_path, preset):
    torch = pytest.importorskip("torch", reason="stands for any device library")
    config, path = GainConfig.preset(preset), tmp_path / "state"
    prototypes = torch.asarray(PROTOTYPES)
    gain = Gain(prototypes, config)
    features, logits = (torch.asarray(array) for array in batch_of(8, 0))
    gain.step(features, logits)
    save_state(path, gain.state, config=config, artifact_sha256=ARTIFACT, frames=8)
    loaded = load(path, prototypes=prototypes, config=config)
    for name, array in state_to_arrays(gain.state).items():
        got = state_to_arrays(loaded.state)[name]
        assert isinstance(got, torch.Tensor)
        assert torch.equal(got, array)
    load(path, config=config)  # the same file serves NumPy


def test_a_guard_that_holds_is_saved_and_restored(tmp_path):
    path, config = tmp_path / "state", GainConfig()
    gain = learned(config)
    guard = replace(gain.state.guard, hold=np.float32(300.0), trips=np.float32(2.0))
    gain.load_state(replace(gain.state, guard=guard), frames=32)
    save_state(path, gain.state, config=config, artifact_sha256=ARTIFACT, frames=32)
    loaded = load(path)
    assert (loaded.state.guard.hold, loaded.state.guard.trips) == (300.0, 2.0)
    resumed = Gain(PROTOTYPES, config)
    resumed.load_state(loaded.state, frames=loaded.frames)
    result = resumed.step(*batch_of(8, 9))
    np.testing.assert_array_equal(result.log_probs, result.source_log_probs)
    assert resumed.state.guard.hold == 292.0


def test_a_state_of_another_preset_is_refused(tmp_path):
    path = saved(tmp_path / "state", GainConfig.preset("balanced"))
    assert "proposal: expected shift, got gaussian" in refusal(path, ConfigError)


def test_missing_file_and_folder_are_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent")
    assert "a folder" in refusal(tmp_path)


def test_every_truncation_is_refused(tmp_path):
    path = saved(tmp_path / "state")
    data = path.read_bytes()
    for length in range(0, len(data), 29):
        path.write_bytes(data[:length])
        assert "damaged" in refusal(path)


def test_flipped_bits_in_the_arrays_are_noticed(tmp_path):
    path = saved(tmp_path / "state")
    data = bytearray(path.read_bytes())
    data[-9] ^= 0x10
    path.write_bytes(data)
    assert "checksum" in refusal(path)


@pytest.mark.parametrize("data", [b"", b"no state at all\n" * 40, bytes(200)])
def test_other_files_are_refused(tmp_path, data):
    path = tmp_path / "state"
    path.write_bytes(data)
    assert "damaged" in refusal(path)


def test_other_safetensors_files_are_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"w": np.zeros(3, dtype=np.float32)}, path)
    assert "expected a state file" in refusal(path)


def test_other_schema_is_refused(tmp_path):
    path = saved(tmp_path / "state")
    rewrite(path, schema="1", version="0.0.9")
    message = refusal(path)
    assert "expected state schema 2, got 1" in message
    assert "0.0.9" in message


def test_state_of_another_artifact_is_refused(tmp_path):
    message = refusal(saved(tmp_path / "state"), artifact_sha256="b" * 64)
    assert "artifact hash: expected bbbbbbbbbbbb" in message
    assert "got aaaaaaaaaaaa" in message


def test_differing_config_fields_are_listed(tmp_path):
    balanced = GainConfig.preset("balanced")
    path = saved(tmp_path / "state", balanced)
    config = replace(balanced, half_life=float("inf"), prior_samples=0.0, anchor="prototype")
    message = refusal(path, ConfigError, config=config)
    assert "half_life: expected inf, got 420.0" in message
    assert "prior_samples: expected 0.0, got 50.0" in message
    assert "anchor: expected prototype, got balanced" in message
    same = {item.name for item in fields(config)} - {"half_life", "prior_samples", "anchor"}
    assert not [name for name in same if f"{name}:" in message]


def test_config_of_another_version_names_its_fields(tmp_path):
    path = saved(tmp_path / "state")
    config = GainConfig().to_dict()
    del config["shrinkage"]
    rewrite(path, config=json.dumps(config | {"momentum": 0.5}))
    message = refusal(path, ConfigError)
    assert "momentum: expected no such field, got 0.5" in message
    assert "shrinkage: expected 1.25, got no such field" in message


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"frames": "some"}, id="frames no number"),
        pytest.param({"frames": "-1"}, id="negative frames"),
        pytest.param({"frames": None}, id="no frames"),
        pytest.param({"config": "{"}, id="config no json"),
        pytest.param({"config": "3"}, id="config no record"),
        pytest.param({"artifact_sha256": None}, id="no artifact"),
        pytest.param({"arrays_sha256": None}, id="no checksum"),
    ],
)
def test_malformed_metadata_are_refused(tmp_path, metadata):
    path = saved(tmp_path / "state")
    rewrite(path, **metadata)
    assert "damaged" in refusal(path)


def test_state_of_another_head_is_refused(tmp_path):
    message = refusal(saved(tmp_path / "state"), prototypes=PROTOTYPES[:4])
    assert "state." in message
    assert "another head" in message


def test_non_finite_state_is_not_saved_and_leaves_the_old_file(tmp_path):
    path = saved(tmp_path / "state")
    before = path.read_bytes()
    state = learned(GainConfig()).state
    mass = np.full_like(state.sums.window_mass, np.nan)
    broken = replace(state, sums=replace(state.sums, window_mass=mass))
    with pytest.raises(ArtifactError, match=r"state\.window_mass: expected finite"):
        save_state(path, broken, config=GainConfig(), artifact_sha256=ARTIFACT, frames=1)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]  # noqa: PTH208


def test_non_finite_state_is_not_loaded(tmp_path, monkeypatch):
    path = tmp_path / "state"
    state = learned(GainConfig()).state
    mass = np.full_like(state.sums.window_mass, np.inf)
    broken = replace(state, sums=replace(state.sums, window_mass=mass))
    with monkeypatch.context() as patch:
        patch.setattr("gain_runtime.state_file._refuse_non_finite", lambda arrays, path: None)
        save_state(path, broken, config=GainConfig(), artifact_sha256=ARTIFACT, frames=1)
    assert "state.window_mass: expected finite" in refusal(path)


def test_negative_frame_count_is_refused(tmp_path):
    state = init_state(PROTOTYPES, GainConfig())
    with pytest.raises(ConfigError, match="frames"):
        save_state(tmp_path / "s", state, config=GainConfig(), artifact_sha256=ARTIFACT, frames=-1)


def test_unwritable_place_is_one_line(tmp_path):
    path = tmp_path / "absent" / "state"
    with pytest.raises(ArtifactError, match="cannot be written") as caught:
        saved(path)
    assert str(path) in str(caught.value)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArtifactError, match="cannot be written"):
        saved(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]  # noqa: PTH208


def test_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = saved(tmp_path / "state")
    before = path.read_bytes()

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_file.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(path, GainConfig.preset("paper"))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]  # noqa: PTH208


def test_file_and_folder_are_synced_around_the_rename(tmp_path, monkeypatch):
    events = []
    sync, rename = os.fsync, Path.replace

    def recorded_sync(descriptor):
        events.append("folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file")
        sync(descriptor)

    def recorded_rename(self, target):
        events.append("rename")
        return rename(self, target)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc to tell files from folders by descriptor")
    monkeypatch.setattr(atomic_file.os, "fsync", recorded_sync)
    monkeypatch.setattr(Path, "replace", recorded_rename)
    saved(tmp_path / "state")
    assert events == ["file", "rename", "folder"]

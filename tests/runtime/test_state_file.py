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
    Config,
    ConfigError,
    Gain,
    ShiftConfig,
    __version__,
    config_from_dict,
    config_to_dict,
    make_method,
    preset,
)
from gain_core.records import arrays_of
from gain_runtime.files import paths
from gain_runtime.files.state import STATE_SCHEMA_VERSION, load_state, save_state

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


def learned(config: Config, prototypes=PROTOTYPES) -> Gain:
    gain = Gain(prototypes, config, update_every=1, warmup_frames=1)
    for seed in range(40):
        gain.step(*batch_of(8, seed))
    return gain


def saved(path: Path, config: Config | None = None) -> Path:
    config = config or ShiftConfig()
    gain = learned(config)
    save_state(path, gain.state, config=config, artifact_sha256=ARTIFACT, frames=gain.frames)
    return path


def load(path: Path, **changes):
    method = make_method(changes.pop("prototypes", PROTOTYPES), changes.pop("config", None))
    return load_state(path, method=method, **({"artifact_sha256": ARTIFACT} | changes))


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


@pytest.mark.parametrize("name", PRESETS)
def test_loaded_state_is_the_saved_one(tmp_path, name):
    config = preset(name)
    path = tmp_path / "street.state"
    gain = learned(config)
    save_state(path, gain.state, config=config, artifact_sha256=ARTIFACT, frames=gain.frames)
    loaded = load(path, config=config)
    assert loaded.frames == gain.frames == 320
    expected, got = arrays_of(gain.state), arrays_of(loaded.state)
    assert expected.keys() == got.keys()
    for field, array in expected.items():
        np.testing.assert_array_equal(got[field], array)
        assert got[field].dtype == array.dtype


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_or_device_is_written_to_and_never_replaced(tmp_path):
    """A superuser who names /dev/null would leave a file there for all programs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        paths.write_atomically(pipe, b"state")
        assert os.read(reader, 99) == b"state"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_metadata_say_what_the_file_is(tmp_path):
    with safe_open(saved(tmp_path / "state"), framework="numpy") as file:
        entries = file.metadata()
    assert entries["gain.state.schema"] == STATE_SCHEMA_VERSION
    assert config_from_dict(json.loads(entries["gain.state.config"])) == ShiftConfig()
    assert entries["gain.state.artifact_sha256"] == ARTIFACT
    assert entries["gain.state.frames"] == "320"
    assert entries["gain.state.version"] == __version__


@pytest.mark.parametrize("name", ["shift", "paper"])
def test_states_of_other_libraries_are_saved_and_loaded(tmp_path, name):
    torch = pytest.importorskip("torch", reason="stands for any device library")
    config, path = preset(name), tmp_path / "state"
    prototypes = torch.asarray(PROTOTYPES)
    gain = Gain(prototypes, config, update_every=1, warmup_frames=1)
    features, logits = (torch.asarray(array) for array in batch_of(8, 0))
    gain.step(features, logits)
    save_state(path, gain.state, config=config, artifact_sha256=ARTIFACT, frames=8)
    loaded = load(path, prototypes=prototypes, config=config)
    for field, array in arrays_of(gain.state).items():
        got = arrays_of(loaded.state)[field]
        assert isinstance(got, torch.Tensor)
        assert torch.equal(got, array)
    load(path, config=config)  # the same file serves NumPy


def test_missing_file_and_folder_are_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent")
    assert "a folder" in refusal(tmp_path)


@pytest.mark.parametrize("data", [b"", b"no state at all\n" * 40, bytes(200)])
def test_other_files_are_refused(tmp_path, data):
    path = tmp_path / "state"
    path.write_bytes(data)
    assert "damaged" in refusal(path)
    save_file({"w": np.zeros(3, dtype=np.float32)}, path)
    assert "expected a state file" in refusal(path)


def test_other_schema_is_refused(tmp_path):
    path = saved(tmp_path / "state")
    rewrite(path, schema="2", version="0.1.0")
    message = refusal(path)
    assert f"expected state schema {STATE_SCHEMA_VERSION}, got 2" in message
    assert "0.1.0" in message


def test_differing_config_fields_are_listed(tmp_path):
    path = saved(tmp_path / "state", preset("paper"))
    config = replace(preset("paper"), prior_strength=7.0, normalise=True)
    message = refusal(path, ConfigError, config=config)
    assert "prior_strength: expected 7.0, got 3.0" in message
    assert "normalise: expected True, got False" in message
    same = {item.name for item in fields(config)} - {"prior_strength", "normalise"}
    assert not [name for name in same if f"{name}:" in message]


def test_config_of_another_version_names_its_fields(tmp_path):
    path = saved(tmp_path / "state")
    config = config_to_dict(ShiftConfig())
    del config["half_life"]
    rewrite(path, config=json.dumps(config | {"momentum": 0.5}))
    message = refusal(path, ConfigError)
    assert "momentum: expected no such field, got 0.5" in message
    assert f"half_life: expected {ShiftConfig().half_life}, got no such field" in message


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
    assert "another network" in message


def test_non_finite_state_is_not_saved_and_leaves_the_old_file(tmp_path):
    path = saved(tmp_path / "state")
    before = path.read_bytes()
    state = learned(ShiftConfig()).state
    broken = replace(state, shift=np.full_like(state.shift, np.nan))
    with pytest.raises(ArtifactError, match=r"state\.shift: expected finite"):
        save_state(path, broken, config=ShiftConfig(), artifact_sha256=ARTIFACT, frames=1)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state"]  # noqa: PTH208


def test_non_finite_state_is_not_loaded(tmp_path, monkeypatch):
    path = tmp_path / "state"
    state = learned(ShiftConfig()).state
    broken = replace(state, shift=np.full_like(state.shift, np.inf))
    with monkeypatch.context() as patch:
        patch.setattr("gain_runtime.files.state._refuse_non_finite", lambda arrays, path: None)
        save_state(path, broken, config=ShiftConfig(), artifact_sha256=ARTIFACT, frames=1)
    assert "state.shift: expected finite" in refusal(path)


def test_negative_frame_count_is_refused(tmp_path):
    state = make_method(PROTOTYPES).init_state()
    with pytest.raises(ConfigError, match="frames"):
        save_state(tmp_path / "s", state, config=ShiftConfig(), artifact_sha256=ARTIFACT, frames=-1)


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

    monkeypatch.setattr(paths.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(path, preset("paper"))
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
    monkeypatch.setattr(paths.os, "fsync", recorded_sync)
    monkeypatch.setattr(Path, "replace", recorded_rename)
    saved(tmp_path / "state")
    assert events == ["file", "rename", "folder"]

"""gain-state: what a state file says, and the merge of several that fit each other."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from gain_apps.state import main
from gain_core import Gain, PaperConfig, ShiftConfig, make_method
from gain_core.records import arrays_of
from gain_runtime.engine import artifact_method
from gain_runtime.files import paths
from gain_runtime.files.artifact import load_artifact
from gain_runtime.files.state import load_state, save_state

K, ARTIFACT = 12, "a" * 64


@pytest.fixture
def learn(tmp_path):
    """Save what a camera learned of the shift, by its seed."""

    def write(seed: int, *, config=None, sha256: str = ARTIFACT, skewness=(-0.5, 0.1)) -> Path:
        gain = Gain(K, config, update_every=8, warmup_frames=8, skewness=skewness)
        rng = np.random.default_rng(seed)
        for _ in range(20):
            logits = 3.0 * np.eye(K)[rng.integers(0, K, 8)] + rng.normal(size=(8, K))
            gain.step(None, (logits + np.linspace(0, 2, K)).astype(np.float32))
        path = tmp_path / f"{seed}.safetensors"
        found = {"config": gain.config, "artifact_sha256": sha256, "frames": gain.frames}
        save_state(path, gain.state, **found)
        return path

    return write


def refused(capsys, *argv: object) -> str:
    assert main([str(each) for each in argv]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    return output.err


def test_the_merge_is_the_methods(tmp_path, learn, capsys):
    files, output = [learn(seed) for seed in range(3)], tmp_path / "gate.safetensors"
    assert main(["merge", *map(str, files), "-o", str(output), "--json=-"]) == 0
    record = json.loads(capsys.readouterr().out)
    method = make_method(K)
    loaded = [load_state(path, method=method, artifact_sha256=ARTIFACT) for path in files]
    wanted = reduce(method.merge, [each.state for each in loaded])
    got = load_state(output, method=method, artifact_sha256=ARTIFACT)
    assert got.frames == record["frames"] == 3 * 160
    for field, array in arrays_of(wanted).items():
        np.testing.assert_array_equal(arrays_of(got.state)[field], array, err_msg=field)
    assert float(np.abs(wanted.shift).max()) > 0.1
    assert record["draws"] == pytest.approx(sum(float(each.state.draws[-1]) for each in loaded))


def test_show_says_what_a_state_is(learn, capsys):
    path = learn(0)
    assert main(["show", str(path)]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (shown["method"], shown["frames"], shown["artifact_sha256"]) == (
        "shift",
        "160",
        ARTIFACT,
    )
    assert {"shift_nats", "draws"} <= set(shown)


def test_states_of_papers_method_need_head(tmp_path, artifact_path, other_artifact_path, capsys):
    artifact = load_artifact(artifact_path)
    method = artifact_method(artifact, PaperConfig())
    rng = np.random.default_rng(0)
    files, states = [tmp_path / "a", tmp_path / "b"], []
    for path in files:
        gain = Gain(method, update_every=1, warmup_frames=1)
        features = rng.normal(size=(9, method.feature_dim)).astype(np.float32)
        gain.step(features, (features @ artifact.head_weight.T).astype(np.float32))
        found = {"config": gain.config, "artifact_sha256": artifact.sha256, "frames": 9}
        save_state(path, gain.state, **found)
        states.append(gain.state)
    merge = ["merge", *files, "-o", tmp_path / "c"]
    assert f"{files[0]}: a state of the method paper" in refused(capsys, *merge)
    other = ["--model", other_artifact_path]
    assert f"{other_artifact_path}: artifact hash" in refused(capsys, *merge, *other)
    assert not (tmp_path / "c").exists()
    assert main([*map(str, merge), "--model", str(artifact_path)]) == 0
    got = load_state(tmp_path / "c", method=method, artifact_sha256=artifact.sha256)
    wanted = method.merge(*states)
    np.testing.assert_array_equal(got.state.first_moment, wanted.first_moment)
    np.testing.assert_array_equal(got.state.centers, wanted.centers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"sha256": "b" * 64}, "artifact hash: expected aaaaaaaaaaaa", id="artifact"),
        pytest.param({"config": replace(ShiftConfig(), half_life=7.0)}, "half_life", id="config"),
    ],
)
def test_states_that_do_not_fit_are_refused_by_both_names(tmp_path, learn, capsys, change, message):
    first, other = learn(0), learn(1, **change)
    error = refused(capsys, "merge", first, other, "-o", tmp_path / "c")
    assert message in error
    assert str(first) in error
    assert str(other) in error
    assert not (tmp_path / "c").exists()


def test_damaged_missing_and_repeated_files_are_refused(tmp_path, learn, capsys):
    first, other = learn(0), learn(1)
    other.write_bytes(other.read_bytes()[:-9])
    assert f"{other}: the state file is damaged" in refused(
        capsys, "merge", first, other, "-o", tmp_path / "c"
    )
    assert "is damaged" in refused(capsys, "show", other)
    assert "no such file" in refused(capsys, "show", tmp_path / "none")
    assert "given twice" in refused(capsys, "merge", first, first, "-o", tmp_path / "c")
    assert "expected two states" in refused(capsys, "merge", first, "-o", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_an_output_is_replaced_on_request_and_whole(tmp_path, learn, capsys, monkeypatch):
    first, other = learn(0), learn(1)
    before = first.read_bytes()
    merge = ["merge", first, other, "-o", first]
    assert f"{first}: exists already; --force replaces it" in refused(capsys, *merge)
    monkeypatch.setattr(paths.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
    assert "cannot be written (full)" in refused(capsys, *merge, "--force")
    assert first.read_bytes() == before
    monkeypatch.undo()
    assert main([*map(str, merge), "--force"]) == 0
    assert first.read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.safetensors", "1.safetensors"]

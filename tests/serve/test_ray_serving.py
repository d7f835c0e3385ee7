"""Serving on Ray Serve, as far as it needs no cluster: keys, settings, the config file."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from gain_apps.export import main as export
from gain_apps.serving import Adaptation, Seen, ServingSettings, app, shard_of
from gain_core.errors import ArtifactError, BackendUnavailableError, ConfigError

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "ray-serve.yaml"


def test_a_key_has_one_shard_in_every_process_and_the_shards_are_even():
    assert [shard_of(f"camera-{number}", 4) for number in range(6)] == [2, 0, 2, 0, 1, 2]
    counts = Counter(shard_of(f"camera-{number}", 4) for number in range(4000))
    assert min(counts.values()) > 900


@pytest.mark.parametrize("frames", [48, 65, 0])
def test_a_snapshot_interval_is_whole_updates_and_no_shorter_than_the_warm_up(frames):
    with pytest.raises(ValidationError, match="snapshot_frames"):
        ServingSettings(artifact="a", snapshots="b", snapshot_frames=frames)


def test_settings_of_a_config_file_that_are_wrong_are_one_line():
    pytest.importorskip("ray.serve", reason="not installed: extra ray")
    with pytest.raises(
        ConfigError, match=r"^args: shards: .*got '0'; shard: .*; see deploy"
    ) as err:
        app({"artifact": "a", "snapshots": "b", "shard": 3, "shards": "0"})
    assert "\n" not in str(err.value)
    with pytest.raises(ArtifactError, match="nowhere"):
        app({"artifact": "nowhere.onnx", "snapshots": "b", "shards": "2"})


def test_the_config_file_has_arguments_the_application_takes():
    yaml = pytest.importorskip("yaml", reason="not installed: comes with Ray")
    (application,) = yaml.safe_load(CONFIG.read_text())["applications"]
    assert application["import_path"] == "gain_apps.serving:app"
    assert ServingSettings(**application["args"]).shards == 2
    assert {each["name"] for each in application["deployments"]} == {"Network"}


def test_without_ray_the_module_imports_and_the_application_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    with pytest.raises(BackendUnavailableError, match=r"'\.\[ray\]'"):
        app(ServingSettings(artifact="a", snapshots="b"))


@pytest.fixture(scope="module")
def roadsigns(tmp_path_factory):
    """The shipped network as an artifact: of its 53 classes there is something to learn."""
    path = tmp_path_factory.mktemp("roadsigns") / "roadsigns.gain.onnx"
    folder = CONFIG.parents[1] / "models" / "roadsigns"
    form = "--mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --crop-pct 1 --crop-mode squash"
    given = [folder / "roadsigns.onnx", "--output", path, "--labels", folder / "labels.txt"]
    given += [*form.split(), "--interpolation", "bicubic"]
    assert export([str(each) for each in given]) == 0
    return path


def watch(adaptation: Adaptation, key: str, frames: int, *, classes: int = 53) -> dict:
    """Some frames of a domain that moves every logit; the last reply."""
    rng = np.random.default_rng(len(key))
    moved = np.random.default_rng(0).normal(scale=1.5, size=53)
    for _ in range(frames):
        logits = rng.normal(size=53) + moved
        logits[rng.integers(classes)] += 8.0
        seen = Seen(None, logits[None].astype(np.float32))
        reply = asyncio.run(adaptation.step(key, seen))
    return reply


def test_a_new_camera_begins_with_what_its_group_has_learned(roadsigns, tmp_path):
    pytest.importorskip("fsspec", reason="not installed: extra ray")
    settings = ServingSettings(
        artifact=str(roadsigns), snapshots=str(tmp_path / "states"), shards=1, merge_s=3600.0
    )
    adaptation = Adaptation(settings)
    for key in ("yard.north", "yard.south"):
        assert watch(adaptation, key, 320)["learned"] == 320
    watch(adaptation, "yard.wall", 320, classes=1)
    watch(adaptation, "alone", 64)
    # The camera that saw one class has learned nothing, and the one without a group has none.
    assert adaptation.merge_groups() == {"yard": 2}
    assert watch(adaptation, "yard.west", 1)["learned"] == 640
    assert watch(adaptation, "gate.west", 1)["learned"] == 0
    # Whoever has learned goes on with its own.
    again = Adaptation(settings)
    assert watch(again, "yard.north", 1)["learned"] == 320
    two = ServingSettings(**{**settings.model_dump(), "shards": 2})
    merged = [Adaptation(two, shard).merge_groups() for shard in range(2)]
    assert sorted(merged, key=len) == [{}, {"yard": 2}]

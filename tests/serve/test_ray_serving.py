"""Serving on Ray Serve, as far as it needs no cluster: keys, settings, the config file."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from gain_apps.serving import ServingSettings, app, shard_of
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
    with pytest.raises(BackendUnavailableError, match=r"gain-edge\[ray\]"):
        app(ServingSettings(artifact="a", snapshots="b"))

"""Serving on Ray Serve, as far as it needs no cluster: keys, settings, the config file."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gain_apps.serve.ray_adaptation import Adaptation, Seen, ServingSettings, shard_of
from gain_apps.serving import Front, _front, api, app
from gain_core.errors import ArtifactError, BackendUnavailableError, ConfigError
from gain_runtime.files.state import read_state

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


def watch(adaptation: Adaptation, key: str, frames: int, *, classes: int = 53) -> dict:
    """Some frames of a domain that moves every logit; the last reply."""
    for seen in scene(key, frames, classes=classes):
        reply = asyncio.run(adaptation.step(key, seen))
    return reply


def scene(key: str, frames: int, *, classes: int = 53) -> list[Seen]:
    """What the network says of them."""
    rng = np.random.default_rng(len(key))
    moved = np.random.default_rng(0).normal(scale=1.5, size=53)
    found = []
    for _ in range(frames):
        logits = rng.normal(size=53) + moved
        logits[rng.integers(classes)] += 8.0
        found.append(Seen(None, logits[None].astype(np.float32)))
    return found


TOKEN = "0123456789abcdef-token"


@pytest.mark.parametrize(
    ("token", "authorization", "status"),
    [
        pytest.param(TOKEN, f"Bearer {TOKEN}", None, id="right"),
        pytest.param(TOKEN, f"Bearer {TOKEN}x", 401, id="wrong"),
        pytest.param(TOKEN, f"Basic {TOKEN}", 401, id="not a bearer"),
        pytest.param(TOKEN, None, 401, id="missing"),
        pytest.param(None, None, None, id="none needed"),
    ],
)
def test_frames_need_the_token_where_there_is_one(
    roadsigns, monkeypatch, caplog, token, authorization, status
):
    front = Front(ServingSettings(artifact=str(roadsigns), snapshots="b"), None, token=token)
    monkeypatch.setitem(api.dependency_overrides, _front, lambda: front)
    # A key that is refused, for no frame shall reach a replica here.
    over_http = sent(api, "http", "/cameras/-/frames", authorization)
    assert over_http["status"] == (status or 422)
    over_websocket = sent(api, "websocket", "/cameras/-/frames", authorization)
    if status is None:
        assert over_websocket["type"] == "websocket.accept"
        assert caplog.text == ""
        return
    assert dict(over_http["headers"])[b"www-authenticate"] == b"Bearer"
    assert over_websocket["type"] == "websocket.http.response.start"
    assert over_websocket["status"] == status
    assert "refused 192.0.2.1 without the token; 1 so far" in caplog.text
    assert TOKEN not in caplog.text


def sent(app: Any, kind: str, path: str, authorization: str | None) -> dict[str, Any]:
    """The first message of an ASGI application to a request."""
    headers = [] if authorization is None else [(b"authorization", authorization.encode())]
    scope = {"type": kind, "method": "POST", "path": path, "query_string": b"", "headers": headers}
    scope |= {"client": ("192.0.2.1", 1), "server": ("127.0.0.1", 1), "scheme": kind}
    messages: list[dict[str, Any]] = []
    first = {"type": "websocket.connect" if kind == "websocket" else "http.request"}

    async def receive() -> dict[str, Any]:
        return first

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    return messages[0]


@pytest.fixture
def adaptation(roadsigns, tmp_path):
    """Make one whose states lie below the test's folder."""
    pytest.importorskip("fsspec", reason="not installed: extra ray")

    def make(folder: str = "states", shard: int = 0, **settings: object) -> Adaptation:
        given = {"artifact": str(roadsigns), "snapshots": str(tmp_path / folder), "shards": 1}
        # Written after so many frames, however slow the machine.
        given["snapshot_s"] = 3600.0
        return Adaptation(ServingSettings(**(given | settings)), shard)

    return make


def test_a_new_camera_begins_with_what_its_group_has_learned(adaptation):
    first = adaptation(merge_s=3600.0)
    for key in ("yard.north", "yard.south"):
        assert watch(first, key, 320)["learned"] == 320
    watch(first, "yard.wall", 320, classes=1)
    watch(first, "alone", 64)
    # The camera that saw one class has learned nothing, and the one without a group has none.
    assert first.merge_groups() == {"yard": 2}
    assert watch(first, "yard.west", 1)["learned"] == 640
    assert watch(first, "gate.west", 1)["learned"] == 0
    # Whoever has learned goes on with its own.
    again = adaptation(merge_s=3600.0)
    assert watch(again, "yard.north", 1)["learned"] == 320
    merged = [adaptation(shard=shard, shards=2, merge_s=3600.0).merge_groups() for shard in (0, 1)]
    assert sorted(merged, key=len) == [{}, {"yard": 2}]


def test_what_a_merge_gave_to_a_camera_is_not_merged_again(adaptation, tmp_path):
    first = adaptation(merge_s=3600.0)
    watch(first, "yard.north", 320)
    assert first.merge_groups() == {"yard": 1}
    (merge,) = tmp_path.glob("states/*/_groups/yard.safetensors")
    before = read_state(merge)
    assert watch(first, "yard.west", 320)["saved"] == 640
    # Also where its snapshot is all that is left of it, and after it has learned more.
    again = adaptation(merge_s=3600.0)
    for saved in (640, 960):
        assert again.merge_groups() == {"yard": 1}
        after = read_state(merge)
        assert after.frames == before.frames == 320
        for field, array in before.arrays.items():
            np.testing.assert_array_equal(after.arrays[field], array)
        reply = watch(again, "yard.west", 320)
        assert (reply["frame"], reply["saved"]) == (saved + 320, saved + 320)
    # It keeps its state where nothing is merged any more.
    assert watch(adaptation(), "yard.west", 1)["learned"] == 1280


def test_a_camera_that_stays_away_is_dropped_and_comes_back_bit_for_bit(adaptation):
    kept, forgetful = adaptation("kept"), adaptation("forgotten", idle_s=1e-9)
    for each in (kept, forgetful):
        assert watch(each, "north", 336)["saved"] == 320
        watch(each, "south", 1)
    assert (list(kept._cameras), list(forgetful._cameras)) == (["north", "south"], ["south"])
    for seen in scene("north", 48):
        replies = [asyncio.run(each.step("north", seen)) for each in (kept, forgetful)]
        # Being dropped began a new interval of snapshots.
        assert replies[0] | {"saved": 336} == replies[1]
    assert replies[0]["adapted"]["probability"] != replies[0]["source"]["probability"]


def test_frames_that_wait_are_learned_before_a_camera_is_dropped(adaptation):
    forgetful = adaptation(idle_s=1e-9)
    assert watch(forgetful, "north", 330)["learned"] == 320
    watch(forgetful, "south", 63)
    assert list(forgetful._cameras) == ["south"]
    reply = watch(forgetful, "north", 1)
    assert (reply["frame"], reply["learned"], reply["saved"]) == (331, 330, 330)
    # The warm-up is for a first update of many frames: fewer teach nothing.
    reply = watch(forgetful, "south", 1)
    assert (reply["frame"], reply["learned"]) == (1, 0)


def test_a_camera_is_not_dropped_while_its_state_cannot_be_written(adaptation, tmp_path, caplog):
    forgetful = adaptation(idle_s=1e-9)
    watch(forgetful, "north", 330)
    shutil.rmtree(tmp_path / "states")
    (tmp_path / "states").touch()
    with pytest.raises(ArtifactError, match="south"):
        watch(forgetful, "south", 1)
    assert "north: the snapshot failed" in caplog.text
    assert watch(forgetful, "north", 1)["frame"] == 331


def test_cameras_that_are_dropped_while_their_frames_come_in_lose_none(adaptation):
    forgetful = adaptation(idle_s=1e-9)
    keys = ("north", "south", "east")
    for key in keys:
        watch(forgetful, key, 64)

    async def crowd() -> None:
        steps = [forgetful.step(key, seen) for seen in scene("all", 60) for key in keys]
        await asyncio.gather(*steps)

    asyncio.run(crowd())
    assert [watch(forgetful, key, 1)["frame"] for key in keys] == [125, 125, 125]
    assert len(forgetful._locks) == 0

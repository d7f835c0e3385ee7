"""Settings of several streams: who writes where, and what cannot be meant for several."""

import pytest

from gain_apps.streaming.plan import plan_streams, read_config_file
from gain_core.errors import ConfigError

TWO = ["test://pattern", "test://drive"]


def test_one_input_is_taken_as_it_is(tmp_path):
    rows = str(tmp_path / "rows.jsonl")
    for given in ("test://pattern", ["test://pattern"]):
        plan = plan_streams({"input": given, "model": "m.onnx", "jsonl": rows})
        assert (plan.is_service, plan.goes_on) == (False, False)
        (config,) = plan.configs
        assert config.reconnect == 300.0
        assert (config.input, config.name, config.jsonl) == ("test://pattern", None, rows)
    assert list(tmp_path.iterdir()) == []


def test_each_stream_writes_into_a_folder_of_its_own(tmp_path):
    settings = {
        "input": TWO,
        "names": ["yard", "door"],
        "model": "m.onnx",
        "jsonl": str(tmp_path / "rows.jsonl"),
        "output": str(tmp_path / "out.mp4"),
        "timeline": str(tmp_path / "line.png"),
        "state_out": str(tmp_path / "s.safetensors"),
        "state_in": "learned.safetensors",
        "snapshots": str(tmp_path / "kept"),
        "save_changed": str(tmp_path / "changed"),
        "mqtt": "mqtt://broker/site/cams/",
        "serve": "127.0.0.1:8080",
        "update_every": 16,
    }
    plan = plan_streams(settings)
    assert plan.is_service
    yard, door = plan.configs
    assert [(c.name, c.input) for c in (yard, door)] == [("yard", TWO[0]), ("door", TWO[1])]
    assert yard.jsonl == str(tmp_path / "yard" / "rows.jsonl")
    assert door.output == str(tmp_path / "door" / "out.mp4")
    assert door.timeline == str(tmp_path / "door" / "line.png")
    assert door.state_out == str(tmp_path / "door" / "s.safetensors")
    assert yard.snapshots == str(tmp_path / "kept" / "yard")
    assert yard.save_changed == str(tmp_path / "changed" / "yard")
    # One connection, one page; and a camera is waited for as long as it takes.
    assert {c.mqtt for c in (yard, door)} == {"mqtt://broker/site/cams/"}
    assert {c.serve for c in (yard, door)} == {"127.0.0.1:8080"}
    assert {c.reconnect for c in (yard, door)} == {None}
    # What is only read, and what is no place, is the same for all.
    assert yard.state_in == door.state_in == "learned.safetensors"
    assert yard.update_every == door.update_every == 16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["door", "yard"]


def test_a_page_makes_a_service_of_a_single_stream(tmp_path):
    plan = plan_streams({"input": "test://pattern", "model": "m.onnx", "serve": "0"})
    assert (plan.is_service, plan.goes_on) == (True, False)
    (config,) = plan.configs
    assert (config.name, config.reconnect) == (None, None)
    given = {"input": "test://pattern", "model": "m.onnx", "serve": "0", "reconnect": 60.0}
    assert plan_streams(given).configs[0].reconnect == 60.0


def test_a_table_of_cameras_gives_each_its_own_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("YARD_PASSWORD", "sesame")
    path = tmp_path / "cameras.toml"
    path.write_text(
        'model = "m.onnx"\nserve = "0"\nupdate-every = 16\n'
        f'jsonl = "{tmp_path}/rows.jsonl"\nsnapshots = "{tmp_path}/kept"\n'
        '[cameras.yard]\ninput = "rtsp://joe:${YARD_PASSWORD}@cam/1"\nupdate-every = 4\n'
        f'[cameras.door]\ninput = "0"\npaused = true\nsnapshots = "{tmp_path}/elsewhere"\n'
    )
    plan = plan_streams(read_config_file(path))
    assert (plan.is_service, plan.goes_on) == (True, True)
    yard, door = plan.configs
    assert (yard.name, yard.input, yard.update_every) == ("yard", "rtsp://joe:sesame@cam/1", 4)
    assert (door.name, door.update_every, door.paused) == ("door", 16, True)
    assert yard.jsonl == str(tmp_path / "yard" / "rows.jsonl")
    assert yard.snapshots == str(tmp_path / "kept" / "yard")
    # What a camera says for itself is a place of its own already.
    assert door.snapshots == str(tmp_path / "elsewhere")
    assert "sesame" not in str(yard.to_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"names": ["a"]}, "--names: expected 2", id="too few names"),
        pytest.param({"names": ["a", "A"]}, "--names: expected different", id="same name"),
        pytest.param({"names": ["a", "../b"]}, "--names: expected letters", id="a path"),
        pytest.param({"names": ["a", ".."]}, "--names: expected letters", id="the parent"),
        pytest.param({"names": ["a", ""]}, "--names: expected letters", id="empty"),
        pytest.param({"input": ["0"], "names": ["a"]}, "expected several INPUTs", id="one input"),
        pytest.param({"display": True}, "--display: a window shows one", id="window"),
        pytest.param({"jsonl": "-"}, "--jsonl -: the streams would mix", id="stdout"),
        pytest.param({"input": ["-", "-"]}, "INPUT: standard input", id="stdin twice"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_leaves_nothing(
    tmp_path, monkeypatch, changes, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        plan_streams({"input": TWO, "model": "m.onnx", **changes})
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_said(tmp_path):
    (tmp_path / "stream-2").write_text("taken")
    with pytest.raises(ConfigError, match=r"--jsonl: .*stream-2: the stream's folder cannot"):
        plan_streams({"input": TWO, "model": "m.onnx", "jsonl": str(tmp_path / "rows.jsonl")})


def test_a_file_may_list_inputs_and_names(tmp_path):
    path = tmp_path / "cams.toml"
    path.write_text('input = ["test://pattern", "0"]\nnames = ["a", "b"]\nmodel = "m.onnx"\n')
    settings = read_config_file(path)
    assert [config.name for config in plan_streams(settings).configs] == ["a", "b"]
    path.write_text('input = ["0", 1]\n')
    with pytest.raises(ConfigError, match="input: expected str, got 1"):
        read_config_file(path)
    path.write_text('input = "0"\nnames = "a,b"\n')
    with pytest.raises(ConfigError, match="names: expected a list"):
        read_config_file(path)

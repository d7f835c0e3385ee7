"""Settings: defaults, then the TOML file, then flags; and what a run does with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonl_rows import read_rows
from safetensors.numpy import load_file

from gain_apps.stream import build_parser, main
from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.plan import read_config_file, read_settings
from gain_core import preset
from gain_core.errors import ConfigError


def flags(*argv: str) -> dict:
    return read_settings(vars(build_parser().parse_args(argv)))[0]


def write_toml(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_flags_win_over_the_file_and_the_file_over_the_defaults(tmp_path):
    file = read_config_file(
        write_toml(
            tmp_path / "run.toml",
            'model = "m.onnx"\nupdate-every = 16\ntop-k = 5\ndisplay = true\nfreeze = true\n'
            "[gain]\nhalf_life = 100\nblock = 8.0\n",
        )
    )
    given = flags("clip.mp4", "--set=top-k=1", "--set=display=false", "--no-freeze")
    config = StreamConfig.resolve({**file, **given})
    assert (config.input, config.model) == ("clip.mp4", "m.onnx")
    assert (config.update_every, config.top_k, config.batch_size) == (16, 1, 1)
    assert not config.display
    assert not config.freeze
    gain = config.gain_config()
    assert gain == replace(preset("shift"), half_life=100, block=8.0)
    assert StreamConfig.resolve(flags("0", "--model", "m.onnx")).gain_config() is None
    assert StreamConfig.resolve({**file, **flags(), "input": "0"}).display


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("batches = 2", "unknown key batches", id="unknown"),
        pytest.param(
            'batch-size = "2"', "batch-size: expected int, got '2'", id="text for a number"
        ),
        pytest.param("batch-size = 2.5", "batch-size: expected int", id="fraction"),
        pytest.param("top-k = true", "top-k: expected int, got True", id="truth for a number"),
        pytest.param("freeze = 1", "freeze: expected bool, got 1", id="number for a truth"),
        pytest.param("gain = 3", r"expected a table \[gain\]", id="no table"),
        pytest.param("batch = ", "expected TOML", id="no TOML"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, text, expected):
    with pytest.raises(ConfigError, match=expected):
        read_config_file(write_toml(tmp_path / "run.toml", text))


def test_a_field_of_gain_that_cannot_be_meant_is_refused(tmp_path):
    file = read_config_file(write_toml(tmp_path / "run.toml", "[gain]\nkappa = 3\n"))
    with pytest.raises(ConfigError, match="unknown key kappa"):
        StreamConfig.resolve({**file, **flags("0", "--model", "m")})


def test_a_file_alone_runs_a_stream(run, artifact_path, clip_path, tmp_path):
    text = f"input = '{clip_path}'\nmodel = '{artifact_path}'\nmax-frames = 5\npreset = 'paper-l2'"
    summary = run("--config", write_toml(tmp_path / "run.toml", text))
    assert summary["frames"] == 5
    assert summary["config"]["gain"]["normalise"] is True


@pytest.mark.parametrize("method", ["shift", "paper"])
@pytest.mark.parametrize(
    "flags_used",
    [["--update-every", "1"], ["--update-every", "3"], ["--batch-size=3", "--update-every", "3"]],
    ids=["one", "every 3", "batch 3"],
)
def test_a_state_continues_as_one_run_would(
    run, artifact_path, photo_folder, tmp_path, flags_used, method
):
    use = ["--model", artifact_path, "--set=warm-up=1", "--preset", method, *flags_used]
    run(photo_folder, *use, "--jsonl", tmp_path / "all", "--state-out", tmp_path / "whole")
    state = tmp_path / "state"
    expected = read_rows(tmp_path / "all")
    names = [row["source_id"] for row in expected]
    for number, half in enumerate((names[:6], names[6:])):
        folder = tmp_path / f"half{number}"
        folder.mkdir()
        for name in half:
            (folder / name).symlink_to(photo_folder / name)
        before = ["--state-in", state] if number else []
        run(folder, *use, *before, "--state-out", state, "--jsonl", tmp_path / "half")
    # The second run goes on in the file of the first.
    rows = read_rows(tmp_path / "half")
    keys = ("source_id", "source", "adapted", "strength", "gain")
    assert [[row[key] for key in keys] for row in rows] == [
        [row[key] for key in keys] for row in expected
    ]
    # Twelve photos are too few for the shift to be believed; its state is compared below.
    assert any(row["strength"] > 0 for row in rows[6:]) == (method == "paper")
    one, other = load_file(tmp_path / "whole"), load_file(state)
    assert one.keys() == other.keys()
    for key, array in one.items():
        assert array.tobytes() == other[key].tobytes(), key


def test_a_frozen_run_keeps_to_the_state_it_was_given(run, artifact_path, photo_folder, tmp_path):
    use = [photo_folder, "--model", artifact_path, "--preset", "paper"]
    learned = run(*use, "--state-out", tmp_path / "state")
    before = (tmp_path / "state").read_bytes()
    frozen = run(*use, "--state-in", tmp_path / "state", "--freeze")
    assert learned["frames_learned"] == frozen["frames_learned"] == 12
    assert frozen["strength_mean"] > 0.0
    assert (tmp_path / "state").read_bytes() == before


def test_shuffled_photos_come_in_an_order_of_the_seed(run, artifact_path, photo_folder, tmp_path):
    def order(*extra: object) -> list[str]:
        (tmp_path / "rows").unlink(missing_ok=True)
        run(photo_folder, "--model", artifact_path, "--jsonl", tmp_path / "rows", *extra)
        return [row["source_id"] for row in read_rows(tmp_path / "rows")]

    plain, first = order(), order("--shuffle", "--set=seed=1")
    assert sorted(first) == plain != first
    assert order("--shuffle", "--set=seed=1") == first
    assert order("--shuffle", "--set=seed=2") != first


def test_truth_from_a_table_of_file_names(run, artifact_path, photo_folder, tmp_path):
    names = sorted(path.name for path in photo_folder.glob("*.jpg"))
    table = tmp_path / "truth.tsv"
    table.write_text("# name\tclass\n" + "".join(f"{name}\t4\n" for name in names[:7]), "utf-8")
    use = [photo_folder, "--model", artifact_path, "--jsonl", tmp_path / "rows"]
    summary = run(*use, f"--set=truth={table}")
    rows = read_rows(tmp_path / "rows")
    assert [row["truth"] for row in rows] == [4] * 7 + [None] * 5
    assert summary["truth"]["frames"] == 7
    right = sum(row["source"][0]["index"] == 4 for row in rows[:7])
    assert summary["truth"]["source"]["accuracy_percent"] == pytest.approx(100 * right / 7)


def test_truth_that_names_no_frame_is_said(artifact_path, clip_path, tmp_path, capsys):
    table = tmp_path / "truth.tsv"
    table.write_text("elsewhere.jpg\t2\n", "utf-8")
    assert main([str(clip_path), "--model", str(artifact_path), f"--set=truth={table}"]) == 0
    assert "no frame is named in it" in capsys.readouterr().err


def test_rows_on_stdout_are_alone_there(artifact_path, clip_path, capsys):
    argv = [str(clip_path), "--model", str(artifact_path), "--jsonl", "-", "--set=top-k=9"]
    assert main([*argv, "--max-frames", "4"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    # There are five classes, whatever is asked for.
    assert len(rows[0]["source"]) == 5

"""Bad input: one clear line, exit status 1 or 2, nothing half-written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from gain_apps.stream import main


@pytest.fixture
def fail(command):
    """Run the command, expect a status and exactly one error line; that line."""

    def run(*args: object, status: int | tuple[int, ...] = 1) -> str:
        done = command(*args)
        assert done.returncode in (status if isinstance(status, tuple) else (status,)), done.stderr
        assert "Traceback" not in done.stderr
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.startswith("gain-stream: error:")]
        assert errors == lines[-1:]
        return errors[0]

    return run


def write_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(lambda folder: folder / "absent.mp4", "no such file", id="missing"),
        pytest.param(
            lambda folder: write_file(folder / "clip.mp4", b"not a clip\n" * 99),
            "expected a video",
            id="text",
        ),
        pytest.param(
            lambda folder: write_file(folder / "a.jpg", b"no picture").parent,
            "expected a readable image",
            id="no readable photo",
        ),
        pytest.param(lambda folder: "ftp://host/clip.mp4", "unknown scheme", id="scheme"),
        pytest.param(lambda folder: "test://nothing", "unknown test source", id="test source"),
    ],
)
def test_bad_input(fail, artifact_path, tmp_path, make, expected):
    folder = tmp_path / "input"
    folder.mkdir()
    rows = tmp_path / "rows.jsonl"
    message = fail(make(folder), "--model", artifact_path, "--jsonl", rows)
    assert expected in message
    assert not rows.exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param(["--batch-size", "0"], "--batch-size: expected at least 1", id="batch"),
        pytest.param(["--set=top-k=0"], "--set top-k: expected at least 1", id="top-k"),
        pytest.param(["--set=seed=-1"], "--set seed: expected at least 0", id="seed"),
        pytest.param(
            ["--preset", "best"], "preset: expected one of shift, paper, paper-l2", id="preset"
        ),
        pytest.param(["--device", "tpu"], "device: expected cpu", id="device"),
        pytest.param(["--set=log-level=loud"], "--set log-level: expected one of", id="log level"),
        pytest.param(["--corrupt", "mist:3"], "got 'mist'", id="corruption"),
        pytest.param(["--json=-", "--jsonl", "-"], "both write to stdout", id="stdout twice"),
        pytest.param(["--freeze", "--state-out", "s"], "learns nothing", id="frozen state"),
        pytest.param(["--side-by-side"], "--output or --display", id="no view"),
        pytest.param(
            ["--output", "-"], "only --jsonl and --json take stdout", id="video to stdout"
        ),
        pytest.param(["--shuffle"], "--shuffle: expected photos", id="shuffled video"),
        pytest.param(["--state-out", "absent/s"], "no such folder absent", id="state folder"),
        pytest.param(["--output", "."], "expected a file, got the folder", id="folder"),
        pytest.param(["--output", "out.txt"], "expected a video file name", id="suffix"),
        pytest.param(["--state-in", "absent"], "expected a state file, found no such", id="state"),
        pytest.param(["--set=truth=absent"], "--set truth=absent: cannot", id="truth"),
        pytest.param(["--config", "absent"], "--config absent: cannot be read", id="config"),
        pytest.param(["--cameras", "x" * 300], "longer than the file system takes", id="long name"),
        pytest.param(["--set=camera-size=big"], "expected WIDTHxHEIGHT", id="camera size"),
        pytest.param(["--set=camera-format=JPEG2"], "expected 4 characters", id="camera format"),
        pytest.param(
            ["--set=watchdog=0"], "--set watchdog: expected seconds above 0", id="watchdog"
        ),
        pytest.param(["--set=reconnect=nan"], "--set reconnect: expected at least 0", id="nan"),
        pytest.param(
            ["--set=snapshot-every=0"], "--set snapshot-every: expected at", id="snapshots"
        ),
        pytest.param(["--set=sink-errors=hope"], "expected one of stop, drop", id="sink policy"),
    ],
)
def test_bad_settings(fail, artifact_path, tmp_path, monkeypatch, flags, expected):
    monkeypatch.chdir(tmp_path)
    # 2 where it is known before anything is opened, so that a supervisor does not start it again.
    message = fail("test://pattern?frames=2", "--model", artifact_path, *flags, status=(1, 2))
    assert expected in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [["--batch-size", "0"], ["--config", "absent"], ["--json=a/b"]])
def test_settings_that_are_wrong_at_once_are_status_2(fail, artifact_path, flags):
    fail("test://pattern?frames=2", "--model", artifact_path, *flags, status=2)
    assert "--model: expected" in fail("test://pattern", status=2)


def test_what_does_not_suit_the_source_is_refused(fail, artifact_path, photo_folder):
    live = "test://pattern?live=1&rate=50&frames=4"
    assert "--update-every 4" in fail(live, "--model", artifact_path, "--batch-size", 4)
    message = fail(photo_folder, "--model", artifact_path, "--set=hwaccel=cuda")
    assert "--set hwaccel=cuda: expected a video file or a network stream as INPUT" in message


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param([], id="no input"),
        pytest.param(["0", "--batch-size", "two"], id="no number"),
        pytest.param(["0", "--set", "watchdog"], id="set without a value"),
        pytest.param(["0", "--batch-siz", "2"], id="abbreviation"),
    ],
)
def test_wrong_usage_is_status_2(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: gain-stream" in capsys.readouterr().err


def test_outputs_may_not_overwrite_inputs(fail, artifact_path, photo_folder, clip_path, tmp_path):
    clip = Path(shutil.copy(clip_path, tmp_path / "clip.mp4"))
    before = clip.read_bytes()
    photos = sorted(photo_folder.glob("*.jpg"))
    a = tmp_path / "a"
    for given in (
        [clip, "--output", clip],
        [clip, "--jsonl", a, "--state-out", a],
        [*photos, "--jsonl", photos[3]],
    ):
        assert "would be overwritten" in fail(*given, "--model", artifact_path, status=2)
    message = fail(clip, "--model", artifact_path, "--output", a / ".." / "clip.mp4", status=2)
    assert "no such folder" in message or "would be overwritten" in message
    assert clip.read_bytes() == before


def test_states_that_do_not_fit(fail, run, artifact_path, other_artifact_path, clip_path, tmp_path):
    state = tmp_path / "state"
    run(clip_path, "--model", artifact_path, "--state-out", state)
    use = [clip_path, "--model", other_artifact_path, "--state-in", state]
    assert "artifact hash" in fail(*use)
    use = [clip_path, "--model", artifact_path, "--state-in", state]
    settings = write_file(tmp_path / "run.toml", b"[gain]\nhalf_life = 7\n")
    assert "another config: half_life" in fail(*use, "--config", settings)
    assert "another config: " in fail(*use, "--preset", "paper")
    data = state.read_bytes()
    state.write_bytes(data[: len(data) // 2])
    assert "damaged" in fail(*use)


def save_photos(folder: Path, *, black: Sequence[int], count: int) -> Path:
    """PNGs of which some are black."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    for index in range(count):
        image = rng.integers(0, 256, size=(24, 24, 3), dtype=np.uint8)
        image *= np.uint8(index not in black)
        Image.fromarray(image).save(folder / f"{index}.png")
    return folder


@pytest.mark.parametrize("batch", [1, 3])
def test_frames_that_give_nan_are_rejected_and_teach_nothing(
    run, nan_artifact_path, tmp_path, batch
):
    with_black = save_photos(tmp_path / "mixed", black=(1, 4), count=6)
    without = Path(shutil.copytree(with_black, tmp_path / "clean"))
    for index in (1, 4):
        (without / f"{index}.png").unlink()
    use = ["--model", nan_artifact_path, "--batch-size", batch]
    summary = run(
        *(with_black, *use, "--state-out", tmp_path / "a", "--jsonl", tmp_path / "rows"),
        *("--output", tmp_path / "out.mp4"),
    )
    assert (summary["frames"], summary["rejected"], summary["frames_learned"]) == (4, 2, 4)
    assert summary["stderr"].count("rejected: frame 1 of 1.png: features") == 1
    assert "frame 4" not in summary["stderr"]
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [row["index"] for row in rows] == [0, 2, 3, 5]
    # A batch with a black frame in it is learned from frame by frame.
    run(without, "--model", nan_artifact_path, "--state-out", tmp_path / "b")
    one, other = load_file(tmp_path / "a"), load_file(tmp_path / "b")
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_nothing_but_rejected_frames_is_an_error(fail, nan_artifact_path, tmp_path):
    folder = save_photos(tmp_path / "black", black=(0, 1), count=2)
    state = tmp_path / "state"
    message = fail(folder, "--model", nan_artifact_path, "--state-out", state)
    assert "expected at least one frame to classify" in message
    assert "2 rejected" in message
    assert "features" in message
    assert not state.exists()


def test_truth_of_another_label_set(fail, run, artifact_path, photo_folder, tmp_path):
    folder = Path(shutil.copytree(photo_folder, tmp_path / "photos"))
    table = folder / "classes.tsv"
    with table.open("a") as file:
        file.write("5\tn00000005\tfig\n")
    use = [folder, "--model", artifact_path]
    assert "expected at most 5 classes" in fail(*use)
    assert "got 5; it belongs to another label set" in fail(*use, f"--set=truth={table}")
    assert run(*use, "--set=truth=none")["truth"] is None
    # A sparse list is found out at the first photo of such a class.
    table.write_text("index\twnid\tname\n0\tn00000000\tapple\n7\tn00000003\tgrape\n")
    assert "expected a class below 5" in fail(*use)
    malformed = write_file(tmp_path / "truth.txt", b"a.jpg 3\n")
    assert "line 1: expected 'file name<TAB>class index'" in fail(*use, f"--set=truth={malformed}")


def test_an_output_that_cannot_be_opened_leaves_earlier_rows_alone(
    fail, artifact_path, clip_path, tmp_path
):
    rows = write_file(tmp_path / "rows.jsonl", b"of an earlier run")
    flags = ["--jsonl", rows, "--output", tmp_path / "out.gif"]
    assert "expected a video file name" in fail(clip_path, "--model", artifact_path, *flags)
    assert rows.read_bytes() == b"of an earlier run"


def test_debug_shows_the_traceback(artifact_path, capsys):
    assert main(["absent.mp4", "--model", str(artifact_path), "--debug"]) == 1
    stderr = capsys.readouterr().err
    assert "Traceback" in stderr
    assert "gain-stream: error: absent.mp4: no such file" in stderr

"""What a person sees of a run who asked for nothing more, and what inputs of a shell become."""

import json

import pytest

from gain_apps.streaming.plan import plan_streams


def test_a_run_says_what_it_opened_and_on_what_it_runs(command, clip_path, artifact_path):
    done = command(clip_path, "--model", artifact_path)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "NOTE: clip.mp4: 96 x 64 px, 12 Hz, 24 frames, mpeg4"
    assert lines[1] == f"NOTE: {artifact_path} on CPUExecutionProvider"
    # Then the table.
    assert "gain-stream: clip.mp4" in lines[2]
    assert max(map(len, lines)) < 220
    assert done.stdout == ""


def test_verbose_says_the_settings_and_errors_only_prints_nothing(
    command, process, clip_path, artifact_path
):
    told = command(clip_path, "--model", artifact_path, "--verbose")
    assert told.returncode == 0, told.stderr
    assert "INFO: config: {" in told.stderr
    silent = process(clip_path, "--model", artifact_path, "--set=log-level=error", "--json=-")
    assert (silent.returncode, silent.stderr) == (0, "")
    assert json.loads(silent.stdout)["frames"] == 24


def test_several_photos_are_one_stream(run, photo_folder, artifact_path, tmp_path):
    photos = sorted(photo_folder.glob("*.jpg"))
    rows = tmp_path / "rows.jsonl"
    summary = run(*photos, "--model", artifact_path, "--jsonl", rows)
    assert summary["stderr"].startswith("NOTE: 12 photos: ")
    assert summary["frames"] == 12
    assert summary["truth"]["frames"] == 12
    assert len(rows.read_text("utf-8").splitlines()) == 12


def test_photos_with_names_and_mixed_inputs_stay_several_streams(
    photo_folder, clip_path, artifact_path
):
    photos = [str(path) for path in sorted(photo_folder.glob("*.jpg"))[:2]]
    common = {"model": str(artifact_path)}
    named = plan_streams({**common, "input": photos, "names": ["a", "b"]})
    assert [config.name for config in named.configs] == ["a", "b"]
    mixed = plan_streams({**common, "input": [photos[0], str(clip_path)]})
    assert [config.photos for config in mixed.configs] == [(), ()]
    (one,) = plan_streams({**common, "input": photos}).configs
    assert one.photos == tuple(photos)


@pytest.mark.parametrize(
    "content", ["", "index\twnid\tname\n99\tn1\tother\n"], ids=["empty", "other"]
)
def test_truth_none_runs_beside_any_class_list(
    command, run, photo_folder, artifact_path, tmp_path, content
):
    for photo in photo_folder.glob("*.jpg"):
        (tmp_path / photo.name).write_bytes(photo.read_bytes())
    (tmp_path / "classes.tsv").write_text(content)
    if not content:
        refused = command(tmp_path, "--model", artifact_path)
        assert refused.returncode == 1
        assert "or run without: --set truth=none" in refused.stderr
    assert run(tmp_path, "--model", artifact_path, "--set=truth=none")["truth"] is None
    listed = f"--set=truth={photo_folder / 'classes.tsv'}"
    assert run(tmp_path, "--model", artifact_path, listed)["truth"]["frames"] == 12

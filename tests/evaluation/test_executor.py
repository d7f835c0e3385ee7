"""What every executor relies on: keys, tasks, and traces that outlive an interruption."""

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gain_apps.evaluate import main
from gain_apps.evaluation import evaluate
from gain_apps.evaluation.executor import Executor
from gain_apps.evaluation.features import cache_folder, default_cache_dir
from gain_core.errors import ConfigError
from gain_runtime.files.paths import FsspecFolder

ARGUMENTS = {"methods": ["shift", "neo"], "seeds": 2, "batch_size": 16}


class StopsAfter(Executor):
    """Is interrupted after so many streams; one method at a time, the last first."""

    def __init__(self, count):
        self.count = count
        self.ran = []

    def run(self, tasks, of, /, *, on_run):
        parts = [(task, (spec,)) for task in reversed(tasks) for spec in task.methods]
        for task, methods in parts:
            if len(self.ran) == self.count:
                raise KeyboardInterrupt
            part = type(task)(plan=task.plan, methods=methods)
            self.ran.append((part.plan.seed, methods[0].text))
            yield from super().run([part], of, on_run=on_run)


def without_times(results):
    """A result without what differs between any two runs."""
    skipped = ("step_ms", "machine", "command")
    if isinstance(results, dict):
        return {k: without_times(v) for k, v in results.items() if k not in skipped}
    return results


def test_results_do_not_depend_on_the_order_or_on_an_interruption(colour_dump, tmp_path):
    whole = evaluate(colour_dump, **ARGUMENTS)
    path, executor = tmp_path / "result.json", StopsAfter(2)
    with pytest.raises(KeyboardInterrupt):
        evaluate(colour_dump, **ARGUMENTS, executor=executor, result=path)
    assert executor.ran == [(1, "source"), (1, "shift")]
    rest = StopsAfter(99)
    resumed = evaluate(colour_dump, **ARGUMENTS, executor=rest, result=path)
    assert rest.ran == [(1, "neo"), (0, "source"), (0, "shift"), (0, "neo")]
    assert without_times(resumed) == without_times(whole)
    assert json.loads(path.read_text()) == json.loads(json.dumps(resumed))
    assert list(tmp_path.glob("result.json.traces")) == []


def test_an_unfinished_result_lists_what_is_missing(colour_dump, tmp_path, monkeypatch):
    monkeypatch.setattr("gain_apps.evaluation.experiment.WRITE_EVERY_S", -1.0)
    path = tmp_path / "result.json"
    with pytest.raises(KeyboardInterrupt):
        evaluate(colour_dump, **ARGUMENTS, executor=StopsAfter(4), result=path)
    found = json.loads(path.read_text())
    assert set(found["methods"]) == {"source", "shift", "neo"}
    assert [run["seed"] for run in found["methods"]["source"]["runs"]] == [0, 1]
    assert len(found["unfinished"]) == 2
    assert found["unfinished"][0].endswith("seed 0, shift")


def test_another_evaluation_does_not_take_the_traces(colour_dump, tmp_path):
    path = tmp_path / "result.json"
    with pytest.raises(KeyboardInterrupt):
        evaluate(colour_dump, **ARGUMENTS, executor=StopsAfter(3), result=path)
    other = StopsAfter(99)
    evaluate(colour_dump, **{**ARGUMENTS, "batch_size": 8}, executor=other, result=path)
    assert len(other.ran) == 6


def test_a_url_is_no_folder_of_this_machine():
    assert cache_folder("s3://bucket/features") == cache_folder(None) == default_cache_dir()


def test_a_url_without_ray_is_refused(artifact, colours, tmp_path, capsys):
    folder = str(colours.folders(tmp_path / "data", per_class=1))
    assert main([str(artifact), folder, "--cache", "s3://bucket/x"]) == 1
    assert "a URL goes with --ray" in capsys.readouterr().err


def test_ray_that_is_not_installed_says_how_to_get_it(colour_dump, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert main([str(colour_dump), "--ray", "auto"]) == 1
    said = capsys.readouterr().err
    assert "pip install -e '.[ray]'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("url", ["{}/below", "file://{}/below", "memory://below{}"])
def test_folder_by_url(url, tmp_path):
    pytest.importorskip("fsspec", reason="not installed: extra ray")
    folder = FsspecFolder(url.format(tmp_path))
    assert folder.read("a/b.bin") is None
    assert folder.names("a") == []
    folder.write("a/b.bin", b"1")
    folder.write("a/b.bin", b"22")
    assert folder.read("a/b.bin") == b"22"
    assert folder.names("a") == ["b.bin"]
    folder.remove("a")
    assert folder.names("a") == []
    with pytest.raises(ConfigError, match="nothing://x: expected a folder or an fsspec URL"):
        FsspecFolder("nothing://x")


def test_shards_are_whole_or_named(tmp_path):
    pytest.importorskip("ray.data", reason="not installed: extra ray")
    from gain_apps.evaluation.ray_executor import _read_shard
    from gain_core.errors import ArtifactError

    store = FsspecFolder(tmp_path)
    (tmp_path / "entry").mkdir()
    path = tmp_path / "entry" / "0000000256.npz"
    np.savez(path, features=np.ones((2, 3)), logits=np.zeros((2, 4)))
    assert_array_equal(_read_shard(store, "entry", 256)[0], np.ones((2, 3)))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ArtifactError, match=r"0000000256\.npz: damaged shard"):
        _read_shard(store, "entry", 256)
    with pytest.raises(ArtifactError, match=r"0000000512\.npz: expected a shard .*--cache that"):
        _read_shard(store, "entry", 512)

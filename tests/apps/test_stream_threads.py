"""How many threads preprocess a stream's batches, and that none is left behind."""

from __future__ import annotations

import threading

import pytest

from gain_core import preset
from gain_export.adaptive import add_adaptation
from gain_runtime.preprocess import BatchPreprocessor


def left_behind() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("preprocess")]


@pytest.fixture
def asked_for(monkeypatch):
    """The `threads` of every preprocessor that is made."""
    seen: list[int | None] = []
    make = BatchPreprocessor.__init__

    def note(self, spec, /, *, threads=1, **more):
        seen.append(threads)
        make(self, spec, threads=threads, **more)

    monkeypatch.setattr(BatchPreprocessor, "__init__", note)
    return seen


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param((), None, id="as-many-as-cores"),
        pytest.param(("--num-threads", 2), 2, id="as-many-as-the-network"),
    ],
)
@pytest.mark.parametrize("kind", ["model", "adaptive"])
def test_stream_by_itself_preprocesses_in_as_many_threads_as_its_network(
    run, artifact_path, photo_folder, tmp_path, asked_for, kind, flags, expected
):
    file = artifact_path
    if kind == "adaptive":
        file = tmp_path / "tiny.adaptive.onnx"
        add_adaptation(artifact_path, file, config=preset("shift"))
    assert run(photo_folder, "--model", file, "--batch-size", 4, *flags)["frames"] == 12
    assert asked_for == [expected]
    assert left_behind() == []


def test_streams_that_share_a_session_take_one_thread_each(
    command, artifact_path, photo_folder, asked_for
):
    inputs = (photo_folder, "test://pattern?frames=8&width=64&height=48")
    done = command(*inputs, "--model", artifact_path, "--batch-size", 4)
    assert done.returncode == 0, done.stderr
    assert asked_for == [1, 1]
    assert left_behind() == []

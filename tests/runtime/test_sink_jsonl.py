"""JSON lines: content, strictness, whole lines, and files that cannot be written."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from results import make_result

from gain_core.errors import NumericsError, StreamError
from gain_runtime.frames import Ranked
from gain_runtime.sinks.jsonl import JsonlSink

TOP = (Ranked(index=3, label="cat", prob=0.75), Ranked(index=1, label="dog", prob=0.2))
OTHER_TOP = (Ranked(index=1, label="dog", prob=0.5), Ranked(index=3, label="cat", prob=0.4))


def refuse_constant(text: str) -> float:
    raise AssertionError(f"{text} is not JSON")


def read_lines(path: Path) -> list[dict[str, object]]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line, parse_constant=refuse_constant) for line in data.splitlines()]


def test_a_line_holds_the_whole_result(tmp_path):
    path = tmp_path / "out.jsonl"
    with JsonlSink(path) as sink:
        known = {"truth": 1, "condition": "fog", "utc_ns": 1_769_847_300_250_999_999}
        tops = {"source_top": TOP, "adapted_top": OTHER_TOP}
        sink.write(make_result(7, timestamp_ns=1_500_000_007, **known, **tops))
    assert read_lines(path) == [
        {
            "utc": "2026-01-31T08:15:00.250Z",
            "index": 7,
            "timestamp_ns": 1_500_000_007,
            "time_s": 1.5,
            "source_id": "cam",
            "source": [
                {"index": 3, "label": "cat", "prob": 0.75},
                {"index": 1, "label": "dog", "prob": 0.2},
            ],
            "adapted": [
                {"index": 1, "label": "dog", "prob": 0.5},
                {"index": 3, "label": "cat", "prob": 0.4},
            ],
            "strength": 0.5,
            "gain": 0.1,
            "changed": True,
            "truth": 1,
            "condition": "fog",
        }
    ]


def test_numpy_scalars_are_written_as_numbers(tmp_path):
    top = (Ranked(index=np.int64(2), label="a", prob=np.float32(0.5)),)  # type: ignore[arg-type]
    with JsonlSink(tmp_path / "out.jsonl") as sink:
        sink.write(make_result(source_top=top, adapted_top=top, strength=np.float32(0.25)))
    (record,) = read_lines(tmp_path / "out.jsonl")
    assert record["adapted"] == [{"index": 2, "label": "a", "prob": 0.5}]
    assert record["changed"] is False


def test_a_torn_row_is_cut_off_and_a_foreign_file_is_left_alone(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(b'{"index":0}\n{"index":1,"tru')
    with JsonlSink(path) as sink:
        sink.write(make_result(index=2))
    assert [record["index"] for record in read_lines(path)] == [0, 2]
    foreign = tmp_path / "notes.txt"
    foreign.write_bytes(b"line\nno line break")
    with pytest.raises(StreamError, match="expected JSON lines to append to"):
        JsonlSink(foreign)
    assert foreign.read_bytes() == b"line\nno line break"


def test_rotation_by_renaming_and_by_emptying(tmp_path):
    path = tmp_path / "out.jsonl"
    with JsonlSink(path) as sink:
        sink.write(make_result(index=0))
        path.rename(tmp_path / "out.jsonl.1")
        sink.write(make_result(index=1))
        sink.reopen()
        sink.reopen()
        sink.write(make_result(index=2))
        # `copytruncate`: what is written afterwards begins at the beginning.
        os.truncate(path, 0)
        sink.write(make_result(index=3))
    assert [record["index"] for record in read_lines(tmp_path / "out.jsonl.1")] == [0, 1]
    assert [record["index"] for record in read_lines(path)] == [3]


@pytest.mark.parametrize(
    "label",
    [
        pytest.param('say "hi"\n\tback\\slash', id="escapes"),
        pytest.param("café 鳥 🦅", id="unicode"),
        pytest.param("\u2028\u0000", id="control"),
    ],
)
def test_labels_survive(tmp_path, label):
    top = (Ranked(index=0, label=label, prob=1.0),)
    with JsonlSink(tmp_path / "out.jsonl") as sink:
        sink.write(make_result(source_top=top, adapted_top=top))
    data = (tmp_path / "out.jsonl").read_bytes()
    assert data.count(b"\n") == 1
    assert json.loads(data)["source"][0]["label"] == label


def test_file_names_that_are_not_utf8_survive(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    with JsonlSink(tmp_path / "out.jsonl") as sink:
        sink.write(make_result(source_id=name))
    (tmp_path / "out.jsonl").read_bytes().decode("utf-8")
    assert read_lines(tmp_path / "out.jsonl")[0]["source_id"] == name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["strength", "gain", "adapted probability"])
def test_numbers_that_are_not_finite_are_refused(tmp_path, field, value):
    changes = {field: value}
    if field == "adapted probability":
        changes = {"adapted_top": (Ranked(index=0, label="a", prob=value),)}
    with JsonlSink(tmp_path / "out.jsonl") as sink:
        with pytest.raises(NumericsError, match=f"frame 4: {field}"):
            sink.write(make_result(index=4, **changes))
        sink.write(make_result(index=5))
    assert [record["index"] for record in read_lines(tmp_path / "out.jsonl")] == [5]


@pytest.mark.parametrize(
    "make_path",
    [
        pytest.param(lambda folder: folder / "gone" / "out.jsonl", id="missing-folder"),
        pytest.param(lambda folder: folder, id="folder"),
        pytest.param(lambda folder: folder / "file" / "out.jsonl", id="below-a-file"),
    ],
)
def test_a_file_that_cannot_be_created_is_an_error_at_once(tmp_path, make_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StreamError, match="cannot be opened") as caught:
        JsonlSink(make_path(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_line_the_disk_has_no_room_for_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    real_write = os.write
    room = 500

    def write_while_there_is_room(fd: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        written = real_write(fd, data[:room])
        room -= written
        return written

    with JsonlSink(path) as sink:
        monkeypatch.setattr("gain_runtime.sinks.jsonl.os.write", write_while_there_is_room)
        sink.write(make_result(index=0))
        with pytest.raises(StreamError, match="No space"):
            sink.write(make_result(index=1))
        assert [record["index"] for record in read_lines(path)] == [0]
        room = 10_000
        sink.write(make_result(index=2))
    assert [record["index"] for record in read_lines(path)] == [0, 2]


def test_writing_after_close_is_an_error(tmp_path):
    sink = JsonlSink(tmp_path / "out.jsonl")
    sink.close()
    sink.close()
    with pytest.raises(StreamError, match="already closed"):
        sink.write(make_result())


def test_a_file_that_cannot_be_finished_is_an_error_once(tmp_path):
    path = tmp_path / "out.jsonl"
    sink = JsonlSink(path)
    sink.write(make_result())
    assert sink._fd is not None
    # So that closing it fails, as it does where a network disk has no room.
    os.close(sink._fd)
    with pytest.raises(StreamError, match=r"out\.jsonl: cannot be finished \(Bad file descriptor"):
        sink.close()
    # Another file may have that number by now.
    with path.open("rb") as other:
        sink.close()
        assert other.read().endswith(b"\n")
    with pytest.raises(StreamError, match="already closed"):
        sink.write(make_result())


def test_a_dash_is_standard_output_in_ascii(capsys):
    top = (Ranked(index=0, label="café", prob=1.0),)
    with JsonlSink("-") as sink:
        sink.write(make_result(source_top=top, adapted_top=top))
        line = capsys.readouterr().out
    assert line.isascii()
    assert line.endswith("}\n")
    assert json.loads(line)["source"][0]["label"] == "café"
    assert not sys.stdout.closed

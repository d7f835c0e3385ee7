"""Outputs on a disk without room: an error, and no file that pretends to be whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gain_core.errors import StreamError
from gain_runtime.frames import Frame, FrameResult, Ranked, Sink
from gain_runtime.sinks.pictures import ChangedSink
from gain_runtime.sinks.video import VideoSink


def make_result(index: int) -> FrameResult:
    """A frame of noise, which no codec makes small, and a changed prediction."""
    image = np.random.default_rng(index).integers(0, 256, (240, 320, 3), dtype=np.uint8)
    frame = Frame(image=image, index=index, timestamp_ns=index * 40_000_000, source_id="test")
    source, adapted = (Ranked(index=k, label=f"class {k}", prob=0.9) for k in (0, 1))
    return FrameResult(
        frame=frame, source_top=(source,), adapted_top=(adapted,), strength=1.0, gain=0.0
    )


def write_many(sink: Sink) -> None:
    for index in range(120):
        sink.write(make_result(index))


@pytest.mark.parametrize("encoders", [None, ["mpeg4"]], ids=["best encoder", "mpeg4"])
def test_a_video_that_does_not_fit_is_an_error_and_no_file(
    small_disk: Callable, encoders: list[str] | None
) -> None:
    with small_disk(64) as folder:
        sink = VideoSink(
            folder / "out.mp4", render=lambda result: result.frame.image, encoders=encoders
        )
        with pytest.raises(StreamError, match="disk full"), sink:
            write_many(sink)
        assert list(folder.iterdir()) == []


def test_pictures_that_do_not_fit_are_an_error_and_the_others_whole(small_disk: Callable) -> None:
    with small_disk(512) as folder:
        sink = ChangedSink(folder / "changed")
        with pytest.raises(StreamError, match="No space left"):
            write_many(sink)
        pictures = sorted((folder / "changed").glob("*.jpg"))
        assert pictures
        assert all(path.read_bytes().endswith(b"\xff\xd9") for path in pictures)
        assert list((folder / "changed").glob("*.tmp")) == []

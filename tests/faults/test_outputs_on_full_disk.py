"""Outputs on a disk without room: an error, and no file that pretends to be whole."""

import numpy as np
import pytest
from results import make_result

from gain_core.errors import StreamError
from gain_runtime.sinks.pictures import ChangedSink
from gain_runtime.sinks.video import VideoSink


def write_many(sink):
    """Frames of noise, which no codec makes small, and changed predictions."""
    for index in range(120):
        image = np.random.default_rng(index).integers(0, 256, (240, 320, 3), dtype=np.uint8)
        stamp = index * 40_000_000
        sink.write(make_result(index, image=image, timestamp_ns=stamp, source=0, adapted=1))


@pytest.mark.parametrize("encoders", [None, ["mpeg4"]], ids=["best encoder", "mpeg4"])
def test_a_video_that_does_not_fit_is_an_error_and_no_file(small_disk, encoders):
    with small_disk(64) as folder:
        sink = VideoSink(
            folder / "out.mp4", render=lambda result: result.frame.image, encoders=encoders
        )
        with pytest.raises(StreamError, match="disk full"), sink:
            write_many(sink)
        assert list(folder.iterdir()) == []


def test_pictures_that_do_not_fit_are_an_error_and_the_others_whole(small_disk):
    with small_disk(512) as folder:
        sink = ChangedSink(folder / "changed")
        with pytest.raises(StreamError, match="No space left"):
            write_many(sink)
        pictures = sorted((folder / "changed").glob("*.jpg"))
        assert pictures
        assert all(path.read_bytes().endswith(b"\xff\xd9") for path in pictures)
        assert list((folder / "changed").glob("*.tmp")) == []

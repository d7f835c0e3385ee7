"""Video files: playable, of one size, never silently empty, never half-written under their name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
from results import make_result
from without import run_without

from gain_core.errors import ArrayError, StreamError
from gain_runtime.frames import Frame, FrameResult
from gain_runtime.sinks import video as video_sink
from gain_runtime.sinks.video import AvWriter, VideoSink
from gain_runtime.sources.opening import open_source

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def make_frame(index, *, size=(64, 48), colour=RED, stamp_ms=0.0):
    image = np.full((size[1], size[0], 3), colour, dtype=np.uint8)
    return make_result(index, image=image, timestamp_ns=round(stamp_ms * 1e6))


def draw(result: FrameResult) -> np.ndarray:
    return result.frame.image


def write_all(path: Path, results: Sequence[FrameResult], **settings: object) -> None:
    with VideoSink(path, render=draw, **settings) as sink:  # type: ignore[arg-type]
        for result in results:
            sink.write(result)


def played(path: Path) -> list[Frame]:
    with open_source(str(path)) as source:
        return list(source)


def leftovers(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("suffix", [".mp4", ".m4v", ".mov", ".mkv", ".avi", ".MP4"])
def test_the_file_plays_with_its_colours_and_rate(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write_all(path, [make_frame(n) for n in range(12)], rate_hz=12.5)
    assert leftovers(tmp_path) == [path.name]
    with open_source(str(path)) as source:
        frames = list(source)
        assert (source.info.width_px, source.info.height_px) == (64, 48)
        assert source.info.rate_hz == pytest.approx(12.5)
    assert len(frames) == 12
    np.testing.assert_allclose(frames[5].image[24, 32], RED, atol=12)


@pytest.mark.parametrize("rate_hz", [None, 0.0, -1.0, float("nan"), float("inf"), 90_000.0])
def test_an_unusable_rate_becomes_30(tmp_path, rate_hz):
    path = tmp_path / "out.mp4"
    write_all(path, [make_frame(n) for n in range(3)], rate_hz=rate_hz)
    with open_source(str(path)) as source:
        assert source.info.rate_hz == pytest.approx(30.0)


def test_odd_sizes_are_rounded_up(tmp_path):
    path = tmp_path / "out.mp4"
    write_all(path, [make_frame(n, size=(65, 47)) for n in range(3)])
    with open_source(str(path)) as source:
        assert (source.info.width_px, source.info.height_px) == (66, 48)


@pytest.mark.parametrize(
    ("size", "bars"),
    [
        pytest.param((100, 50), "top", id="wide"),
        pytest.param((50, 100), "left", id="tall"),
        pytest.param((640, 320), "top", id="wide-and-larger"),
    ],
)
def test_later_sizes_are_fitted_into_the_first(tmp_path, size, bars):
    path = tmp_path / "out.avi"
    results = [make_frame(0, size=(80, 80)), make_frame(1, size=size, colour=GREEN)]
    write_all(path, results, encoders=["ffv1"])
    first, second = (frame.image for frame in played(path))
    assert first.shape == second.shape == (80, 80, 3)
    np.testing.assert_allclose(second[40, 40], GREEN, atol=3)
    assert second[2, 40].max() <= 3 if bars == "top" else second[40, 2].max() <= 3
    assert second[40, 2].max() > 200 if bars == "top" else second[2, 40].max() > 200
    green = (second[:, :, 1] > 128).sum() / 6400
    assert green == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    "name", ["a:b.mp4", "out %03d.mp4", "été 鳥.mp4", "-x.mp4", "caf\udce9.mp4"]
)
def test_unusual_names_are_just_names(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_all(Path(name), [make_frame(n) for n in range(3)])
    assert leftovers(tmp_path) == [name]
    with open_source(name) as source:
        assert len(list(source)) == 3
        assert source.info.source_id == name


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(np.zeros((4, 4, 3), dtype=np.float32), id="float"),
        pytest.param(np.zeros((4, 4), dtype=np.uint8), id="grey"),
        pytest.param(np.zeros((4, 4, 4), dtype=np.uint8), id="rgba"),
    ],
)
def test_a_render_of_another_kind_is_refused(tmp_path, image):
    sink = VideoSink(tmp_path / "out.mp4", render=lambda result: image)
    with pytest.raises(ArrayError, match="render"):
        sink.write(make_frame(0))


def test_the_name_appears_only_when_the_file_is_finished(tmp_path):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"an earlier result")
    sink = VideoSink(path, render=draw)
    sink.write(make_frame(0))
    assert path.read_bytes() == b"an earlier result"
    (partial,) = [name for name in leftovers(tmp_path) if "partial" in name]
    assert partial.endswith(".mp4")
    sink.close()
    assert leftovers(tmp_path) == ["out.mp4"]
    assert len(played(path)) == 1


def test_close_may_be_repeated_and_ends_writing(tmp_path):
    sink = VideoSink(tmp_path / "out.mp4", render=draw)
    sink.write(make_frame(0))
    sink.close()
    sink.close()
    with pytest.raises(StreamError, match="already closed"):
        sink.write(make_frame(1))
    assert leftovers(tmp_path) == ["out.mp4"]


def test_an_interrupt_still_leaves_a_playable_file(tmp_path):
    path = tmp_path / "out.mp4"

    def run() -> None:
        with VideoSink(path, render=draw) as sink:
            for index in range(7):
                sink.write(make_frame(index))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(played(path)) == 7


def test_no_frames_write_no_file_and_say_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        VideoSink(tmp_path / "out.mp4", render=draw).close()
    assert leftovers(tmp_path) == []
    assert "no frame" in caplog.text


@pytest.mark.parametrize(
    ("make_path", "named"),
    [
        pytest.param(lambda folder: folder / "out.gif", "ending in .mp4", id="suffix"),
        pytest.param(lambda folder: folder / "out", "no suffix", id="no-suffix"),
        pytest.param(lambda folder: folder / "gone" / "out.mp4", "cannot be created", id="folder"),
        pytest.param(lambda folder: folder / "file" / "out.mp4", "cannot be created", id="file"),
        pytest.param(lambda folder: folder / "dir.mp4", "got a folder", id="is-folder"),
    ],
)
def test_a_bad_path_is_an_error_before_the_first_frame(tmp_path, make_path, named):
    (tmp_path / "file").write_text("")
    (tmp_path / "dir.mp4").mkdir()
    with pytest.raises(StreamError, match=named) as caught:
        VideoSink(make_path(tmp_path), render=draw)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == ["dir.mp4", "file"]


def test_an_absent_codec_is_an_error_before_the_first_frame(tmp_path):
    with pytest.raises(StreamError, match="encoders nothing, nowhere is available"):
        VideoSink(tmp_path / "out.mp4", render=draw, encoders=["nothing", "nowhere"])
    assert leftovers(tmp_path) == []


def test_looking_for_a_codec_prints_nothing(tmp_path):
    program = (
        "from gain_runtime.sinks.video import VideoSink\n"
        "for suffix in ('.mp4', '.mov', '.mkv', '.avi'):\n"
        "    VideoSink(sys.argv[1] + suffix, render=lambda result: result.frame.image)\n"
    )
    # A fresh process: FFmpeg's verbosity can only be given before its first use.
    done = run_without((), program, tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert leftovers(tmp_path) == []


class Writer:
    """Stands in for `AvWriter` on a full disk: what was to be written gets lost."""

    content = b""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path

    def write(self, image: np.ndarray, position_s: float) -> bool:
        return True

    def close(self) -> None:
        self.path.write_bytes(self.content)


def writer(**members: object) -> type[Writer]:
    """A kind of `Writer`."""
    return type("OneWriter", (Writer,), members)


@pytest.mark.parametrize("content", [b"", b"half a header"], ids=["empty", "unplayable"])
def test_a_file_that_does_not_play_is_an_error_and_is_removed(tmp_path, monkeypatch, content):
    path = tmp_path / "out.mp4"
    path.write_bytes(b"an earlier result")
    sink = VideoSink(path, render=draw)
    monkeypatch.setattr(video_sink, "AvWriter", writer(content=content))
    sink.write(make_frame(0))
    with pytest.raises(StreamError, match=f"does not play back \\({len(content)} bytes"):
        sink.close()
    sink.close()
    assert leftovers(tmp_path) == ["out.mp4"]
    assert path.read_bytes() == b"an earlier result"


@pytest.mark.parametrize("suffix", [".avi", ".mkv", ".mp4"])
def test_a_file_that_lost_frames_is_an_error(tmp_path, monkeypatch, suffix):
    short = tmp_path / f"short{suffix}"
    write_all(short, [make_frame(n) for n in range(3)])
    sink = VideoSink(tmp_path / f"out{suffix}", render=draw)
    monkeypatch.setattr(video_sink, "AvWriter", writer(content=short.read_bytes()))
    for index in range(30):
        sink.write(make_frame(index))
    with pytest.raises(StreamError, match="3 of 30 frames"):
        sink.close()
    assert leftovers(tmp_path) == [short.name]


def test_an_encoder_that_fails_at_the_end_is_an_error_once(tmp_path, monkeypatch):
    def close(self: Writer) -> None:
        self.path.write_bytes(b"half")
        raise StreamError("cannot be finished (lost its device)")

    sink = VideoSink(tmp_path / "out.avi", render=draw)
    monkeypatch.setattr(video_sink, "AvWriter", writer(close=close))
    sink.write(make_frame(0))
    with pytest.raises(StreamError, match=r"out\.avi: cannot be finished \(lost its device\)"):
        sink.close()
    sink.close()
    assert leftovers(tmp_path) == []


def test_what_cannot_be_removed_does_not_hide_why_it_is_left(tmp_path, monkeypatch, caplog):
    sink = VideoSink(tmp_path / "out.avi", render=draw)
    monkeypatch.setattr(video_sink, "AvWriter", writer(close=lambda self: self.path.mkdir()))
    sink.write(make_frame(0))
    with pytest.raises(StreamError, match="does not play back"):
        sink.close()
    sink.close()
    (left,) = leftovers(tmp_path)
    assert f"{left}: cannot be removed" in caplog.text


def test_an_encoder_that_fails_at_the_real_size_is_replaced_by_the_next(tmp_path, monkeypatch):
    tried: list[tuple[str, tuple[int, int]]] = []

    def small_only(path: Path, *, encoder: str, size: tuple[int, int], **rest: object) -> AvWriter:
        tried.append((encoder, size))
        if encoder == "mpeg4" and size == (64, 48):
            raise StreamError("too small")
        return AvWriter(path, encoder=encoder, size=size, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(video_sink, "AvWriter", small_only)
    path = tmp_path / "out.avi"
    write_all(path, [make_frame(0)])
    assert [encoder for encoder, size in tried if size == (64, 48)] == ["mpeg4", "mjpeg"]
    assert len(played(path)) == 1


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".avi"])
def test_frames_are_shown_when_their_stamps_say(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    stamps_ms = [5000, 5040, 5080, 5280, 5320, 6400, 6440]
    write_all(path, [make_frame(n, stamp_ms=ms) for n, ms in enumerate(stamps_ms)], rate_hz=25.0)
    shown_ms = [frame.timestamp_ns / 1e6 for frame in played(path)]
    np.testing.assert_allclose(shown_ms, np.subtract(stamps_ms, 5000), atol=1.0)


@pytest.mark.parametrize("rate_hz", [12.0, 24000 / 1001, 24.0, 30000 / 1001, 30.0, 59.94])
def test_a_constant_rate_stays_constant(tmp_path, rate_hz):
    path = tmp_path / "out.avi"
    # Whole milliseconds, as many containers have them.
    stamps_ms = [round(1e3 * index / rate_hz) for index in range(100)]
    write_all(path, [make_frame(n, stamp_ms=ms) for n, ms in enumerate(stamps_ms)], rate_hz=rate_hz)
    with open_source(str(path)) as source:
        assert len(list(source)) == 100
        assert source.info.rate_hz == pytest.approx(rate_hz, rel=1e-3)


def test_an_hour_without_a_camera_is_cut_and_photos_have_no_times(tmp_path):
    path = tmp_path / "out.mp4"
    results = [make_frame(n, stamp_ms=ms) for n, ms in enumerate((0, 40, 3_600_000))]
    write_all(path, results, rate_hz=25.0, longest_gap_s=10.0)
    assert [round(frame.timestamp_ns / 1e6) for frame in played(path)] == [0, 40, 10_040]
    write_all(path, results, rate_hz=4.0, constant=True)
    assert [round(frame.timestamp_ns / 1e6) for frame in played(path)] == [0, 250, 500]


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_videos_are_h264_that_browsers_play(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write_all(path, [make_frame(n, colour=(200, 60, 120)) for n in range(9)])
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        assert (context.name, context.pix_fmt) == ("h264", "yuv420p")
        # BT.709 and limited range, said in the file.
        assert (int(context.colorspace), int(context.color_range)) == (1, 1)
    for frame in played(path):
        np.testing.assert_allclose(frame.image[24, 32], (200, 60, 120), atol=3)
    if suffix != ".mkv":
        data = path.read_bytes()
        assert data.index(b"moov") < data.index(b"mdat"), "a browser would have to load it whole"


def test_without_an_h264_encoder_the_next_one_is_taken(tmp_path, monkeypatch, caplog):
    def without(path: Path, *, encoder: str, **rest: object) -> AvWriter:
        return AvWriter(path, encoder=encoder.replace("264", "0"), **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(video_sink, "AvWriter", without)
    with caplog.at_level(logging.INFO):
        write_all(tmp_path / "out.mp4", [make_frame(n) for n in range(3)])
    assert "encoder mpeg4" in caplog.text
    assert len(played(tmp_path / "out.mp4")) == 3

"""Corruption schedules laid over a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gain_core.errors import ConfigError
from gain_runtime.frames import Frame, SourceInfo
from gain_runtime.sources.pattern import PatternParams, PatternSource
from gain_scenes.corruptions import corrupt, image_rng
from gain_scenes.sources import CorruptingSource, Stretch, parse_schedule


def pattern(frames: int = 10) -> PatternSource:
    return PatternSource(PatternParams(width=48, height=40, frames=frames))


class Changed(PatternSource):
    """A pattern whose length is unknown, or whose frames are changed."""

    num_frames: int | None = None
    condition: str | None = None
    tiny: tuple[int, ...] = ()

    @property
    def info(self) -> SourceInfo:
        return replace(super().info, num_frames=self.num_frames)

    def __iter__(self) -> Iterator[Frame]:
        for frame in super().__iter__():
            image = frame.image[:8] if frame.index in self.tiny else frame.image
            yield replace(frame, image=image, condition=self.condition)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fog:3", (Stretch(name="fog", first=3, last=3),)),
        ("fog:0-5", (Stretch(name="fog", first=0, last=5),)),
        (
            "frost:4.5-1, snow:2",
            (Stretch(name="frost", first=4.5, last=1), Stretch(name="snow", first=2, last=2)),
        ),
    ],
)
def test_schedules(text, expected):
    assert parse_schedule(text) == expected


@pytest.mark.parametrize("text", ["", "fog", "fog:", "fog:x", "fog:1-", "fog:6", "fog:1,"])
def test_malformed_schedules(text):
    with pytest.raises(ConfigError, match="--corrupt"):
        parse_schedule(text)


def test_a_ramp_goes_from_its_first_to_its_last_severity():
    source = CorruptingSource(pattern(11), parse_schedule("contrast:0-5"), seed=4)
    frames = list(source)
    plain = list(pattern(11))
    np.testing.assert_array_equal(frames[0].image, plain[0].image)
    for at, severity in ((5, 2.5), (10, 5.0)):
        rng = image_rng(4, at, "contrast")
        expected = corrupt(plain[at].image, "contrast", severity, rng=rng)
        np.testing.assert_array_equal(frames[at].image, expected)
    conditions = [frame.condition for frame in frames]
    assert conditions == [f"contrast:{round(at / 2)}" for at in range(11)]


@pytest.mark.parametrize("frames", [2, 3, 7, 10])
def test_stretches_follow_one_another_and_cover_the_stream(frames):
    source = CorruptingSource(pattern(frames), parse_schedule("contrast:1,brightness:2-4"))
    conditions = [frame.condition for frame in source]
    half = [name.partition(":")[0] for name in conditions if name is not None]
    first = half.count("contrast")
    assert half == ["contrast"] * first + ["brightness"] * (frames - first)
    assert first == -(-frames // 2)
    assert conditions[first] == "brightness:2"
    if frames - first > 1:
        assert conditions[-1] == "brightness:4"


def test_a_run_that_ends_early_still_sees_the_whole_ramp():
    source = CorruptingSource(pattern(100), parse_schedule("contrast:0-4"), max_frames=5)
    conditions = [frame.condition for frame in source]
    assert conditions[:5] == [f"contrast:{severity}" for severity in range(5)]
    assert set(conditions[5:]) == {"contrast:4"}


def test_an_unknown_length_needs_a_limit():
    unknown = Changed(PatternParams(width=48, height=40, frames=4))
    for text in ("fog:0-5", "fog:3,snow:3"):
        with pytest.raises(ConfigError, match="--max-frames"):
            CorruptingSource(unknown, parse_schedule(text))
    constant = CorruptingSource(unknown, parse_schedule("contrast:3"))
    assert {frame.condition for frame in constant} == {"contrast:3"}


def test_what_the_source_knows_is_kept():
    inner = Changed(PatternParams(width=48, height=40, frames=4))
    inner.condition = "night"
    inner.tiny = (1, 2)
    source = CorruptingSource(inner, parse_schedule("contrast:3"))
    frames = list(source)
    assert [frame.index for frame in frames] == [0, 3]
    assert source.skipped == 2
    assert {frame.condition for frame in frames} == {"night+contrast:3"}
    assert source.info == inner.info
    source.close()
    assert list(inner) == []

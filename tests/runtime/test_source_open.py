"""`open_source`: which source a URI opens, and the registry of test sources."""

from __future__ import annotations

import pytest

from gain_core.errors import ConfigError
from gain_runtime.frames import FrameSource
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.pattern import PatternParams, PatternSource


def test_registered_test_sources_get_their_parameters_and_the_seed() -> None:
    calls: list[tuple[dict[str, str], int]] = []

    def open_drive(params: dict[str, str], seed: int) -> FrameSource:
        calls.append((params, seed))
        return PatternSource(PatternParams(frames=2), seed=seed)

    with open_source("test://drive?speed=3", schemes={"drive": open_drive}, seed=5) as source:
        assert len(list(source)) == 2
    assert calls == [({"speed": "3"}, 5)]


def test_registering_names_keeps_the_built_in_ones() -> None:
    schemes = {"drive": lambda params, seed: PatternSource()}
    with open_source("test://pattern?frames=1", schemes=schemes) as source:
        assert source.info.num_frames == 1


@pytest.mark.parametrize("uri", ["test://", "test://nothing?x=1"])
def test_an_unknown_test_source_lists_the_known_ones(uri: str) -> None:
    schemes = {"drive": lambda params, seed: PatternSource()}
    with pytest.raises(ConfigError, match="test://drive, test://pattern"):
        open_source(uri, schemes=schemes)


def test_a_text_file_is_not_opened_as_a_video(tmp_path) -> None:
    """FFmpeg renders text files as video frames."""
    path = tmp_path / "labels.txt"
    path.write_text("cat\ndog\n" * 200)
    with pytest.raises(OSError, match="text file"):
        open_source(str(path))

"""The `test://` sources that only the applications have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gain_apps.live_source import LiveSource
from gain_runtime.frame import FrameSource
from gain_runtime.pattern_source import open_pattern
from gain_runtime.sources import SourceFactory
from gain_runtime.uri import record_from_params

__all__ = ["app_schemes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveParams:
    """`live`: play a test source at its rate, as a camera would, and not as fast as it is read."""

    live: bool = False


def app_schemes() -> Mapping[str, SourceFactory]:
    """Name after `test://` to the factory that opens it."""
    return {
        "drive": _playable("drive", _open_drive),
        "pattern": _playable("pattern", open_pattern),
        "signs": _open_signs,
    }


def _playable(name: str, factory: SourceFactory, /) -> SourceFactory:
    """A factory that also takes `live=1`."""

    def opened(params: dict[str, str], seed: int) -> FrameSource:
        others = {key: value for key, value in params.items() if key != "live"}
        asked = {key: value for key, value in params.items() if key == "live"}
        live = record_from_params(_LiveParams, asked, owner=f"test://{name}").live
        source = factory(others, seed)
        return LiveSource(source) if live else source

    return opened


def _open_drive(params: dict[str, str], seed: int) -> FrameSource:
    """A drive past rendered road signs; its module is imported when it is asked for."""
    from gain_apps.roadsigns.drive import drive_source

    return drive_source(params, seed)


def _open_signs(params: dict[str, str], seed: int) -> FrameSource:
    """Clean pictures of the same signs."""
    from gain_apps.roadsigns.stills import stills_source

    return stills_source(params, seed)

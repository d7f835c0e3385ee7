"""The `test://` sources that only the applications have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gain_apps.live_source import LiveSource
from gain_runtime.frame import FrameSource
from gain_runtime.sources import SourceFactory
from gain_runtime.uri import record_from_params

__all__ = ["app_schemes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveParams:
    """`live`: play a test source at its rate, as a camera would, and not as fast as it is read."""

    live: bool = False


def app_schemes() -> Mapping[str, SourceFactory]:
    """Name after `test://` to the factory that opens it."""
    return {"drive": _open_drive, "signs": _open_signs}


def _open_drive(params: Mapping[str, str], seed: int) -> FrameSource:
    """A drive past rendered road signs; its module is imported when it is asked for."""
    from gain_apps.roadsigns.drive import drive_source

    others = {name: value for name, value in params.items() if name != "live"}
    source = drive_source(others, seed)
    asked = {name: value for name, value in params.items() if name == "live"}
    live = record_from_params(_LiveParams, asked, owner="test://drive").live
    return LiveSource(source) if live else source


def _open_signs(params: Mapping[str, str], seed: int) -> FrameSource:
    """Clean pictures of the same signs."""
    from gain_apps.roadsigns.stills import stills_source

    return stills_source(params, seed)

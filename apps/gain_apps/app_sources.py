"""The `test://` sources that only the applications have."""

from __future__ import annotations

from collections.abc import Mapping

from gain_runtime.frame import FrameSource
from gain_runtime.sources import SourceFactory

__all__ = ["app_schemes"]


def app_schemes() -> Mapping[str, SourceFactory]:
    """Name after `test://` to the factory that opens it."""
    return {"drive": _open_drive}


def _open_drive(params: Mapping[str, str], seed: int) -> FrameSource:
    """A drive past rendered road signs; its module is imported when it is asked for."""
    from gain_apps.roadsigns.drive import drive_source

    return drive_source(params, seed)

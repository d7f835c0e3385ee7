"""Results of frames and facts of sources, made by hand."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from gain_runtime.frames import Frame, FrameResult, Ranked, SourceInfo

OF_THE_FRAME = {field.name for field in fields(Frame)}


def make_result(
    index: int = 0, *, source: int = 0, adapted: int | None = None, **changes: Any
) -> FrameResult:
    """A grey picture of 30 x 20 px, and the classes that the source and the adaptation name.

    `changes` are fields of the frame or of the result.
    """
    frame = Frame(
        image=np.full((20, 30, 3), 40 + index % 200, dtype=np.uint8),
        index=index,
        timestamp_ns=index,
        source_id="cam",
    )
    adapted = source if adapted is None else adapted
    result = FrameResult(
        frame=replace(frame, **{k: v for k, v in changes.items() if k in OF_THE_FRAME}),
        source_top=(Ranked(index=source, label=f"class {source}", prob=0.5),),
        adapted_top=(Ranked(index=adapted, label=f"class {adapted}", prob=0.75),),
        strength=0.5,
        gain=0.1,
    )
    return replace(result, **{k: v for k, v in changes.items() if k not in OF_THE_FRAME})


def make_info(**changes: Any) -> SourceInfo:
    """What a source of such pictures says of itself."""
    size = {"width_px": 30, "height_px": 20}
    known = {"source_id": "cam", "rate_hz": None, "num_frames": None, "live": False}
    return SourceInfo(**(size | known | changes))

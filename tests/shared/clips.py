"""Videos made of RGB frames, and what a server may answer in place of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import IO

import av
import numpy as np


def write_clip(
    target: Path | IO[bytes],
    frames: Sequence[np.ndarray],
    codec: str,
    *,
    rate: int = 10,
    pixel_format: str = "yuv420p",
    options: Mapping[str, str] | None = None,
    container: str | None = None,
    container_options: Mapping[str, str] | None = None,
) -> None:
    """Encode frames of one size through PyAV."""
    place = str(target) if isinstance(target, Path) else target
    extra = {"format": container, "container_options": dict(container_options or {})}
    with av.open(place, "w", **extra) as writer:
        stream = writer.add_stream(codec, rate=rate, options=dict(options or {}))
        (stream.height, stream.width), stream.pix_fmt = frames[0].shape[:2], pixel_format
        for frame in frames:
            writer.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        writer.mux(stream.encode(None))


def page(
    content: bytes = b"", *, code: int = 200, sized: bool = True
) -> type[BaseHTTPRequestHandler]:
    """Answers everything with these bytes, whose number it says where they are `sized`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            if sized:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler

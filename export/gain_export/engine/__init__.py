"""Building TensorRT engines of artifacts and of adaptive files.

Importing this package imports neither TensorRT library, nor onnx or onnxruntime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gain_export.engine.build import (
        EngineReport,
        build_engine,
        check_engine,
        check_engine_options,
    )
    from gain_export.engine.compile import EngineOptions

__all__ = [
    "EngineOptions",
    "EngineReport",
    "build_engine",
    "check_engine",
    "check_engine_options",
]


def __getattr__(name: str) -> object:
    """Import the building on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gain_export.engine import build

    return getattr(build, name)

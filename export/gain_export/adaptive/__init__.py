"""GAIN inside the graph: an artifact and the adaptation step in one ONNX file.

Importing this package imports neither onnx nor onnxruntime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gain_export.adaptive.package import (
        AdaptiveReport,
        adaptive_path,
        add_adaptation,
        check_adaptable,
        check_waiting,
    )
    from gain_export.adaptive.triton import check_triton, write_triton

__all__ = ["AdaptiveReport", "adaptive_path", "add_adaptation", "check_adaptable", "check_waiting"]
__all__ += ["check_triton", "write_triton"]


def __getattr__(name: str) -> object:
    """Import the packaging on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gain_export.adaptive import package, triton

    return getattr(triton if name.endswith("triton") else package, name)

"""Exporting classifiers to self-describing ONNX artifacts.

Importing this package imports neither onnx nor torch; `export_onnx` needs the base install only,
`export_timm` needs the extra `export`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gain_export.from_onnx import export_onnx
    from gain_export.from_timm import export_timm
    from gain_export.preprocessing import PreprocessOverrides
    from gain_export.write import ExportReport

__all__ = ["ExportReport", "PreprocessOverrides", "export_onnx", "export_timm"]

_HOMES = {
    "ExportReport": "gain_export.write",
    "PreprocessOverrides": "gain_export.preprocessing",
    "export_onnx": "gain_export.from_onnx",
    "export_timm": "gain_export.from_timm",
}


def __getattr__(name: str) -> object:
    """Import a public name's module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)

"""Running exported classifiers: sessions, adaptation, sources and sinks of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gain_runtime.classifier import Classifier, Result, load

__all__ = ["Classifier", "Result", "load"]


def __getattr__(name: str) -> Any:
    # Late: a command's help shall not load ONNX Runtime.
    if name in __all__:
        from gain_runtime import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

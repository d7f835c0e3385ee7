"""Methods that adapt to a stream, behind one small protocol; `make_method` builds them by name."""

from __future__ import annotations

from gain_apps.evaluation.methods.protocol import (
    Batch,
    Cost,
    Diagnosing,
    Diagnosis,
    Head,
    Method,
)
from gain_apps.evaluation.methods.registry import METHODS, make_method

__all__ = [
    "METHODS",
    "Batch",
    "Cost",
    "Diagnosing",
    "Diagnosis",
    "Head",
    "Method",
    "make_method",
]

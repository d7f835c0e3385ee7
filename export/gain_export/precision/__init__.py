"""Precision passes: an artifact's network in fp16, bf16 or int8, verified against float32."""

from __future__ import annotations

from gain_export.precision.bars import BARS, PRECISIONS, Bar, Precision
from gain_export.precision.convert import (
    PrecisionReport,
    check_float32,
    convert_precision,
    existing_precision,
    float32_artifact,
    precision_path,
)

__all__ = [
    "BARS",
    "PRECISIONS",
    "Bar",
    "Precision",
    "PrecisionReport",
    "check_float32",
    "convert_precision",
    "existing_precision",
    "float32_artifact",
    "precision_path",
]

"""GAIN: gain-aware, backpropagation-free continual test-time adaptation, as pure array code."""

from gain_core.config import (
    DEFAULT_PRESET,
    PRESETS,
    Config,
    config_from_dict,
    config_to_dict,
    make_method,
    preset,
)
from gain_core.errors import (
    ArrayError,
    ArtifactError,
    BackendUnavailableError,
    ConfigError,
    EngineError,
    GainError,
    NumericsError,
    ParityError,
    StreamError,
)
from gain_core.gain import UPDATE_EVERY, WARMUP_FRAMES, Gain
from gain_core.intervention import evidence_path, expected_gain, slope, solve_strength
from gain_core.method import Method, Posteriors, Prediction
from gain_core.paper import PaperConfig
from gain_core.shift import ShiftConfig

__version__ = "0.2.0"

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "UPDATE_EVERY",
    "WARMUP_FRAMES",
    "ArrayError",
    "ArtifactError",
    "BackendUnavailableError",
    "Config",
    "ConfigError",
    "EngineError",
    "Gain",
    "GainError",
    "Method",
    "NumericsError",
    "PaperConfig",
    "ParityError",
    "Posteriors",
    "Prediction",
    "ShiftConfig",
    "StreamError",
    "config_from_dict",
    "config_to_dict",
    "evidence_path",
    "expected_gain",
    "make_method",
    "preset",
    "slope",
    "solve_strength",
]

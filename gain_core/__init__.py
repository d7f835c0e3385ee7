"""GAIN: gain-aware, backpropagation-free continual test-time adaptation, as pure array code."""

from gain_core.config import PRESETS, GainConfig
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
from gain_core.gain import Gain
from gain_core.intervention import evidence_path, expected_gain, slope, solve_strength
from gain_core.prototypes import Prototypes, prepare_prototypes
from gain_core.state import (
    GainState,
    GaussianState,
    ShiftState,
    init_state,
    state_from_arrays,
    state_to_arrays,
)
from gain_core.step import Prediction, merge_states, posteriors, predict, update

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "ArrayError",
    "ArtifactError",
    "BackendUnavailableError",
    "ConfigError",
    "EngineError",
    "Gain",
    "GainConfig",
    "GainError",
    "GainState",
    "GaussianState",
    "NumericsError",
    "ParityError",
    "Prediction",
    "Prototypes",
    "ShiftState",
    "StreamError",
    "evidence_path",
    "expected_gain",
    "init_state",
    "merge_states",
    "posteriors",
    "predict",
    "prepare_prototypes",
    "slope",
    "solve_strength",
    "state_from_arrays",
    "state_to_arrays",
    "update",
]

"""Does adapting help? Streams, methods and scores; `evaluate` runs them from Python."""

from gain_apps.evaluation.eval_input import EvalInput, InputSettings, open_input
from gain_apps.evaluation.experiment import evaluate

__all__ = ["EvalInput", "InputSettings", "evaluate", "open_input"]

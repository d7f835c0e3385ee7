"""The default: the shift of the logits, learned from blocks of frames that show a mixture."""

from gain_core.shift.clean import DEFAULT_SKEWNESS, skewness_of_head
from gain_core.shift.config import ShiftConfig
from gain_core.shift.method import Shift, ShiftState

__all__ = ["DEFAULT_SKEWNESS", "Shift", "ShiftConfig", "ShiftState", "skewness_of_head"]

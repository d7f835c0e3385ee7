"""The project's error tree: one base class, one class per kind of failure.

A message names the thing, what was expected, what came and the remedy. Command lines turn a
`GainError` into one line and exit status 1; everything else is a bug and keeps its traceback.
"""

from __future__ import annotations


class GainError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(GainError, ValueError):
    """A setting is unknown, out of range or contradicts another one."""


class ArrayError(GainError, ValueError):
    """An array has the wrong shape, dtype, device or namespace."""


class NumericsError(GainError, ArithmeticError):
    """A value that must be finite is NaN or infinite."""


class ArtifactError(GainError, OSError):
    """An artifact, label or state file is missing, corrupt or belongs to something else."""


class EngineError(GainError, RuntimeError):
    """A session or engine could not be built, loaded or executed."""


class ParityError(GainError):
    """Two networks that must agree do not."""


class BackendUnavailableError(GainError, ImportError):
    """An optional library, provider or device that was asked for is not there."""


class StreamError(GainError, OSError):
    """A frame source cannot be opened or lost its signal, or a sink cannot be written."""


def one_line(err: BaseException | None, /) -> str:
    """What an error says, without line breaks; of one that says nothing, its type."""
    return " ".join(str(err).split()) or type(err).__name__

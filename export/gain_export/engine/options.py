"""The options of an engine. Its precision is none of them: the ONNX file states it."""

from __future__ import annotations

from dataclasses import dataclass

from gain_core.errors import ConfigError

__all__ = ["DEFAULT_MAX_BATCH", "EngineOptions"]

DEFAULT_MAX_BATCH = 8

# Levels exist since TensorRT 8.6: 0 builds fastest, 5 looks longest for fast kernels.
_LEVELS = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine is built.

    Attributes
    ----------
    library : {"tensorrt", "tensorrt_rtx"} or None
        None takes the installed one.
    compute_capabilities : tuple of int
        The GPUs to build for, as 86 for 8.6; empty means the GPU of this machine. Only
        TensorRT-RTX builds for other GPUs.
    opt_batch, max_batch : int
        Batch size to tune for, and the largest one.
    builder_level : int or None
        TensorRT's optimisation level, 0 to 5; None is the library's default.
    workspace_bytes : int or None
        Scratch memory that kernels may use; None is half of the GPU's free memory, or the library's
        default without a GPU.
    hardware_compatible : bool
        Build for all GPUs of Ampere and later; TensorRT only.
    version_compatible : bool
        Build a plan that later versions of the library run; it holds host code, see
        `TensorRTSession`.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    library: str | None = None
    compute_capabilities: tuple[int, ...] = ()
    opt_batch: int = 1
    max_batch: int = DEFAULT_MAX_BATCH
    builder_level: int | None = None
    workspace_bytes: int | None = None
    hardware_compatible: bool = False
    version_compatible: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.opt_batch <= self.max_batch:
            raise ConfigError(
                f"opt_batch, max_batch: expected 1 <= opt_batch <= max_batch, got "
                f"{self.opt_batch} and {self.max_batch}"
            )
        if self.builder_level is not None and self.builder_level not in _LEVELS:
            raise ConfigError(
                f"builder_level: expected {_LEVELS[0]} to {_LEVELS[-1]}, got {self.builder_level}"
            )
        if self.workspace_bytes is not None and self.workspace_bytes < 1:
            raise ConfigError(f"workspace_bytes: expected at least 1, got {self.workspace_bytes}")
        for capability in self.compute_capabilities:
            if not 50 <= capability < 1000:
                raise ConfigError(
                    f"compute_capabilities: expected numbers as 86 for 8.6, got {capability}"
                )

    def profile(self, fixed_batch: int | None, /) -> tuple[int, int, int]:
        """Smallest, tuned and largest batch size of an engine.

        Parameters
        ----------
        fixed_batch : int or None
            The file's batch size, if it is fixed; the engine then takes no other.

        Returns
        -------
        (int, int, int)
        """
        if fixed_batch is not None:
            return fixed_batch, fixed_batch, fixed_batch
        return 1, self.opt_batch, self.max_batch

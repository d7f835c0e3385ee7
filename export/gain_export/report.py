"""What an export did: the report it returns and the clock of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gain_runtime.manifest import Preprocess

__all__ = ["ExportReport", "OnStep", "Steps"]

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """An artifact that was written, and the numbers its check measured.

    Attributes
    ----------
    path : Path
    sha256 : str
        Of the artifact's bytes, hexadecimal.
    source, weights_sha256 : str
        As in the manifest.
    num_classes : int
    feature_dim : int or None
        D; None where the artifact has logits only.
    preprocess : Preprocess
    opset, ir_version, size_bytes : int
    verification : mapping
        As in the manifest.
    activation, labels_source : str
    notes : tuple of str
        As in the manifest.
    seconds : mapping
        Wall-clock time of every step.
    """

    path: Path
    sha256: str
    source: str
    weights_sha256: str
    num_classes: int
    feature_dim: int | None
    preprocess: Preprocess
    opset: int
    ir_version: int
    size_bytes: int
    verification: Mapping[str, float | int | str]
    activation: str
    labels_source: str
    notes: tuple[str, ...]
    seconds: Mapping[str, float]

    def to_dict(self) -> dict[str, object]:
        """Plain values, ready for JSON."""
        values = asdict(self)
        values["path"] = str(self.path)
        return values


class Steps:
    """Times the steps of an export and announces each as it begins.

    Parameters
    ----------
    on_step : callable, optional
        Called with the step's name.
    """

    def __init__(self, on_step: OnStep | None = None, /) -> None:
        self._on_step = on_step
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, /) -> Iterator[None]:
        """Run one step inside the context."""
        if self._on_step is not None:
            self._on_step(name)
        started = time.perf_counter()
        yield
        spent = time.perf_counter() - started
        self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 3)

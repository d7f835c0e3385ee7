"""What a stream needs of an adapter, whether the method runs here or inside the graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gain_core import GainConfig
from gain_runtime.adapter import AdaptedBatch
from gain_runtime.manifest import Manifest
from gain_runtime.preprocess import Region

__all__ = ["StreamAdapter", "StreamArtifact"]


class StreamArtifact(Protocol):
    """What is said about the file in use."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str:
        """Of the file's bytes, hexadecimal."""
        ...

    @property
    def manifest(self) -> Manifest: ...


class StreamAdapter(Protocol):
    """`Adapter` and `AdaptiveAdapter` as a stream's loop sees them.

    `update_every`, frames between two updates of the state, may be set while the stream runs.
    """

    update_every: int

    @property
    def artifact(self) -> StreamArtifact: ...

    @property
    def config(self) -> GainConfig: ...

    @property
    def provider(self) -> str: ...

    @property
    def frozen(self) -> bool: ...

    @property
    def frames(self) -> int:
        """Frames the state has learned from (pending ones not counted)."""
        ...

    def step(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None = None,
        learn: bool = True,
    ) -> AdaptedBatch: ...

    def warm_up(self, batch_size: int = 1, /) -> None: ...

    def reset(self) -> None: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def save_state(self, path: str | Path, /, *, flush: bool = True) -> None: ...

    def load_state(self, path: str | Path, /) -> None: ...

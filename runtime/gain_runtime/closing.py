"""What is closed at the end of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

__all__ = ["Closing"]

Self = TypeVar("Self", bound="Closing")


class Closing(ABC):
    """Sources, sinks, sessions and stores: a context that closes them, whatever happened in it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; may be called twice."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

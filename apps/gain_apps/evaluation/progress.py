"""A progress bar on stderr while an experiment runs."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich import progress as bars
from rich.console import Console

__all__ = ["Progress"]


class Progress:
    """One bar per task, the last few of them shown (a context manager).

    Parameters
    ----------
    console : Console
        Where it is no terminal, nothing is drawn.
    """

    def __init__(self, console: Console, /) -> None:
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task: bars.TaskID | None = None

    def start(self, title: str, total: int, /) -> Callable[[], None]:
        """Begin a task in place of the last one; call the result after each of `total` steps."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        task = self._task = self._bars.add_task(title, total=total)
        return lambda: self._bars.advance(task)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

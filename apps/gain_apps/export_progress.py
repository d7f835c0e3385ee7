"""The progress line of gain-export."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_line"]


@contextmanager
def progress_line(*, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show the step at work and its time on a terminal; elsewhere show nothing.

    Parameters
    ----------
    enabled : bool

    Yields
    ------
    callable
        Takes the name of each step as it begins.
    """
    if not (enabled and sys.stderr.isatty()):
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # This very stream: steps that silence torch replace sys.stderr meanwhile.
    console = Console(file=sys.stderr)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task("start", total=None)

        def show(step: str) -> None:
            progress.reset(task, description=step)

        yield show

"""Where gain-export writes beside an artifact, and the line that shows how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gain_core.errors import ArtifactError
from gain_runtime.files.paths import exists, is_folder

__all__ = [
    "progress_line",
    "refuse_existing",
]


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


def refuse_existing(path: Path, /, *, force: bool) -> None:
    """Refuse a folder, and a file that is not to be replaced.

    Raises
    ------
    ArtifactError
        If there is one.
    """
    if is_folder(path, error=ArtifactError):
        raise ArtifactError(f"{path}: expected a file to write, got a folder; remove or rename it")
    if exists(path, error=ArtifactError) and not force:
        raise ArtifactError(f"{path}: exists already; --force replaces it")

"""Results as tables for a terminal, and a progress bar while they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich import progress as bars
from rich.console import Console
from rich.table import Table

from gain_core.errors import ConfigError
from gain_runtime.frames import Closing

__all__ = ["Progress", "compare_results", "print_bars", "print_comparison", "print_results"]

METRICS = ("accuracy", "ece", "nll", "brier")
# What fits beside a method's name into 80 columns; the rest is in the result file.
SHOWN = ("accuracy", "ece", "nll")
HEADINGS = {"accuracy": "accuracy %", "ece": "ECE %", "nll": "NLL nats"}
DIGITS = {"accuracy": 1, "ece": 1, "nll": 3}
LEAST_NAME_WIDTH = 14


def print_results(results: Mapping[str, Any], console: Console, /) -> None:
    """Print a line per method, each beside what the frozen source had.

    Parameters
    ----------
    results : mapping
        As `make_results` or `read_results` give it.
    console : Console
    """
    source = results["methods"].get("source")
    stream = results["stream"]
    title = f"{stream['kind']}, {stream['order']} order, {len(results['seeds'])} seed(s)"
    normalise = results["model"].get("normalise")
    if normalise is not None:
        title += f", input normalised as {normalise}"
    table = _table(title)
    table.caption = results["counting"]
    for name in SHOWN:
        table.add_column(HEADINGS[name], justify="right", no_wrap=True)
    table.add_column("vs source", justify="right", no_wrap=True)
    table.add_column("ms/step", justify="right", no_wrap=True)
    for name, record in results["methods"].items():
        spread = record["std_over_runs"] or {}
        cells = [_number(record[metric], metric, spread=spread.get(metric)) for metric in SHOWN]
        gained = "" if source is None or name == "source" else _change(source, record)
        table.add_row(name, *cells, gained, f"{record['step_ms']['p50']:.2f}")
    console.print(table)


def compare_results(first: Mapping[str, Any], second: Mapping[str, Any], /) -> list[dict[str, Any]]:
    """Two results side by side.

    Parameters
    ----------
    first, second : mapping
        Results.

    Returns
    -------
    list of dict
        Per method in both: `method`, and for every metric `[first, second, difference]`.

    Raises
    ------
    ConfigError
        If they share no method.
    """
    shared = [name for name in first["methods"] if name in second["methods"]]
    if not shared:
        raise ConfigError(
            f"compare: expected a method in both, got {', '.join(first['methods'])} "
            f"and {', '.join(second['methods'])}"
        )
    rows = []
    for name in shared:
        row: dict[str, Any] = {"method": name}
        for metric in METRICS:
            old, new = first["methods"][name][metric], second["methods"][name][metric]
            known = old is not None and new is not None
            row[metric] = [old, new, new - old if known else None]
        rows.append(row)
    return rows


def print_comparison(
    rows: Sequence[Mapping[str, Any]], console: Console, /, *, names: tuple[str, str]
) -> None:
    """Print what `compare_results` gave."""
    table = _table(f"{names[0]} -> {names[1]}")
    for metric in SHOWN:
        table.add_column(HEADINGS[metric], justify="right", no_wrap=True)
    for row in rows:
        cells = []
        for metric in SHOWN:
            old, new, _ = row[metric]
            cells.append(f"{_number(old, metric)} -> {_number(new, metric)}")
        table.add_row(row["method"], *cells)
    console.print(table)


def _table(title: str) -> Table:
    """A table whose first column is the method's whole name, folded where it must be."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("method", overflow="fold", min_width=LEAST_NAME_WIDTH)
    return table


def _number(value: float | None, metric: str, *, spread: float | None = None) -> str:
    """A metric's value; per cents with their deviation over runs where there is one."""
    if value is None:
        return "inf"
    text = f"{value:.{DIGITS[metric]}f}"
    return text if spread is None or metric == "nll" else f"{text} ± {spread:.1f}"


def _change(source: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Accuracy and ECE against the source's, in points."""
    accuracy = record["accuracy"] - source["accuracy"]
    ece = record["ece"] - source["ece"]
    return f"{accuracy:+.1f} / {ece:+.1f}"


def print_bars(judged: Sequence[Mapping[str, Any]], console: Console, /) -> None:
    """Print a suite's bars, met or missed."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("bar", overflow="fold")
    for name in ("measured", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("where", overflow="fold")
    for bar in judged:
        value = bar["measured"]
        table.add_row(
            bar["text"], "" if value is None else f"{value:.2f}", bar["verdict"], bar["where"]
        )
    console.print(table)


class Progress(Closing):
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

    def close(self) -> None:
        """Take the bars away; may be called twice."""
        self._bars.stop()

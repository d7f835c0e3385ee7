"""The pictures of a report, drawn from a result file's series."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

from gain_core._optional import require

__all__ = ["PICTURES", "draw"]

Results = Mapping[str, Any]

# Beyond so many names a legend hides the picture.
MAX_LEGEND = 12
MAX_SHADED = 60
BUBBLE_AREA = 30.0


def draw(results: Results, picture: str, /) -> bytes | None:
    """Draw one picture.

    Parameters
    ----------
    results : mapping
        As `read_results` gives it.
    picture : str
        A key of `PICTURES`.

    Returns
    -------
    bytes or None
        PNG; None where the result has nothing to show in it.

    Raises
    ------
    BackendUnavailableError
        If matplotlib is not installed.
    """
    require("matplotlib", extra="eval").use("Agg")
    figure = require("matplotlib.figure", extra="eval").Figure(figsize=(9, 4.5), layout="tight")
    if not PICTURES[picture][1](results, figure):
        return None
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _over_time(metric: str, label: str) -> Callable[[Results, Any], bool]:
    """A picture of one metric over the stream, domains shaded in turn."""

    def picture(results: Results, figure: Any) -> bool:
        axes = figure.subplots()
        for name, record in results["methods"].items():
            series = record["series"]["over_time"]
            axes.plot(
                series["first"],
                series[metric],
                label=name,
                color=_colour(results, name),
                linewidth=1.5 if name == "source" else 1.0,
            )
        _shade(axes, results)
        axes.set(xlabel="samples", ylabel=label)
        _legend(axes)
        return True

    return picture


def _shade(axes: Any, results: Results) -> None:
    """Every second visit to a domain on grey, its name on top."""
    first = next(iter(results["methods"].values()))
    segments = first["series"]["segments"]
    if not 1 < len(segments) <= MAX_SHADED:
        return
    end = results["stream"]["samples"]
    names = results["stream"]["domains"]
    starts = [start for start, _ in segments]
    for number, ((start, domain), stop) in enumerate(
        zip(segments, [*starts[1:], end], strict=True)
    ):
        if number % 2:
            axes.axvspan(start, stop, color="0.92", zorder=0)
        axes.text(
            (start + stop) / 2,
            1.01,
            names[domain],
            transform=axes.get_xaxis_transform(),
            rotation=45,
            fontsize=6,
        )


def _reliability(results: Results, figure: Any) -> bool:
    """Accuracy against confidence, a marker's area showing the share of samples."""
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linestyle="--")
    for name, record in results["methods"].items():
        bins = record["series"]["reliability"]
        filled = [number for number, count in enumerate(bins["counts"]) if count]
        total = sum(bins["counts"])
        x, y = ([bins[key][number] for number in filled] for key in ("confidence", "accuracy"))
        areas = [300.0 * bins["counts"][number] / total for number in filled]
        colour = _colour(results, name)
        axes.plot(x, y, label=name, color=colour, linewidth=1.0)
        axes.scatter(x, y, s=areas, color=colour, alpha=0.6)
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    _legend(axes)
    return True


def _strength(results: Results, figure: Any) -> bool:
    """Histogram of the intervention strength."""
    shown = {
        name: record["series"]["strength"]
        for name, record in results["methods"].items()
        if "strength" in record["series"]
    }
    if not shown:
        return False
    axes = figure.subplots()
    for name, counts in shown.items():
        edges = [number / len(counts) for number in range(len(counts) + 1)]
        shares = [count / sum(counts) for count in counts]
        axes.stairs(shares, edges, label=name, color=_colour(results, name))
    # Most samples lie at the ends; the rest would not be seen on a linear axis.
    axes.set(xlabel="intervention strength", ylabel="share of samples", yscale="log")
    _legend(axes)
    return True


def _gains(results: Results, figure: Any) -> bool:
    """Expected against realised gain, a panel per method."""
    shown = {name: record for name, record in results["methods"].items() if "gain" in record}
    if not shown:
        return False
    columns = min(len(shown), 3)
    rows = math.ceil(len(shown) / columns)
    figure.set_size_inches(9, 3.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, record) in zip(panels, shown.items(), strict=False):
        pairs = record["series"]["gain_pairs"]
        axes.axhline(0, color="0.85", linewidth=0.8)
        axes.axvline(0, color="0.85", linewidth=0.8)
        axes.scatter([x for x, _ in pairs], [y for _, y in pairs], s=4, alpha=0.5)
        axes.set(xlabel="expected gain, nats", ylabel="realised gain, nats")
        axes.set_title(f"{name}\n{_correlation(record['gain'])}", fontsize=8)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    return True


def _correlation(gain: Mapping[str, float | None]) -> str:
    """Both correlations in words."""
    return ", ".join(
        f"{name.capitalize()} " + ("undefined" if gain[name] is None else f"{gain[name]:.3f}")
        for name in ("pearson", "spearman")
    )


def _efficiency(results: Results, figure: Any) -> bool:
    """Accuracy against time per step; a bubble's area shows the calibration error."""
    axes = figure.subplots()
    for name, record in results["methods"].items():
        step_ms = max(record["step_ms"]["p50"], 1e-4)
        area = BUBBLE_AREA * max(record["ece"], 0.5)
        axes.scatter(
            [step_ms], [record["accuracy"]], s=area, alpha=0.5, color=_colour(results, name)
        )
        axes.annotate(name, (step_ms, record["accuracy"]), fontsize=7)
    axes.set_xscale("log")
    axes.set(xlabel="ms per step beside the forward pass (median)", ylabel="accuracy, per cent")
    axes.margins(0.15)
    return True


def _colour(results: Results, name: str) -> str:
    """A method's colour, the same in all pictures; the source is black."""
    others = [other for other in results["methods"] if other != "source"]
    return "black" if name == "source" else f"C{others.index(name) % 10}"


def _legend(axes: Any) -> None:
    """A legend, unless it would hide the picture."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:MAX_LEGEND], labels[:MAX_LEGEND], fontsize=7)


# Name of the picture to its caption and what draws it.
PICTURES: dict[str, tuple[str, Callable[[Results, Any], bool]]] = {
    "accuracy": ("Accuracy over the stream", _over_time("accuracy", "accuracy, per cent")),
    "ece": ("Calibration error over the stream", _over_time("ece", "ECE, per cent")),
    "reliability": ("Reliability: accuracy against confidence, area = samples", _reliability),
    "strength": ("How strongly GAIN would intervene before it learns from a batch", _strength),
    "gains": (
        "What GAIN expects of the full correction before it learns from a batch, and its worth",
        _gains,
    ),
    "efficiency": ("Accuracy against cost, area = calibration error", _efficiency),
}

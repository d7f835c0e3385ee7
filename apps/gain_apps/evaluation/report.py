"""A report of a result file: tables and pictures, as one HTML file or as Markdown."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files.paths import write_atomically
from gain_runtime.optional import require

SUFFIXES = (".html", ".md")
STYLE = (
    "body{font-family:sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{border-bottom:1px solid #ccc;"
    "padding:.3em .7em;text-align:right}td:first-child,th:first-child{text-align:left}"
    "img{max-width:100%}code{overflow-wrap:anywhere}"
)

Rows = Sequence[Sequence[str]]


def check_report_path(path: Path, /) -> None:
    """Refuse a report that could not be written.

    `ConfigError` if it is neither .html nor .md, `BackendUnavailableError` without matplotlib.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: expected a report called *.html or *.md")
    require("matplotlib", extra="eval")


def write_report(path: Path, results: Mapping[str, Any], /) -> None:
    """Write a report of what `make_results` or `read_results` gave.

    `.html` is one self-contained file; the pictures of `.md` lie beside it, called
    `NAME-PICTURE.png`. Raises as `check_report_path`, and `ArtifactError` if the results hold no
    series, or a file cannot be written.
    """
    check_report_path(path)
    if any("series" not in record for record in results["methods"].values()):
        raise ArtifactError(f"{path}: the result holds no series to draw; run gain-eval again")
    images = {name: image for name in PICTURES if (image := draw(results, name)) is not None}
    if path.suffix == ".html":
        write_atomically(path, _html(results, images).encode(), error=ArtifactError)
        return
    for name, image in images.items():
        write_atomically(path.with_name(f"{path.stem}-{name}.png"), image, error=ArtifactError)
    text = _markdown(results, images, stem=path.stem)
    write_atomically(path, text.encode(), error=ArtifactError)


def _html(results: Mapping[str, Any], images: Mapping[str, bytes]) -> str:
    """The report as one HTML file."""
    parts = [f"<p><code>{html.escape(results['command'])}</code></p>"]
    for title, rows in _tables(results):
        head, *body = ("".join(_cells(row, number)) for number, row in enumerate(rows))
        lines = "".join(f"<tr>{row}</tr>" for row in body)
        parts.append(f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{lines}</table>")
    for name, image in images.items():
        data = base64.b64encode(image).decode()
        caption = html.escape(PICTURES[name][0])
        parts.append(f'<h2>{caption}</h2><img alt="{caption}" src="data:image/png;base64,{data}">')
    title = html.escape(_title(results))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1>{''.join(parts)}</html>\n"
    )


def _cells(row: Sequence[str], number: int) -> list[str]:
    """One line of an HTML table; the first is the heading."""
    tag = "td" if number else "th"
    return [f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row]


def _markdown(results: Mapping[str, Any], images: Mapping[str, bytes], *, stem: str) -> str:
    """The report as Markdown beside its pictures."""
    parts = [f"# {_title(results)}", f"```\n{results['command']}\n```"]
    for title, rows in _tables(results):
        head, *body = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
        rule = " | ".join("---" for _ in rows[0])
        lines = "\n".join(f"| {row} |" for row in (head, rule, *body))
        parts.append(f"## {title}\n\n{lines}")
    for name in images:
        caption = PICTURES[name][0]
        parts.append(f"## {caption}\n\n![{caption}]({stem}-{name}.png)")
    return "\n\n".join(parts) + "\n"


def _title(results: Mapping[str, Any]) -> str:
    stream = results["stream"]
    return f"{Path(results['model']['path']).name}: {stream['kind']}, {stream['order']} order"


def _tables(results: Mapping[str, Any]) -> list[tuple[str, Rows]]:
    """What was run, the scores, and accuracy / ECE per domain."""
    methods = results["methods"]
    scores = [("method", "accuracy %", "ECE %", "NLL nats", "Brier", "ms/step", "state MiB")]
    scores += [
        (
            name,
            _text(record["accuracy"], 1),
            _text(record["ece"], 1),
            _text(record["nll"], 3),
            _text(record["brier"], 3),
            _text(record["step_ms"]["p50"], 3),
            _text(record["cost"]["state_bytes"] / 2**20, 2),
        )
        for name, record in methods.items()
    ]
    per_domain = [("domain", *methods)]
    per_domain += [
        (
            domain,
            *(
                f"{_text(scores['accuracy'], 1)} / {_text(scores['ece'], 1)}"
                for record in methods.values()
                for scores in (record["domains"][domain],)
            ),
        )
        for domain in next(iter(methods.values()))["domains"]
    ]
    return [
        ("What was run", _facts(results)),
        (f"Scores ({results['counting']})", scores),
        ("Accuracy / ECE per domain, per cent", per_domain),
    ]


def _facts(results: Mapping[str, Any]) -> Rows:
    """Model, data, stream and versions."""
    model, data, stream = results["model"], results["data"], results["stream"]
    facts = [
        ("", ""),
        ("model", f"{model['path']} (sha256 {model['sha256'][:16]})"),
        ("data", f"{data['path']}, {data['images']} images"),
        ("samples", f"{stream['samples']} in batches of {stream['batch_size']}"),
        ("severities", ", ".join(f"{value:g}" for value in results["severities"])),
        ("seeds", ", ".join(str(seed) for seed in results["seeds"])),
        ("calibration bins", f"{results['bins']['num_bins']}, {results['bins']['kind']}"),
        ("versions", ", ".join(f"{k} {v}" for k, v in results["versions"].items())),
        ("peak memory", f"{results['machine']['peak_memory_bytes'] / 2**20:.0f} MiB"),
    ]
    if "normalise" in model:
        facts.append(("input normalised as", model["normalise"]))
    return facts


def _text(value: float | None, digits: int) -> str:
    return "infinite" if value is None else f"{value:.{digits}f}"


Results = Mapping[str, Any]

# Beyond so many names a legend hides the picture.
MAX_LEGEND = 12
MAX_SHADED = 60
BUBBLE_AREA = 30.0


def draw(results: Results, picture: str, /) -> bytes | None:
    """Draw a picture of `PICTURES` as PNG; None where the result has nothing to show in it."""
    require("matplotlib", extra="eval").use("Agg")
    figure = require("matplotlib.figure", extra="eval").Figure(figsize=(9, 4.5), layout="tight")
    if not PICTURES[picture][1](results, figure):
        return None
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _over_time(metric: str, results: Results, figure: Any) -> bool:
    """One metric, in per cent, over the stream, domains shaded in turn."""
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
    label = {"accuracy": "accuracy", "ece": "ECE"}[metric]
    axes.set(xlabel="samples", ylabel=f"{label}, per cent")
    _legend(axes)
    return True


def _shade(axes: Any, results: Results) -> None:
    """Every second visit to a domain on grey, its name on top."""
    segments = next(iter(results["methods"].values()))["series"]["segments"]
    if not 1 < len(segments) <= MAX_SHADED:
        return
    stream = results["stream"]
    ends = [*(start for start, _ in segments[1:]), stream["samples"]]
    for number, ((start, domain), stop) in enumerate(zip(segments, ends, strict=True)):
        if number % 2:
            axes.axvspan(start, stop, color="0.92", zorder=0)
        axes.text(
            (start + stop) / 2,
            1.01,
            stream["domains"][domain],
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
    # "best" searches the data, for seconds on a slow machine.
    axes.legend(handles[:MAX_LEGEND], labels[:MAX_LEGEND], fontsize=7, loc="upper right")


# Name of the picture to its caption and what draws it.
PICTURES: dict[str, tuple[str, Callable[[Results, Any], bool]]] = {
    "accuracy": ("Accuracy over the stream", partial(_over_time, "accuracy")),
    "ece": ("Calibration error over the stream", partial(_over_time, "ece")),
    "reliability": ("Reliability: accuracy against confidence, area = samples", _reliability),
    "strength": ("How strongly GAIN would intervene before it learns from a batch", _strength),
    "gains": (
        "What GAIN expects of the full correction before it learns from a batch, and its worth",
        _gains,
    ),
    "efficiency": ("Accuracy against cost, area = calibration error", _efficiency),
}

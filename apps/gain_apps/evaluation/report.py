"""A report of a result file: tables and pictures, as one HTML file or as Markdown."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gain_apps.evaluation.pictures import PICTURES, draw
from gain_core._optional import require
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.atomic_file import write_atomically

__all__ = ["check_report_path", "write_report"]

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

    Raises
    ------
    ConfigError
        If it is neither .html nor .md.
    BackendUnavailableError
        If matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: expected a report called *.html or *.md")
    require("matplotlib", extra="eval")


def write_report(path: Path, results: Mapping[str, Any], /) -> None:
    """Write a report.

    Parameters
    ----------
    path : Path
        `.html` is one self-contained file; the pictures of `.md` lie beside it, called
        `NAME-PICTURE.png`.
    results : mapping
        As `make_results` or `read_results` give it.

    Raises
    ------
    ConfigError, BackendUnavailableError
        As `check_report_path`.
    ArtifactError
        If the results hold no series, or a file cannot be written.
    """
    check_report_path(path)
    if any("series" not in record for record in results["methods"].values()):
        raise ArtifactError(f"{path}: the result holds no series to draw; run gain-eval again")
    images = {name: image for name in PICTURES if (image := draw(results, name)) is not None}
    try:
        if path.suffix == ".html":
            write_atomically(path, _html(results, images).encode())
            return
        for name, image in images.items():
            write_atomically(path.with_name(f"{path.stem}-{name}.png"), image)
        write_atomically(path, _markdown(results, images, stem=path.stem).encode())
    except OSError as err:
        raise ArtifactError(f"{path}: cannot be written ({err.strerror}); check it") from err


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

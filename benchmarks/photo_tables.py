"""Tables and picture of the photographs, made from the results of `photos.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from marks import markdown

__all__ = ["TABLES", "draw"]

Reports = Mapping[str, Mapping[str, Any]]

SHOWN = {"tracked": "#1b9e77", "balanced": "#7570b3", "neo-continual": "#d95f02"}


def _title(name: str, report: Mapping[str, Any]) -> str:
    """Network, severity and number of views."""
    network, _, severity = name.partition("_s")
    views = report["data"]["views"]
    plural = "view" if views == 1 else "views"
    return f"{network.capitalize()}, severity {severity}, {views} {plural}"


def _scores(reports: Reports) -> str:
    """Accuracy / ECE / NLL of every method in every result."""
    methods = max((report["methods"] for report in reports.values()), key=len)

    def cell(rows: Mapping[str, Any], method: str) -> str:
        if method not in rows:
            return ""
        row = rows[method]
        return f"{row['accuracy']:.1f} / {row['ece']:.1f} / {row['nll']:.2f}"

    heading = ["", *(_title(name, report) for name, report in reports.items())]
    return markdown(
        heading,
        [
            [f"`{method}`", *(cell(report["methods"], method) for report in reports.values())]
            for method in methods
        ],
    )


def draw(reports: Reports, path: Path, /) -> None:
    """Points of accuracy and nats of NLL won against the source, by corruption."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        2, len(reports), figsize=(3.2 * len(reports), 8), sharex="row", sharey=True, squeeze=False
    )
    panels = (("accuracy", 1.0, "points of accuracy"), ("nll", -1.0, "nats of NLL"))
    for axes, (name, report) in zip(grid.T, reports.items(), strict=True):
        domains = report["stream"]["domains"]
        places = np.arange(len(domains))
        source = report["methods"]["source"]["domains"]
        for axis, (score, sign, label) in zip(axes, panels, strict=True):
            for offset, (method, colour) in zip((-0.27, 0.0, 0.27), SHOWN.items(), strict=True):
                rows = report["methods"][method]["domains"]
                won = [sign * (rows[each][score] - source[each][score]) for each in domains]
                axis.barh(places + offset, won, height=0.26, color=colour, label=method)
            axis.axvline(0.0, color="black", linewidth=0.8)
            axis.set_yticks(places, domains, fontsize=7)
            axis.tick_params(axis="x", labelsize=7)
            axis.set_xlabel(f"{label} won", fontsize=8)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_title(_title(name, report), fontsize=9)
    # Shared by all panels: the first corruption on top.
    grid[0][0].invert_yaxis()
    grid[0][0].legend(fontsize=7, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


TABLES: dict[str, Callable[[Reports], str]] = {"photographs": _scores}

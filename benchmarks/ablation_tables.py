"""The tables of `docs/ablations.md`, made from the result of `roadsigns_ablation.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ablation_methods import ABLATIONS, BASE, DEFAULT, DEFAULT_ABLATIONS, OTHERS
from marks import Cells, markdown

__all__ = ["TABLES"]

Report = Mapping[str, Any]
Row = Mapping[str, Any]

STREAM_NAMES = {"csc": "CSC", "cdc": "CDC", "mds": "MDS", "lha": "LHA"}
BY_ROUND = (BASE, DEFAULT, "paper", "neo", "neo-continual", "foa-shift", "t3a", "recentre")
STRENGTH_OF = (
    BASE,
    f"{BASE}:prior_samples=0:prior_strength=3",
    f"{BASE}:prior_samples=0:prior_strength=30",
    DEFAULT,
    f"{DEFAULT}:shrinkage=2",
    f"{DEFAULT}:half_life=128",
    "paper",
)


def _scores(row: Row | None) -> str:
    """Accuracy / ECE / NLL; nothing where a method was not run."""
    if row is None:
        return ""
    accuracy, ece, nll = (row[score]["mean"] for score in ("accuracy", "ece", "nll"))
    return f"{accuracy:.2f} / {ece:.2f} / {nll:.3f}"


def _by_stream(report: Report, methods: Iterable[tuple[str, str]]) -> str:
    """A row for each (label, method), a column for each stream."""
    streams = report["streams"]
    rows = [
        [label, *(_scores(part["methods"].get(method)) for part in streams.values())]
        for label, method in methods
    ]
    return markdown(["", *(STREAM_NAMES[name] for name in streams)], rows)


def _exchanged(base: str, changes: Iterable[str]) -> Callable[[Report], str]:
    """The table of a base and of the base with one part exchanged."""
    rows = [("unchanged", base), *((f"`{change}`", f"{base}:{change}") for change in changes)]
    return lambda report: _by_stream(report, rows)


def _all(report: Report) -> str:
    return _by_stream(report, [(f"`{name}`", name) for name in ("source", BASE, DEFAULT, *OTHERS)])


def _prior_strength(report: Report) -> str:
    changes = ABLATIONS["prior strength"]
    return _by_stream(report, [(each.rpartition("=")[2], f"{BASE}:{each}") for each in changes])


def _strength(report: Report) -> str:
    """Mean strength / share of samples at 1 / correlation of expected and realised gain."""

    def cell(row: Row) -> str:
        gain = row["gain"]
        pearson = "-" if gain["pearson"] is None else f"{gain['pearson']:.2f}"
        return f"{gain['mean_strength']:.3f} / {gain['share_at_one']:.2f} / {pearson}"

    diagnosed = {
        name: part["methods"]
        for name, part in report["streams"].items()
        if "gain" in part["methods"].get(DEFAULT, {})
    }
    rows = [
        [f"`{name}`", *(cell(methods[name]) for methods in diagnosed.values())]
        for name in STRENGTH_OF
    ]
    return markdown(["", *(STREAM_NAMES[name] for name in diagnosed)], rows)


def _rounds(report: Report) -> str:
    """Accuracy in each round of LHA, and the ECE of the first and the last."""
    rows: Cells = []
    for name in BY_ROUND:
        rounds = report["streams"]["lha"]["methods"][name]["rounds"]
        accuracies = [f"{each['accuracy']:.1f}" for each in rounds]
        ends = f"{rounds[0]['ece']:.1f}, {rounds[-1]['ece']:.1f}"
        rows.append([f"`{name}`", *accuracies, ends])
    count = report["streams"]["lha"]["rounds"]
    return markdown(["", *map(str, range(1, count + 1)), f"ECE in 1, in {count}"], rows)


def _spread(report: Report) -> str:
    """The largest standard deviation over seeds of each score, and whose it is."""
    rows: Cells = []
    for stream, part in report["streams"].items():
        cells = []
        for score in ("accuracy", "ece", "nll"):
            worst = max(part["methods"], key=lambda name: part["methods"][name][score]["std"])
            cells.append(f"{part['methods'][worst][score]['std']:.3f} (`{worst}`)")
        base = part["methods"][DEFAULT]["accuracy"]["std"]
        rows.append([STREAM_NAMES[stream], *cells, f"{base:.3f}"])
    return markdown(["", "accuracy", "ECE", "NLL", f"accuracy of `{DEFAULT}`"], rows)


def _batch_sizes(report: Report) -> str:
    sizes = report["csc_batch_sizes"]
    names = max((part["methods"] for part in sizes.values()), key=len)
    rows = [
        [f"`{name}`", *(_scores(part["methods"].get(name)) for part in sizes.values())]
        for name in names
    ]
    return markdown(["", *(title.removeprefix("batch size ") for title in sizes)], rows)


TABLES: dict[str, Callable[[Report], str]] = {
    "spread": _spread,
    "all methods": _all,
    "rounds": _rounds,
    **{
        f"{name}, {DEFAULT}": _exchanged(DEFAULT, changes)
        for name, changes in DEFAULT_ABLATIONS.items()
    },
    "strength": _strength,
    **{
        name: _exchanged(BASE, changes)
        for name, changes in ABLATIONS.items()
        if name != "prior strength"
    },
    "prior strength": _prior_strength,
    "batch sizes": _batch_sizes,
}

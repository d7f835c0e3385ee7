"""Running a suite: what its result file lacks, the bars, and the tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gain_apps.evaluation.eval_input import EvalInput, OnImages
from gain_apps.evaluation.executor import Executor
from gain_apps.evaluation.experiment import evaluate, open_for_stream
from gain_apps.evaluation.results import versions, write_results
from gain_apps.evaluation.streams import parse_stream
from gain_apps.evaluation.suite_file import Bar, Suite, SuiteInput, SuiteStream
from gain_core.errors import ArtifactError, ConfigError
from gain_runtime.files.paths import exists

SOURCE = "source"
SCORES = ("accuracy", "ece", "nll")
Report = dict[str, Any]
# Of one pair: method to seed to scores.
Cell = Mapping[str, Mapping[str, Mapping[str, float]]]


def run_suite(
    suite: Suite,
    path: Path,
    /,
    *,
    folders: Sequence[Path] = (),
    cache: str | Path | None = None,
    only: Sequence[str] = (),
    refresh: Sequence[str] = (),
    seeds: int | None = None,
    executor: Executor | None = None,
    on_task: OnImages | None = None,
    on_pair: Callable[[str], None] | None = None,
) -> Report:
    """Run what the result file lacks, save it seed by seed, and judge the bars.

    Relative paths of inputs are looked for in the folders, then in the current one. `only` names
    inputs or streams, `refresh` methods to run again; at most so many seeds are run. `on_pair` is
    called with a line after each pair. The report is as in the file: `cells` by pair, method and
    seed; `bars`. Raises as `evaluate`; also if the file is of another suite or an input is not
    there.
    """
    report = _open_report(suite, path)
    done: set[tuple[str, str, int, str]] = set()
    opened: tuple[SuiteInput, bool, EvalInput] | None = None
    for each, stream in suite.pairs(only):
        key = f"{each.name}, {stream.name}"
        cell = report["cells"].setdefault(key, {})
        for seed in range(_seeds(suite, each, stream, most=seeds)):
            methods = [
                name
                for name in stream.methods or each.methods or suite.methods
                if str(seed) not in cell.get(name, {})
                or (name in refresh and (each.name, stream.name, seed, name) not in done)
            ]
            if not methods:
                continue
            special = parse_stream(stream.stream)["kind"] in ("ramp", "recorded", "recorded-one")
            if opened is None or opened[0] is not each or opened[1] != special:
                of = _open_input(
                    each, stream, folders, cache=cache, executor=executor, on_images=on_task
                )
                opened = each, special, of
            found = evaluate(
                opened[2],
                stream=stream.stream,
                order=stream.order,
                batch_size=stream.batch_size,
                methods=methods,
                seeds=[seed],
                settings=each.settings,
                executor=executor,
                on_task=on_task,
            )
            for name in (SOURCE, *methods):
                scores = {score: found["methods"][name][score] for score in SCORES}
                rounded = {k: v if v is None else round(v, 3) for k, v in scores.items()}
                cell.setdefault(name, {})[str(seed)] = rounded
                done.add((each.name, stream.name, seed, name))
            report["bars"] = judge(suite, report)
            write_results(path, report)
        if on_pair is not None and cell:
            on_pair(f"{key}: " + ", ".join(f"{m} {_text(_shared(cell), m)}" for m in cell))
    report["bars"] = judge(suite, report)
    write_results(path, report)
    return report


def judge(suite: Suite, report: Mapping[str, Any], /) -> list[dict[str, Any]]:
    """Every bar with what was measured, whether that clears it, and the pair it hangs on."""
    return [_judged(bar, *_selected(suite, bar, report["cells"])) for bar in suite.bars]


def suite_markdown(suite: Suite, report: Mapping[str, Any], /) -> str:
    """The bars and the scores of every pair, as Markdown.

    A cell has the mean over seeds of accuracy / ECE in per cent, and behind it what the worst seed
    (or class, where a stream has one) lost or won against the source.
    """
    parts = [f"{suite.description}\n\n`gain-eval suite {suite.name}`"]
    if suite.bars:
        rows = [
            [
                bar.text,
                f"at least {bar.at_least:g}" if bar.at_most is None else f"at most {bar.at_most:g}",
                "not run" if found["measured"] is None else f"{found['measured']:.1f}",
                found["verdict"],
                found["where"],
            ]
            for bar, found in zip(suite.bars, report["bars"], strict=True)
        ]
        parts.append(_markdown(["bar", "asked", "measured", "", "where"], rows))
    pairs = {}
    for each, stream in suite.pairs():
        if cell := _shared(report["cells"].get(f"{each.name}, {stream.name}", {})):
            pairs[f"{each.name}, {stream.name} ({len(cell[SOURCE])})"] = cell
    run = dict.fromkeys(method for cell in pairs.values() for method in cell)
    names = list(dict.fromkeys(m for m in (SOURCE, *suite.methods, *run) if m in run))
    if len(names) > len(pairs):  # the longer list goes down the page
        table = [[name, *(_text(cell, name) for cell in pairs.values())] for name in names]
        parts.append(_markdown(["method", *pairs], table))
    elif pairs:
        table = [[key, *(_text(cell, name) for name in names)] for key, cell in pairs.items()]
        parts.append(_markdown(["input, stream (seeds)", *names], table))
    return "\n\n".join(parts) + "\n"


def _judged(bar: Bar, cells: Mapping[str, Cell], lacking: int) -> dict[str, Any]:
    """One bar, and how many of its pairs were not run."""
    value, where = _measured(bar, cells) if cells else (None, "")
    if value is None:
        verdict = "not run"
    else:
        over = value - bar.at_least if bar.at_least is not None else (bar.at_most or 0.0) - value
        verdict = "met" if over >= 0.0 else f"missed by {-over:.1f}"
        value = round(value, 2)
    if lacking and value is not None:
        verdict += f", {lacking} pairs not run"
    return {"text": bar.text, "measured": value, "verdict": verdict, "where": where}


def _measured(bar: Bar, cells: Mapping[str, Cell]) -> tuple[float | None, str]:
    """A bar's measure, and the pair it was taken from or the number of pairs."""
    score = "ece" if bar.measure in ("calm pairs", "worst ece change") else "accuracy"
    changes = {key: _changes(cell, bar.method, score) for key, cell in cells.items()}
    means = {key: float(np.mean(change)) for key, change in changes.items()}
    if bar.measure == "mean change":
        return float(np.mean(list(means.values()))), f"{len(cells)} pairs"
    if bar.measure == "calm pairs":
        share = float(np.mean([change <= 0.0 for change in means.values()]))
        return 100.0 * share, f"{len(cells)} pairs"
    if bar.measure == "lead":
        shared = [cell for cell in cells.values() if all(name in cell for name in bar.over)]
        if not shared:
            return None, ""
        won = {
            name: float(np.mean([np.mean(_changes(cell, name)) for cell in shared]))
            for name in (bar.method, *bar.over)
        }
        best = max(bar.over, key=won.__getitem__)
        return won[bar.method] - won[best], f"{len(shared)} pairs, over {best}"
    if bar.measure == "worst seed":
        means = {key: min(change) for key, change in changes.items()}
    worst = (max if score == "ece" else min)(means, key=means.__getitem__)
    return means[worst], worst


def _changes(cell: Cell, method: str, score: str = "accuracy") -> list[float]:
    """A score of each seed less the source's."""
    return [scores[score] - cell[SOURCE][seed][score] for seed, scores in cell[method].items()]


def _selected(suite: Suite, bar: Bar, cells: Mapping[str, Cell]) -> tuple[dict[str, Cell], int]:
    """The pairs that a bar is about, of those that have its method, and how many have not."""
    found: dict[str, Cell] = {}
    lacking = 0
    for each, stream in suite.pairs():
        if bar.inputs is not None and each.name not in bar.inputs:
            continue
        if bar.streams is not None and stream.name not in bar.streams:
            continue
        cell = _shared(cells.get(f"{each.name}, {stream.name}", {}))
        if bar.method not in cell:
            lacking += 1
            continue
        source = float(np.mean([scores["accuracy"] for scores in cell[SOURCE].values()]))
        if source < bar.source_below:
            found[f"{each.name}, {stream.name}"] = cell
    return found, lacking


def _shared(cell: Cell) -> Cell:
    """The seeds that every method of a pair has: of a run that was stopped, some have more."""
    seeds = [seed for seed in cell.get(SOURCE, {}) if all(seed in found for found in cell.values())]
    return {name: {seed: found[seed] for seed in seeds} for name, found in cell.items() if seeds}


def _text(cell: Cell, method: str) -> str:
    """Mean accuracy / ECE, and the worst seed's change."""
    if method not in cell:
        return ""
    accuracy, ece = (
        float(np.mean([scores[name] for scores in cell[method].values()]))
        for name in ("accuracy", "ece")
    )
    worst = "" if method == SOURCE else f" ({min(_changes(cell, method)):+.1f})"
    return f"{accuracy:.1f} / {ece:.1f}{worst}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _seeds(suite: Suite, each: SuiteInput, stream: SuiteStream, *, most: int | None) -> int:
    """How many seeds a pair runs: the fewest that input and stream ask for."""
    asked = [count for count in (each.seeds, stream.seeds) if count is not None]
    count = min(asked) if asked else suite.seeds
    return count if most is None else min(count, most)


def _open_report(suite: Suite, path: Path) -> Report:
    """What was run before, or nothing."""
    report: Report = {"suite": suite.name, "command": f"gain-eval suite {suite.name}"}
    cells: dict[str, Any] = {}
    if exists(path):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            cells = found["cells"]
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise ArtifactError(
                f"{path}: expected the result of a suite ({err}); choose another with --json"
            ) from err
        if found.get("suite") != suite.name:
            raise ArtifactError(
                f"{path}: expected a result of suite {suite.name}, got one of "
                f"{found.get('suite')!r}; choose another with --json"
            )
    return {**report, "versions": versions(), "cells": cells, "bars": []}


def _open_input(
    each: SuiteInput,
    stream: SuiteStream,
    folders: Sequence[Path],
    *,
    cache: str | Path | None,
    executor: Executor | None,
    on_images: OnImages | None,
) -> EvalInput:
    """The input, its files found in the folders."""

    def located(name: str) -> str:
        tried = [folder / name for folder in (*folders, Path())]
        return str(next((path for path in tried if exists(path)), name))

    model = located(each.model)
    if not exists(model):
        places = ", ".join(str(folder) for folder in folders) or "the current folder"
        raise ConfigError(
            f"{each.model}: expected the input {each.name} in {places}, found none; name its "
            "folder with --inputs, or run other inputs with --only"
        )

    def file(path: Path | None) -> Path | None:
        return None if path is None else Path(located(str(path)))

    settings = replace(
        each.settings,
        cache=cache,
        class_file=file(each.settings.class_file),
        image_list=file(each.settings.image_list),
    )
    data = tuple(name if "://" in name else located(name) for name in each.data)
    return open_for_stream(
        model, data or None, stream.stream, settings, executor=executor, on_images=on_images
    )

"""Every committed result as a table: one report, the pages of the site and the README's table.

    python benchmarks/report.py            # writes results/report.md and the README's table
    python benchmarks/report.py --check    # exit status 1 where one of them is out of date

The site takes single tables: a line `<!-- result: NAME -->` of a page becomes that table when it is
built (`docs/_site/results.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
REPORT = RESULTS / "report.md"
README = ROOT / "README.md"

# It does not break, so that both numbers of a cell stay on one line.
SPACE = "\u00a0"

Cell = Mapping[str, Mapping[str, float]]


def markdown(heading: Iterable[str], rows: Iterable[Iterable[str]], /) -> str:
    """A table: its heading and its rows."""
    names = list(heading)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_table(page: Path, name: str, table: str, /) -> str:
    """A page of Markdown with a table between `<!-- NAME -->` and `<!-- /NAME -->`.

    One that lacks the marks ends the script.
    """
    text = page.read_text(encoding="utf-8")
    mark = re.escape(name)
    found = re.search(rf"^(<!-- {mark} -->)$.*?^(<!-- /{mark} -->)$", text, re.M | re.S)
    if found is None:
        raise SystemExit(f"{page}: expected <!-- {name} --> and <!-- /{name} --> on lines")
    return f"{text[: found.end(1)]}\n\n{table}\n\n{text[found.start(2) :]}"


def result(name: str, /) -> dict[str, Any]:
    """One result file."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return content


def mean(cell: Cell, measure: str, /) -> float:
    """Over seeds."""
    return math.fsum(seed[measure] for seed in cell.values()) / len(cell)


def change(pair: Mapping[str, Cell], /) -> list[float]:
    """Points of accuracy of the default over the source, seed by seed."""
    return [
        pair["shift"][seed]["accuracy"] - scores["accuracy"]
        for seed, scores in pair["source"].items()
    ]


def score(pairs: list[Mapping[str, Cell]], method: str, /) -> str:
    """Accuracy / ECE, the mean over pairs."""
    return f"{SPACE}/{SPACE}".join(
        f"{math.fsum(mean(pair[method], name) for pair in pairs) / len(pairs):.1f}"
        for name in ("accuracy", "ece")
    )


def measured_pairs() -> dict[str, Mapping[str, Cell]]:
    """Every stream of both suites that was run."""
    cells = {**result("camera")["cells"], **result("pairs")["cells"]}
    return {name: cell for name, cell in cells.items() if {"source", "shift"} <= cell.keys()}


def readme_table() -> str:
    """What adapting brings and costs: the usual stream, the easy one, and the worst of all."""
    pairs = measured_pairs()
    worst = min(pairs, key=lambda name: min(change(pairs[name])))
    drives = [pair for name, pair in pairs.items() if "drive" in name]
    rows = (
        (f"{len(drives)} drives past road signs, 53 classes", drives),
        ("objects before a camera, 36 classes", [pairs["vit_k36, video"]]),
        ("shuffled corrupted photographs, 1,000 classes", [pairs["photos_k1000, shuffled"]]),
        (f"**the worst of all {len(pairs)} streams**: {WORST[worst]}", [pairs[worst]]),
    )
    return markdown(
        ("stream", "frozen: accuracy / ECE", "adapted", "worst run against frozen"),
        (
            (
                text,
                score(group, "source"),
                score(group, "shift"),
                f"{min(point for pair in group for point in change(pair)):+.1f}",
            )
            for text, group in rows
        ),
    )


# How the worst stream is called; another one stops the report until it has a name here.
WORST = {"cifar_cnn, long-tailed": "ten classes with a long tail"}


def torch_table() -> str:
    """Methods that train the network, beside one that does not."""
    methods = result("torch_baselines")["methods"]
    source_ms = methods["torch-source"]["step_ms"]["mean"]
    rows = []
    for name, scores in methods.items():
        cost = scores["cost"]
        own_ms = scores["step_ms"]["mean"] + (0.0 if trains(name) else source_ms)
        passes = f"{cost['num_forward']:.3g} + {cost['num_backward']:.2g}"
        accuracy = f"{scores['accuracy']:.1f} / {scores['ece']:.1f}"
        rows.append((f"`{name}`", accuracy, passes, f"{own_ms / source_ms:.1f}"))
    heading = (
        "method",
        "accuracy / ECE",
        "forward + backward passes",
        "time of a batch, source = 1",
    )
    return markdown(heading, rows)


def trains(name: str, /) -> bool:
    """Whether a method's time holds its forward passes."""
    kinds = ("torch-source", "tent", "eata", "sar", "cotta", "roid", "foa")
    return name.split(":")[0] in kinds


def export_rows() -> str:
    """The libraries whose models were exported, what of them was not, and what an export takes."""
    table = result("export_table")
    rows = [row for row in table["rows"] if row["outcome"] != "no file"]
    cells = []
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        exported = [row for row in own if row["outcome"] == "exported"]
        verified = sum(row["verified"] == "yes" for row in exported)
        features = sum(row["feature_dim"] is not None for row in exported)
        cells.append((group, *map(str, (len(own), len(exported), verified, features))))
    differences = [row["difference"] for row in rows if row["outcome"] == "exported"]
    largest = max(found for found in differences if found is not None)
    heading = ("library", "models tried", "exported", "verified", "with features")
    text = [
        markdown(heading, cells),
        f"The largest difference from the library's own output is {largest:.0e} of its largest "
        "value. Left out is what torch's exporters or the library cannot write to a file.",
    ]
    others = [row for row in rows if row.get("verified") != "yes" or row["outcome"] != "exported"]
    if others:
        why = [
            (
                f"{row['group']}: `{row['model']}`",
                "not verified" if row["outcome"] == "exported" else row["outcome"],
                row["reason"].replace("|", "\\|"),
            )
            for row in others
        ]
        text.append(markdown(("model", "", "why"), why))
    if "times" in table:
        times, machine = table["times"], table["times"]["machine"]
        spent = " and ".join(
            f"{value:.0f} s for `{name}`" for name, value in times["seconds"].items()
        )
        text.append(
            f"An export takes {spent}, on {machine['cpu']} with {machine['cores']} cores; the load "
            f"average was {times['load_before']:.0f} before it."
        )
    return "\n\n".join(text)


def bench_table() -> str:
    """Where a frame's time goes, and what adapting costs."""
    bench = result("bench_cpu")
    frozen, adapted = (bench[name]["stages_ms"] for name in ("frozen", "adapted"))
    rows = [
        (stage, f"{frozen[stage]['p50']:.2f}", f"{adapted[stage]['p50']:.2f}") for stage in frozen
    ]
    ratio = bench["adapted_over_frozen"]
    return (
        markdown(("stage, median ms per frame", "frozen", "adapted"), rows)
        + f"\n\nAdapted throughput over frozen: {ratio['throughput_ratio']:.3f}; without decoding "
        f"{ratio['throughput_ratio_without_decode']:.3f}."
    )


# What the paper has under CSC on ImageNet-C, accuracy / ECE; its parts by the names they have here.
PAPER_PARTS = {
    "paper-l2": ("GAIN as a whole", "61.9 / 6.0"),
    "paper-l2:rule=retention": ("rule: never intervene", "44.2 / 5.4"),
    "paper-l2:rule=full": ("rule: always, in full", "58.6 / 11.2"),
    "paper-l2:rule=fixed:fixed_strength=0.5": ("rule: always, by half", "59.7 / 8.9"),
    "paper-l2:rule=entropy": ("rule: by entropy", "58.9 / 8.4"),
    "paper-l2:rule=disagreement": ("rule: by disagreement", "58.9 / 9.2"),
    "paper-l2:role=evaluator": ("role: the evaluator answers", "58.9 / 12.8"),
    "paper-l2:role=swapped": ("role: proposal and evaluator swapped", "61.7 / 8.0"),
    "paper-l2:assignment=source": ("assignment: source", "60.8 / 7.2"),
    "paper-l2:assignment=proposal": ("assignment: proposal", "61.6 / 6.2"),
    "paper-l2:reliability=false": ("without reliability", "59.9 / 11.9"),
    "paper-l2:assignment=source:reliability=false": ("the same, by source", "58.5 / 13.7"),
    "paper-l2:assignment=proposal:reliability=false": ("the same, by proposal", "59.6 / 12.2"),
    "paper-l2:prior=uniform": ("class prior: uniform", "59.9 / 6.5"),
    "paper-l2:prior=reliability": ("class prior: reliability only", "59.6 / 6.8"),
    "paper-l2:prior=balancing": ("class prior: balancing only", "60.5 / 5.5"),
    "paper-l2:prior_strength=30": ("prior strength 30", "-"),
    "paper-l2:prior_strength=300": ("prior strength 300", "-"),
    "paper-l2:prior_strength=3000": ("prior strength 3000", "-"),
}


def paper_parts_table() -> str:
    """The paper's ablations beside what they gave here."""
    cell = result("ablations")["cells"]["vit_k36, CSC, shuffled"]
    rows = [
        (text, f"`{name}`", there, score([cell], name))
        for name, (text, there) in PAPER_PARTS.items()
    ]
    return markdown(("part", "method", "paper", "here"), rows)


def paper_streams_table() -> str:
    """The paper's streams on the data that could be had."""
    ablations, pairs = result("ablations")["cells"], result("pairs")["cells"]
    cells = {
        "CSC, `vit_k36`": ablations["vit_k36, CSC, shuffled"],
        "CDC, `vit_k36`": ablations["vit_k36, CDC"],
        "MDS, `vit_k36`": pairs["vit_k36, MDS"],
        "CSC, `photos_k1000`": one_run(result("paper_k1000")),
    }
    methods = ("source", "paper", "paper-l2", "shift")
    rows = [
        (name, *(score([cell], method) if method in cell else "not run" for method in methods))
        for name, cell in cells.items()
    ]
    return markdown(("stream", *methods), rows)


def one_run(content: Mapping[str, Any], /) -> Mapping[str, Cell]:
    """A result of `gain-eval` as a suite's cell."""
    return {name: {"0": scores} for name, scores in content["methods"].items()}


def merging_table() -> str:
    """What a camera wins and loses by a merged state: one start a row."""
    merging = result("merging")
    found = merging["summary"]
    heading = [
        "the camera begins with",
        f"{found['cameras_learned']} cameras that had learned",
        f"{found['cameras_not']} that had not",
        "worst against zeros",
        "worst against its own",
    ]
    rows = []
    for start, record in found["starts"].items():
        row = [merging["starts"][start]]
        for group in ("learned", "not_learned"):
            row.append(f"{record[f'accuracy_{group}']:.1f} / {record[f'ece_{group}']:.1f}")
        for base in ("fresh", "own"):
            worst, ece = (record[f"worst_{score}_against_{base}"] for score in ("accuracy", "ece"))
            row.append("" if start == base else f"{worst:+.1f} / {ece:+.1f}")
        rows.append(row)
    return markdown(heading, rows)


def suite_table(name: str, /) -> str:
    """As `gain-eval suite` wrote it, without the first two paragraphs."""
    return (RESULTS / f"{name}.md").read_text("utf-8").split("\n\n", 2)[2].strip()


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme_table,
    "camera": lambda: suite_table("camera"),
    "pairs": lambda: suite_table("pairs"),
    "ablations": lambda: suite_table("ablations"),
    "paper-parts": paper_parts_table,
    "paper-streams": paper_streams_table,
    "torch-baselines": torch_table,
    "export": export_rows,
    "bench": bench_table,
    "merging": merging_table,
    "soak": lambda: (RESULTS / "soak.md").read_text("utf-8").strip(),
}

# What the report holds: a title, the result file, the table.
SECTIONS = (
    ("Camera streams", "camera", "camera"),
    ("Streams of data sets", "pairs", "pairs"),
    ("The paper's Algorithm 1, one part exchanged at a time", "ablations", "ablations"),
    ("The paper's streams on other data", "paper_k1000", "paper-streams"),
    ("Methods that train the network", "torch_baselines", "torch-baselines"),
    ("What a frame costs", "bench_cpu", "bench"),
    ("Models of other libraries", "export_table", "export"),
    ("States merged from other cameras", "merging", "merging"),
    ("Fifty cameras in one service", "soak", "soak"),
)


def report() -> str:
    """The whole report."""
    parts = [
        "# Laboratory report",
        "Made by `python benchmarks/report.py` from the result files beside it. A cell is accuracy "
        "/ ECE in per cent; in brackets is what the worst seed won or lost against the source.",
    ]
    for title, file, name in SECTIONS:
        if not (RESULTS / f"{file}.json").exists():
            continue
        command = result(file).get("command")
        made_by = f", made by `{command}`" if command else ""
        parts += [f"## {title}", f"`{file}.json`{made_by}", TABLES[name]()]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Write the report, or say what is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    written = {
        REPORT: report(),
        README: with_table(README, "result: readme", readme_table()),
    }
    stale = [
        path
        for path, text in written.items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'out of date' if args.check else 'written'}")
        if not args.check:
            path.write_text(written[path], encoding="utf-8")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())

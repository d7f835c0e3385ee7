"""What the README says adapting brings is what the committed results say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MEASURED, UNMEASURED = "tracked:measured=true", "tracked"
METHODS = ("source", MEASURED, "neo-continual", "recentre")
DRIVES = tuple(f"road-sign drive {seed}, as recorded" for seed in range(5))
ROWS = {
    "road signs, five drives of 6,000 frames": DRIVES,
    "road signs, still, 15 corruptions, severity 3": ("road signs, severity 3, shuffled",),
    "road signs, still, 15 corruptions, severity 5": ("road signs, severity 5, shuffled",),
    "small ViT, 36 characters, 15 corruptions, shuffled": ("vit_k36, shuffled",),
    "the same, in runs of one class": ("vit_k36, runs of one class",),
    "the same, sorted by class": ("vit_k36, sorted by class",),
    "the same, one class only": ("vit_k36, one class only",),
    "EfficientNet-Lite0, 1,000 photos, 15 corruptions, severity 5": ("photos_k1000, shuffled",),
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return json.loads((RESULTS / "adaptation.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def readme() -> str:
    return (ROOT / "README.md").read_text("utf-8")


def mean(report: dict[str, Any], cells: tuple[str, ...], method: str, number: str) -> float:
    values = [report["cells"][cell][method][number] for cell in cells]
    return float(sum(values) / len(values))


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_what_it_brings(report, readme, row):
    said = re.findall(r"(\d+\.\d) / (\d+\.\d)", line_of(readme, row))
    assert len(said) == len(METHODS)
    for method, (accuracy, ece) in zip(METHODS, said, strict=True):
        assert float(accuracy) == pytest.approx(
            mean(report, ROWS[row], method, "accuracy"), abs=0.0501
        )
        assert float(ece) == pytest.approx(mean(report, ROWS[row], method, "ece"), abs=0.0501)


def line_of(page: str, name: str) -> str:
    found = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    assert len(found) == 1
    return found[0]


def test_the_same_without_clean_images(report, readme):
    said = re.search(r"without it (\d+\.\d), (\d+\.\d) and (\d+\.\d)", readme)
    assert said is not None
    streams = ("shuffled", "runs of one class", "sorted by class")
    found = [report["cells"][f"vit_k36, {stream}"][UNMEASURED]["accuracy"] for stream in streams]
    assert [float(number) for number in said.groups()] == pytest.approx(found, abs=0.0501)


def test_what_it_wins_over_all_pairs(report, readme):
    pairs = re.search(r"Over (\d+) pairs", readme)
    won = re.search(r"wins (\d\.\d) points on average .*?, without it (\d\.\d)", readme, re.DOTALL)
    assert pairs is not None
    assert won is not None
    assert int(pairs[1]) == len(report["cells"])
    bars = [report["bars"][method] for method in (MEASURED, UNMEASURED)]
    found = [bar["mean_gain_where_the_source_is_below_70"] for bar in bars]
    assert [float(number) for number in won.groups()] == pytest.approx(found, abs=0.0501)
    assert "never more than half a point below" in readme
    assert all(bar["pairs_that_lose_more_than_half_a_point"] == 0 for bar in bars)

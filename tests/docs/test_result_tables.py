"""Tables of pages made from result files: where they belong, and current on the pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
ABLATION = ("roadsigns_ablation.py", "--json", BENCHMARKS / "results" / "roadsigns_ablation.json")
PHOTOS = ("photos.py",)
HARD = ("hard_streams.py", "--json", BENCHMARKS / "results" / "hard_streams.json")
EVALUATOR = ("evaluator.py", "--json", BENCHMARKS / "results" / "evaluator.json")
WORLDS = ("random_worlds.py", "--json", BENCHMARKS / "results" / "random_worlds.json")
SIGNS = (
    "roadsigns_adaptation.py",
    "--json",
    BENCHMARKS / "results" / "roadsigns_adaptation.json",
)
PAIRS = ("adaptation.py", "--json", BENCHMARKS / "results" / "adaptation.json")
MARKED = "before\n\n<!-- spread -->\nold\n<!-- /spread -->\n\nafter\n"


def run(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (ABLATION, "docs/ablations.md"),
        (PHOTOS, "docs/adaptation.md"),
        (PAIRS, "docs/adaptation.md"),
        (HARD, "docs/adaptation.md"),
        (EVALUATOR, "docs/adaptation.md"),
        (WORLDS, "docs/adaptation.md"),
        (SIGNS, "models/roadsigns/README.md"),
    ],
)
def test_the_page_shows_the_committed_result(command, name, tmp_path):
    page = tmp_path / Path(name).name
    text = (ROOT / name).read_text("utf-8")
    page.write_text(text, encoding="utf-8")
    done = run(*command, "--into", page)
    assert done.returncode == 0, done.stderr
    assert page.read_text("utf-8") == text


def test_a_page_without_a_tables_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(MARKED, encoding="utf-8")
    done = run(*ABLATION, "--into", page)
    assert done.returncode == 1
    assert "expected <!-- all methods --> and <!-- /all methods -->" in done.stderr
    assert page.read_text("utf-8") == MARKED


def test_every_number_of_a_cell_is_of_the_result(tmp_path):
    """One cell read back by hand: the default under LHA, and its last round."""
    report = json.loads(ABLATION[2].read_text("utf-8"))
    lha = report["streams"]["lha"]["methods"]["tracked"]
    page = (ROOT / "docs" / "ablations.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `tracked` |"))
    cell = row.strip("| ").split(" | ")[1 + list(report["streams"]).index("lha")]
    expected = [lha[score]["mean"] for score in ("accuracy", "ece", "nll")]
    assert [float(value) for value in cell.split(" / ")] == pytest.approx(expected, abs=5.1e-3)
    rounds = page.partition("<!-- rounds -->")[2].partition("<!-- /rounds -->")[0]
    row = next(line for line in rounds.splitlines() if line.startswith("| `tracked` |"))
    assert float(row.strip("| ").split(" | ")[10]) == pytest.approx(
        lha["rounds"][9]["accuracy"], abs=5.1e-2
    )

"""The promises at the head of `adaptation.md` say what the committed result says of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RIVALS = ("neo", "neo-continual", "foa-shift", "recentre")
# The page's columns, and the method of each.
MEASURED, UNMEASURED = "tracked:measured=true", "tracked"
COLUMNS = [
    pytest.param(1, MEASURED, id="measured"),
    pytest.param(2, UNMEASURED, id="not measured"),
]


@pytest.fixture(scope="module")
def cells() -> dict[str, dict[str, Any]]:
    text = (ROOT / "benchmarks" / "results" / "adaptation.json").read_text("utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)["cells"]
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "adaptation.md").read_text("utf-8")


def promise(page: str, words: str, column: int) -> str:
    """One cell of the table of promises."""
    (line,) = [row for row in page.splitlines() if row.startswith("| ") and words in row]
    return line.strip("| ").split(" | ")[column]


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", text)]


def won(row: dict[str, Any], method: str, score: str = "accuracy", over: str = "source") -> float:
    return float(row[method][score] - row[over][score])


def test_the_number_of_pairs(cells, page):
    assert f"Over {len(cells)} pairs of a test bed and a stream" in page


@pytest.mark.parametrize(("column", "method"), COLUMNS)
def test_the_worst_pair(cells, page, column, method):
    text = promise(page, "below the source on no pair", column)
    worst = min(won(row, method) for row in cells.values())
    assert numbers(text) == [round(worst, 1)]
    assert ("**kept**" in text) == (worst >= -0.5)


@pytest.mark.parametrize(("column", "method"), COLUMNS)
def test_the_mean_gain_where_the_source_is_weak(cells, page, column, method):
    text = promise(page, "where the source is under 70 %", column)
    weak = {key: row for key, row in cells.items() if row["source"]["accuracy"] < 70.0}
    mean = sum(won(row, method) for row in weak.values()) / len(weak)
    assert numbers(text)[0] == round(mean, 2)
    assert ("**kept**" in text) == (mean >= 4.0)
    if column == 1:
        assert f"over {len(weak)} pairs, of which five show one class only" in text
        assert sum("one class only" in key for key in weak) == 5


@pytest.mark.parametrize(("column", "method"), COLUMNS)
def test_the_calibration(cells, page, column, method):
    text = promise(page, "ECE at or below the source's on 80 %", column)
    changes = [won(row, method, "ece") for row in cells.values()]
    share = sum(change <= 0.0 for change in changes) / len(changes)
    assert numbers(text) == [round(100.0 * share), round(max(changes), 1)]
    assert ("**kept**" in text) == (share >= 0.8 and max(changes) <= 2.0)


def test_the_rivals_means(cells, page):
    rivalled = [row for row in cells.values() if all(name in row for name in RIVALS)]

    def mean(name: str) -> float:
        return float(round(sum(row[name]["accuracy"] for row in rivalled) / len(rivalled), 1))

    text = promise(page, "in the mean at least as accurate as", 1)
    order = [MEASURED, "neo-continual", "foa-shift", "neo", "recentre", "source"]
    assert numbers(text) == [mean(name) for name in order]
    assert numbers(promise(page, "in the mean at least as accurate as", 2)) == [mean(UNMEASURED)]


def jumping(cells: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By bed, the rows of its recurring and jumping domains; the signs are one bed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for key, row in cells.items():
        if key.endswith((", recurring domains", ", CDC")):
            found.setdefault(key.partition(", ")[0], []).append(row)
    return found


def test_recurring_and_jumping_domains_measured(cells, page):
    text = promise(page, "better than each of them on recurring", 1)
    beds = jumping(cells)
    behind = {
        bed: [won(row, MEASURED, over="recentre") for row in rows] for bed, rows in beds.items()
    }
    kept = [bed for bed, changes in behind.items() if min(changes) > 0.3]
    words = {4: "four", 5: "five", 6: "six", 7: "seven"}
    assert f"**kept** on {words[len(kept)]} of {words[len(beds)]} beds" in text
    ahead = [f"{-change:.1f}" for change in behind["cifar_vit"]]
    assert f"ahead on `cifar_vit` (by {ahead[0]} and {ahead[1]})" in text
    assert max(round(abs(change), 2) for change in behind["vit_k36"]) <= 0.2
    assert "level on `vit_k36` (within 0.2 points)" in text
    for rows in beds.values():
        for row in rows:
            assert min(won(row, MEASURED, over=name) for name in RIVALS if name != "recentre") > 0.0


def test_recurring_and_jumping_domains_in_the_mean_over_beds(cells, page):
    text = promise(page, "better than each of them on recurring", 1)
    ahead = []
    for stream in ("recurring domains", "CDC"):
        rows = [row for key, row in cells.items() if key.endswith(f", {stream}")]
        for name in RIVALS:
            ahead.append(sum(won(row, MEASURED, over=name) for row in rows) / len(rows))
    assert f"In the mean over beds, at least {min(ahead):.1f} points ahead of each" in text


def test_recurring_and_jumping_domains_not_measured(cells, page):
    text = promise(page, "better than each of them on recurring", 2)
    lost = {
        (bed, name): -min(won(row, UNMEASURED, over=name) for row in rows)
        for bed, rows in jumping(cells).items()
        for name in RIVALS
    }
    worst = {
        bed: max((points, name) for (of, name), points in lost.items() if of == bed)
        for bed, _ in lost
    }
    assert {bed: name for bed, (points, name) in worst.items() if points > 0.0} == {
        "vit_k36": "recentre",
        "cifar_vit": "recentre",
    }
    said = [worst[bed][0] for bed in ("vit_k36", "cifar_vit")]
    assert re.findall(r"\d\.\d", text) == [f"{points:.1f}" for points in said]


@pytest.mark.parametrize("name", ["asymmetry", "independence"])
def test_the_pictures_of_the_method_have_every_bed(cells, name):
    """A drive is a stream of the road signs."""
    beds = {key.partition(", ")[0] for key in cells if not key.startswith("road-sign drive")}
    report = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text("utf-8"))
    assert set(report["beds"]) == beds


def test_one_class_is_not_called_everything():
    """What the asymmetry is learned by, as the method says it."""
    report = json.loads((ROOT / "benchmarks" / "results" / "asymmetry.json").read_text("utf-8"))
    text = (ROOT / "docs" / "method.md").read_text("utf-8")
    beds = report["beds"].values()
    least = min(bed.get("labels_of_one_class_at_least", 1.0) for bed in beds)
    said = re.search(r"no class of these beds is below (\d\.\d\d) under any corruption", text)
    assert said is not None
    assert float(said[1]) <= least < float(said[1]) + 0.01
    most = max(max(bed["labels_of_all_classes"]) for bed in beds)
    assert f"(up to {most:.2f} on road signs)" in text


def test_the_ramp_that_stands_twice_changes_nothing_but_the_means(cells, page):
    ramps = [key for key in cells if key.endswith("severity ramp")]
    assert len(ramps) == 2
    assert cells[ramps[0]] == cells[ramps[1]]
    assert "counted once, the means of the fourth row are 0.3 to 0.5 lower" in page
    once = {key: row for key, row in cells.items() if key != ramps[1]}
    means = []
    for found in (cells, once):
        rows = [row for row in found.values() if all(name in row for name in RIVALS)]
        names = ("source", MEASURED, UNMEASURED, *RIVALS)
        means.append([sum(row[name]["accuracy"] for row in rows) / len(rows) for name in names])
    lower = [before - after for before, after in zip(*means, strict=True)]
    assert (round(min(lower), 1), round(max(lower), 1)) == (0.3, 0.5)
    for method in (MEASURED, UNMEASURED):
        shares = [
            sum(won(row, method, "ece") <= 0.0 for row in found.values()) / len(found)
            for found in (cells, once)
        ]
        assert round(100.0 * shares[0]) == round(100.0 * shares[1])

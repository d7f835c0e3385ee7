"""What the GPU script's report says: which targets are met, what is wrong, what was left out."""

from __future__ import annotations

from typing import Any

from gpu_measure import AGREEMENT, judged

__all__ = ["faults", "judge", "left_out"]

# In each row of a part: what must be true of it.
CHECKS = {"agreement": "ok", "preprocess": "equal", "adaptive": "ok", "stream": "ok"}


def faults(report: dict[str, Any], /) -> list[str]:
    """What failed, and which numbers are wrong; speed is not judged here.

    Parameters
    ----------
    report : dict
        With every part that was attempted.

    Returns
    -------
    list of str
        One line each; empty where everything that ran is right.
    """
    found = [
        f"{name}: failed: {part['why']}"
        for name, part in report.items()
        if isinstance(part, dict) and part.get("failed")
    ]
    for name, check in CHECKS.items():
        part = report[name]
        if not isinstance(part, list):
            continue
        checked = [row for row in part if check in row]
        found += [f"{name}: {_told(row, check)}" for row in checked if not row[check]]
        if not checked:
            found.append(f"{name}: expected rows with {check!r}, got none")
    suite = report["suite"]
    if suite.get("ok") is False:
        found.append(f"suite: {suite.get('why') or 'tests failed, or none ran'}")
    return found


def _told(row: dict[str, Any], check: str) -> str:
    """A row that is wrong, without what takes pages."""
    told = {name: value for name, value in row.items() if not isinstance(value, dict)}
    return ", ".join(f"{name} {value}" for name, value in told.items() if name != check) or check


def left_out(report: dict[str, Any], /) -> dict[str, str]:
    """Parts that had no library or device to run with, and why.

    Parameters
    ----------
    report : dict

    Returns
    -------
    dict
    """
    return {
        name: part["why"]
        for name, part in report.items()
        if isinstance(part, dict) and part.get("ran") is False and not part["failed"]
    }


def judge(report: dict[str, Any], /) -> list[dict[str, Any]]:
    """Every target with the best library's value.

    Parameters
    ----------
    report : dict

    Returns
    -------
    list of dict
        `name`, `value`, `limit` and `met`, which is None in a dry run; `value` and `met` are None
        where nothing was measured.
    """
    fp16 = [row for row in _rows(report, "cost") if row["precision"] == "fp16"]

    def least(values: list[float]) -> float | None:
        return min(values, default=None)

    def most(values: list[float]) -> float | None:
        return max(values, default=None)

    def cost(batch_size: int) -> list[dict[str, Any]]:
        wanted = (batch_size, 1000)
        return [row for row in fp16 if (row["batch_size"], row["num_classes"]) == wanted]

    ratios = [abs(1.0 - row["ratio"]) * 100.0 for row in _rows(report, "throughput")]
    errors = [
        error
        for row in _rows(report, "agreement")
        for error in judged(row["largest_errors"]).values()
    ]
    values = (
        (
            "adapt over fp16 forward at B = 64, percent",
            least([r["percent"] for r in cost(64)]),
            2.0,
        ),
        ("adapt over fp16 forward at B = 1, percent", least([r["percent"] for r in cost(1)]), 5.0),
        (
            "step at B = 1 and K = 1000, microseconds",
            least([1e3 * r["step"]["device_ms"] for r in cost(1)]),
            60.0,
        ),
        ("adapted and frozen throughput apart, percent", most(ratios), 2.0),
        ("adaptive over plain graph at B = 64, percent more", _more_in_graph(report), 2.0),
        ("largest error against float64 NumPy", most(errors), AGREEMENT),
        ("failed tests", _failed(report["suite"]), 0),
    )
    return [
        {"name": name, "value": value, "limit": limit, "met": _met(value, limit, report["dry_run"])}
        for name, value, limit in values
    ]


def _rows(report: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A part's rows; none where it did not run."""
    part = report[name]
    return part if isinstance(part, list) else []


def _more_in_graph(report: dict[str, Any]) -> float | None:
    """By how much the adaptive file takes longer than the plain one."""
    rows = _rows(report, "adaptive")
    return next((row["step_percent"] for row in rows if row.get("batch_size") == 64), None)


def _met(value: float | None, limit: float, dry_run: bool) -> bool | None:
    """Whether a target was met; a dry run's times mean nothing."""
    return None if value is None or dry_run else value <= limit


def _failed(suite: dict[str, Any]) -> int | None:
    """Tests that failed; None where the suite did not finish."""
    counts = suite.get("by_library")
    return sum(outcomes["failed"] for outcomes in counts.values()) if counts else None

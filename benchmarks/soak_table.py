"""What a soak came to, as the table of the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["life_table", "lost_frames", "soak_table"]

Life = Mapping[str, Any]

# The percentiles of a run have all their values by then, and what is left to grow is a leak.
SETTLED_FRAMES = 4_200
MIB = 1024.0


def soak_table(report: Mapping[str, Any], /) -> str:
    """Markdown: the whole run.

    Parameters
    ----------
    report : mapping
        What `soak.py` wrote; also one that has not ended.

    Returns
    -------
    str
    """
    started = report["lives"]
    lives = [life for life in started if "ended_s" in life]
    lost = [lost_frames(*pair) for pair in pairwise(started)]
    return "\n".join(_whole(report, lives, lost))


def life_table(report: Mapping[str, Any], /) -> str:
    """Markdown: one row for each life.

    Parameters
    ----------
    report : mapping
        As for `soak_table`.

    Returns
    -------
    str
    """
    started = report["lives"]
    lives = [life for life in started if "ended_s" in life]
    lost = [lost_frames(*pair) for pair in pairwise(started)]
    return "\n".join(_by_life(lives, lost))


def lost_frames(before: Life, life: Life, /) -> int:
    """What the kill between two processes cost, from the rows that the first one wrote.

    A row is written once its frame was learned from, and none of a drive's frames is refused. The
    metrics would be a quarter of a second old.

    Parameters
    ----------
    before, life : mapping
        One process and the next.

    Returns
    -------
    int
    """
    learned = (before["restored_frames"] or 0) + before["rows"]["frames"]
    return int(learned - (life["restored_frames"] or 0))


def _whole(report: Mapping[str, Any], lives: Sequence[Life], lost: Sequence[int]) -> list[str]:
    """What a reader wants to know first."""
    notes = [note for life in lives for note in life["notes"]]
    kills = sum(life["killed"] for life in lives)
    held = sum(frames <= report["snapshot_every"] for frames in lost)
    frames, truth = _rows(lives, "frames"), _rows(lives, "with_truth")
    cores = [life["notes"][-1]["cpu_s"] / _seconds(life) for life in lives if life["notes"]]
    rows = (
        ("length", f"{report['minutes']:.0f} minutes, {len(lives)} processes"),
        ("frames classified", f"{frames:,}, {frames / sum(map(_seconds, lives)):.2f} a second"),
        ("frames dropped", f"{sum(map(_dropped, lives)):,}"),
        ("kills survived", f"{held} of {kills}"),
        ("learning lost in a kill", f"{min(lost)} to {max(lost)} frames" if lost else "-"),
        (
            "snapshots taken",
            f"{lives[-1]['snapshots_so_far']:,}, one every "
            f"{report['snapshot_every']} learned frames at the latest",
        ),
        ("snapshots set aside", str(sum(life["set_aside"] for life in lives))),
        ("torn rows in the JSON lines", str(_rows(lives, "torn"))),
        (
            "viewer",
            f"{report['viewer']}; the picture had moved at "
            f"{sum(note['viewer']['moved'] for note in notes)} of {len(notes)} looks",
        ),
        ("processor", f"{statistics.median(cores):.2f} of a core, page and drawn road included"),
        ("accuracy, frozen source", _share(_rows(lives, "source_right"), truth)),
        ("accuracy, adapted", _share(_rows(lives, "adapted_right"), truth)),
    )
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _by_life(lives: Sequence[Life], lost: Sequence[int]) -> list[str]:
    """One process a row, with its memory."""
    costs = [None, *lost]
    columns: dict[str, Callable[[Life], str]] = {
        "process": lambda life: str(life["number"] + 1),
        "frames": lambda life: f"{life['rows']['frames']:,}",
        "began with": lambda life: _number(life["restored_frames"]),
        "learned": lambda life: f"{life['learned_at_end']:,}",
        "ended by": lambda life: "SIGKILL" if life["killed"] else "SIGTERM",
        "lost by the kill before": lambda life: _number(costs[life["number"]]),
        "first frame after": lambda life: f"{life['first_frame_s']:.1f} s",
        "memory, settled": lambda life: _memory(life, first=True),
        "memory, end": lambda life: _memory(life, first=False),
        "growth": _growth,
        "open files": lambda life: str(life["notes"][-1]["open_files"]),
    }
    lines = ["| " + " | ".join(columns) + " |", "|" + "---:|" * len(columns)]
    lines += ["| " + " | ".join(cell(life) for cell in columns.values()) + " |" for life in lives]
    return lines


def _rows(lives: Sequence[Life], name: str) -> int:
    return sum(life["rows"][name] for life in lives)


def _seconds(life: Life) -> float:
    return float(life["ended_s"] - life["began_s"])


def _dropped(life: Life) -> int:
    return int(life["notes"][-1].get("dropped", 0)) if life["notes"] else 0


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _share(right: int, of: int) -> str:
    return f"{100.0 * right / of:.1f} % of {of:,}" if of else "-"


def _settled(life: Life) -> list[int]:
    """Resident memory in KiB from the settled state on."""
    return [note["rss_kib"] for note in life["notes"] if note.get("frames", 0) >= SETTLED_FRAMES]


def _memory(life: Life, *, first: bool) -> str:
    sizes = _settled(life)
    return f"{sizes[0 if first else -1] / MIB:.1f} MiB" if sizes else "-"


def _growth(life: Life) -> str:
    sizes = _settled(life)
    return f"{100.0 * (sizes[-1] / sizes[0] - 1.0):+.2f} %" if len(sizes) > 1 else "-"

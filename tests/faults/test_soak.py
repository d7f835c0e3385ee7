"""Memory over a long run: what grows, grows for ever on a device nobody looks at."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

# Every window of the run is full by then.
SETTLED_FRAMES = 5_000
MOST_GROWTH = 0.01


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def soak(
    num_frames: int,
    start: Callable[..., subprocess.Popen[str]],
    artifact_path: Path,
    folder: Path,
) -> list[int]:
    """Run with snapshots and checks on; resident memory from the settled state to the end."""
    rows = folder / "rows.jsonl"
    process = start(
        *(f"test://pattern?width=64&height=48&frames={num_frames}", "--model", artifact_path),
        *("--snapshots", folder / "kept", "--set=snapshot-every=500", "--set=check-frames=true"),
        *("--jsonl", rows, "--num-threads", 1, "--json=-"),
    )
    sizes: list[int] = []
    while process.poll() is None:
        lines = count_lines(rows)
        if lines >= SETTLED_FRAMES and lines < num_frames:
            sizes.append(resident_kib(process.pid))
        time.sleep(max(0.2, num_frames / 200_000))
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(output)["frames"] == num_frames
    return sizes


def assert_flat(sizes: list[int]) -> None:
    """The last tenth of the run takes no more than the first."""
    tenth = max(len(sizes) // 10, 1)
    first, last = max(sizes[:tenth]), max(sizes[-tenth:])
    assert last <= first * (1.0 + MOST_GROWTH), f"{first} KiB grew to {last} KiB"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read memory from")
def test_memory_is_flat_over_a_hundred_thousand_frames(
    start: Callable[..., subprocess.Popen[str]], artifact_path: Path, tmp_path: Path
) -> None:
    sizes = soak(100_000, start, artifact_path, tmp_path)
    assert len(sizes) > 20
    assert_flat(sizes)

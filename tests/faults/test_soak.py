"""Memory over a long run: what grows, grows for ever on a device nobody looks at."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from jsonl_rows import count_rows

NUM_FRAMES = 100_000
# Every window of the run is full by then.
SETTLED_FRAMES = 5_000
MOST_GROWTH = 0.01


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read memory from")
def test_memory_is_flat_over_a_hundred_thousand_frames(start, artifact_path, tmp_path):
    """With snapshots and checks on, the last tenth takes no more than the first settled one."""
    rows = tmp_path / "rows.jsonl"
    process = start(
        *(f"test://pattern?width=64&height=48&frames={NUM_FRAMES}", "--model", artifact_path),
        *("--snapshots", tmp_path / "kept", "--set=snapshot-every=500", "--set=check-frames=true"),
        *("--jsonl", rows, "--num-threads", 1, "--json=-"),
    )
    sizes = []
    while process.poll() is None:
        if SETTLED_FRAMES <= count_rows(rows) < NUM_FRAMES:
            sizes.append(resident_kib(process.pid))
        time.sleep(0.5)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(output)["frames"] == NUM_FRAMES
    assert len(sizes) > 20
    tenth = len(sizes) // 10
    first, last = max(sizes[:tenth]), max(sizes[-tenth:])
    assert last <= first * (1.0 + MOST_GROWTH), f"{first} KiB grew to {last} KiB"

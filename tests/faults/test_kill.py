"""`kill -9` at any moment: what was learned up to the last snapshot is there at the next start."""

import random
import signal
import time

import pytest
from jsonl_rows import count_rows

from gain_runtime.files.snapshots import KEPT, SnapshotStore

EVERY = 3
LONGEST_RUN_S = 0.4


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("names", "num_kills"),
    [
        pytest.param((), 3, id="one stream"),
        pytest.param((), 200, id="one stream often", marks=pytest.mark.slow),
        pytest.param(("yard", "door", "hall"), 2, id="several streams"),
    ],
)
def test_kills_cost_each_stream_what_came_after_its_last_snapshot(
    start, until, make_adapter, artifact_path, tmp_path, names, num_kills
):
    """Start, kill at a random moment, and check what the next start would find."""
    moment = random.Random(num_kills)
    places = names or (".",)
    adapters = {place: make_adapter() for place in places}
    known = dict.fromkeys(places, 0)
    rows = {place: tmp_path / place / "rows.jsonl" for place in places}
    for kill in range(num_kills):
        process = start(
            *(f"test://pattern?width=64&height=48&frames={10**6 + n}" for n in range(len(places))),
            *(["--names", ",".join(names)] if names else []),
            *("--model", artifact_path, "--num-threads", 1),
            *("--snapshots", tmp_path / "kept", f"--set=snapshot-every={EVERY}"),
            *("--set=warm-up=1", "--update-every", 1, "--jsonl", tmp_path / "rows.jsonl"),
        )
        until(lambda: min(map(count_rows, rows.values())) > EVERY)
        time.sleep(moment.uniform(0.0, LONGEST_RUN_S))
        process.kill()
        errors = process.communicate()[1]
        assert process.returncode == -signal.SIGKILL
        assert "set aside" not in errors, f"kill {kill}"
        for place, adapter in adapters.items():
            learned = known[place] + count_rows(rows[place])
            rows[place].unlink()
            with SnapshotStore(tmp_path / "kept" / place) as store:
                assert 1 <= len(store.snapshots()) <= KEPT + 1
                assert list(store.folder.glob("*.tmp")) == []
                restored = store.restore(adapter)
                assert restored is not None, f"kill {kill}"
                assert restored == store.snapshots()[0], f"kill {kill}: the newest was set aside"
            assert adapter.frames == restored.frames
            # A row is written after its frame was learned from, before a snapshot is looked at.
            assert learned - EVERY <= adapter.frames <= learned + 1, f"kill {kill}, {place}"
            known[place] = adapter.frames

"""Snapshots under torn files, foreign files, full and read-only disks, and wrong clocks."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from gain_apps.streaming.snapshots import RETRY_S, SnapshotKeeper
from gain_core.errors import ArtifactError
from gain_runtime.adapter import Adapter
from gain_runtime.files.snapshots import KEPT, SnapshotStore


def learn(adapter: Adapter, count: int, *, seed: int = 0) -> None:
    rng = np.random.default_rng([seed, adapter.frames])
    for _ in range(count):
        adapter.step([rng.integers(0, 256, size=(20, 20, 3), dtype=np.uint8)])


def fill(store: SnapshotStore, adapter: Adapter, count: int) -> None:
    for _ in range(count):
        learn(adapter, 2)
        store.write(adapter)


def fill_up(path: Path) -> None:
    """Leave no room on a disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_store_that_cannot_be_opened_keeps_nobody_out(tmp_path, monkeypatch):
    def failing(store: SnapshotStore) -> None:
        raise ArtifactError(f"{store.folder}: the snapshots cannot be listed")

    with monkeypatch.context() as patched:
        patched.setattr(SnapshotStore, "snapshots", failing)
        # Its traceback holds on to what was made of the store.
        with pytest.raises(ArtifactError, match="cannot be listed") as caught:
            SnapshotStore(tmp_path)
    with SnapshotStore(tmp_path) as store:
        assert store.snapshots() == []
    assert caught.tb is not None


def test_the_last_three_are_kept_and_the_newest_is_restored(make_adapter, tmp_path):
    adapter = make_adapter(preset="paper")
    with SnapshotStore(tmp_path) as store:
        fill(store, adapter, 5)
        assert [item.number for item in store.snapshots()] == [5, 4, 3]
        assert [item.frames for item in store.snapshots()] == [10, 8, 6]
    continued = make_adapter(preset="paper")
    with SnapshotStore(tmp_path) as store:
        restored = store.restore(continued)
        assert restored is not None
        assert (restored.number, continued.frames) == (5, 10)
        # Numbers go on: nothing is ever written over.
        assert store.write(continued).number == 6
    # The preset whose prediction moves from the first frame on.
    image = [np.full((20, 20, 3), 90, dtype=np.uint8)]
    np.testing.assert_array_equal(adapter.step(image).probs, continued.step(image).probs)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:100], id="head"),
        pytest.param(lambda data: data[:-1], id="tail"),
        pytest.param(lambda data: data[:-5] + bytes([data[-5] ^ 16]) + data[-4:], id="one bit"),
    ],
)
def test_a_torn_file_is_set_aside_for_the_one_before(make_adapter, tmp_path, caplog, damage):
    with SnapshotStore(tmp_path) as store:
        fill(store, make_adapter(), 3)
        newest = store.snapshots()[0].path
    newest.write_bytes(damage(newest.read_bytes()))
    adapter = make_adapter()
    with SnapshotStore(tmp_path) as store, caplog.at_level(logging.WARNING):
        restored = store.restore(adapter)
        assert restored is not None
        assert (restored.number, adapter.frames) == (2, 4)
        # The torn one's number is not given again.
        learn(adapter, 1)
        assert store.write(adapter).number == 4
    assert newest.with_name(newest.name + ".set-aside").exists()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("other", ["artifact", "preset"])
def test_snapshots_of_something_else_are_set_aside_and_kept(
    make_adapter, other_artifact_path, tmp_path, caplog, other
):
    with SnapshotStore(tmp_path) as store:
        fill(store, make_adapter(), 2)
    if other == "artifact":
        adapter = make_adapter(other_artifact_path)
    else:
        adapter = make_adapter(preset="paper")
    with SnapshotStore(tmp_path) as store, caplog.at_level(logging.WARNING):
        assert store.restore(adapter) is None
        assert store.snapshots() == []
    assert adapter.frames == 0
    assert len(list(tmp_path.glob("*.set-aside"))) == 2
    assert len(caplog.records) == 2
    assert all("set aside" in record.message for record in caplog.records)


def test_set_aside_files_do_not_pile_up(make_adapter, tmp_path):
    for number in range(8):
        path = tmp_path / f"snapshot-{number:010d}-4.safetensors"
        path.write_bytes(b"torn")
    with SnapshotStore(tmp_path) as store:
        assert store.restore(make_adapter()) is None
    assert len(list(tmp_path.glob("*.set-aside"))) == KEPT


def test_a_clock_set_back_changes_nothing(make_adapter, tmp_path):
    with SnapshotStore(tmp_path) as store:
        fill(store, make_adapter(), 3)
        newest, _, oldest = store.snapshots()
    os.utime(newest.path, (0, 0))
    os.utime(oldest.path, (4e9, 4e9))
    adapter = make_adapter()
    with SnapshotStore(tmp_path) as store:
        assert store.restore(adapter) == newest


def test_leftovers_of_a_killed_write_are_removed(tmp_path):
    leftover = tmp_path / ".snapshot-0000000007-9.safetensors.0a1b2c3d.tmp"
    leftover.write_bytes(b"half")
    bystander = tmp_path / "notes.txt"
    bystander.write_text("mine")
    with SnapshotStore(tmp_path):
        assert not leftover.exists()
    assert bystander.exists()


def test_two_streams_do_not_share_a_folder(tmp_path):
    with SnapshotStore(tmp_path), pytest.raises(ArtifactError, match="another stream"):
        SnapshotStore(tmp_path)
    SnapshotStore(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="no snapshot can be written there"):
        SnapshotStore(tmp_path / "file" / "folder")


def test_a_snapshot_is_due_after_frames_or_seconds(make_adapter, tmp_path):
    now = [0.0]
    adapter = make_adapter()
    with SnapshotStore(tmp_path) as store:
        keeper = SnapshotKeeper(store, adapter, every_frames=4, every_s=60.0, clock=lambda: now[0])
        assert not keeper.restore()
        for expected in ([], [], [], [4]):
            learn(adapter, 1)
            keeper.tick()
            assert [item.frames for item in store.snapshots()] == expected
        learn(adapter, 1)
        keeper.tick()
        assert len(store.snapshots()) == 1
        now[0] = 60.0
        keeper.tick()
        assert [item.frames for item in store.snapshots()] == [5, 4]
        # Nothing was learned since, so there is nothing to keep.
        now[0] = 600.0
        keeper.tick()
        keeper.tick(end=True)
        assert len(store.snapshots()) == 2


def test_snapshots_change_no_prediction(make_adapter, tmp_path):
    plain, kept = make_adapter(preset="paper"), make_adapter(preset="paper")
    rng = np.random.default_rng(4)
    images = rng.integers(0, 256, size=(12, 20, 20, 3), dtype=np.uint8)
    with SnapshotStore(tmp_path) as store:
        for image in images:
            expected = plain.step([image]).probs
            np.testing.assert_array_equal(kept.step([image]).probs, expected)
            store.write(kept)


def test_rolling_back_goes_one_further_each_time_and_forgets_what_was_newer(make_adapter, tmp_path):
    adapter = make_adapter()
    with SnapshotStore(tmp_path) as store:
        keeper = SnapshotKeeper(store, adapter, every_frames=2, every_s=1e9)
        for _ in range(6):
            learn(adapter, 1)
            keeper.tick()
        learn(adapter, 1)
        assert adapter.frames == 7
        frames = []
        for _ in range(3):
            assert keeper.roll_back().startswith("rolled back to ")
            frames.append(adapter.frames)
        assert frames == [6, 4, 2]
        assert [item.frames for item in store.snapshots()] == [2]
        assert keeper.roll_back() == "no earlier snapshot to roll back to"
        assert adapter.frames == 2


def test_a_reset_is_kept_too(make_adapter, tmp_path):
    adapter = make_adapter()
    with SnapshotStore(tmp_path) as store:
        keeper = SnapshotKeeper(store, adapter, every_frames=2, every_s=1e9)
        learn(adapter, 4)
        keeper.tick()
        adapter.reset()
        keeper.tick()
        assert [item.frames for item in store.snapshots()] == [0, 4]
        assert keeper.roll_back().startswith("rolled back to 4 learned frames")
        assert adapter.frames == 4


def test_a_full_disk_is_said_once_loses_nothing_and_ends(make_adapter, small_disk, caplog):
    now = [0.0]
    adapter = make_adapter()
    with small_disk(64) as folder, caplog.at_level(logging.INFO), SnapshotStore(folder) as store:
        keeper = SnapshotKeeper(store, adapter, every_frames=1, every_s=1e9, clock=lambda: now[0])
        learn(adapter, 1)
        keeper.tick()
        ballast = folder / "ballast"
        fill_up(ballast)
        for _ in range(5):
            learn(adapter, 1)
            now[0] += RETRY_S
            keeper.tick()
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "check that the folder exists, is writable and has room" in caplog.text
        assert [item.frames for item in store.snapshots()] == [1]
        assert list(folder.glob("*.tmp")) == []
        ballast.unlink()
        learn(adapter, 1)
        now[0] += RETRY_S
        keeper.tick()
        assert caplog.records[-1].levelname == "WARNING"
        assert store.snapshots()[0].frames == 7


def test_snapshot_that_fails_at_end_is_not_said_to_be_tried_again(make_adapter, tmp_path, caplog):
    adapter = make_adapter()
    folder = tmp_path / "snapshots"
    with SnapshotStore(folder) as store:
        keeper = SnapshotKeeper(store, adapter, every_frames=2, every_s=1e9)
        learn(adapter, 2)
        keeper.tick()
        shutil.rmtree(folder)
        learn(adapter, 3)
        keeper.tick()
        assert caplog.records[-1].message.endswith("; it will be tried again")
        learn(adapter, 1)
        keeper.tick(end=True)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert caplog.records[-1].message.endswith("; the last 4 learned frames are in none")


def test_a_disk_that_turns_read_only_stops_nothing(make_adapter, small_disk, caplog):
    adapter = make_adapter()
    with small_disk(256) as folder:
        with SnapshotStore(folder) as store:
            keeper = SnapshotKeeper(store, adapter, every_frames=1, every_s=1e9)
            learn(adapter, 1)
            keeper.tick()
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            learn(adapter, 1)
            assert not keeper.take()
            assert "Read-only file system" in caplog.text
        with pytest.raises(ArtifactError, match="Read-only file system"):
            SnapshotStore(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_snapshots_of_another_user_are_an_error_and_nothing_is_renamed(make_adapter, tmp_path):
    adapter = make_adapter()
    with SnapshotStore(tmp_path) as store:
        fill(store, adapter, 2)
    tmp_path.chmod(0o777)
    for path in store.folder.glob("snapshot-*"):
        path.chmod(0o600)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == 0 and "pytest" in str(folder):
            folder.chmod(0o755)
    before = sorted(path.name for path in tmp_path.iterdir())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "restored"
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            with SnapshotStore(tmp_path) as store:
                store.restore(adapter)
        except BaseException as err:  # noqa: BLE001 - the child goes no further, whatever it was
            said = str(err)
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert "cannot be read (Permission denied; it belongs to user 0)" in said
    assert "nothing was changed" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == before

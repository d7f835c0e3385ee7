"""Uploads in flight, on streams that do their work as late and in as odd an order as allowed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from lazy_streams import LazyArray, LazyDevice, LazyStream, lazy_cupy

from gain_runtime.cuda.frame_uploads import FrameUploads


def _compare(compared: list[tuple[bytes, bytes]], views: list[np.ndarray], expected: bytes) -> None:
    compared.append((b"".join(view.tobytes() for view in views), expected))


def run_batches(device: LazyDevice, *, num_batches: int) -> list[tuple[bytes, bytes]]:
    """What each batch's kernel read, beside what it should have."""
    uploads = FrameUploads(lazy_cupy(device))
    rng = np.random.default_rng(device.seed)
    users = [LazyStream(device), device.default]
    compared: list[tuple[bytes, bytes]] = []
    tables: list[tuple[LazyArray, np.ndarray]] = []
    for batch in range(num_batches):
        with users[rng.integers(2)]:
            uploads.begin()
            for _ in range(3 if rng.random() < 0.3 else 0):
                numbers = rng.integers(0, 256, rng.integers(1, 900), dtype=np.uint8)
                tables.append((uploads.keep(numbers), numbers))
            sizes = rng.integers(1, 10 + 4 * batch, rng.integers(1, 7)).tolist()
            frames = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
            reserved = uploads.reserve(sum(sizes))
            offset = 0
            for pixels in frames:
                uploads.upload(reserved, offset, pixels)
                offset += pixels.size
            uploads.publish()
            views = [reserved.values[:offset]]
            views += [table.values for table, _ in tables]
            expected = np.concatenate([*frames, *(numbers for _, numbers in tables)]).tobytes()
            device.current.add(partial(_compare, compared, views, expected))
            uploads.finish()
            for pixels in frames:
                pixels[:] = 0
            del tables[: rng.integers(len(tables) + 1)]  # As a cache does that is full.
    device.finish()
    return compared


@pytest.mark.parametrize("seed", range(30))
def test_every_batch_reads_its_own_bytes(seed):
    compared = run_batches(LazyDevice(seed), num_batches=40)
    assert len(compared) == 40
    for result, expected in compared:
        assert result == expected


def test_host_is_held_up_only_by_its_own_copies():
    device = LazyDevice(0)
    uploads = FrameUploads(lazy_cupy(device))
    device.default.add(lambda: None, when=lambda: False)  # Never ends.
    for _ in range(2):
        uploads.begin()
        uploads.upload(uploads.reserve(100), 0, np.zeros(100, dtype=np.uint8))
        uploads.publish()
        uploads.finish()
    assert len(device.default.queue) > 1

"""Adapters on the tiny artifact, and small disks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from eager_adapter import eager

from gain_core import preset as named
from gain_runtime.adapter import Adapter
from gain_runtime.sessions.session import open_session


@pytest.fixture
def make_adapter(artifact_path: Path) -> Iterator[Callable[..., Adapter]]:
    """Adapters on the tiny artifact or another; their sessions are closed after the test."""
    sessions = []

    def make(path: Path = artifact_path, /, *, preset: str = "shift") -> Adapter:
        sessions.append(open_session(path, num_threads=1))
        return eager(sessions[-1], named(preset))

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[int], AbstractContextManager[Path]]:
    """A tmpfs of so many KiB."""

    @contextmanager
    def mounted(kib: int) -> Iterator[Path]:
        folder = tmp_path / "disk"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    return mounted

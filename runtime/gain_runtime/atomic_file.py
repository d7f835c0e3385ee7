"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes, /, *, mode: int | None = None) -> None:
    """Write a file so that a crash or power cut leaves either the old one or the new one.

    Parameters
    ----------
    path : Path
        Replaced if it exists; its folder must exist.
    data : bytes
    mode : int, optional
        Permissions of the file, from its first byte on; the system's default without.

    Raises
    ------
    OSError
        If the folder is missing, full or not writable; nothing is left behind then.
    """
    # In the same folder, because a rename across file systems is a copy.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the file system can."""
    # Windows cannot open folders and some network mounts cannot sync them; the file is whole.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

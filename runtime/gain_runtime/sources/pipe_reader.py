"""Bytes from a pipe that nobody has to wait for: a signal and `close` end every read."""

from __future__ import annotations

import os
import select
import stat
import threading
from pathlib import Path
from typing import Protocol

from gain_core.errors import StreamError
from gain_runtime.frames import Closing

__all__ = [
    "ByteReader",
    "PipeReader",
]

# Longest time until a read notices that it was closed.
POLL_MS = 100


class ByteReader(Protocol):
    """An unbuffered binary stream: `read` returns what there is, nothing at the end."""

    def read(self, size: int, /) -> bytes | None: ...


class PipeReader(Closing):
    """Reads a file descriptor, whose first bytes can be looked at before.

    Parameters
    ----------
    fd : int
    shown : str
        What messages call it.
    owned : bool
        Whether `close` closes the descriptor.
    """

    def __init__(self, fd: int, /, *, shown: str, owned: bool = False) -> None:
        self._fd = fd
        self._owned = owned
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._ahead = b""
        self.shown = shown

    @classmethod
    def open(cls, path: Path, /) -> PipeReader:
        """Open a named pipe without waiting for a writer.

        Parameters
        ----------
        path : Path

        Returns
        -------
        PipeReader

        Raises
        ------
        StreamError
            If it cannot be opened.
        """
        try:
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as err:
            raise StreamError(f"{path}: cannot be opened ({err.strerror})") from err
        return cls(fd, shown=str(path), owned=True)

    def peek(self, size: int, /) -> bytes:
        """Look at the first bytes without taking them.

        Parameters
        ----------
        size : int
            Number of bytes.

        Returns
        -------
        bytes
            Fewer than `size` only at the end of the pipe.

        Raises
        ------
        StreamError
            If the descriptor cannot be read.
        """
        while len(self._ahead) < size and (more := self._next(size - len(self._ahead))):
            self._ahead += more
        return self._ahead[:size]

    def read(self, size: int, /) -> bytes:
        """Take the next bytes, as many as there are.

        Parameters
        ----------
        size : int
            Most bytes to take.

        Returns
        -------
        bytes
            At least one; none at the end of the pipe and after `close`.

        Raises
        ------
        StreamError
            If the descriptor cannot be read.
        """
        if self._ahead:
            piece, self._ahead = self._ahead[:size], self._ahead[size:]
            return piece
        return self._next(size)

    def close(self) -> None:
        """End a read that waits; may be called twice and from another thread."""
        self._closing.set()
        if self._owned and self._lock.acquire(blocking=False):
            try:
                self._owned = False
                os.close(self._fd)
            finally:
                self._lock.release()

    def _next(self, size: int) -> bytes:
        """Wait for bytes of the descriptor."""
        with self._lock:
            piece = b"" if self._closing.is_set() else self._wait_and_read(size)
        if self._closing.is_set():
            self.close()
            return b""
        return piece

    def _wait_and_read(self, size: int) -> bytes:
        try:
            # A file on standard input is always ready.
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                return os.read(self._fd, size)
            poll = select.poll()
            poll.register(self._fd, select.POLLIN | select.POLLHUP)
            while not self._closing.is_set():
                if poll.poll(POLL_MS):
                    try:
                        return os.read(self._fd, size)
                    except BlockingIOError:
                        continue
        except OSError as err:
            raise StreamError(f"{self.shown}: cannot be read ({err.strerror})") from err
        return b""

"""Counting logins, and saying often enough that some were refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Logins"]

# A guessing machine shall not fill the log: one line a minute for each address.
SAY_EVERY_S = 60.0
MOST_ADDRESSES = 1000


class Logins:
    """Tokens that were right and wrong; any thread may count.

    Parameters
    ----------
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._said_s: dict[str, float] = {}
        self.num_accepted = 0
        self.num_refused = 0

    def accepted(self) -> None:
        """Count a login."""
        with self._lock:
            self.num_accepted += 1

    def refused(self, who: str, /) -> bool:
        """Count a wrong token; whether it is worth a line."""
        now_s = self._clock()
        with self._lock:
            self.num_refused += 1
            if now_s - self._said_s.get(who, -SAY_EVERY_S) < SAY_EVERY_S:
                return False
            if len(self._said_s) >= MOST_ADDRESSES:
                self._said_s.clear()
            self._said_s[who] = now_s
            return True

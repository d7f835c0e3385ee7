"""Telling systemd how the process is (`Type=notify`); nothing where it does not ask."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

__all__ = ["notify", "watchdog_interval_s"]


def notify(message: str, /) -> None:
    """Send one message to the service manager, if there is one; see sd_notify(3).

    Parameters
    ----------
    message : str
        Such as `READY=1`, `STOPPING=1` or `STATUS=...`.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # An abstract socket's name begins with NUL, written as @.
    target = f"\0{address[1:]}" if address[0] == "@" else address
    # A manager that has gone is no reason to end.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.sendto(message.encode("utf-8", "replace"), target)


def watchdog_interval_s() -> float | None:
    """Seconds within which systemd wants a sign of life (`WatchdogSec=`); None without."""
    # Meant for another process, where a wrapper was started.
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(os.environ.get("WATCHDOG_USEC", "")) / 1e6 or None
    except ValueError:
        return None

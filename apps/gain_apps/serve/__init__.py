"""Watching cameras in a browser: a page, a JSON API, metrics and health checks (extra `serve`).

Only `open_server` needs the extra; everything else imports without it. `ray_adaptation` is a part
of `gain_apps.serving`.
"""

from gain_apps.serve.address import ServeAddress, open_server
from gain_apps.serve.board import DeviceFacts, KeptFacts, LiveBoard, StreamFacts, StreamIdentity
from gain_apps.serve.cameras import Cameras, WatchedCamera
from gain_apps.serve.event_log import Event, EventLog

__all__ = [
    "Cameras",
    "DeviceFacts",
    "Event",
    "EventLog",
    "KeptFacts",
    "LiveBoard",
    "ServeAddress",
    "StreamFacts",
    "StreamIdentity",
    "WatchedCamera",
    "open_server",
]

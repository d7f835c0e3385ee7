"""Watching a stream in a browser: a page, a JSON API, metrics and a health check (extra `serve`).

Only `open_server` needs the extra; everything else imports without it.
"""

from gain_apps.serve.address import ServeAddress
from gain_apps.serve.board import LiveBoard, StreamIdentity
from gain_apps.serve.facts import DeviceFacts, KeptFacts, StreamFacts
from gain_apps.serve.open_server import open_server

__all__ = [
    "DeviceFacts",
    "KeptFacts",
    "LiveBoard",
    "ServeAddress",
    "StreamFacts",
    "StreamIdentity",
    "open_server",
]

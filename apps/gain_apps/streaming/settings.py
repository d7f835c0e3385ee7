"""The settings of a stream that have no flag; nothing heavy is imported, for the sake of --help."""

from __future__ import annotations

from gain_apps.flags import spelled
from gain_core import WARMUP_FRAMES

# A key of the settings file and what stands for its value, to what it is for.
SETTINGS = {
    "warm-up=FRAMES": f"frames that the first update waits for (default {WARMUP_FRAMES})",
    "seed=N": "for all that is random (default 0)",
    "truth=FILE": "true classes: a classes.tsv, or lines of file name<TAB>index; 'none' for none "
    "(default: the classes.tsv beside the photos)",
    "top-k=K": "classes listed (default 3)",
    "allow-host-code=true": "run an engine built as version-compatible, which brings code for the "
    "CPU",
    "hwaccel=NAME": "decode videos and network streams by hardware: cuda, vaapi, videotoolbox; "
    "an error where it cannot",
    "camera-size=SIZE": "asked of the camera: 1280x720",
    "camera-rate=HZ": "asked of the camera",
    "camera-format=FOUR": "asked of the camera before both (default MJPG)",
    "check-frames=true": "do not learn from black, frozen and corrupt frames (default: live "
    "sources)",
    "reconnect=S": "seconds to wait for a lost camera before exit status 3 (default 300; for "
    "ever with --serve or several streams)",
    "watchdog=S": "end a stream that hangs, with exit status 4",
    "snapshot-every=FRAMES": "learned frames between two snapshots (default 1000)",
    "snapshot-seconds=S": "seconds between two snapshots (default 60)",
    "save-changed=DIR": "keep frames whose prediction adaptation changed",
    "save-changed-most=N": "how many at most (default 1000)",
    "events=FILE": "keep events and curves over restarts, in a SQLite file",
    "webhook=URL": "post the result there when the class changes",
    "event-webhook=URL": "post every event there: losses, commands, logins",
    "mqtt-discovery=PREFIX": "announce the streams to Home Assistant, whose prefix is "
    "homeassistant",
    "sink-errors=POLICY": "stop, or drop an output that fails (default: drop for live sources, "
    "else stop)",
    "log-level=LEVEL": "debug, info (as --verbose), note (default), warning or error (no table "
    "either)",
}


def flag(name: str, /) -> str:
    """How a field of `StreamConfig` is spelled on the command line."""
    return "INPUT" if name == "input" else spelled(name, SETTINGS)

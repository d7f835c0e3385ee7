"""A build hook: `<!-- metrics -->` becomes the list of metrics that a service exports."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

MARK = "<!-- metrics -->"
# How a number of a camera that is only there while it runs is called in the text format.
SAMPLE = re.compile(r"^(gain_\w+?)(?:_(?:bucket|count|sum|created))?\{(.*?)\} ", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the metrics in."""
    return markdown.replace(MARK, metrics()) if MARK in markdown else markdown


def metrics() -> str:
    """Every metric of the project's own, as Markdown."""
    text = _exported()
    labels: dict[str, set[str]] = {}
    for name, pairs in SAMPLE.findall(text):
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=", pairs))
    rows = []
    for name, told in re.findall(r"^# HELP (gain_\w+) (.+)$", text, re.MULTILINE):
        own = ", ".join(sorted(labels.get(name, set()) - {"stream", "le"}))
        rows.append(f"| `{name}{{{own}}}` | {told} |" if own else f"| `{name}` | {told} |")
    return "\n".join(["| metric | meaning |", "|---|---|", *rows])


def _exported() -> str:
    """What a service with one camera that has everything answers."""
    from gain_apps.serve import EventLog, KeptFacts, LiveBoard, StreamFacts, StreamIdentity
    from gain_apps.serve.access import Logins
    from gain_apps.serve.metrics import MetricsPage
    from gain_runtime.adapter import AdaptationStatus

    @dataclass
    class Camera:
        name: str
        board: LiveBoard

    class Cameras:
        def all(self) -> list[Camera]:
            return [Camera("yard", board)]

    identity = StreamIdentity(
        source_id="s", artifact="a", artifact_sha256="0", provider="p", version="v"
    )
    facts = StreamFacts(
        kept=KeptFacts(last_utc_s=1.0),
        adaptation=asdict(AdaptationStatus(frames=1, shift_nats=0.5, draws=8.0)),
        not_learned={"black": 1},
    )
    with EventLog() as events:
        board = LiveBoard("yard", events)
        board.attach(identity, probe=lambda: facts)
        board.poll()
        return MetricsPage(Cameras(), Logins()).render().decode()

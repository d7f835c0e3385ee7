"""An adapter that learns from the first frame on."""

from __future__ import annotations

from typing import Any

from gain_core import Config
from gain_runtime.adapter import Adapter
from gain_runtime.engine import NetworkEngine
from gain_runtime.sessions.session import Session


def eager(session: Session, config: Config, *, update_every: int = 1, **more: Any) -> Adapter:
    """An adapter whose first update does not wait."""
    engine = NetworkEngine(session, config, update_every=update_every, warmup_frames=1)
    return Adapter(engine, **more)

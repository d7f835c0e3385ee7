"""What the tools do where nobody says otherwise, in one place for all of them."""

from __future__ import annotations

__all__ = ["UPDATE_EVERY", "WARM_UP"]

# Frames between two updates. The next frame of a video shows what the last ones showed: to learn
# from those at once costs accuracy as well as time.
UPDATE_EVERY = 16
# Frames the first update waits for: a video begins with one object.
WARM_UP = 64

"""A window that shows every result, or nothing where no window can be had."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import cv2

from gain_runtime.closing import Closing
from gain_runtime.opencv_capture import quiet_opencv
from gain_runtime.result import FrameResult
from gain_runtime.video_sink import Render

__all__ = ["DisplayAction", "DisplaySink"]

logger = logging.getLogger(__name__)

DisplayAction = Literal["quit", "freeze", "reset", "save"]

ESCAPE = 27
KEYS: dict[int, DisplayAction] = {
    ord("q"): "quit",
    ESCAPE: "quit",
    ord("f"): "freeze",
    ord("r"): "reset",
    ord("s"): "save",
}
INSTALL = "pip install --force-reinstall --no-deps opencv-python"
PROBE = "import cv2; cv2.namedWindow('probe'); cv2.waitKey(1); cv2.destroyAllWindows()"
PROBE_TIMEOUT_S = 20.0


class DisplaySink(Closing):
    """Shows what `render` draws and reports keys: q or Esc quit, f freeze, r reset, s save.

    Whether a window can be opened is found out once, at the first frame: Qt, inside the desktop
    wheels of OpenCV, does not fail but aborts the process where it finds no display, so a child
    process tries first. Where there is none, one warning says why and the sink does nothing.
    Windows belong to the main thread; use it there.

    Parameters
    ----------
    title : str
        Window title.
    render : callable
        FrameResult to (H, W, 3) uint8 RGB.
    on_action : callable or None
        Receives `quit`, `freeze`, `reset` or `save`; closing the window is `quit`.
    """

    def __init__(
        self,
        title: str,
        /,
        *,
        render: Render,
        on_action: Callable[[DisplayAction], None] | None = None,
    ) -> None:
        self._title = title
        self._render = render
        self._on_action = on_action
        self._works: bool | None = None
        self._shown = False

    @property
    def works(self) -> bool | None:
        """Whether there is a window; None before the first frame."""
        return self._works

    def write(self, result: FrameResult, /) -> None:
        """Show one result and handle the keys pressed since the last."""
        if self._works is None:
            self._works = self._try_window()
        if not self._works:
            return
        frame = cv2.cvtColor(self._render(result), cv2.COLOR_RGB2BGR)
        try:
            with quiet_opencv():
                cv2.imshow(self._title, frame)
        except cv2.error as err:
            self._give_up(str(err).strip().splitlines()[0])
            return
        self._shown = True
        self.poll()

    def poll(self) -> None:
        """Handle pressed keys and a closed window; also keeps the window alive between frames."""
        if not self._works or not self._shown:
            return
        action = KEYS.get(cv2.waitKey(1) & 0xFF)
        if not self._is_visible():
            self._works, action = False, "quit"
        if action is not None and self._on_action is not None:
            self._on_action(action)

    def close(self) -> None:
        """Close the window; may be called twice."""
        if self._works and self._shown:
            with suppress(cv2.error):
                cv2.destroyWindow(self._title)
                cv2.waitKey(1)
        self._works = False

    def _is_visible(self) -> bool:
        """Whether the window is still open; Qt raises once its last window is gone."""
        try:
            with quiet_opencv():
                return bool(cv2.getWindowProperty(self._title, cv2.WND_PROP_VISIBLE) >= 1.0)
        except cv2.error:
            return False

    def _try_window(self) -> bool:
        reason = _no_window_reason()
        if reason is not None:
            self._give_up(reason)
        return reason is None

    def _give_up(self, reason: str) -> None:
        self._works = False
        logger.warning("no window: %s; going on without one", reason)


def _no_window_reason() -> str | None:
    """Why no window can be opened, or None where one was opened by a child process."""
    on_linux = sys.platform.startswith("linux")
    if on_linux and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return "there is no display (DISPLAY is not set)"
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return f"the display does not answer ({type(err).__name__})"
    if probe.returncode == 0:
        return None
    if b"not implemented" in probe.stderr:
        return f"this OpenCV was built without windows; install one that has them: {INSTALL}"
    return f"the display {os.environ.get('DISPLAY', '')} cannot be opened"

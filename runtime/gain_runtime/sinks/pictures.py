"""Pictures for people: a window, and a folder of those on which adaptation changed the class."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import cv2

from gain_core.errors import ConfigError, StreamError
from gain_runtime.files.paths import write_atomically
from gain_runtime.frames import Closing, FrameResult
from gain_runtime.sinks.video import Render
from gain_runtime.sources.camera import quiet_opencv

logger = logging.getLogger(__name__)

PATTERN = re.compile(r"changed-(\d{10,})\.jpg")
QUALITY = 90


class ChangedSink:
    """Writes each frame whose class adaptation changed as a JPEG, and keeps the newest `most`.

    Numbers in file names continue over runs. `changed.tsv` has one line per picture: file name,
    frame index, class of the source and adapted class. The folder is created if it is missing;
    raises StreamError if it cannot be used, ConfigError if `most` is below 1.
    """

    def __init__(self, folder: str | Path, /, *, most: int = 1000) -> None:
        if most < 1:
            raise ConfigError(f"--set save-changed-most: expected at least 1, got {most}")
        self._folder = Path(folder)
        self._most = most
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            matches = (PATTERN.fullmatch(path.name) for path in self._folder.iterdir())
        except OSError as err:
            raise StreamError(
                f"{folder}: no pictures can be kept there ({err.strerror}); name another folder"
            ) from err
        self._numbers = sorted(int(match[1]) for match in matches if match is not None)
        self._lines: list[str] = []
        with suppress(OSError):  # there is none before the first run
            text = (self._folder / "changed.tsv").read_text("utf-8", "replace")
            self._lines = text.splitlines()

    def write(self, result: FrameResult, /) -> None:
        """Keep the frame, if adaptation changed its class; StreamError if it cannot be written."""
        if not result.changed:
            return
        number = self._numbers[-1] + 1 if self._numbers else 1
        bgr = cv2.cvtColor(result.frame.image, cv2.COLOR_RGB2BGR)
        data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
        name = f"changed-{number:010d}.jpg"
        fields = (
            *(name, str(result.frame.index)),
            *(result.source_top[0].label, result.adapted_top[0].label),
        )
        try:
            write_atomically(self._folder / name, data)
            self._numbers.append(number)
            self._lines.append("\t".join(" ".join(field.split()) for field in fields))
            while len(self._numbers) > self._most:
                old = self._folder / f"changed-{self._numbers.pop(0):010d}.jpg"
                old.unlink(missing_ok=True)
            del self._lines[: -self._most]
            text = "".join(f"{line}\n" for line in self._lines)
            write_atomically(self._folder / "changed.tsv", text.encode("utf-8", "replace"))
        except OSError as err:
            raise StreamError(f"{self._folder}: cannot be written ({err.strerror})") from err

    def close(self) -> None:
        """Does nothing: no file is kept open."""


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

    At the first frame a child process tries to open a window, because Qt in OpenCV's desktop wheels
    aborts the process if it finds no display. Without one, the sink logs one warning and does
    nothing. Use it in the main thread: windows need it.

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
            reason = _no_window_reason()
            self._works = reason is None
            if reason is not None:
                self._give_up(reason)
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

    def _give_up(self, reason: str) -> None:
        self._works = False
        logger.warning("no window: %s; continuing without one", reason)


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

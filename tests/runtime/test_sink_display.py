"""The window: keys, closing, and machines that have none."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from results import make_result

from gain_runtime.frames import FrameResult
from gain_runtime.sinks import pictures
from gain_runtime.sinks.pictures import DisplayAction, DisplaySink

RED = np.full((4, 6, 3), (255, 0, 0), dtype=np.uint8)


def draw(result: FrameResult) -> np.ndarray:
    return result.frame.image


class Screen:
    """Stands in for OpenCV's window functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, keys: list[int] | None = None) -> None:
        self.keys = keys or []
        self.images: list[np.ndarray] = []
        self.visible: float | None = 1.0
        self.destroyed: list[str] = []
        monkeypatch.setattr(pictures, "_no_window_reason", lambda: None)
        monkeypatch.setattr(cv2, "imshow", lambda title, image: self.images.append(image))
        monkeypatch.setattr(cv2, "waitKey", lambda delay: self.keys.pop(0) if self.keys else -1)
        monkeypatch.setattr(cv2, "getWindowProperty", self.window_property)
        monkeypatch.setattr(cv2, "destroyWindow", self.destroyed.append)

    def window_property(self, title: str, prop: int) -> float:
        if self.visible is None:
            raise cv2.error("NULL guiReceiver (please create a window)")
        return self.visible


def test_the_picture_is_shown_in_opencv_channel_order(monkeypatch):
    screen = Screen(monkeypatch)
    with DisplaySink("t", render=draw) as sink:
        sink.write(make_result(image=RED))
        assert sink.works
    assert screen.images[0][0, 0].tolist() == [0, 0, 255]
    assert screen.destroyed == ["t"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        pytest.param(ord("q"), ["quit"], id="q"),
        pytest.param(27, ["quit"], id="escape"),
        pytest.param(ord("f"), ["freeze"], id="f"),
        pytest.param(ord("r"), ["reset"], id="r"),
        pytest.param(ord("s"), ["save"], id="s"),
        pytest.param(0x100000 | ord("q"), ["quit"], id="q-with-num-lock"),
        pytest.param(ord("x"), [], id="other"),
        pytest.param(-1, [], id="none"),
    ],
)
def test_keys_are_reported(monkeypatch, key, expected):
    Screen(monkeypatch, keys=[key])
    actions: list[DisplayAction] = []
    sink = DisplaySink("t", render=draw, on_action=actions.append)
    sink.write(make_result(image=RED))
    sink.poll()
    assert actions == expected


@pytest.mark.parametrize("raises", [False, True], ids=["hidden", "qt-without-windows"])
def test_closing_the_window_is_quit_and_is_reported_once(monkeypatch, raises):
    screen = Screen(monkeypatch)
    actions: list[DisplayAction] = []
    sink = DisplaySink("t", render=draw, on_action=actions.append)
    sink.write(make_result(image=RED))
    assert actions == []
    screen.visible = None if raises else 0.0
    sink.write(make_result(image=RED))
    sink.write(make_result(image=RED))
    sink.close()
    assert actions == ["quit"]
    assert len(screen.images) == 2
    assert screen.destroyed == []


def test_a_window_that_fails_is_one_warning_and_then_nothing(monkeypatch, caplog):
    Screen(monkeypatch)
    calls: list[str] = []

    def fail(title: str, image: np.ndarray) -> None:
        calls.append(title)
        raise cv2.error("The function is not implemented.\nRebuild the library")

    monkeypatch.setattr(cv2, "imshow", fail)
    with caplog.at_level(logging.WARNING), DisplaySink("t", render=draw) as sink:
        for _ in range(3):
            sink.write(make_result(image=RED))
        assert sink.works is False
    assert calls == ["t"]
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()


def test_without_a_display_it_does_nothing_but_warn_once(monkeypatch, caplog):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(pictures.sys, "platform", "linux")
    drawn: list[FrameResult] = []

    def count(result: FrameResult) -> np.ndarray:
        drawn.append(result)
        return result.frame.image

    with caplog.at_level(logging.WARNING), DisplaySink("t", render=count) as sink:
        assert sink.works is None
        sink.write(make_result(image=RED))
        sink.write(make_result(image=RED))
        sink.poll()
    assert drawn == []
    (record,) = caplog.records
    assert "DISPLAY is not set" in record.getMessage()


def failed_with(code: int, stderr: bytes) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    return lambda args, **kwargs: subprocess.CompletedProcess(args, code, b"", stderr)


def time_out(args: list[str], **kwargs: object) -> None:
    raise subprocess.TimeoutExpired(args, 20.0)


@pytest.mark.parametrize(
    ("run", "named"),
    [
        # A build without windows, Qt that aborts, and a display that hangs.
        (failed_with(1, b"cv2.error: The function is not implemented."), "pip install"),
        (failed_with(-6, b"qt.qpa.xcb: could not connect"), ":77"),
        (time_out, "does not answer"),
    ],
)
def test_the_child_process_tells_why_there_is_no_window(monkeypatch, caplog, run, named):
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.setattr(pictures.subprocess, "run", run)
    with caplog.at_level(logging.WARNING), DisplaySink("t", render=draw) as sink:
        sink.write(make_result(image=RED))
    (record,) = caplog.records
    assert named in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.skipif(not hasattr(pictures.os, "fork"), reason="a display name of X11 is needed")
def test_a_display_that_is_not_there_does_not_end_the_process(monkeypatch, caplog):
    monkeypatch.setenv("DISPLAY", "127.0.0.1:6553")
    with caplog.at_level(logging.WARNING), DisplaySink("t", render=draw) as sink:
        sink.write(make_result(image=RED))
        assert sink.works is False
    assert "no window" in caplog.text

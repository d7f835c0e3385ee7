"""Streams behind a URL: what is said when they do not work; nothing waits for ever."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import numpy as np
import pytest
from clips import page, write_clip

from gain_core.errors import StreamError
from gain_runtime.sources.decoder import Limits
from gain_runtime.sources.opening import open_source
from gain_runtime.sources.video import NetworkSource

SHORT = Limits(open_s=1.0, read_s=1.0)


@contextmanager
def silent() -> Iterator[str]:
    """Address of a host that takes every connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param(401, "wants other credentials (401 Unauthorized); put them into", id="401"),
        pytest.param(403, "refuses these credentials (403 Forbidden)", id="403"),
        pytest.param(404, "knows no such address (404 Not Found); check the path", id="404"),
        pytest.param(503, "the server failed (5xx)", id="503"),
    ],
)
@pytest.mark.parametrize("name", ["live", "clip.mp4"])
def test_what_a_server_answers_is_said(answering, code, reason, name):
    with answering(page(code=code)) as host, pytest.raises(StreamError) as caught:
        open_source(f"http://joe:secret@{host}/{name}?token=hidden")
    message = str(caught.value)
    assert f"cannot be opened: the server {reason.removeprefix('the server ')}" in message
    assert "secret" not in message
    assert "hidden" not in message
    assert "\n" not in message


@pytest.mark.parametrize("scheme", ["rtsp", "http"])
def test_a_refused_connection_and_an_unknown_host_are_told_apart(scheme):
    port = closed_port()
    with pytest.raises(StreamError, match=f"connection refused by 127.0.0.1:{port}; check the"):
        open_source(f"{scheme}://127.0.0.1:{port}/live")
    with pytest.raises(StreamError, match=r"no host is called camera\.invalid \(DNS\)"):
        open_source(f"{scheme}://camera.invalid/live")


def test_garbage_is_told_from_silence(answering):
    garbage = page(np.random.default_rng(0).bytes(60_000))
    with answering(garbage) as host, pytest.raises(StreamError, match="no video that can be"):
        open_source(f"http://{host}/live")
    login = page(b"<html><body>Log in</body></html>", sized=False)
    with answering(login) as host, pytest.raises(StreamError, match="sent no video and hung"):
        open_source(f"http://{host}/live")
    with silent() as host, pytest.raises(StreamError, match="no data for 1 s"):
        NetworkSource(f"rtsp://{host}/live", limits=SHORT)


def test_a_protocol_that_is_not_there_says_what_to_do_instead():
    with pytest.raises(StreamError, match=r"does not have that protocol|refused|no data"):
        open_source("srt://127.0.0.1:9")


class Freezing(BaseHTTPRequestHandler):
    """Sends two seconds of video, then nothing more until `frozen` is set."""

    frozen: threading.Event

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        buffer = io.BytesIO()
        frames = [np.full((48, 64, 3), number, dtype=np.uint8) for number in range(50)]
        options = {"g": "5"}
        write_clip(buffer, frames, "mpeg2video", rate=25, options=options, container="mpegts")
        self.wfile.write(buffer.getvalue())
        self.wfile.flush()
        self.frozen.wait(240.0)


def test_a_stream_that_freezes_is_lost_after_the_limit(answering):
    frozen = Freezing.frozen = threading.Event()
    with answering(Freezing) as host:
        source = NetworkSource(f"http://{host}/live", limits=Limits(open_s=120.0, read_s=1.0))
        frames = []
        with pytest.raises(StreamError, match=r"signal lost after \d+ frames: no data for 1 s"):
            frames.extend(source)
        frozen.set()
        source.close()
    assert 30 <= len(frames) <= 50
    assert source.info.live
    assert [frame.index for frame in frames] == list(range(len(frames)))
    stamps = [frame.timestamp_ns for frame in frames]
    assert stamps == sorted(stamps)


def test_close_is_not_waiting_for_a_read(answering):
    frozen = Freezing.frozen = threading.Event()
    with answering(Freezing) as host:
        source = NetworkSource(f"http://{host}/live", limits=Limits(open_s=120.0, read_s=120.0))
        thread = threading.Thread(target=lambda: list(source), daemon=True)
        thread.start()
        thread.join(0.5)
        started = time.monotonic()
        source.close()
        assert time.monotonic() - started < 60.0
        frozen.set()
        thread.join(120.0)
        assert not thread.is_alive()

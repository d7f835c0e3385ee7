"""People who watch, quickly, slowly or not at all, and the stream that must not notice."""

from __future__ import annotations

import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gain_apps.serve import ServeAddress, open_server
from gain_apps.serve.app import MOST_VIEWERS, PICTURE_INTERVAL_S
from gain_apps.serve.cameras import PictureMaker


class Viewer:
    """A raw connection to the moving picture."""

    def __init__(self, server, *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", server.address.port))
        self.socket.sendall(b"GET /cameras/yard/picture.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.seen = b""

    def read_parts(self, count: int) -> int:
        """Read until so many pictures have begun; how many were seen."""
        while self.seen.count(b"\xff\xd8\xff") < count:
            chunk = self.socket.recv(65536)
            if not chunk:
                break
            self.seen += chunk
        return self.seen.count(b"\xff\xd8\xff")

    def read_some(self) -> bytes:
        """The beginning of the reply."""
        if not self.seen:
            self.seen = self.socket.recv(65536)
        return self.seen

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def watch():
    """Opens viewers and closes them afterwards."""
    viewers = []

    def one(server, **options) -> Viewer:
        viewers.append(Viewer(server, **options))
        return viewers[-1]

    yield one
    for viewer in viewers:
        viewer.close()


def test_nothing_is_drawn_while_nobody_looks(serve, stream, until):
    serve()
    until(lambda: stream.board.sequence > 3)
    assert stream.pictures.encoded == 0


def test_viewers_are_sent_the_moving_picture(serve, stream, watch):
    server = serve()
    viewers = [watch(server), watch(server)]
    assert [viewer.read_parts(5) for viewer in viewers] == [5, 5]
    assert b"multipart/x-mixed-replace" in viewers[0].seen


def test_a_picture_is_drawn_once_for_all_who_ask(idle, result):
    maker = PictureMaker(idle.board)
    assert maker.jpeg() is None
    for index in range(3):
        idle.board.write(result(index))
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda _: maker.jpeg(), range(16)))
        assert {view.sequence for view, _ in made} == {index + 1}
        assert maker.encoded == index + 1


def test_viewer_that_stops_reading_misses_pictures_and_delays_nobody(
    idle, cameras, watch, until, result, monkeypatch
):
    # Pictures as fast as they are taken, so that the connection's buffers fill at once.
    monkeypatch.setattr("gain_apps.serve.app.PICTURE_INTERVAL_S", 0.0)
    with open_server(cameras, address=ServeAddress(port=0)) as server:
        stuck = watch(server, receive_bytes=4096)
        asked = count_pictures(idle.pictures, monkeypatch)
        index = 0
        # Until the server, too, has given up making pictures for it.
        quiet = 0
        while quiet < 20:
            before = len(asked)
            idle.board.write(result(index))
            index += 1
            time.sleep(0.005)
            quiet = quiet + 1 if len(asked) == before else 0
            assert index < 5000
        quick = watch(server)
        seen, written = threading.Event(), []

        def write() -> None:
            while not seen.wait(0.01):
                idle.board.write(result(index + len(written)))
                written.append(1)

        writer = threading.Thread(target=write)
        writer.start()
        assert quick.read_parts(10) == 10
        seen.set()
        writer.join(timeout=120)
        assert idle.board.sequence == index + len(written)
        assert stuck.seen == b""


def count_pictures(maker, monkeypatch) -> list[int]:
    """Sequence numbers of the pictures made from here on."""
    asked: list[int] = []
    make = maker.jpeg

    def counted(view):
        made = make(view)
        if made is not None:
            asked.append(made[0].sequence)
        return made

    monkeypatch.setattr(maker, "jpeg", counted)
    return asked


def test_writing_does_not_wait_for_drawing(serve, stream, watch, until, monkeypatch):
    drawing, go_on = threading.Event(), threading.Event()

    def draw_slowly(overlay, result):
        drawing.set()
        go_on.wait(120)
        return np.zeros((64, 96, 3), dtype=np.uint8)

    monkeypatch.setattr("gain_apps.streaming.overlay.Overlay.render", draw_slowly)
    server = serve()
    viewer = watch(server)
    assert drawing.wait(120)
    before = stream.board.sequence
    until(lambda: stream.board.sequence > before + 5)
    go_on.set()
    assert viewer.read_parts(1) == 1


def test_viewers_who_come_at_once_are_counted_right_and_leave_their_place(
    serve, stream, watch, until
):
    server = serve()
    with ThreadPoolExecutor(MOST_VIEWERS + 6) as pool:
        viewers = list(pool.map(lambda _: watch(server), range(MOST_VIEWERS + 6)))
    for viewer in viewers:
        until(lambda viewer=viewer: viewer.read_some())
    watching = [viewer for viewer in viewers if b" 200 OK" in viewer.seen]
    assert len(watching) == MOST_VIEWERS
    words = f"{MOST_VIEWERS} people are watching already".encode()
    assert all(b" 503 " in v.seen and words in v.seen for v in viewers if v not in watching)
    watching[0].close()
    until(lambda: b"200 OK" in watch(server).read_some())


def test_a_camera_that_is_removed_ends_its_picture(serve, stream, cameras, watch):
    server = serve()
    viewer = watch(server)
    viewer.read_parts(1)
    cameras.streams.clear()
    # The last, empty chunk of the reply; the connection itself may serve another request.
    end = b"\r\n0\r\n\r\n"
    while not viewer.seen.endswith(end):
        chunk = viewer.socket.recv(65536)
        assert chunk, "closed before the reply was complete"
        viewer.seen += chunk


def test_closing_does_not_wait_for_a_stuck_viewer_and_may_be_repeated(serve, stream, watch, caplog):
    server = serve()
    watch(server, receive_bytes=4096)
    time.sleep(10 * PICTURE_INTERVAL_S)
    started = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - started < 20.0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

"""The served API, over a real socket."""

from __future__ import annotations

import base64
import http.client
import logging
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import cv2
import numpy as np
import pytest
from without import run_without

from gain_apps.serve import LiveBoard, ServeAddress, StreamFacts, open_server
from gain_apps.serve.schema import SILENT_AFTER_S, state_of
from gain_core.errors import BackendUnavailableError
from gain_runtime.sources.reconnecting import Connection

TOKEN = "a-token-of-some-length-0123"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def test_the_overview_has_a_row_for_each_camera(serve, ask, stream, cameras, until):
    cameras.add("door", "rtsp://***@cam/2", {}, who="test")
    away = Connection(
        state="reconnecting", since_s=5.0, reason="refused", attempt=3, next_try_s=9.0
    )
    cameras.streams["door"].board.connect(away)
    server = serve()
    until(lambda: stream.board.sequence > 4)
    reply = ask(server, "/api/cameras").json()
    assert reply["kept_in"] == "cameras.toml"
    yard, door = reply["cameras"]
    assert (yard["name"], yard["state"], yard["source_class"]) == ("yard", "live", "apple")
    assert yard["frames"] > 4
    assert (door["name"], door["state"], door["source"]) == (
        "door",
        "reconnecting",
        "rtsp://***@cam/2",
    )
    assert (door["reason"], door["attempt"], door["next_try_s"]) == ("refused", 3, 9.0)
    assert door["last_event"]["text"] == "signal lost: refused"


def test_status_tells_what_the_camera_does(serve, ask, stream, until):
    server = serve()
    until(lambda: stream.board.sequence > 4)
    status = ask(server, "/api/cameras/yard").json()
    assert status["camera"]["state"] == "live"
    assert status["newest"]["source"][0] == {"index": 0, "label": "apple", "prob": 0.6}
    assert status["newest"]["truth"] == "apple"
    assert status["newest"]["stage_ms"] == {"preprocess": 1.0, "forward": 6.0, "adapt": 0.5}
    assert status["latency_p95_ms"] == 40.0
    told = {"shift_nats": 0.5, "draws": 7.25}
    assert status["adaptation"] == told
    assert "moved the logits by 0.5 nats" in status["summary"]
    points = ask(server, "/api/cameras/yard/history").json()["points"]
    assert points[0]["adaptation"] == told
    assert points[0]["condition"] == "fog"
    assert abs(points[0]["at_s"] - time.time()) < 60.0
    assert status["dropped"] == 3
    assert status["device"]["celsius"] == 88.5
    assert status["kept"]["frames_not_kept"] == 12
    assert status["commands"] == ["freeze", "unfreeze", "reset", "save", "pause", "restart"]


def test_picture_and_numbers_are_of_the_same_frame(serve, ask, idle, result):
    server = serve()
    assert ask(server, "/api/cameras/yard/frame").json()["picture"] is None
    idle.board.write(result(3, changed=True))
    reply = ask(server, "/api/cameras/yard/frame").json()
    idle.board.write(result(9))
    assert reply["status"]["newest"]["index"] == 3
    data = np.frombuffer(base64.b64decode(reply["picture"]), np.uint8)
    picture = cv2.imdecode(data, cv2.IMREAD_COLOR)
    # The bar of frame 3 lies a seventh from the left.
    row = picture[20].astype(int)
    bar = np.flatnonzero((row[:, 1] > 150) & (row[:, 0] < 120))
    assert bar.mean() / picture.shape[1] == pytest.approx((12 + 3) / 96, abs=0.02)


def test_status_before_the_first_frame(serve, ask, idle):
    server = serve()
    status = ask(server, "/api/cameras/yard").json()
    assert (status["newest"], status["camera"]["agreement"]) == (None, None)
    assert status["camera"]["state"] == "starting"
    assert ask(server, "/cameras/yard/picture.jpg").status == 503
    assert ask(server, "/metrics").status == 200
    assert ask(server, "/api/cameras/nobody").status == 404


def test_a_gain_that_is_not_finite_is_null(serve, ask, idle, result):
    idle.board.write(replace(result(0), gain=float("inf"), strength=1.0000001))
    server = serve()
    newest = ask(server, "/api/cameras/yard").json()["newest"]
    assert (newest["gain_nats"], newest["strength"]) == (None, 1.0)
    point = ask(server, "/api/cameras/yard/history").json()["points"][0]
    assert (point["gain_nats"], point["strength"]) == (None, 1.0)


def test_a_camera_that_is_silent_is_not_called_live(idle, result):
    now = [0.0]
    board = LiveBoard("yard", idle.events, clock=lambda: now[0])
    board.connect(Connection(state="connected"))
    for index in range(100):
        board.write(result(index))
        now[0] += 0.1
    assert state_of(board.view())[0] == "live"
    now[0] += SILENT_AFTER_S
    assert state_of(board.view())[0] == "silent"


def test_a_loop_that_hangs_takes_no_more_commands(serve, ask, idle, monkeypatch):
    monkeypatch.setattr("gain_apps.serve.app.OUTCOME_S", 0.01)
    server = serve()
    path = "/api/cameras/yard/commands/reset"
    replies = [ask(server, path, method="POST") for _ in range(34)]
    assert [reply.status for reply in replies] == [200] * 32 + [503] * 2
    assert replies[0].json()["done"] is False


def test_events_are_read_page_by_page(serve, ask, cameras):
    for number in range(5):
        cameras.events.add("yard" if number % 2 else "", "stream", f"event {number}")
    server = serve()
    first = ask(server, "/api/events?limit=2").json()["events"]
    assert [event["text"] for event in first] == ["event 4", "event 3"]
    then = ask(server, f"/api/events?limit=9&before={first[-1]['id']}").json()["events"]
    assert [event["text"] for event in then] == ["event 2", "event 1", "event 0"]


def test_wrong_token_is_refused_counted_and_noted(serve, ask, stream, caplog, until):
    server = serve(token=TOKEN)
    until(lambda: stream.board.sequence)
    assert ask(server, "/api/cameras").status == 401
    assert ask(server, "/api/cameras/yard/commands/reset", method="POST").status == 401
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            wrong = ask(server, "/api/session", method="POST", body={"token": "b" * 27})
            assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
    # Three in a row are one line; a request without any token is not one.
    assert [record.message for record in caplog.records] == [
        "refused login with a wrong token from API at 127.0.0.1"
    ]
    assert ask(server, "/api/cameras", Authorization="Bearer wrong").status == 401
    logged_in = ask(server, "/api/session", method="POST", body={"token": TOKEN})
    cookie = logged_in.headers["set-cookie"]
    assert logged_in.status == 204
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert "Secure" not in cookie
    proxied = ask(
        server, "/api/session", method="POST", body={"token": TOKEN}, X_Forwarded_Proto="https"
    )
    assert "Secure" in proxied.headers["set-cookie"]
    pair = {"Cookie": cookie.split(";")[0]}
    assert ask(server, "/cameras/yard/picture.jpg", **pair).status == 200
    assert ask(server, "/api/cameras/yard/commands/save", method="POST", **pair).status == 200
    for path in ("/healthz", "/readyz"):
        assert ask(server, path).status == 200
    text = ask(server, "/metrics", **BEARER).body.decode()
    assert 'gain_logins_total{outcome="refused"} 4.0' in text
    assert 'gain_logins_total{outcome="accepted"} 2.0' in text
    events = ask(server, "/api/events?kind=login", **BEARER).json()["events"]
    assert {event["text"] for event in events} == {"login refused: wrong token", "logged in"}


def test_what_is_no_token_is_422_and_never_echoed(serve, ask, caplog):
    server = serve(token=TOKEN)
    for body in (
        b'{"token": "\\ud800secret"}',  # a lone surrogate
        b'{"token": ["secret"]}',
        b'{"token": "' + b"secret" * 100 + b'"}',
        b'{"tokn": "secret"}',
        b"secret",
    ):
        with caplog.at_level(logging.DEBUG):
            reply = ask(server, "/api/session", method="POST", body=body)
        assert reply.status == 422, body
        assert b"secret" not in reply.body
        assert "Traceback" not in caplog.text
    assert reply.json()["detail"] == "body: expected JSON"


def test_another_site_cannot_press_a_button_nor_anybody_another_one(serve, ask, stream, until):
    server = serve()
    for foreign in (
        {"Origin": "https://evil.example"},
        {"Host": f"evil.example:{server.address.port}"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        path = "/api/cameras/yard/commands/reset"
        assert ask(server, path, method="POST", **foreign).status == 403
        assert ask(server, "/api/cameras/yard", method="DELETE", **foreign).status == 403
    # This run cannot, is not for the page, is a path.
    for command, status in (("roll-back", 409), ("quit", 422), ("../../etc/passwd", 404)):
        path = f"/api/cameras/yard/commands/{command}"
        assert ask(server, path, method="POST").status == status
    # Three rounds of the loop later.
    sequence = stream.board.sequence
    until(lambda: stream.board.sequence > sequence + 2)
    assert stream.done == []


def test_every_reply_keeps_browsers_careful(serve, ask):
    server = serve(token=TOKEN)
    for path in ("/", "/page.js", "/healthz", "/api/cameras", "/nowhere"):
        headers = ask(server, path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "access-control-allow-origin" not in headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_no_file_is_named_by_a_request(serve):
    server = serve()
    link = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
    for path in ("/../pyproject.toml", "/page/index.html", "/%2e%2e/board.py", "/page.css/../a.py"):
        link.request("GET", path)
        reply = link.getresponse()
        assert (reply.status, reply.read() != b"") == (404, True), path
    link.close()


def test_metrics_have_every_camera_as_a_label(serve, stream, cameras, metrics, until):
    cameras.add("door", "test://other", {}, who="test")
    until(lambda: stream.board.sequence > 10)
    found = metrics(serve())
    frames = found['gain_frames_total{stream="yard"}']
    assert frames > 10
    assert found['gain_frames_total{stream="door"}'] == 0.0
    assert found['gain_stage_seconds_total{stage="forward",stream="yard"}'] == pytest.approx(
        0.006 * frames, rel=0.2
    )
    for name, value in (
        ("strength_ratio", 0.75),
        ("frames_dropped_total", 3.0),
        ("reconnects_total", 1.0),
        ("adaptation_draws", 7.25),
        ("adaptation_shift_nats", 0.5),
        ("backpressure_level", 4.0),
        ("update_every_frames", 64.0),
        ("frame_stride", 2.0),
        ("frames_left_out_total", 7.0),
        ("outputs_lost", 1.0),
        ("snapshots_total", 5.0),
        ("snapshot_failing", 0.0),
        ("frames_not_kept", 12.0),
        ("snapshot_timestamp_seconds", 1.5e9),
        ("latency_seconds_count", frames),
    ):
        assert found[f'gain_{name}{{stream="yard"}}'] == pytest.approx(value, abs=3), name
    assert found['gain_frames_not_learned_total{reason="black",stream="yard"}'] == 2.0
    assert found['gain_state{state="live",stream="yard"}'] == 1.0
    assert found['gain_state{state="live",stream="door"}'] == 0.0
    assert found['gain_state{state="starting",stream="door"}'] == 1.0
    assert found['gain_latency_seconds_bucket{le="0.025",stream="yard"}'] == 0.0
    assert found['gain_latency_seconds_bucket{le="0.05",stream="yard"}'] > 10
    assert found["process_resident_memory_bytes"] > 1e6
    assert found["gain_device_celsius"] == 88.5


def test_what_is_not_there_has_no_metric(serve, ask, idle):
    idle.board.attach(idle.board.view().identity, probe=StreamFacts)
    idle.board.poll()
    text = ask(serve(), "/metrics").body.decode()
    assert "gain_device_throttled 0.0" in text
    assert "gain_device_celsius" not in text
    assert "gain_snapshots_total{" not in text
    assert "gain_snapshot_failing{" not in text


def test_health_is_alive_and_readiness_is_that_of_the_service(serve, ask, idle, cameras):
    server = serve()
    assert ask(server, "/healthz").json() == {"status": "alive"}
    ready = ask(server, "/readyz")
    assert (ready.status, ready.json()) == (200, {"status": "ready"})
    cameras.ready = False
    assert ask(server, "/readyz").status == 503
    assert ask(server, "/healthz").status == 200
    for path in ("/", "/healthz", "/readyz", "/metrics"):
        head = ask(server, path, method="HEAD")
        assert (head.status in (200, 503), head.body) == (True, b""), path


def test_pictures_are_annotated_and_small_enough(serve, ask, idle, result):
    server = serve()

    def shape(view: str) -> tuple[int, ...]:
        body = ask(server, f"/cameras/yard/picture.jpg?view={view}").body
        return cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR).shape

    idle.board.write(result(0))
    ratios = [width / height for height, width, _ in map(shape, ("annotated", "side-by-side"))]
    assert ratios == pytest.approx([1.5, 3.0], rel=0.02)
    assert ask(server, "/cameras/yard/picture.jpg?view=/etc/passwd").status == 422
    large = result(1)
    image = np.zeros((2160, 3840, 3), dtype=np.uint8)
    idle.board.write(replace(large, frame=replace(large.frame, image=image)))
    assert (shape("annotated"), shape("thumbnail")) == ((720, 1280, 3), (108, 192, 3))


def test_silent_connections_keep_nobody_out(serve, ask, stream):
    server = serve()
    with ExitStack() as links:
        for number in range(160):
            link = socket.create_connection(("127.0.0.1", server.address.port), timeout=60)
            links.enter_context(link)
            if number % 2:
                # Half a request is silent, too.
                link.sendall(b"POST /api/session HTTP/1.1\r\nHost: localhost\r\n")
        for path in ("/healthz", "/api/cameras", "/metrics", "/"):
            assert ask(server, path).status == 200, path


def test_a_request_that_never_ends_is_cut_off(serve, monkeypatch, until):
    monkeypatch.setattr("gain_apps.serve.server.REQUEST_S", 0.4)
    address = ("127.0.0.1", serve().address.port)
    head = b"POST /api/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
    with socket.create_connection(address, timeout=60) as link:
        link.sendall(head)
        link.setblocking(False)

        def is_cut_off() -> bool:
            time.sleep(0.1)
            try:
                link.send(b" ")
                return link.recv(100) == b""
            except BlockingIOError:
                return False
            except OSError:
                return True

        until(is_cut_off)


def test_without_the_extra_one_line_says_how_to_get_it(cameras, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(BackendUnavailableError, match=r"uvicorn: .*'\.\[serve\]'"):
        open_server(cameras, address=ServeAddress(port=0))


def test_package_imports_without_the_extra():
    libraries = ("fastapi", "starlette", "uvicorn", "prometheus_client", "pydantic", "tomlkit")
    modules = "gain_apps.serve, gain_apps.streaming.service, gain_apps.stream"
    done = run_without((*libraries, "setproctitle"), f"import {modules}\n")
    assert (done.returncode, done.stderr) == (0, "")

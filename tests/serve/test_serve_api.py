"""The served API, over a real socket."""

from __future__ import annotations

import http.client
import logging
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from gain_apps.serve import LiveBoard, ServeAddress, StreamFacts, open_server
from gain_apps.serve.schema import STALLED_AFTER_S
from gain_core.errors import BackendUnavailableError

TOKEN = "a-token-of-some-length-0123"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def test_status_tells_what_the_stream_does(serve, ask, stream, until):
    server = serve()
    until(lambda: stream.board.sequence > 4)
    status = ask(server, "/api/status").json()
    assert status["stream"]["source_id"] == "test://moving"
    assert status["health"] == "ok"
    assert status["newest"]["source"][0] == {"index": 0, "label": "apple", "prob": 0.6}
    assert status["newest"]["truth"] == "apple"
    assert status["newest"]["stage_ms"] == {"preprocess": 1.0, "forward": 6.0, "adapt": 0.5}
    told = {"guard": "watching", "drift": 0.25, "shift_nats": 0.5, "unset": None}
    assert status["adaptation"] == told
    points = ask(server, "/api/history").json()["points"]
    assert points[0]["adaptation"] == {"drift": 0.25, "shift_nats": 0.5}
    assert status["dropped"] == 3
    assert status["device"] == {
        "load": "skipping",
        "update_every": 64,
        "stride": 2,
        "left_out": 7,
        "throttled": True,
        "celsius": 88.5,
    }
    assert status["kept"] == {"written": 5, "failing": False, "frames_not_kept": 12}
    assert status["outputs_lost"] == 1
    assert status["commands"] == ["freeze", "unfreeze", "reset", "save"]


def test_status_before_the_first_frame(idle, ask):
    with open_server(idle.board, idle.info, idle.queue, address=ServeAddress(port=0)) as server:
        status = ask(server, "/api/status").json()
        assert (status["newest"], status["agreement"], status["frames"]) == (None, None, 0)
        assert ask(server, "/picture.jpg").status == 503
        assert ask(server, "/metrics").status == 200


def test_a_gain_that_is_not_finite_is_null(idle, ask, result):
    from dataclasses import replace

    idle.board.write(replace(result(0), gain=float("inf"), strength=1.0000001))
    with open_server(idle.board, idle.info, idle.queue, address=ServeAddress(port=0)) as server:
        newest = ask(server, "/api/status").json()["newest"]
        assert (newest["gain_nats"], newest["strength"]) == (None, 1.0)
        assert ask(server, "/api/history").json()["points"][0]["gain_nats"] is None


def test_a_command_reaches_the_loop_and_shows(serve, ask, stream, until):
    server = serve()
    reply = ask(server, "/api/commands/freeze", method="POST")
    assert (reply.status, reply.json()) == (202, {"command": "freeze"})
    until(lambda: ask(server, "/api/status").json()["frozen"])
    assert stream.done == ["freeze"]
    events = ask(server, "/api/status").json()["events"]
    assert [(event["kind"], event["text"]) for event in events] == [
        ("command", "freeze"),
        ("state", "frozen"),
    ]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        pytest.param("roll-back", 409, id="this run cannot"),
        pytest.param("quit", 422, id="not for the page"),
        pytest.param("../../etc/passwd", 404, id="a path"),
    ],
)
def test_other_commands_are_refused(serve, ask, stream, command, status):
    server = serve()
    assert ask(server, f"/api/commands/{command}", method="POST").status == status
    time.sleep(0.15)
    assert stream.done == []


def test_a_loop_that_hangs_takes_no_more_commands(idle, ask):
    with open_server(idle.board, idle.info, idle.queue, address=ServeAddress(port=0)) as server:
        replies = [ask(server, "/api/commands/reset", method="POST").status for _ in range(34)]
    assert replies == [202] * 32 + [503] * 2


def test_wrong_token_is_refused_and_the_right_one_opens(serve, ask, stream):
    server = serve(token=TOKEN)
    assert ask(server, "/api/status").status == 401
    assert ask(server, "/api/commands/reset", method="POST").status == 401
    wrong = ask(server, "/api/session", method="POST", body={"token": "b" * 27})
    assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
    assert ask(server, "/api/status", **BEARER).status == 200
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
    assert ask(server, "/picture.jpg", **pair).status == 200
    assert ask(server, "/api/commands/save", method="POST", **pair).status == 202
    assert ask(server, "/healthz").status == 200
    assert stream.done in ([], ["save"])


def test_another_site_cannot_press_a_button(serve, ask, stream):
    server = serve()
    for foreign in (
        {"Origin": "https://evil.example"},
        {"Host": f"evil.example:{server.address.port}"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        assert ask(server, "/api/commands/reset", method="POST", **foreign).status == 403
    time.sleep(0.15)
    assert stream.done == []


def test_every_reply_keeps_browsers_careful(serve, ask):
    server = serve(token=TOKEN)
    for path in ("/", "/page.js", "/healthz", "/api/status", "/nowhere"):
        headers = ask(server, path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "access-control-allow-origin" not in headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/page/index.html", "/%2e%2e/board.py", "/page.css/../app.py"]
)
def test_no_file_is_named_by_a_request(serve, path):
    server = serve()
    link = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=5)
    link.request("GET", path)
    assert link.getresponse().status == 404
    link.close()


def test_page_names_no_other_host(serve, ask):
    server = serve()
    for path in ("/", "/page.css", "/page.js", "/charts.js", "/icon.svg"):
        text = ask(server, path).body.decode()
        addresses = [
            word for word in text.replace('"', " ").replace("'", " ").split() if "://" in word
        ]
        # The name of the SVG namespace is not an address that is fetched.
        assert set(addresses) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/2000/svg;"}


def test_metrics_are_those_of_the_stream(serve, ask, stream, until):
    server = serve()
    until(lambda: stream.board.sequence > 10)
    text = ask(server, "/metrics").body.decode()
    lines = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    frames = float(lines["gain_frames_total"])
    assert frames > 10
    assert float(lines['gain_stage_seconds_total{stage="forward"}']) == pytest.approx(
        0.006 * frames
    )
    assert lines["gain_strength"] == "0.75"
    assert lines["gain_frames_dropped_total"] == "3.0"
    assert lines['gain_frames_not_learned_total{reason="black"}'] == "2.0"
    assert lines["gain_reconnects_total"] == "1.0"
    assert lines['gain_adaptation{name="drift"}'] == "0.25"
    assert lines['gain_adaptation_state{name="guard",value="watching"}'] == "1.0"
    assert 'gain_adaptation{name="unset"}' not in lines


def test_metrics_tell_what_gives_way(serve, ask, stream, until):
    server = serve()
    until(lambda: stream.board.sequence)
    text = ask(server, "/metrics").body.decode()
    lines = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    for name, value in (
        ("backpressure_level", 4.0),
        ('load{state="skipping"}', 1.0),
        ("update_every", 64.0),
        ("frame_stride", 2.0),
        ("frames_left_out_total", 7.0),
        ("device_throttled", 1.0),
        ("device_celsius", 88.5),
        ("outputs_lost", 1.0),
        ("snapshots_total", 5.0),
        ("snapshot_failing", 0.0),
        ("frames_not_kept", 12.0),
    ):
        assert float(lines[f"gain_{name}"]) == value, name


def test_what_is_not_there_has_no_metric(idle, ask):
    board = LiveBoard(idle.board.identity, probe=StreamFacts)
    board.poll()
    with open_server(board, idle.info, idle.queue, address=ServeAddress(port=0)) as server:
        text = ask(server, "/metrics").body.decode()
    assert "gain_device_throttled 0.0" in text
    assert "gain_device_celsius" not in text
    assert "gain_snapshot" not in text


def test_health_is_503_when_nothing_is_classified(idle, ask):
    now = [0.0]
    board = LiveBoard(idle.board.identity, probe=StreamFacts, clock=lambda: now[0])
    with open_server(board, idle.info, idle.queue, address=ServeAddress(port=0)) as server:
        assert ask(server, "/healthz").json() == {"status": "ok"}
        now[0] = STALLED_AFTER_S + 1.0
        assert (ask(server, "/healthz").status, ask(server, "/healthz").json()) == (
            503,
            {"status": "stalled"},
        )
        board.close()
        assert ask(server, "/healthz").json() == {"status": "ended"}
        assert ask(server, "/api/commands/reset", method="POST").status == 503


def test_picture_is_the_annotated_frame(serve, ask, stream, until):
    server = serve()
    until(lambda: stream.board.sequence)
    sizes = []
    for view in ("annotated", "side-by-side"):
        body = ask(server, f"/picture.jpg?view={view}").body
        picture = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
        sizes.append(picture.shape[1] / picture.shape[0])
    assert sizes == pytest.approx([1.5, 3.0], rel=0.02)
    assert ask(server, "/picture.jpg?view=/etc/passwd").status == 422


def test_a_4k_source_is_sent_small(idle, ask, result):
    from dataclasses import replace

    idle.board.write(result(0))
    info = replace(idle.info, width_px=3840, height_px=2160)
    with open_server(idle.board, info, idle.queue, address=ServeAddress(port=0)) as server:
        body = ask(server, "/picture.jpg").body
    assert cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR).shape == (720, 1280, 3)


def test_close_is_quick_and_may_be_repeated(serve, caplog):
    server = serve()
    started = time.monotonic()
    server.close()
    server.close()
    assert time.monotonic() - started < 3.0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_without_the_extra_one_line_says_how_to_get_it(idle, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(BackendUnavailableError, match=r"uvicorn: .*gain-edge\[serve\]"):
        open_server(idle.board, idle.info, idle.queue, address=ServeAddress(port=0))


def test_package_imports_without_the_extra():
    code = (
        "import sys\n"
        "for name in ('fastapi', 'starlette', 'uvicorn', 'prometheus_client', 'pydantic'):\n"
        "    sys.modules[name] = None\n"
        "import gain_apps.serve, gain_apps.commands, gain_apps.stream\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")

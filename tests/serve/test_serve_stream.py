"""`gain-stream --serve`: the whole service, watched and commanded over HTTP."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import stat
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from gain_apps.serve import EventLog
from gain_apps.stream import main
from gain_apps.streaming.plan import read_config_file

LIVE = "test://pattern?live=1&rate=20&width=64&height=48&frames=1000000"


def settings(path: Path, artifact: Path, cameras: dict[str, str], **more: object) -> Path:
    """A settings file with these cameras."""
    top = {"model": str(artifact), "serve": "0", "num-threads": 1, "warm-up": 1, "update-every": 1}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**top, **more}.items()]
    for name, uri in cameras.items():
        lines += ["", f"# the {name}", f"[cameras.{name}]", f"input = {json.dumps(uri)}"]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def test_cameras_away_at_the_start_and_later_never_touch_the_others(
    artifact, run_inside, until, tmp_path, network_camera
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}/live"
    file = settings(
        tmp_path / "cameras.toml",
        artifact,
        {"near": LIVE, "far": network_camera.uri, "gone": gone},
        events=str(tmp_path / "events.sqlite"),
    )
    running = run_inside("--config", file)
    until(lambda: running.states() == {"near": "live", "far": "connecting", "gone": "connecting"})
    until(lambda: running.ask("api/cameras")["cameras"][1]["reason"])
    assert running.ask("api/cameras")["cameras"][1]["attempt"] >= 1
    network_camera.appear()
    until(lambda: running.states()["far"] == "live")
    frames = running.camera("near")["camera"]["frames"]
    network_camera.vanish()
    until(lambda: running.states()["far"] == "reconnecting")
    network_camera.appear()
    until(lambda: running.states()["far"] == "live")
    assert running.states()["near"] == "live"
    until(lambda: running.camera("near")["camera"]["frames"] > frames)
    # Counts are asked for between frames and now and then: later than the state is told.
    until(lambda: 'gain_reconnects_total{stream="far"} 1.0' in running.ask("metrics"))
    metrics = running.ask("metrics")
    assert 'gain_state{state="connecting",stream="gone"} 1.0' in metrics

    def told() -> list[str]:
        return [event["text"] for event in running.ask("api/events?camera=far")["events"]]

    until(lambda: any(text.startswith("signal is back after ") for text in told()))
    texts = told()
    assert any(text.startswith("signal lost: ") for text in texts)
    assert "signal is there" in texts
    out, err = running.stop()
    assert running.status == 0
    # No credential anywhere: neither in the log nor in what is kept.
    for secret in ("sesame", "hush"):
        assert secret not in out + err + metrics
        assert secret.encode() not in (tmp_path / "events.sqlite").read_bytes()


def test_a_recording_that_is_away_is_in_trouble_and_tried_again(
    artifact, run_inside, until, tmp_path
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}/clip.mp4"
    file = settings(tmp_path / "cameras.toml", artifact, {"near": LIVE, "clip": gone})
    running = run_inside("--config", file)
    until(lambda: running.states() == {"near": "live", "clip": "failed"})
    row = running.camera("clip")["camera"]
    assert "connection refused" in row["reason"]
    assert row["attempt"] >= 2
    until(lambda: running.camera("clip")["camera"]["next_try_s"])
    until(lambda: running.camera("clip")["camera"]["attempt"] > row["attempt"])
    assert running.camera("clip")["camera"]["since_s"] == row["since_s"]
    assert 'gain_state{state="failed",stream="clip"} 1.0' in running.ask("metrics")
    running.stop()
    # It would have been tried again: asked to end, the service ends well.
    assert running.status == 0


def test_cameras_are_added_paused_and_removed_and_the_file_remembers(
    artifact, run_inside, until, tmp_path
):
    file = settings(tmp_path / "cameras.toml", artifact, {"yard": LIVE})
    running = run_inside("--config", file)
    assert running.ask("api/cameras")["kept_in"] == "cameras.toml"
    new = {"name": "door", "input": LIVE, "settings": {"update-every": 4}}
    outcome = running.ask("api/cameras", method="POST", body=new)["outcome"]
    assert outcome == "camera added, kept in cameras.toml"
    until(lambda: running.states() == {"yard": "live", "door": "live"})
    assert running.command("pause", "yard") == "paused, kept in cameras.toml"
    until(lambda: running.states()["yard"] == "paused")
    for unsafe in (
        {"name": "x", "input": "/etc/passwd"},
        {"name": "x", "input": "filesrc location=/etc/passwd ! appsink"},
        {"name": "x", "input": LIVE, "settings": {"jsonl": "/tmp/x"}},
        {"name": "DOOR", "input": LIVE},
    ):
        with pytest.raises(urllib.error.HTTPError, match="409"):
            running.ask("api/cameras", method="POST", body=unsafe)
    running.stop()
    text = file.read_text()
    assert "# the yard" in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = read_config_file(file)["cameras"]
    assert kept == {
        "yard": {"input": LIVE, "paused": True},
        "door": {"input": LIVE, "update_every": 4},
    }
    again = run_inside("--config", file)
    until(lambda: again.states() == {"yard": "paused", "door": "live"})
    assert again.command("resume", "yard") == "resumed, kept in cameras.toml"
    until(lambda: again.states()["yard"] == "live")
    assert again.command("restart", "yard") == "restarted"
    until(lambda: again.states()["yard"] == "live")
    removed = again.ask("api/cameras/door", method="DELETE")["outcome"]
    assert removed == "camera removed, kept in cameras.toml"
    assert again.states() == {"yard": "live"}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        again.ask("api/cameras/door", method="DELETE")
    for malformed in ({"name": "../x", "input": "0"}, {"name": "x"}, {"name": "x", "input": ""}):
        with pytest.raises(urllib.error.HTTPError, match="422"):
            again.ask("api/cameras", method="POST", body=malformed)
    again.stop()
    assert list(read_config_file(file)["cameras"]) == ["yard"]


def test_a_service_begins_without_cameras_and_keeps_them_in_a_file_of_its_own(
    artifact, run_inside, until, tmp_path
):
    cameras = tmp_path / "cameras.toml"
    running = run_inside(
        "--cameras", cameras, "--model", artifact, "--serve", "0", "--num-threads", "1"
    )
    assert running.ask("api/cameras")["cameras"] == []
    until(lambda: running.ready())
    running.ask("api/cameras", method="POST", body={"name": "yard", "input": LIVE})
    until(lambda: running.states() == {"yard": "live"})
    running.stop()
    assert running.status == 0
    assert read_config_file(cameras) == {"cameras": {"yard": {"input": LIVE}}}
    assert stat.S_IMODE(cameras.stat().st_mode) == 0o600


def test_with_a_token_it_listens_everywhere_and_answers_who_knows_it(
    artifact, run_inside, until, tmp_path
):
    token = tmp_path / "token"
    token.write_text("a-secret-of-some-length\n")
    token.chmod(0o600)
    running = run_inside(
        *(LIVE, "--model", artifact, "--num-threads", "1"),
        *("--serve", "0.0.0.0:0", "--serve-token-file", token, "--debug"),
    )
    with pytest.raises(urllib.error.HTTPError, match="401"):
        running.camera()
    known = {"Authorization": "Bearer a-secret-of-some-length"}
    until(lambda: running.camera(**known)["camera"]["frames"] > 0)
    _, err = running.stop()
    assert "a-secret" not in err


def test_secrets_come_from_systemd(
    artifact, run_inside, until, tmp_path, network_camera, monkeypatch
):
    network_camera.appear()
    (tmp_path / "yard-password").write_text("sesame\n")
    (tmp_path / "serve-token").write_text("a-token-of-some-length\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("CAM_USER", "joe")
    uri = network_camera.uri.replace("joe:sesame", "${CAM_USER}:${yard-password}")
    running = run_inside("--config", settings(tmp_path / "c.toml", artifact, {"yard": uri}))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        running.camera("yard")
    bearer = {"Authorization": "Bearer a-token-of-some-length"}
    until(lambda: running.camera("yard", **bearer)["camera"]["state"] == "live")
    out, err = running.stop()
    assert "sesame" not in out + err


def test_events_are_posted_and_published_without_a_secret(
    answering, artifact, run_inside, until, tmp_path
):
    posted: list[dict] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

    with answering(Hook) as host:
        hook = f"http://{host}/services/T00/sesame"
        file = settings(tmp_path / "c.toml", artifact, {"camera": LIVE}, **{"event-webhook": hook})
        running = run_inside("--config", file)
        until(lambda: running.camera()["camera"]["frames"] > 0)
        running.command("freeze")
        until(lambda: any(item["kind"] == "command" for item in posted))
        _, err = running.stop()
    (command,) = [item for item in posted if item["kind"] == "command"]
    assert command["stream"] == "camera"
    assert command["who"] == "API at 127.0.0.1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", command["utc"])
    assert "sesame" not in err


def test_systemd_is_told_that_it_is_ready_alive_and_ending(
    artifact, run_inside, until, tmp_path, monkeypatch
):
    address = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(address))
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.setattr("gain_apps.streaming.service.STATUS_EVERY_S", 0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(120)
        running = run_inside(LIVE, "--model", artifact, "--serve", "0", "--num-threads", "1")
        heard: list[bytes] = []
        deadline = time.monotonic() + 120.0
        while not {b"READY=1", b"WATCHDOG=1", b"STATUS=1 of 1 cameras connected"} <= set(heard):
            heard.append(manager.recv(4096))
            assert time.monotonic() < deadline, set(heard)
        running.stop()
        while heard[-1] != b"STOPPING=1":
            heard.append(manager.recv(4096))
    assert heard.index(b"READY=1") < heard.index(b"STATUS=1 of 1 cameras connected")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--serve", "0.0.0.0:0"], "--serve-token-file FILE", id="no token"),
        pytest.param(["--serve", "here"], r"--serve: expected \[HOST:\]PORT", id="no port"),
        pytest.param(["--serve-token-file", "t"], r"expected --serve \[HOST:\]PORT", id="alone"),
        pytest.param(
            ["--serve", "0", "--serve-token-file", "/nowhere/t"], "cannot be read", id="no file"
        ),
        pytest.param(["--serve", "0", "--set=events=/dev/null"], "--set events", id="no database"),
        pytest.param(["--set=mqtt-discovery=ha"], "expected --mqtt URL", id="no broker"),
        pytest.param(
            ["--set=event-webhook=ftp://x", "--serve", "0"], "--set event-webhook", id="no hook"
        ),
    ],
)
def test_wrong_settings_are_one_line(artifact, flags, message, capsys):
    uri = "test://pattern?width=64&height=48&frames=22"
    # 2 where it is known before anything is opened.
    assert main([uri, "--model", str(artifact), "--set=log-level=error", *flags]) in (1, 2)
    shown = capsys.readouterr().err
    assert re.search(message, shown)
    assert len(shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("serve = '0'\n[cameras.yard]\nserve = '1'\ninput = '0'", "all cameras share it"),
        ("serve = '0'\n[cameras.yard]\nupdate-every = 2", "input: expected a source, got none"),
        ("serve = '0'\n[cameras]\nyard = 3", r"expected tables \[cameras.NAME\]"),
        ("serve = '0'\n[cameras.yard]\nimput = '0'", "unknown key imput"),
        ("serve = '0'\n[cameras.yard]\ninput = 'rtsp://${NO_SUCH_SECRET}@h/1'", "NO_SUCH_SECRET"),
        ("input = '0'\n[cameras.yard]\ninput = '0'", "no input beside the cameras"),
    ],
)
def test_wrong_tables_of_cameras_are_one_line(tmp_path, text, message, capsys):
    path = tmp_path / "c.toml"
    path.write_text(f"model = 'm.onnx'\n{text}\n")
    assert main(["--config", str(path)]) == 2
    shown = capsys.readouterr().err
    assert re.search(message, shown)
    assert len(shown.splitlines()) == 1


def test_a_database_that_fails_stops_nothing_and_is_said_once(tmp_path, caplog):
    with EventLog(tmp_path / "events.sqlite") as log:
        log.add("yard", "stream", "before")
        with sqlite3.connect(tmp_path / "events.sqlite") as other:
            other.execute("DROP TABLE events")
        for number in range(3):
            log.add("yard", "stream", f"event {number}")
        assert log.last("yard").text == "event 2"
    assert [record.levelname for record in caplog.records] == ["ERROR"]

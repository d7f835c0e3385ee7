"""`gain-stream --serve`: the command in a process of its own, watched and commanded over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from gain_apps.streaming.config import StreamConfig
from gain_apps.streaming.config_file import read_toml
from gain_core.errors import ConfigError

ROADSIGNS = Path(__file__).resolve().parents[2] / "models" / "roadsigns"
# Two seconds are promised; a machine that runs other tests meanwhile needs far more. Still less
# than the half minute of an unanswered connection or of a long pause.
STOP_S = 20.0
LIVE = "test://pattern?live=1&rate=20&width=64&height=48&frames=1000000"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    """The shipped road-sign network as an artifact."""
    target = tmp_path_factory.mktemp("artifact") / "roadsigns.gain.onnx"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gain_apps.export", ROADSIGNS / "roadsigns.onnx"),
            *("--output", target, "--labels", ROADSIGNS / "labels.txt"),
            *("--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5"),
            *("--crop-pct", "1", "--crop-mode", "squash", "--interpolation", "bicubic"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


class Running:
    """A `gain-stream` that serves, and its address."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        command = [sys.executable, "-m", "gain_apps.stream", *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environment},
            # Under `nohup` it would be ignored, which the stream takes for a wish.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        self.log: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"watch it at (http://\S+/)", line)
            if found is not None:
                self.url = found[1]
                return
        raise AssertionError("".join(self.log))

    def ask(self, path: str, *, method: str = "GET", body=None, **headers: str):
        # Also where it listens on every address of the machine.
        url = self.url.replace("0.0.0.0", "127.0.0.1")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, headers=headers, method=method, data=data)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read()
            return json.loads(text) if text.startswith((b"{", b"[")) else text.decode()

    def camera(self, name: str = "camera", **headers: str):
        return self.ask(f"api/cameras/{name}", **headers)

    def command(self, command: str, name: str = "camera") -> str:
        return self.ask(f"api/cameras/{name}/commands/{command}", method="POST")["outcome"]

    def ready(self) -> bool:
        try:
            return self.ask("readyz") == {"status": "ready"}
        except urllib.error.HTTPError as err:
            err.close()
            return False

    def states(self) -> dict[str, str]:
        return {row["name"]: row["state"] for row in self.ask("api/cameras")["cameras"]}

    def stop(self, signum: int = signal.SIGTERM) -> tuple[str, str]:
        """Ask it to end; what it wrote. How long that takes is `stop_s`."""
        started = time.monotonic()
        self.process.send_signal(signum)
        out, err = self.process.communicate(timeout=120)
        self.stop_s = time.monotonic() - started
        return out, "".join(self.log) + err


@pytest.fixture
def run():
    """Starts commands, and kills what a failed test leaves."""
    started = []

    def one(*arguments: object, **environment: str) -> Running:
        started.append(Running(*arguments, **environment))
        return started[-1]

    yield one
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
        running.process.communicate()


class Camera:
    """A network camera (MJPEG over HTTP) at a fixed port that can go away and come back."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://joe:sesame@127.0.0.1:{self.port}/live?token=hush"
        self.status = 200
        self._server: ThreadingHTTPServer | None = None

    def appear(self) -> None:
        camera, self._gone = self, threading.Event()
        gone = self._gone

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(camera.status)
                self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
                self.end_headers()
                shade = 0
                while camera.status == 200 and not gone.wait(0.03):
                    shade = (shade + 7) % 200
                    image = np.full((48, 64, 3), shade, dtype=np.uint8)
                    image[10:20, shade % 50 : shade % 50 + 10] = 255
                    jpeg = cv2.imencode(".jpg", image)[1].tobytes()
                    head = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"
                    try:
                        self.wfile.write(head % len(jpeg) + jpeg + b"\r\n")
                    except OSError:
                        return

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def vanish(self) -> None:
        if self._server is not None:
            self._gone.set()
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture
def network_camera():
    camera = Camera()
    yield camera
    camera.vanish()


@contextmanager
def silent_host():
    """A host that accepts and says nothing."""
    with socket.socket() as host:
        host.bind(("127.0.0.1", 0))
        host.listen(16)
        yield host.getsockname()[1]


def settings(path: Path, artifact: Path, cameras: dict[str, str], **more: object) -> Path:
    """A settings file with these cameras."""
    top = {"model": str(artifact), "serve": "0", "num-threads": 1, "warm-up": 1, "update-every": 1}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**top, **more}.items()]
    for name, uri in cameras.items():
        lines += ["", f"# the {name}", f"[cameras.{name}]", f"input = {json.dumps(uri)}"]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def test_a_run_is_watched_commanded_and_ended(artifact, run, until, tmp_path):
    state = tmp_path / "state.safetensors"
    running = run(
        *("test://drive?frames=100000", "--model", artifact, "--serve", "0", "--json=-"),
        *("--set=warm-up=16", "--update-every", "8", "--num-threads", "1", "--state-out", state),
    )
    until(lambda: running.camera()["frames_learned"] >= 24)
    status = running.camera()
    assert status["artifact"] == "roadsigns.gain.onnx"
    assert set(status["newest"]["stage_ms"]) == {"preprocess", "forward", "adapt"}
    assert running.command("save").startswith("saved to state.safetensors (")
    assert "everything learned is dropped" in running.command("reset")
    assert running.command("freeze") == "learning paused until the next start (no --snapshots)"
    until(lambda: running.camera()["camera"]["learning_paused"])
    assert running.command("roll-back").startswith("rolled back to ")
    until(lambda: running.camera()["frames_learned"] >= 24)
    with urllib.request.urlopen(running.url + "cameras/camera/picture.jpg", timeout=60) as reply:
        assert reply.read(3) == b"\xff\xd8\xff"
    out, err = running.stop()
    assert running.process.returncode == 143
    assert running.stop_s < STOP_S
    assert json.loads(out)["stopped_by"] == "SIGTERM"
    assert "rolled back" in err
    assert "Traceback" not in err


def test_cameras_away_at_the_start_and_later_never_touch_the_others(
    artifact, run, until, tmp_path, network_camera
):
    gone = Camera()
    file = settings(
        tmp_path / "cameras.toml",
        artifact,
        {"near": LIVE, "far": network_camera.uri, "gone": gone.uri},
        events=str(tmp_path / "events.sqlite"),
    )
    running = run("--config", file)
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
    assert running.process.returncode == 143
    assert running.stop_s < STOP_S
    # No credential anywhere: neither in the log nor in what is kept.
    for secret in ("sesame", "hush"):
        assert secret not in out + err + metrics
        assert secret.encode() not in (tmp_path / "events.sqlite").read_bytes()


def test_cameras_are_added_paused_and_removed_and_the_file_remembers(
    artifact, run, until, tmp_path
):
    file = settings(tmp_path / "cameras.toml", artifact, {"yard": LIVE})
    running = run("--config", file)
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
    kept = read_toml(file)["cameras"]
    assert kept == {
        "yard": {"input": LIVE, "paused": True},
        "door": {"input": LIVE, "update-every": 4},
    }
    again = run("--config", file)
    until(lambda: again.states() == {"yard": "paused", "door": "live"})
    assert again.command("resume", "yard") == "resumed, kept in cameras.toml"
    until(lambda: again.states()["yard"] == "live")
    assert again.command("restart", "yard") == "restarted"
    until(lambda: again.states()["yard"] == "live")
    removed = again.ask("api/cameras/door", method="DELETE")["outcome"]
    assert removed == "camera removed, kept in cameras.toml"
    assert again.states() == {"yard": "live"}
    again.stop()
    assert list(read_toml(file)["cameras"]) == ["yard"]


def test_a_service_begins_without_cameras_and_keeps_them_in_a_file_of_its_own(
    artifact, run, until, tmp_path
):
    cameras = tmp_path / "cameras.toml"
    running = run("--cameras", cameras, "--model", artifact, "--serve", "0", "--num-threads", "1")
    assert running.ask("api/cameras")["cameras"] == []
    until(lambda: running.ready())
    running.ask("api/cameras", method="POST", body={"name": "yard", "input": LIVE})
    until(lambda: running.states() == {"yard": "live"})
    running.stop()
    assert running.process.returncode == 143
    assert read_toml(cameras) == {"cameras": {"yard": {"input": LIVE}}}
    assert stat.S_IMODE(cameras.stat().st_mode) == 0o600


def test_paused_learning_survives_a_kill(artifact, run, until, tmp_path):
    arguments = (
        *(LIVE, "--model", artifact, "--serve", "0", "--num-threads", "1", "--set=warm-up=1"),
        *("--update-every", "1", "--snapshots", tmp_path / "kept"),
        f"--set=events={tmp_path / 'events.sqlite'}",
    )
    running = run(*arguments)
    until(lambda: running.camera()["frames_learned"] > 3)
    assert running.command("freeze") == "learning paused, also over a restart"
    learned = running.camera()["frames_learned"]
    running.process.kill()
    running.process.wait()
    again = run(*arguments)
    until(lambda: again.camera()["camera"]["frames"] > 5)
    assert again.camera()["camera"]["learning_paused"]
    assert again.camera()["frames_learned"] <= learned
    texts = [event["text"] for event in again.ask("api/events")["events"]]
    # Who did it and when is known after the restart, and so is what happened before it.
    assert any("still paused" in text and "API at 127.0.0.1" in text for text in texts)
    assert "learning paused, also over a restart" in texts
    assert again.command("unfreeze") == "learning again"
    before = again.camera()["frames_learned"]
    until(lambda: again.camera()["frames_learned"] > before)
    again.stop()
    assert not (tmp_path / "kept" / "learning-paused.json").exists()


def test_rows_go_on_over_restarts_and_a_hangup_opens_the_file_anew(artifact, run, until, tmp_path):
    rows = tmp_path / "rows.jsonl"
    arguments = (LIVE, "--model", artifact, "--serve", "0", "--num-threads", "1", "--jsonl", rows)
    for _ in range(2):
        running = run(*arguments)
        until(lambda running=running: running.camera()["camera"]["frames"] > 5)
        refused = subprocess.run(
            [sys.executable, "-m", "gain_apps.stream", *map(str, arguments[:3]), "--jsonl", rows],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert refused.returncode == 1
        assert (
            refused.stderr.count("\n") == 1 or "another run writes its rows there" in refused.stderr
        )
        rows.rename(tmp_path / "rotated.jsonl") if not (
            tmp_path / "rotated.jsonl"
        ).exists() else None
        running.process.send_signal(signal.SIGHUP)
        until(rows.exists)
        until(lambda: rows.stat().st_size > 0)
        running.stop()
        assert running.process.returncode == 143
    lines = [
        json.loads(line)
        for name in ("rotated.jsonl", "rows.jsonl")
        for line in (tmp_path / name).read_bytes().splitlines()
    ]
    moments = [line["utc"] for line in lines]
    assert moments == sorted(moments)
    # Two runs: numbers begin anew once, at 0 or, where the machine was busy, a few frames later.
    numbers = [line["index"] for line in lines]
    assert sum(after <= before for before, after in pairwise(numbers)) == 1
    assert (
        abs(
            time.time()
            - time.mktime(time.strptime(moments[-1][:19], "%Y-%m-%dT%H:%M:%S"))
            + time.timezone
        )
        < 600
    )


def test_with_a_token_it_listens_everywhere_and_answers_who_knows_it(
    artifact, run, until, tmp_path
):
    token = tmp_path / "token"
    token.write_text("a-secret-of-some-length\n")
    token.chmod(0o600)
    running = run(
        *("test://drive?frames=100000", "--model", artifact, "--num-threads", "1"),
        *("--serve", "0.0.0.0:0", "--serve-token-file", token, "--debug"),
    )
    with pytest.raises(urllib.error.HTTPError, match="401"):
        running.camera()
    known = {"Authorization": "Bearer a-secret-of-some-length"}
    until(lambda: running.camera(**known)["camera"]["frames"] > 0)
    _, err = running.stop()
    assert "a-secret" not in err


def test_secrets_come_from_systemd_and_the_list_of_processes_shows_none(
    artifact, run, until, tmp_path, network_camera
):
    pytest.importorskip("setproctitle", reason="setproctitle is not installed")
    network_camera.appear()
    (tmp_path / "yard-password").write_text("sesame\n")
    (tmp_path / "serve-token").write_text("a-token-of-some-length\n")
    uri = network_camera.uri.replace("joe:sesame", "${CAM_USER}:${yard-password}")
    file = settings(tmp_path / "c.toml", artifact, {"yard": uri})
    running = run("--config", file, CREDENTIALS_DIRECTORY=str(tmp_path), CAM_USER="joe")
    bearer = {"Authorization": "Bearer a-token-of-some-length"}
    until(lambda: running.camera("yard", **bearer)["camera"]["state"] == "live")
    running.stop()
    alone = run(
        *(network_camera.uri, "--model", artifact, "--serve", "0", "--num-threads", "1"),
        f"--set=webhook=http://u:sesame@127.0.0.1:{network_camera.port}/hooks/sesame",
    )
    title = Path(f"/proc/{alone.process.pid}/cmdline")
    until(lambda: b"sesame" not in title.read_bytes())
    assert b"127.0.0.1" in title.read_bytes()
    _, err = alone.stop()
    assert "sesame" not in err


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda item: item.name)
@pytest.mark.parametrize("kind", ["pipe", "silent host", "host away", "many"])
def test_a_signal_before_the_first_frame_ends_soon(artifact, tmp_path, kind, signum):
    with silent_host() as port:
        uris = {
            "pipe": ["-"],
            "silent host": [f"http://127.0.0.1:{port}/live"],
            "host away": ["rtsp://127.0.0.1:9/live"],
            "many": [f"http://127.0.0.1:{port}/live", "rtsp://127.0.0.1:9/live", LIVE],
        }[kind]
        more = ["--serve", "0"] if kind == "host away" else []
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gain_apps.stream", *uris, "--model", artifact),
                *("--num-threads", "1", "--jsonl", tmp_path / "rows.jsonl", *more),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        # Python itself has a handler for SIGINT, and ours are there together.
        status = Path(f"/proc/{process.pid}/status")
        deadline = time.monotonic() + 120.0
        while not _catches(status, signal.SIGTERM):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(1.5)
        asked = time.monotonic()
        process.send_signal(signum)
        _, errors = process.communicate(timeout=120)
    assert time.monotonic() - asked < STOP_S
    assert process.returncode == 128 + signum, errors
    assert "Traceback" not in errors


def _catches(status: Path, signum: int) -> bool:
    """Whether a process has a handler for a signal."""
    line = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) >> (signum - 1) & 1)


def test_a_signal_during_a_reconnect_ends_soon(artifact, run, until, tmp_path, network_camera):
    network_camera.appear()
    kept = tmp_path / "kept"
    running = run(
        *(network_camera.uri, "--model", artifact, "--serve", "0", "--num-threads", "1"),
        *("--snapshots", kept, "--set=warm-up=1", "--update-every", "1"),
    )
    until(lambda: running.camera()["frames_learned"] > 3)
    network_camera.vanish()
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until(lambda: _bound(silent, network_camera.port))
        silent.listen(16)
        until(lambda: running.states()["camera"] == "reconnecting")
        time.sleep(1.0)
        _, err = running.stop()
    assert running.stop_s < STOP_S
    assert running.process.returncode == 143, err
    assert list(kept.glob("snapshot-*"))


def _bound(listener: socket.socket, port: int) -> bool:
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_events_are_posted_and_published_without_a_secret(artifact, run, until, tmp_path):
    posted: list[dict] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    hook = f"http://127.0.0.1:{server.server_port}/services/T00/sesame"
    running = run(
        *(LIVE, "--model", artifact, "--serve", "0", "--num-threads", "1"),
        f"--set=event-webhook={hook}",
    )
    until(lambda: running.camera()["camera"]["frames"] > 0)
    running.command("freeze")
    until(lambda: any(item["kind"] == "command" for item in posted))
    (command,) = [item for item in posted if item["kind"] == "command"]
    assert command["stream"] == "camera"
    assert command["who"] == "API at 127.0.0.1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", command["utc"])
    _, err = running.stop()
    server.shutdown()
    server.server_close()
    assert "sesame" not in err


def test_a_log_that_cannot_be_written_stops_no_stream(artifact, until, tmp_path):
    rows = tmp_path / "rows.jsonl"
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gain_apps.stream", LIVE, "rtsp://127.0.0.1:9/x"),
                *("--names", "here,away", "--model", artifact, "--jsonl", rows),
                *("--num-threads", "1", "--debug"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=full,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        written = tmp_path / "here" / "rows.jsonl"
        try:
            until(lambda: written.exists() and written.read_bytes().count(b"\n") > 120)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("shell", "status", "message"),
    [
        pytest.param("--json - > /dev/full", 1, "standard output: cannot be written", id="full"),
        pytest.param("--json - >&-", 1, "--json -: standard output is closed", id="closed"),
        pytest.param("--jsonl - >&-", 1, "--jsonl -: standard output is closed", id="rows"),
        pytest.param(">&- <&-", 0, None, id="not needed"),
        pytest.param("2>&-", 0, None, id="no log"),
    ],
)
def test_standard_streams_that_are_closed_or_full_are_one_line(
    artifact, tmp_path, shell, status, message
):
    rows = tmp_path / "rows.jsonl"
    extra = "" if "--jsonl" in shell else f"--jsonl {rows}"
    source = "test://pattern?width=64&height=48&frames=6"
    command = (
        f"'{sys.executable}' -m gain_apps.stream '{source}' --model '{artifact}' "
        f"--set log-level=error {extra} {shell}"
    )
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    if message is not None:
        assert message in done.stderr.splitlines()[-1]
    if status == 0:
        assert [json.loads(line)["index"] for line in rows.read_text().splitlines()] == [*range(6)]


def test_standard_input_that_is_closed_is_one_line(artifact):
    done = subprocess.run(
        f"'{sys.executable}' -m gain_apps.stream - --model '{artifact}' <&-",
        shell=True,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "INPUT -: standard input is closed" in done.stderr


def test_systemd_is_told_that_it_is_ready_alive_and_ending(artifact, run, until, tmp_path):
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(120)
        running = run(
            *(LIVE, "--model", artifact, "--serve", "0", "--num-threads", "1"),
            NOTIFY_SOCKET=str(address),
            WATCHDOG_USEC="2000000",
        )
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
def test_wrong_settings_are_one_line(artifact, flags, message):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gain_apps.stream", "test://drive?frames=22"),
            *("--model", artifact, "--set=log-level=error", *flags),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(message, done.stderr)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[cameras.yard]\nserve = '1'\ninput = '0'\n", "all cameras share it"),
        ("[cameras.yard]\nmodel = 'm'\n", "all cameras share it"),
        ("[cameras.yard]\nupdate-every = 2\n", "input: expected a source, got none"),
        ("[cameras]\nyard = 3\n", r"expected tables \[cameras.NAME\]"),
        ("[cameras.yard]\nimput = '0'\n", "unknown key imput"),
        ("[cameras.yard]\ninput = 'rtsp://${NO_SUCH_SECRET}@h/1'\n", "NO_SUCH_SECRET"),
        ("[cameras.'a b']\ninput = '0'\n", "expected letters"),
        ("input = '0'\n[cameras.yard]\ninput = '0'\n", "no input beside the cameras"),
    ],
)
def test_wrong_tables_of_cameras_are_one_line(tmp_path, text, message, capsys):
    from gain_apps.stream import main

    path = tmp_path / "c.toml"
    path.write_text(
        f"model = 'm.onnx'\nserve = '0'\n{text}"
        if "input = '0'\n[" not in text
        else f"model = 'm.onnx'\n{text}"
    )
    assert main(["--config", str(path)]) == 1
    shown = capsys.readouterr().err
    assert re.search(message, shown)
    assert len(shown.splitlines()) == 1


def test_the_token_never_reaches_settings_or_logs(tmp_path):
    token = tmp_path / "token"
    token.write_text("a-secret-of-some-length")
    config = StreamConfig(input="0", model="m", serve="8080", serve_token_file=str(token))
    assert "a-secret" not in json.dumps(config.to_dict())


def test_a_database_that_fails_stops_nothing_and_is_said_once(tmp_path, caplog):
    from gain_apps.serve import EventLog

    with EventLog(tmp_path / "events.sqlite") as log:
        log.add("yard", "stream", "before")
        with sqlite3.connect(tmp_path / "events.sqlite") as other:
            other.execute("DROP TABLE events")
        for number in range(3):
            log.add("yard", "stream", f"event {number}")
        assert log.last("yard").text == "event 2"
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_serve_belongs_to_the_help():
    done = subprocess.run(
        [sys.executable, "-m", "gain_apps.stream", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "--serve [HOST:]PORT" in done.stdout


def test_a_bad_address_is_found_before_anything_is_opened():
    with pytest.raises(ConfigError, match="--serve"):
        StreamConfig(input="0", model="m", serve="1.2.3.4")

"""Cameras without a network, whose results depend on what was commanded, and the whole service."""

from __future__ import annotations

import io
import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPConnection
from typing import Any, NamedTuple

import numpy as np
import pytest
import results

from gain_apps.serve import (
    DeviceFacts,
    EventLog,
    KeptFacts,
    LiveBoard,
    ServeAddress,
    StreamFacts,
    StreamIdentity,
    open_server,
)
from gain_apps.serve.cameras import PictureMaker
from gain_apps.stream import main
from gain_apps.streaming.control import CommandQueue
from gain_apps.streaming.service import run_service
from gain_core.errors import ConfigError
from gain_runtime.frames import FrameResult, Ranked
from gain_runtime.sources.reconnecting import Connection

LABELS = ("apple", "crème brûlée", "<b>cassis</b>", "date")
IDENTITY = StreamIdentity(
    source_id="test://moving",
    artifact="tiny.onnx",
    artifact_sha256="ab" * 32,
    provider="CPUExecutionProvider",
    version="1.2.3",
    labels=LABELS,
)
WATCHED = r"watch it at (http://\S+/)\n"


def make_result(
    index: int, *, changed: bool = False, truth: int | None = 0, condition: str | None = "fog"
) -> FrameResult:
    """A frame with a bar that moves; class 0 from the source, class 1 where it is changed."""
    image = np.full((64, 96, 3), 40, dtype=np.uint8)
    image[:, (4 * index) % 90 : (4 * index) % 90 + 6] = (250, 200, 30)
    source, adapted = (
        tuple(Ranked(index=k, label=LABELS[k], prob=prob) for k, prob in top)
        for top in (((0, 0.6), (1, 0.3), (2, 0.1)), ((1, 0.7), (0, 0.2), (3, 0.1)))
    )
    return results.make_result(
        index,
        image=image,
        source_id="test://moving",
        truth=truth,
        condition=condition,
        source_top=source,
        adapted_top=adapted if changed else source,
        strength=0.75,
        gain=0.5,
        rate_hz=20.0,
        stage_ms={"preprocess": 1.0, "forward": 6.0, "adapt": 0.5},
        latency_ms=40.0,
    )


@dataclass
class FakeStream:
    """One camera and its loop: a result every 50 ms, and commands carried out."""

    alive = True

    name: str = "yard"
    events: EventLog = field(default_factory=EventLog)
    source: str = "test://moving"
    queue: CommandQueue = field(default_factory=CommandQueue)
    commands: tuple = ("freeze", "unfreeze", "reset", "save")
    frozen: bool = False
    learned: int = 0
    done: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.board = LiveBoard(self.name, self.events)
        self.board.attach(IDENTITY, probe=self.probe)
        self.board.connect(Connection(state="connected"))
        self.pictures = PictureMaker(self.board)
        self.thread = threading.Thread(target=self.run, daemon=True)

    def probe(self) -> StreamFacts:
        return StreamFacts(
            frozen=self.frozen,
            frames_learned=self.learned,
            dropped=3,
            not_learned={"black": 2},
            reconnects=1,
            device=DeviceFacts(
                load="skipping",
                level=4,
                update_every=64,
                stride=2,
                left_out=7,
                throttled=True,
                celsius=88.5,
            ),
            kept=KeptFacts(written=5, failing=False, frames_not_kept=12, last_utc_s=1.5e9),
            outputs_lost=1,
            adaptation={"shift_nats": 0.5, "draws": 7.25},
        )

    def run(self) -> None:
        index = 0
        while not self.stop.wait(0.05):
            self.board.write(make_result(index, changed=index % 4 == 3))
            self.learned += not self.frozen
            for request in self.queue.drain():
                self.carry_out(request)
            index += 1

    def carry_out(self, request) -> None:
        self.done.append(request.command)
        if request.command in ("freeze", "unfreeze"):
            self.frozen = request.command == "freeze"
        elif request.command == "reset":
            self.learned = 0
        outcome = f"{request.command} was done"
        self.board.note("command", outcome, who=request.who)
        request.outcome.set_result(outcome)


@dataclass
class FakeCameras:
    """The service's side: cameras that can be added, removed and paused."""

    streams: dict[str, FakeStream]
    events: EventLog
    kept_in: str | None = "cameras.toml"
    ready: bool = True
    acts: list[tuple[str, str, str]] = field(default_factory=list)

    def all(self) -> list[FakeStream]:
        return list(self.streams.values())

    def find(self, name: str) -> FakeStream | None:
        return self.streams.get(name)

    def add(self, name: str, source: str, settings: Mapping[str, Any], *, who: str) -> str:
        if name in self.streams:
            raise ConfigError(f"{name}: there is a camera of that name; choose another")
        self.streams[name] = FakeStream(name, self.events, source)
        self.acts.append(("add", name, who))
        return f"camera added, kept in {self.kept_in}"

    def remove(self, name: str, *, who: str) -> str:
        del self.streams[name]
        self.acts.append(("remove", name, who))
        return "camera removed"

    def act(self, name: str, action: str, *, who: str) -> str:
        self.acts.append((action, name, who))
        self.streams[name].board.enter("paused" if action == "pause" else "running", f"by {who}")
        return f"{action} was done"


@pytest.fixture
def idle():
    """A camera that has not begun."""
    return FakeStream()


@pytest.fixture
def stream(idle):
    idle.thread.start()
    yield idle
    idle.stop.set()
    idle.thread.join(timeout=60)


@pytest.fixture
def cameras(idle):
    """A service with that one camera; others may be put into `streams`."""
    return FakeCameras({idle.name: idle}, idle.events)


@pytest.fixture
def serve(cameras):
    """Opens servers of the cameras on a free port of 127.0.0.1; closes them afterwards."""
    opened = []

    def open_one(*, token: str | None = None):
        server = open_server(cameras, address=ServeAddress(host="127.0.0.1", port=0), token=token)
        opened.append(server)
        return server

    yield open_one
    for server in opened:
        server.close()


@pytest.fixture
def result():
    """Makes results; see `make_result`."""
    return make_result


class Reply(NamedTuple):
    status: int
    headers: Message
    body: bytes

    def json(self):
        return json.loads(self.body)


@pytest.fixture
def ask():
    """One request; refusals are replies, not exceptions."""

    def request(server, path: str, *, method: str = "GET", body=None, **headers: str) -> Reply:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            names["Content-Type"] = "application/json"
        with closing(HTTPConnection("127.0.0.1", server.address.port, timeout=60)) as link:
            link.request(method, path, body, names)
            reply = link.getresponse()
            return Reply(reply.status, reply.headers, reply.read())

    return request


@pytest.fixture
def metrics(ask):
    """The samples of `/metrics` by their text."""

    def read(server) -> dict[str, float]:
        text = ask(server, "/metrics").body.decode()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    return read


@pytest.fixture
def artifact(artifact_path):
    return artifact_path


class Service:
    """A `gain-stream` that serves, over HTTP at `url`."""

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


class Inside(Service):
    """The command in a thread of this process, which saves a start of the interpreter."""

    def __init__(self, arguments: list[str], begun: queue.Queue, until) -> None:
        sys.stdout, sys.stderr = self.out, self.err = io.StringIO(), io.StringIO()
        self.thread = threading.Thread(target=self._run, args=(arguments,))
        self.thread.start()
        until(lambda: re.search(WATCHED, self.err.getvalue()) or not self.thread.is_alive())
        assert self.thread.is_alive(), self.err.getvalue()
        self.url = re.search(WATCHED, self.err.getvalue())[1]
        self._request = begun.get(timeout=120)

    def _run(self, arguments: list[str]) -> None:
        self.status = main(arguments)

    def stop(self) -> tuple[str, str]:
        """Ask it to end, as a signal does; what it wrote."""
        self._request.quit()
        self.thread.join(timeout=120)
        assert not self.thread.is_alive()
        return self.out.getvalue(), self.err.getvalue()


@pytest.fixture
def run_inside(monkeypatch, until):
    """Runs the command in threads of this process, one after another."""
    begun: queue.Queue = queue.Queue()
    started: list[Inside] = []

    def noted(plan, stop, /, **more):
        begun.put(stop)
        run_service(plan, stop, **more)

    monkeypatch.setattr("gain_apps.streaming.service.run_service", noted)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setenv("COLUMNS", "200")

    def one(*arguments: object) -> Inside:
        started.append(Inside([*map(str, arguments)], begun, until))
        return started[-1]

    yield one
    for running in started:
        running.stop()


class Running(Service):
    """The command in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(WATCHED, line):
                self.url = found[1]
                return
        raise AssertionError("".join(self.log))

    def stop(self, signum: int = signal.SIGTERM) -> tuple[str, str]:
        """Ask it to end; what it wrote. How long that takes is `stop_s`."""
        started = time.monotonic()
        self.process.send_signal(signum)
        out, err = self.process.communicate(timeout=120)
        self.stop_s = time.monotonic() - started
        return out, "".join(self.log) + err


@pytest.fixture
def run(start, artifact):
    """Starts commands that serve a page, on the artifact and one thread."""
    serves = ("--model", artifact, "--serve", "0", "--num-threads", "1")

    def one(*arguments: object) -> Running:
        # Under `nohup` it would be ignored, which the stream takes for a wish.
        heard = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}
        return Running(start(*arguments, *serves, **heard))

    return one

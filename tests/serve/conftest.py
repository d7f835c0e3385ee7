"""A camera without a network: frames that move, results that depend on what was commanded."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from gain_apps.serve import (
    DeviceFacts,
    EventLog,
    KeptFacts,
    LiveBoard,
    ServeAddress,
    StreamFacts,
    StreamIdentity,
    WatchedCamera,
    open_server,
)
from gain_apps.serve.cameras import PictureMaker
from gain_apps.streaming.commands import CommandQueue
from gain_core.errors import ConfigError
from gain_runtime.frames import Frame, FrameResult, Ranked
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
TOKEN = "a-token-of-some-length-0123"


def make_result(
    index: int, *, changed: bool = False, truth: int | None = 0, condition: str | None = "fog"
) -> FrameResult:
    """A frame with a bar that moves; class 0 from the source, class 1 where it is changed."""
    image = np.full((64, 96, 3), 40, dtype=np.uint8)
    image[:, (4 * index) % 90 : (4 * index) % 90 + 6] = (250, 200, 30)
    source = tuple(
        Ranked(index=k, label=LABELS[k], prob=p) for k, p in ((0, 0.6), (1, 0.3), (2, 0.1))
    )
    adapted = tuple(
        Ranked(index=k, label=LABELS[k], prob=p) for k, p in ((1, 0.7), (0, 0.2), (3, 0.1))
    )
    return FrameResult(
        frame=Frame(
            image=image,
            index=index,
            timestamp_ns=index * 50_000_000,
            source_id="test://moving",
            truth=truth,
            condition=condition,
        ),
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
    """The loop's side of one camera: a result every 50 ms, and commands carried out."""

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

    def watched(self) -> WatchedCamera:
        return WatchedCamera(
            name=self.name,
            source=self.source,
            board=self.board,
            pictures=self.pictures,
            queue=self.queue,
            commands=self.commands,
            alive=True,
        )

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
            adaptation={"mode": "watching", "drift": 0.25, "shift_nats": 0.5, "unset": None},
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

    def all(self) -> list[WatchedCamera]:
        return [stream.watched() for stream in list(self.streams.values())]

    def find(self, name: str) -> WatchedCamera | None:
        return self.streams[name].watched() if name in self.streams else None

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
        wait_until(lambda: answers(server.address.port))
        return server

    yield open_one
    for server in opened:
        server.close()


def wait_until(happened, *, timeout_s: float = 120.0):
    """The first true value, or a failure."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = happened()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {timeout_s} s: {happened}")


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return False
    return True


@pytest.fixture
def until():
    """Waits for a condition; see `wait_until`."""
    return wait_until


@pytest.fixture
def result():
    """Makes results; see `make_result`."""
    return make_result


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)


@pytest.fixture
def ask():
    """One request; refusals are replies, not exceptions."""

    def request(server, path: str, *, method: str = "GET", body=None, **headers: str) -> Reply:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            names["Content-Type"] = "application/json"
        wanted = urllib.request.Request(
            f"http://127.0.0.1:{server.address.port}{path}",
            method=method,
            data=data,
            headers=names,
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(wanted, timeout=60) as reply:
                return Reply(
                    reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read()
                )
        except urllib.error.HTTPError as err:
            with err:
                return Reply(err.code, {k.lower(): v for k, v in err.headers.items()}, err.read())

    return request


@pytest.fixture
def metrics(ask):
    """The samples of `/metrics` by their text."""

    def read(server) -> dict[str, float]:
        text = ask(server, "/metrics").body.decode()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    return read

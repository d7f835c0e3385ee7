"""A stream without a network: frames that move, results that depend on what was commanded."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import numpy as np
import pytest

from gain_apps.commands import CommandQueue
from gain_apps.serve import (
    DeviceFacts,
    KeptFacts,
    LiveBoard,
    ServeAddress,
    StreamFacts,
    StreamIdentity,
    open_server,
)
from gain_runtime.frame import Frame, SourceInfo
from gain_runtime.result import FrameResult, Ranked

LABELS = ("apple", "crème brûlée", "<b>cassis</b>", "date")
INFO = SourceInfo(
    source_id="test://moving", width_px=96, height_px=64, rate_hz=20.0, num_frames=None, live=True
)
IDENTITY = StreamIdentity(
    source_id="test://moving",
    artifact="tiny.onnx",
    artifact_sha256="ab" * 32,
    provider="CPUExecutionProvider",
    version="1.2.3",
    labels=LABELS,
)
TOKEN = "a-token-of-some-length-0123"


def make_result(index: int, *, changed: bool = False, truth: int | None = 0) -> FrameResult:
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
            condition="fog",
        ),
        source_top=source,
        adapted_top=adapted if changed else source,
        strength=0.75,
        gain=0.5,
        rate_hz=20.0,
        stage_ms={"preprocess": 1.0, "forward": 6.0, "adapt": 0.5},
    )


@dataclass
class FakeStream:
    """The loop's side: writes a result every 50 ms and carries commands out."""

    info: SourceInfo = INFO
    queue: CommandQueue = field(default_factory=CommandQueue)
    frozen: bool = False
    learned: int = 0
    guard: str = "watching"
    done: list[str] = field(default_factory=list)
    write_ms: list[float] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.board = LiveBoard(IDENTITY, probe=self.probe)
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
            kept=KeptFacts(written=5, failing=False, frames_not_kept=12),
            outputs_lost=1,
            adaptation={"guard": self.guard, "drift": 0.25, "shift_nats": 0.5, "unset": None},
        )

    def run(self) -> None:
        index = 0
        while not self.stop.wait(0.05):
            result = make_result(index, changed=index % 4 == 3)
            started = time.perf_counter()
            self.board.write(result)
            self.write_ms.append(1e3 * (time.perf_counter() - started))
            self.learned += not self.frozen
            for command in self.queue.drain():
                self.done.append(command)
                if command in ("freeze", "unfreeze"):
                    self.frozen = command == "freeze"
                elif command == "reset":
                    self.learned = 0
            index += 1


@pytest.fixture
def idle():
    """A stream that has not begun."""
    return FakeStream()


@pytest.fixture
def stream():
    running = FakeStream()
    running.thread.start()
    yield running
    running.stop.set()
    running.thread.join(timeout=5)


@pytest.fixture
def serve(stream):
    """Opens servers of the stream on a free port of 127.0.0.1; closes them afterwards."""
    opened = []

    def open_one(*, token: str | None = None, commands=("freeze", "unfreeze", "reset", "save")):
        server = open_server(
            stream.board,
            stream.info,
            stream.queue,
            address=ServeAddress(host="127.0.0.1", port=0),
            token=token,
            commands=commands,
        )
        opened.append(server)
        wait_until(lambda: answers(server.address.port))
        return server

    yield open_one
    for server in opened:
        server.close()


def wait_until(happened, *, timeout_s: float = 15.0):
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
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
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
            data = json.dumps(body).encode()
            names["Content-Type"] = "application/json"
        wanted = urllib.request.Request(
            f"http://127.0.0.1:{server.address.port}{path}",
            method=method,
            data=data,
            headers=names,
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(wanted, timeout=10) as reply:
                return Reply(
                    reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read()
                )
        except urllib.error.HTTPError as err:
            with err:
                return Reply(err.code, {k.lower(): v for k, v in err.headers.items()}, err.read())

    return request

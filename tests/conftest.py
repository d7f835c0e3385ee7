"""What tests of every folder share."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from onnx_text import network
from tiny_manifest import write_manifest

from gain_export import PreprocessOverrides, export_onnx, write

ROADSIGNS = Path(__file__).resolve().parents[1] / "models" / "roadsigns"
LABELS = ("apple", "crème brûlée", "cassis", "date", "elderberry")
NUM_CLASSES, FEATURE_DIM, SIZE_PX = len(LABELS), 16, 16


@pytest.fixture(scope="session", autouse=True)
def drawn_once() -> Iterator[None]:
    """The images that every verification draws anew are the same each time."""
    draw = functools.cache(write.synthetic_images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            write, "synthetic_images", lambda *args, **settings: [*draw(*args, **settings)]
        )
        yield


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], Any]:
    """Waits for the first true value of a condition; a failure after two minutes."""

    def wait_until(happened: Callable[[], Any]) -> Any:
        end = time.monotonic() + 120.0
        while time.monotonic() < end:
            if value := happened():
                return value
            time.sleep(0.01)
        raise AssertionError(f"did not happen within 120 s: {happened}")

    return wait_until


def write_tiny_artifact(path: Path, *, nan_on_black: bool = False, seed: int = 0) -> Path:
    """A random convolution, pooled to D = 16, under a head of K = 5.

    With `nan_on_black`, the features of an all-black image are 0/0.
    """
    rng = np.random.default_rng(seed)
    arrays = {
        "patches": rng.normal(size=(FEATURE_DIM, 3, 4, 4)) / 4,
        "offsets": rng.normal(size=FEATURE_DIM) / 2,
        "head.weight": rng.normal(size=(NUM_CLASSES, FEATURE_DIM)),
        "head.bias": rng.normal(size=NUM_CLASSES) / 4,
        "one": np.ones(1),
    }
    pooled = "pooled" if nan_on_black else "features"
    text = "maps = Conv<strides=[4, 4]>(pixel_values, patches, offsets); positive = Relu(maps);"
    text += f"column = GlobalAveragePool(positive); {pooled} = Flatten(column);"
    if nan_on_black:
        text += (
            "light = Add(pixel_values, one); mean = ReduceMean<axes=[2, 3], keepdims=0>(light);"
            "level = ReduceMean<axes=[1], keepdims=1>(mean); unit = Div(level, level);"
            "features = Mul(pooled, unit);"
        )
    text += "logits = Gemm<transB=1>(features, head.weight, head.bias)"
    model = network(
        text,
        arrays,
        inputs={"pixel_values": ["B", 3, SIZE_PX, SIZE_PX]},
        outputs={"features": ["B", FEATURE_DIM], "logits": ["B", NUM_CLASSES]},
    )
    write_manifest(model, LABELS)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="session")
def write_artifact() -> Callable[..., Path]:
    """`write_tiny_artifact`, for tests in other files."""
    return write_tiny_artifact


@pytest.fixture(scope="session")
def artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_artifact(tmp_path_factory.mktemp("artifact") / "tiny.onnx")


@pytest.fixture(scope="session")
def other_artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shapes, other weights."""
    return write_tiny_artifact(tmp_path_factory.mktemp("artifact") / "other.onnx", seed=1)


@pytest.fixture(scope="session")
def roadsigns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped ViT of 53 classes and 64 x 64 px, as the demo exports it; read only."""
    output = tmp_path_factory.mktemp("roadsigns") / "roadsigns.gain.onnx"
    half = (0.5, 0.5, 0.5)
    spec = PreprocessOverrides(
        img_size=(64, 64),
        mean=half,
        std=half,
        crop_fraction=1.0,
        crop_mode="squash",
        interpolation="bicubic",
    )
    labels = ROADSIGNS / "labels.txt"
    export_onnx(ROADSIGNS / "roadsigns.onnx", output=output, labels=labels, preprocess=spec)
    return output


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `gain-stream` as a process with pipes; kills what the test leaves of it."""
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: object, **pipes: Any) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-m", "gain_apps.stream", *map(str, arguments)],
            **{"stdin": pipe, "stdout": pipe, "stderr": pipe, **pipes},
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """`HOST:PORT` of a server on the loopback; its handler writes no log."""
    handler.log_message = lambda *args: None  # type: ignore[method-assign, assignment]
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def answering() -> Callable[..., AbstractContextManager[str]]:
    """`http_server`, for tests in other files."""
    return http_server


PART = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"


def mjpeg_handler(
    pictures: Callable[[], Iterable[bytes]], *, dies: bool = False
) -> type[BaseHTTPRequestHandler]:
    """Sends these JPEGs as an MJPEG stream; one that `dies` breaks off in the picture after."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            with suppress(OSError):
                for jpeg in pictures():
                    self.wfile.write(PART % len(jpeg) + jpeg + b"\r\n")
                if dies:
                    self.wfile.write(PART % 5000 + b"\xff\xd8")

    return Handler


@pytest.fixture
def mjpeg() -> Callable[..., type[BaseHTTPRequestHandler]]:
    """`mjpeg_handler`, for tests in other files."""
    return mjpeg_handler


class NetworkCamera:
    """A network camera (MJPEG over HTTP) at a fixed port that can go away and come back."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://joe:sesame@127.0.0.1:{self.port}/live?token=hush"
        self._server: AbstractContextManager[str] | None = None

    def appear(self) -> None:
        self._gone = gone = threading.Event()

        def moving() -> Iterator[bytes]:
            shade = 0
            while not gone.wait(0.02):
                shade = (shade + 7) % 200
                image = np.full((48, 64, 3), shade, dtype=np.uint8)
                image[10:20, shade % 50 : shade % 50 + 10] = 255
                yield cv2.imencode(".jpg", image)[1].tobytes()

        self._server = http_server(mjpeg_handler(moving, dies=True), self.port)
        self._server.__enter__()

    def vanish(self) -> None:
        """Break every connection and free the port."""
        if self._server is not None:
            self._gone.set()
            self._server.__exit__(None, None, None)
            self._server = None


@pytest.fixture
def network_camera() -> Iterator[NetworkCamera]:
    camera = NetworkCamera()
    yield camera
    camera.vanish()

"""Sinks that deliver in a thread of their own: a webhook; and frames that changed, in a folder."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import numpy as np
import pytest
from PIL import Image

from gain_core.errors import ConfigError
from gain_runtime.frames import FrameResult
from gain_runtime.sinks.pictures import ChangedSink
from gain_runtime.sinks.webhook import BackgroundSink, WebhookSink


class Delivery:
    """Takes results and notes their numbers; waits for its gate, and raises while it fails."""

    def __init__(self, *, waits: bool = False, fails: bool = False) -> None:
        self.tried: list[int] = []
        self.begun, self.gate = threading.Event(), threading.Event()
        self.fails = fails
        if not waits:
            self.gate.set()

    def __call__(self, result: FrameResult) -> None:
        self.tried.append(result.frame.index)
        self.begun.set()
        assert self.gate.wait(120.0)
        if self.fails:
            raise OSError("nobody there")


def test_a_slow_delivery_never_stalls_and_the_queue_is_bounded(until, result):
    deliver = Delivery(waits=True)
    sink = BackgroundSink("slow", deliver, queue_size=4)
    for index in range(1000):
        sink.write(result(index))
    assert len(deliver.tried) <= 1
    deliver.gate.set()
    until(lambda: deliver.tried[-1:] == [999])
    sink.close()
    sink.close()
    assert len(deliver.tried) <= 5


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks wait for their thread as long as it needs on a busy machine."""
    monkeypatch.setattr("gain_runtime.sinks.webhook.CLOSE_S", 120.0)


def test_failing_delivery_is_said_once_and_goes_on_when_it_can(monkeypatch, caplog, until, result):
    monkeypatch.setattr("gain_runtime.sinks.webhook.FIRST_PAUSE_S", 0.001)
    deliver = Delivery(fails=True)
    with caplog.at_level(logging.WARNING), BackgroundSink("there", deliver) as sink:
        for index in range(4):
            sink.write(result(index))
        until(lambda: len(deliver.tried) >= 4)
        deliver.fails = False
        sink.write(result(4))
        until(lambda: 4 in deliver.tried)
    # The first was tried until it got through; nothing was lost, nothing overtook it.
    assert deliver.tried[:4] == [0, 0, 0, 0]
    assert [index for index in deliver.tried if index] == [1, 2, 3, 4]
    messages = [record.message for record in caplog.records]
    assert sum("nobody there" in message for message in messages) == 1
    assert sum("delivering again" in message for message in messages) == 1
    assert not any("not delivered" in message for message in messages)


@pytest.mark.usefixtures("patient")
def test_what_was_never_delivered_is_counted(caplog, result):
    deliver = Delivery(fails=True)
    sink = BackgroundSink("there", deliver, queue_size=4)
    sink.write(result(0))
    assert deliver.begun.wait(120.0)
    for index in range(1, 10):
        sink.write(result(index))
    sink.close()
    assert caplog.records[-1].message == "there: 10 results were not delivered"


@pytest.mark.usefixtures("patient")
def test_delivery_that_fails_while_sink_closes_is_not_said_to_be_tried_again(caplog, until, result):
    deliver = Delivery(waits=True, fails=True)
    sink = BackgroundSink("there", deliver)
    sink.write(result(0))
    assert deliver.begun.wait(120.0)
    # `close` waits for the delivery, so that it has to end while another thread closes.
    closer = threading.Thread(target=sink.close)
    closer.start()
    until(sink._closing.is_set)
    deliver.gate.set()
    closer.join(120.0)
    assert deliver.tried == [0]
    assert [record.message for record in caplog.records] == [
        "there: nobody there; delivery is not tried again, the sink is being closed",
        "there: 1 results were not delivered",
    ]


def test_what_is_being_delivered_when_it_closes_is_said(monkeypatch, caplog, result):
    monkeypatch.setattr("gain_runtime.sinks.webhook.CLOSE_S", 0.01)
    deliver = Delivery(waits=True)
    sink = BackgroundSink("there", deliver)
    sink.write(result(0))
    assert deliver.begun.wait(120.0)
    sink.write(result(1))
    sink.close()
    deliver.gate.set()
    assert [record.message for record in caplog.records] == [
        "there: one result was still being delivered",
        "there: 1 results were not delivered",
    ]


@pytest.fixture
def hook(answering):
    """Servers that keep what is posted: the address, the records and the headers."""

    @contextmanager
    def answer(status=200):
        records, headers = [], []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["Content-Length"]))
                # Before the answer, which lets the next post come, in a thread of its own.
                headers.append(dict(self.headers))
                records.append(json.loads(data))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        with answering(Handler) as host:
            yield host, records, headers

    return answer


def test_the_webhook_posts_every_change_of_class(hook, until, result):
    with hook() as (host, records, headers):
        sink = WebhookSink(f"http://joe:p%40ss@{host}/events?room=1")
        for index, adapted in enumerate([1, 1, 1, 2, 2, 1]):
            sink.write(result(index, adapted=adapted))
        until(lambda: len(records) == 3)
        sink.close()
    assert [record["index"] for record in records] == [0, 3, 5]
    assert records[1]["adapted"] == [{"index": 2, "label": "class 2", "prob": 0.75}]
    assert headers[0]["Authorization"] == "Basic am9lOnBAc3M="


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_refused_post_is_said_without_the_password(hook, status, caplog, until, result):
    with hook(status) as (host, records, _):
        sink = WebhookSink(f"http://joe:secret@{host}/?token=hush")
        sink.write(result())
        until(lambda: len(records) == 1 and bool(caplog.records))
        sink.close()
    assert f"the server answered {status}" in caplog.text
    assert "secret" not in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.usefixtures("patient")
def test_a_host_that_is_away_is_said_once(monkeypatch, caplog, until, result):
    # Closing does not wait for the next try.
    monkeypatch.setattr("gain_runtime.sinks.webhook.FIRST_PAUSE_S", 120.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sink = WebhookSink(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        sink.write(result())
        until(lambda: bool(caplog.records))
        started = time.monotonic()
        sink.close()
    assert time.monotonic() - started < 60.0
    assert "cannot be reached" in caplog.text


def test_a_host_that_talks_nonsense_is_said(caplog, until, result):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                client.sendall(b"SSH-2.0-nonsense\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        sink = WebhookSink(f"http://127.0.0.1:{server.getsockname()[1]}/")
        sink.write(result())
        until(lambda: bool(caplog.records))
        sink.close()
        thread.join()
    assert "no HTTP server answers there" in caplog.text


@pytest.mark.parametrize("url", ["ftp://host/", "http://", "host", "http://h:x/", "http://a b/"])
def test_bad_webhooks_are_refused(url):
    with pytest.raises(ConfigError, match="--set webhook: expected"):
        WebhookSink(url)


def test_changed_predictions_are_kept_and_the_oldest_go(tmp_path, result):
    folder = tmp_path / "changed"
    for start in (0, 10):
        sink = ChangedSink(folder, most=4)
        for index in range(start, start + 10):
            sink.write(result(index, adapted=index % 2))
        sink.close()
    names = sorted(path.name for path in folder.glob("*.jpg"))
    assert names == [f"changed-{number:010d}.jpg" for number in (7, 8, 9, 10)]
    lines = [line.split("\t") for line in (folder / "changed.tsv").read_text().splitlines()]
    assert [line[0] for line in lines] == names
    assert lines[-1][1:] == ["19", "class 0", "class 1"]
    with Image.open(folder / names[-1]) as picture:
        np.testing.assert_allclose(np.asarray(picture)[5, 5], 59, atol=2)

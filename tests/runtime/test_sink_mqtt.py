"""Publishing to a broker: a small real one, one that is away, and URLs that name none."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest
from results import make_result

from gain_core.errors import ConfigError, StreamError
from gain_runtime.sinks.mqtt import MqttPublisher, MqttSink, MqttTarget

CONNECT, CONNACK, PUBLISH, DISCONNECT = 1, b"\x20\x02\x00\x00", 3, 14


class Broker:
    """Accepts one client and keeps what it publishes (MQTT 3.1.1, QoS 0)."""

    def __init__(self) -> None:
        self.connects: list[bytes] = []
        self.published: list[tuple[str, object]] = []
        self.retained: dict[str, str] = {}
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._socket.accept()
        with client, client.makefile("rb") as stream:
            while head := stream.read(1):
                length = shift = 0
                while True:
                    byte = stream.read(1)[0]
                    length |= (byte & 127) << shift
                    shift += 7
                    if byte < 128:
                        break
                body = stream.read(length)
                if head[0] >> 4 == CONNECT:
                    self.connects.append(body)
                    client.sendall(CONNACK)
                elif head[0] >> 4 == PUBLISH:
                    size = int.from_bytes(body[:2], "big")
                    topic = body[2 : 2 + size].decode()
                    payload = body[2 + size :].decode()
                    # The first bit asks the broker to keep it.
                    self.retained.update({topic: payload} if head[0] & 1 else {})
                    known = payload.startswith("{")
                    self.published.append((topic, json.loads(payload) if known else payload))
                elif head[0] >> 4 == DISCONNECT:
                    return

    def close(self) -> None:
        self._thread.join(120.0)
        self._socket.close()


@pytest.fixture
def broker():
    pytest.importorskip("paho.mqtt", reason="the extra mqtt is not installed")
    served = Broker()
    yield served
    served.close()


def results_of(broker: Broker, topic: str) -> list[dict]:
    return [payload for at, payload in broker.published if at == topic]  # type: ignore[misc]


def owned(url: str) -> MqttSink:
    return MqttSink(MqttPublisher(url), owned=True)


def test_every_result_is_published(broker, until):
    sink = owned(f"mqtt://joe:p%40ss@127.0.0.1:{broker.port}/kitchen/cam%201")
    for index in range(5):
        sink.write(make_result(index))
    until(lambda: len(results_of(broker, "kitchen/cam 1")) == 5)
    sink.close()
    sink.close()
    broker.close()
    results = results_of(broker, "kitchen/cam 1")
    assert [record["index"] for record in results] == list(range(5))
    assert results[0]["utc"].endswith("Z")
    assert b"joe" in broker.connects[0]
    assert broker.connects[0].endswith(b"p@ss")
    # The last will is part of the greeting; a goodbye in good order says the same.
    assert b"kitchen/cam 1/status" in broker.connects[0]
    assert broker.retained["kitchen/cam 1/status"] == "offline"
    assert ("kitchen/cam 1/status", "online") in broker.published
    assert json.loads(broker.retained["kitchen/cam 1/state"])["class"] == "class 0"


def test_streams_share_a_connection_and_are_announced_and_forgotten(broker, until):
    publisher = MqttPublisher(f"mqtt://127.0.0.1:{broker.port}/site", discovery="homeassistant")
    sinks = [MqttSink(publisher, name) for name in ("yard", "door")]
    for sink in sinks:
        sink.write(make_result(0))
        sink.close()
    publisher.publish("yard/signal", "connected", retain=True)
    until(lambda: "site/yard/signal" in broker.retained)
    assert len(broker.connects) == 1
    config = json.loads(broker.retained["homeassistant/sensor/gain_site_yard/class/config"])
    assert config["state_topic"] == "site/yard/state"
    assert config["availability_topic"] == "site/status"
    assert config["unique_id"] == "gain_site_yard_class"
    signal = broker.retained["homeassistant/binary_sensor/gain_site_door/signal/config"]
    assert json.loads(signal)["device_class"] == "connectivity"
    # Whatever else the topic says is no connection.
    assert "'ON' if value == 'connected' else 'OFF'" in json.loads(signal)["value_template"]
    publisher.forget("yard")
    until(lambda: broker.retained["site/yard/state"] == "")
    until(lambda: broker.retained["homeassistant/sensor/gain_site_yard/class/config"] == "")
    assert broker.retained["site/door/state"]
    publisher.close()


def test_a_broker_that_is_away_stalls_nothing_and_is_said_once(caplog, until):
    pytest.importorskip("paho.mqtt", reason="the extra mqtt is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        started = time.monotonic()
        sink = owned(f"mqtt://joe:secret@127.0.0.1:{taken.getsockname()[1]}/t")
        for index in range(500):
            sink.write(make_result(index))
        until(lambda: bool(caplog.records))
        sink.close()
    assert time.monotonic() - started < 60.0
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 1
    assert "secret" not in caplog.text


def network_threads() -> list[threading.Thread]:
    return [item for item in threading.enumerate() if item.name.startswith("paho-mqtt")]


def test_a_goodbye_that_fails_is_an_error_once_and_leaves_no_thread(broker, monkeypatch, until):
    sink = owned(f"mqtt://joe:secret@127.0.0.1:{broker.port}/t")
    sink.write(make_result(0))
    until(lambda: len(broker.published) >= 2)
    assert len(network_threads()) == 1
    disconnect = sink._publisher._client.disconnect

    def failing() -> None:
        disconnect()
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sink._publisher._client, "disconnect", failing)
    with pytest.raises(StreamError, match=r"--mqtt .*127\.0\.0\.1.*\(Broken pipe\)") as caught:
        sink.close()
    assert "secret" not in str(caught.value)
    assert network_threads() == []
    sink.close()


def test_a_connection_that_is_made_after_closing_is_ended(broker, monkeypatch, until):
    monkeypatch.setattr("gain_runtime.sinks.webhook.CLOSE_S", 0.01)
    connecting, closed = threading.Event(), threading.Event()
    connect = MqttPublisher._connected

    def slowly(sink: MqttPublisher) -> object:
        connecting.set()
        assert closed.wait(120.0)
        return connect(sink)

    monkeypatch.setattr(MqttPublisher, "_connected", slowly)
    sink = owned(f"mqtt://127.0.0.1:{broker.port}/t")
    sink.write(make_result(0))
    assert connecting.wait(120.0)
    sink.close()
    closed.set()
    # The broker waits for the goodbye.
    until(lambda: not broker._thread.is_alive())
    until(lambda: network_threads() == [])
    assert len(broker.connects) == 1
    assert results_of(broker, "t") == []
    assert sink._publisher._client is None


@pytest.mark.parametrize(
    "url",
    ["http://h/t", "mqtt://h", "mqtt:///t", "mqtt://h/a/#", "mqtt://h:x/t", "mqtt://h/+", "t", ""],
)
def test_bad_targets_are_refused(url):
    with pytest.raises(ConfigError, match="--mqtt: expected"):
        MqttTarget(url)


def test_ports_and_tls_follow_the_scheme():
    plain, secure = MqttTarget("mqtt://h/t"), MqttTarget("mqtts://h/t")
    assert (plain.port, plain.uses_tls, plain.user) == (1883, False, None)
    assert (secure.port, secure.uses_tls) == (8883, True)

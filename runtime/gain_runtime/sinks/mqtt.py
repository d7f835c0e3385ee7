"""Publishing results, states and events on MQTT topics."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from gain_core import __version__
from gain_core.errors import ConfigError, StreamError
from gain_runtime.frames import Closing, FrameResult
from gain_runtime.optional import require
from gain_runtime.sinks.jsonl import result_record, utc_text
from gain_runtime.sinks.webhook import BackgroundSink
from gain_runtime.sources.uri import redact

logger = logging.getLogger(__name__)

PORTS = {"mqtt": 1883, "mqtts": 8883}
TIMEOUT_S = 5.0
# Messages that wait while the broker is away; results of many cameras share the room.
QUEUE_SIZE = 1024
# A retained state is for dashboards: people do not read faster.
STATE_EVERY_S = 5.0
ONLINE, OFFLINE = "online", "offline"


class MqttTarget:
    """A broker and a topic, from `mqtt://[USER:PASSWORD@]HOST[:PORT]/TOPIC` (`mqtts://` for TLS).

    Raises ConfigError if it is no such URL or the topic is empty or holds a wildcard.
    """

    def __init__(self, url: str, /) -> None:
        self.shown = redact(url)
        refusal = ConfigError(
            f"--mqtt: expected mqtt://HOST[:PORT]/TOPIC or mqtts://, got {self.shown!r}"
        )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as err:
            raise refusal from err
        self.topic = unquote(parts.path.removeprefix("/")).rstrip("/")
        if parts.scheme not in PORTS or not parts.hostname or "?" in url or "#" in url:
            raise refusal
        if not self.topic or any(character in self.topic for character in "+#\0"):
            raise refusal
        self.host = parts.hostname
        self.port = PORTS[parts.scheme] if port is None else port
        self.uses_tls = parts.scheme == "mqtts"
        self.user = None if parts.username is None else unquote(parts.username)
        self.password = None if parts.password is None else unquote(parts.password)


class _Message(NamedTuple):
    """What is published where."""

    topic: str
    payload: str
    retain: bool


class MqttPublisher(Closing):
    """One connection to a broker for any number of streams; needs the extra `mqtt`.

    The broker is connected to in the background and again after every loss, so that neither one
    that is away nor one that hangs stalls a stream. `TOPIC/status` holds `online`, retained; the
    broker itself sets it to `offline` when the connection breaks (last will). `discovery` is the
    prefix under which Home Assistant looks for devices (`homeassistant`); without it none is
    announced. Raises ConfigError if `url` is none of `MqttTarget`, BackendUnavailableError without
    the extra.
    """

    def __init__(self, url: str, /, *, discovery: str | None = None) -> None:
        self.target = MqttTarget(url)
        # Where `online` and `offline` are said.
        self.status_topic = f"{self.target.topic}/status"
        self._discovery = discovery
        self._client: Any = None
        # Held while a client is taken over or given up: connecting may outlast `close`.
        self._changing = threading.Lock()
        self._closed = False
        # What is retained, so that it is there again after a broker without a disk restarted.
        self._retained: dict[str, str] = {}
        self._mqtt: Any = require("paho.mqtt.client", extra="mqtt")
        self._background = BackgroundSink[_Message](
            f"--mqtt {self.target.shown}", self._publish, queue_size=QUEUE_SIZE
        )

    def publish(self, topic: str, payload: str, /, *, retain: bool = False) -> None:
        """Leave a message on a topic below the target's, or on it (empty), for the thread; never
        waits.

        With `retain` the broker keeps it for those who subscribe later.
        """
        full = f"{self.target.topic}/{topic}" if topic else self.target.topic
        self._leave(full, payload, retain=retain)

    def announce(self, stream: str | None, /) -> None:
        """Tell Home Assistant of a stream (None where there is only one), if that is wanted."""
        if self._discovery is not None:
            for topic, config in _announcements(self, stream, self._discovery):
                self._leave(topic, json.dumps(config), retain=True)

    def forget(self, stream: str, /) -> None:
        """Take back what is retained of a stream that was removed."""
        base = f"{self.target.topic}/{stream}/"
        topics = [topic for topic in self._retained if topic.startswith(base)]
        if self._discovery is not None:
            topics += [topic for topic, _ in _announcements(self, stream, self._discovery)]
        for topic in topics:
            self._retained.pop(topic, None)
            self._background.write(_Message(topic, "", retain=True))

    def close(self) -> None:
        """Publish what waits if that is quick; may be called twice.

        Raises StreamError if the connection fails while it is ended; it is given up.
        """
        self._background.close()
        with self._changing:
            client, self._client, self._closed = self._client, None, True
        if client is None:
            return
        try:
            # A goodbye in good order does not set off the last will.
            client.publish(self.status_topic, OFFLINE, qos=0, retain=True)
            _end(client)
        except OSError as err:
            raise StreamError(
                f"--mqtt {self.target.shown}: failed while it was closed ({err.strerror or err})"
            ) from err

    def _leave(self, topic: str, payload: str, *, retain: bool) -> None:
        """Leave a message for the thread, and keep what is retained."""
        if retain:
            self._retained[topic] = payload
        self._background.write(_Message(topic, payload, retain))

    def _publish(self, message: _Message) -> None:
        """Thread: send one message and wait until it is on the wire."""
        client = self._client
        if client is None:
            client = self._take(self._connected())
        info = client.publish(message.topic, message.payload, qos=0, retain=message.retain)
        try:
            info.wait_for_publish(TIMEOUT_S)
        except (RuntimeError, ValueError) as err:
            raise StreamError(f"not connected ({err})") from err
        if not info.is_published():
            raise StreamError(f"nothing could be sent for {TIMEOUT_S:g} s")

    def _take(self, client: Any) -> Any:
        """Thread: keep a client for `close` to end, unless that was called meanwhile."""
        with self._changing:
            if not self._closed:
                self._client = client
                return client
        _end(client)
        raise StreamError("closed while connecting")

    def _connected(self) -> Any:
        """A client whose own thread keeps the connection."""
        target = self.target
        client = self._mqtt.Client(self._mqtt.CallbackAPIVersion.VERSION2)
        if target.uses_tls:
            client.tls_set()
        if target.user is not None:
            client.username_pw_set(target.user, target.password)
        client.connect_timeout = TIMEOUT_S
        client.will_set(self.status_topic, OFFLINE, qos=0, retain=True)
        client.on_connect = self._on_connect
        client.connect(target.host, target.port, keepalive=30)
        client.loop_start()
        return client

    def _on_connect(self, client: Any, *_: object) -> None:
        """Client's thread: say again what is retained; a broker may have forgotten it."""
        client.publish(self.status_topic, ONLINE, qos=0, retain=True)
        for topic, payload in dict(self._retained).items():
            client.publish(topic, payload, qos=0, retain=True)


class MqttSink(Closing):
    """Publishes the JSON record of every result, and a retained state now and then.

    The name of the stream is a level of the topics; None where there is only one. With `owned`,
    closing this closes the publisher.
    """

    def __init__(
        self, publisher: MqttPublisher, stream: str | None = None, /, *, owned: bool = False
    ) -> None:
        self._publisher = publisher
        self._base = stream or ""
        self._owned = owned
        self._last: tuple[int, bool] | None = None
        self._next_state_s = 0.0
        publisher.announce(stream)

    def write(self, result: FrameResult, /) -> None:
        """Queue a result for the thread; raises as `result_record`."""
        self._publisher.publish(self._base, json.dumps(result_record(result), allow_nan=False))
        now_s, best = time.monotonic(), (result.adapted_top[0].index, result.changed)
        if best != self._last or now_s >= self._next_state_s:
            self._last, self._next_state_s = best, now_s + STATE_EVERY_S
            self._publisher.publish(
                f"{self._base}/state".lstrip("/"), json.dumps(_state_of(result)), retain=True
            )

    def close(self) -> None:
        """Close the publisher, where it is owned; may be called twice."""
        if self._owned:
            self._publisher.close()


def _state_of(result: FrameResult) -> dict[str, Any]:
    """The newest result in a few words and numbers."""
    best = result.adapted_top[0]
    return {
        "utc": utc_text(result.utc_ns),
        "class": best.label,
        "probability": round(float(best.prob), 4),
        "source_class": result.source_top[0].label,
        "changed": bool(result.changed),
        "strength": round(float(result.strength), 4),
    }


def _announcements(
    publisher: MqttPublisher, stream: str | None, prefix: str
) -> list[tuple[str, Mapping[str, Any]]]:
    """Topic and config of each entity of Home Assistant."""
    topic = publisher.target.topic
    base = f"{topic}/{stream}" if stream else topic
    # Their identifiers are letters, digits, - and _.
    node = re.sub(r"[^A-Za-z0-9_-]", "_", f"gain_{base}")
    device = {
        "identifiers": [node],
        "name": stream or topic,
        "manufacturer": "gain-edge",
        "sw_version": __version__,
    }
    percent = {"unit_of_measurement": "%", "state_class": "measurement"}
    connected = "{{ 'ON' if value == 'connected' else 'OFF' }}"
    probability = "{{ (100 * value_json.probability) | round(1) }}"
    strength = "{{ (100 * value_json.strength) | round(1) }}"
    entities: tuple[tuple[str, str, str, dict[str, str]], ...] = (
        ("binary_sensor/signal", "Signal", connected, {"device_class": "connectivity"}),
        ("sensor/class", "Class", "{{ value_json.class }}", {"icon": "mdi:shape"}),
        ("sensor/probability", "Probability", probability, percent),
        ("sensor/strength", "Strength of adaptation", strength, percent),
    )
    announced: list[tuple[str, Mapping[str, Any]]] = []
    for entity, name, template, more in entities:
        kind, key = entity.split("/")
        config = {
            "name": name,
            "unique_id": f"{node}_{key}",
            "state_topic": f"{base}/{'signal' if key == 'signal' else 'state'}",
            "value_template": template,
            "availability_topic": publisher.status_topic,
            "device": device,
            **more,
        }
        announced.append((f"{prefix}/{kind}/{node}/{key}/config", config))
    return announced


def _end(client: Any) -> None:
    """Say goodbye and end the client's own thread, whatever becomes of the first."""
    try:
        client.disconnect()
    finally:
        client.loop_stop()

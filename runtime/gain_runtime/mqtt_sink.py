"""Publishing results on an MQTT topic."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any
from urllib.parse import unquote, urlsplit

from gain_core._optional import require
from gain_core.errors import ConfigError, StreamError
from gain_runtime.background_sink import BackgroundSink
from gain_runtime.jsonl_sink import result_record
from gain_runtime.result import FrameResult
from gain_runtime.uri import redact

__all__ = ["MqttSink", "MqttTarget"]

logger = logging.getLogger(__name__)

PORTS = {"mqtt": 1883, "mqtts": 8883}
TIMEOUT_S = 5.0


class MqttTarget:
    """A broker and a topic, from `mqtt://[USER:PASSWORD@]HOST[:PORT]/TOPIC` (`mqtts://` for TLS).

    Raises
    ------
    ConfigError
        If it is no such URL or the topic is empty or holds a wildcard.
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
        self.topic = unquote(parts.path.removeprefix("/"))
        if parts.scheme not in PORTS or not parts.hostname or "?" in url or "#" in url:
            raise refusal
        if not self.topic or any(character in self.topic for character in "+#\0"):
            raise refusal
        self.host = parts.hostname
        self.port = PORTS[parts.scheme] if port is None else port
        self.uses_tls = parts.scheme == "mqtts"
        self.user = None if parts.username is None else unquote(parts.username)
        self.password = None if parts.password is None else unquote(parts.password)


class MqttSink:
    """Publishes the JSON record of every result with QoS 0; needs the extra `mqtt`.

    The broker is connected to in the background and again after every loss, so that neither one
    that is away nor one that hangs stalls the stream.

    Parameters
    ----------
    url : str
        See `MqttTarget`.

    Raises
    ------
    ConfigError
        If it is no such URL.
    BackendUnavailableError
        If the extra is not installed.
    """

    def __init__(self, url: str, /) -> None:
        self._target = MqttTarget(url)
        self._client: Any = None
        # Held while a client is taken over or given up: connecting may outlast `close`.
        self._changing = threading.Lock()
        self._closed = False
        self._mqtt: Any = require("paho.mqtt.client", extra="mqtt")
        self._background = BackgroundSink(f"--mqtt {self._target.shown}", self._publish)

    def write(self, result: FrameResult, /) -> None:
        """Leave a result for the thread."""
        self._background.write(result)

    def close(self) -> None:
        """Publish what waits if that is quick; may be called twice.

        Raises
        ------
        StreamError
            If the connection fails while it is ended; it is given up.
        """
        self._background.close()
        with self._changing:
            client, self._client, self._closed = self._client, None, True
        if client is None:
            return
        try:
            _end(client)
        except OSError as err:
            raise StreamError(
                f"--mqtt {self._target.shown}: failed while it was closed ({err.strerror or err})"
            ) from err

    def _publish(self, result: FrameResult) -> None:
        """Thread: send one record and wait until it is on the wire."""
        client = self._client
        if client is None:
            client = self._take(self._connected())
        data = json.dumps(result_record(result), allow_nan=False)
        info = client.publish(self._target.topic, data, qos=0)
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
        target = self._target
        client = self._mqtt.Client(self._mqtt.CallbackAPIVersion.VERSION2)
        if target.uses_tls:
            client.tls_set()
        if target.user is not None:
            client.username_pw_set(target.user, target.password)
        client.connect_timeout = TIMEOUT_S
        # A bounded queue: what cannot be sent is not collected.
        client.max_queued_messages_set(1)
        client.connect(target.host, target.port, keepalive=30)
        client.loop_start()
        return client


def _end(client: Any) -> None:
    """Say goodbye and end the client's own thread, whatever becomes of the first."""
    try:
        client.disconnect()
    finally:
        client.loop_stop()

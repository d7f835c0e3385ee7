"""Delivering results in a thread of its own, and posting them when the predicted class changes."""

from __future__ import annotations

import http.client
import json
import logging
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from gain_core.errors import ConfigError, GainError, StreamError
from gain_runtime.frames import Closing, FrameResult
from gain_runtime.sinks.jsonl import result_record
from gain_runtime.sources.uri import redact_to_host

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
# Outputs are closed one after another, and a signal shall end a stream within two seconds.
CLOSE_S = 0.4

Item = TypeVar("Item")


class BackgroundSink(Closing, Generic[Item]):
    """Hands results, or anything else, to a callable in a thread of its own; `write` never waits.

    A delivery that fails, by a GainError or OSError, is tried again after a pause that doubles from
    one second to sixty. Meanwhile the queue keeps the newest results and drops the others. Messages
    call it `name`, which holds no credentials.
    """

    def __init__(
        self, name: str, deliver: Callable[[Item], None], /, *, queue_size: int = 64
    ) -> None:
        self._name = name
        self._deliver = deliver
        self._waiting: deque[Item] = deque(maxlen=queue_size)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        # Results that were never delivered so far.
        self.dropped = 0
        self._delivering = False
        self._thread = threading.Thread(target=self._run, name=f"sink {name}", daemon=True)
        self._thread.start()

    def write(self, result: Item, /) -> None:
        """Leave a result for the thread."""
        with self._changed:
            if len(self._waiting) == self._waiting.maxlen:
                self.dropped += 1
            self._waiting.append(result)
            self._changed.notify()

    def close(self) -> None:
        """Deliver what waits if that is quick; may be called twice."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join(CLOSE_S)
        with self._changed:
            self.dropped += len(self._waiting)
            self._waiting.clear()
            delivering = self._delivering
        if delivering:
            logger.warning("%s: one result was still being delivered", self._name)
        if self.dropped:
            logger.warning("%s: %d results were not delivered", self._name, self.dropped)
            self.dropped = 0

    def _run(self) -> None:
        """Thread: deliver in order until closed and empty, or closed and failing."""
        pause_s = FIRST_PAUSE_S
        failing = False
        while (result := self._take()) is not None:
            try:
                self._deliver(result)
            except (GainError, OSError) as err:
                self._put_back(result)
                if not failing:
                    then = "delivery will be tried again"
                    if self._closing.is_set():
                        then = "delivery is not tried again, the sink is being closed"
                    logger.error("%s: %s; %s", self._name, err, then)
                failing = True
                self._closing.wait(pause_s)
                pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)
                if self._closing.is_set():
                    return
                continue
            with self._changed:
                self._delivering = False
            if failing:
                logger.warning("%s: delivering again", self._name)
            failing, pause_s = False, FIRST_PAUSE_S

    def _put_back(self, result: Item) -> None:
        """Keep a result for the next try, unless newer ones have taken all the room."""
        with self._changed:
            self._delivering = False
            if len(self._waiting) == self._waiting.maxlen:
                self.dropped += 1
            else:
                self._waiting.appendleft(result)

    def _take(self) -> Item | None:
        """The next result; None once closed and empty."""
        with self._changed:
            while not self._waiting:
                if self._closing.is_set():
                    return None
                self._changed.wait()
            self._delivering = True
            return self._waiting.popleft()


TIMEOUT_S = 5.0

Record: TypeAlias = Mapping[str, Any]


class Webhook(Closing):
    """Posts JSON records in the background, and tries again while the server is away.

    Raises ConfigError unless `url` is `http://` or `https://`; a user and password in it are sent
    by basic authentication. Only its host is ever shown: the path of a chat service's hook is its
    password. Messages call it `flag`.
    """

    def __init__(self, url: str, /, *, flag: str = "--set webhook") -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
            known = parts.scheme in ("http", "https") and parts.hostname is not None
        except ValueError:
            known = False
        if not known or not url.isascii() or any(character.isspace() for character in url):
            raise ConfigError(
                f"{flag}: expected http://HOST/... or https://, got {redact_to_host(url)!r}"
            )
        self._headers = {"Content-Type": "application/json", "User-Agent": "gain-edge"}
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit(parts._replace(netloc=host))
        # The opener knows no proxy and no scheme but these two, and follows no redirect: a post
        # must not end up elsewhere.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        self._background = BackgroundSink[Record](f"{flag} {redact_to_host(url)}", self._post)

    def post(self, record: Record, /) -> None:
        """Queue a record for the thread."""
        self._background.write(record)

    def close(self) -> None:
        """Post what waits if that is quick; may be called twice."""
        self._background.close()

    def _post(self, record: Record) -> None:
        """Send one record."""
        data = json.dumps(record, allow_nan=False).encode()
        request = urllib.request.Request(self._url, data=data, headers=self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(1024)
        except urllib.error.HTTPError as err:
            err.close()
            raise StreamError(f"the server answered {err.code}") from err
        except http.client.HTTPException as err:
            raise StreamError(f"no HTTP server answers there ({type(err).__name__})") from err
        except urllib.error.URLError as err:
            raise StreamError(f"cannot be reached ({err.reason})") from err


class WebhookSink(Webhook):
    """Posts the JSON record of every result whose class differs from the one before."""

    def __init__(self, url: str, /) -> None:
        super().__init__(url)
        self._last: int | None = None

    def write(self, result: FrameResult, /) -> None:
        """Queue a result whose class differs from the one before; raises as `result_record`."""
        best = result.adapted_top[0].index
        if best != self._last:
            self._last = best
            self.post(result_record(result))

"""Posting results to an HTTP address when the predicted class changes."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from gain_core.errors import ConfigError, StreamError
from gain_runtime.frames import Closing, FrameResult
from gain_runtime.sinks.background import BackgroundSink
from gain_runtime.sinks.jsonl import result_record
from gain_runtime.sources.uri import redact_to_host

__all__ = [
    "Webhook",
    "WebhookSink",
]

TIMEOUT_S = 5.0

Record: TypeAlias = Mapping[str, Any]


class Webhook(Closing):
    """Posts JSON records in the background, and tries again while the server is away.

    Parameters
    ----------
    url : str
        `http://` or `https://`; a user and password in it are sent by basic authentication. Only
        its host is ever shown: the path of a chat service's hook is its password.
    flag : str, optional
        What messages call it.

    Raises
    ------
    ConfigError
        If it is no such URL.
    """

    def __init__(self, url: str, /, *, flag: str = "--set webhook") -> None:
        parts = _checked(url, flag)
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
            self._headers["Authorization"] = _basic(parts.username, parts.password or "")
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


class WebhookSink(Closing):
    """Posts the JSON record of every result whose class differs from the one before.

    Parameters
    ----------
    url : str
        As for `Webhook`.

    Raises
    ------
    ConfigError
        If it is no such URL.
    """

    def __init__(self, url: str, /) -> None:
        self._webhook = Webhook(url)
        self._last: int | None = None

    def write(self, result: FrameResult, /) -> None:
        """Queue a result for the thread, if its class differs from the one before.

        Raises
        ------
        NumericsError
            If a probability, the strength or the gain is not finite.
        """
        best = result.adapted_top[0].index
        if best != self._last:
            self._last = best
            self._webhook.post(result_record(result))

    def close(self) -> None:
        """Post what waits if that is quick; may be called twice."""
        self._webhook.close()


def _checked(url: str, flag: str) -> SplitResult:
    """The parts of a URL, if it is one that can be posted to."""
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
    return parts


def _basic(user: str, password: str) -> str:
    """The header of basic authentication."""
    return "Basic " + b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()

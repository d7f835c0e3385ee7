"""What FFmpeg's error codes mean to the one whose camera does not answer."""

from __future__ import annotations

import errno
import socket
from urllib.parse import urlsplit

import av

from gain_core.errors import one_line

__all__ = [
    "NO_DASH",
    "reads_dash",
    "reason_of",
    "remedy_for",
]

# PyAV's wheels are without libxml2.
NO_DASH = (
    "a DASH manifest (.mpd), which the FFmpeg inside this PyAV cannot read; take the HLS playlist "
    "(.m3u8) of the same video, or: ffmpeg -i IN.mpd -c copy OUT.mkv"
)
CREDENTIALS = "put them into the URL: SCHEME://USER:PASSWORD@HOST/..."


def reason_of(
    err: BaseException, /, *, url: str = "", waited_s: float | None = None, opening: bool = False
) -> str:
    """Why PyAV could not open or read something, in one clause without the URL's credentials.

    The host of `url`, empty for what is none, is looked up again where the error may mean that its
    name is unknown. `waited_s` is how long data was waited for; `opening` says that no frame had
    come yet.
    """
    host, port = _host(url)
    if isinstance(err, (av.error.ExitError, TimeoutError)):
        # FFmpeg was told to stop waiting.
        return "no data in time" if waited_s is None else f"no data for {waited_s:g} s"
    for kind, reason in (
        (av.error.HTTPUnauthorizedError, "the server wants other credentials (401 Unauthorized)"),
        (av.error.HTTPForbiddenError, "the server refuses these credentials (403 Forbidden)"),
        (av.error.HTTPNotFoundError, "the server knows no such address (404 Not Found)"),
        (av.error.HTTPServerError, "the server failed (5xx)"),
        ((av.error.HTTPClientError, av.error.HTTPError), "the server refused the request (4xx)"),
        (ConnectionRefusedError, f"connection refused by {host}:{port}"),
        (ConnectionError, "the connection was broken off"),
        (av.error.ProtocolNotFoundError, "the FFmpeg inside this PyAV does not have that protocol"),
        (av.error.DemuxerNotFoundError, "no format known here"),
        (av.error.DecoderNotFoundError, "no decoder for it here"),
        (PermissionError, "permission denied"),
        (EOFError, "it ends before the first frame"),
        (av.error.InvalidDataError, "what came is no video that can be decoded"),
    ):
        if isinstance(err, kind):
            return reason
    number = getattr(err, "errno", None)
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN):
        return f"no route to {host}"
    if number == errno.EIO and host:
        if _unknown(host):
            return f"no host is called {host} (DNS)"
        # A web page of unknown length, such as a login, ends like a broken connection.
        return f"the other side {'sent no video and ' if opening else ''}hung up"
    return str(getattr(err, "strerror", None) or one_line(err))


def remedy_for(err: BaseException, /, *, url: str = "") -> str:
    """What to do about it, or an empty text."""
    if isinstance(err, (av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError)):
        return CREDENTIALS
    if isinstance(err, av.error.HTTPNotFoundError):
        return "check the path of the URL"
    if isinstance(err, ConnectionRefusedError):
        return "check the port, and that the camera or server runs"
    if isinstance(err, av.error.ProtocolNotFoundError):
        return "let another program fetch it: ffmpeg -i URL -c copy -f mpegts - | gain-stream - ..."
    if isinstance(err, (av.error.ExitError, TimeoutError)) and url:
        return "check that the camera is on and reachable"
    if url.partition("?")[0].endswith(".mpd") and not reads_dash():
        return f"it may be {NO_DASH}"
    return ""


def reads_dash() -> bool:
    """Whether this PyAV reads DASH manifests."""
    try:
        av.format.ContainerFormat("dash", "r")
    except ValueError:
        return False
    return True


def _host(url: str) -> tuple[str, int | str]:
    """Host and port of a URL."""
    defaults = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443, "rtmp": 1935}
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or defaults.get(parts.scheme.lower()) or "?"
    except ValueError:
        return "", "?"


def _unknown(host: str) -> bool:
    """Whether no address is known for a host's name."""
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return True
    return False

"""The grammar of source URIs, and their printable form without credentials."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from gain_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CsiParams:
    """Parameters of a `csi://` URI: size in px, rate in Hz, `flip-method` of `nvvidconv`.

    Raises ConfigError for a value out of its range.
    """

    width: int = 1280
    height: int = 720
    rate: int = 30
    flip: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("width", 1, 16_384),
            ("height", 1, 16_384),
            ("rate", 1, 1000),
            ("flip", 0, 7),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"csi://: {name}: expected {low} to {high}, got {value}")


SourceKind = Literal["camera", "network", "pipeline", "pipe", "path", "glob", "test"]
NETWORK_SCHEMES = ("rtsp", "rtsps", "http", "https", "rtmp", "rtmps", "udp", "rtp", "tcp", "srt")
# These may listen on every address: udp://:5000.
HOSTLESS_SCHEMES = ("udp", "rtp", "tcp", "srt")
GRAMMAR = (
    "a file, a folder, a glob ('photos/*.jpg'), a camera index (0), /dev/video0, "
    f"v4l2:///dev/video0, csi://0, {'://, '.join(NETWORK_SCHEMES)}://, a GStreamer pipeline that "
    "ends in appsink, file://, - (JPEGs or a video on stdin) or test://NAME"
)
# One-letter schemes are Windows drives (C:\clip.mp4).
SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://")
# What of a URI may be shown. Everything else may be a secret: cameras and chat services put them
# into user names, paths, parameters of any name and fragments.
SHOWN_HOST = re.compile(r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?")
# Words of which cameras make their paths, as in `h264Preview_01_main` and `axis-media`, and short
# numbers: any other word may be a password.
PATH_WORDS = (
    *("av", "avi", "axis", "bin", "cam", "camera", "cgi", "ch", "channel", "channels", "clip"),
    *("clips", "feed", "flv", "h264", "h265", "hevc", "high", "hls", "image", "img", "index"),
    *("isapi", "jpeg", "jpg", "live", "low", "m3u8", "main", "media", "mjpeg", "mjpg", "mkv"),
    *("motion", "mov", "mp4", "mpeg", "multicast", "nph", "onvif", "picture", "play", "playlist"),
    *("preview", "profile", "realmonitor", "rtsp", "sdp", "smp", "amp", "snapshot", "stream"),
    *("streaming", "streams", "sub", "track", "ts", "unicast", "video", "videos", "webm"),
)
SHOWN_SEGMENT = re.compile(
    # One letter and a number, as in `c1`.
    r"[a-z][0-9]{0,2}|"
    rf"(?:{'|'.join(PATH_WORDS)}|(?<![0-9])[0-9]{{1,3}}(?![0-9])|[-_.]){{1,10}}",
    re.IGNORECASE,
)
SHOWN_VALUE = re.compile(r"[A-Za-z0-9]{1,12}(?:[x.,_/-][A-Za-z0-9]{1,12}){0,3}")
SHOWN_KEYS = frozenset(
    (
        *("bitrate", "camera", "channel", "codec", "compression", "fps", "framerate", "height"),
        *("latency", "mode", "profile", "proto", "protocol", "protocols", "quality", "rate"),
        *("resolution", "rotation", "sensor-id", "size", "stream", "streamtype", "subtype", "tcp"),
        *("transport", "transportmode", "udp", "unicast", "videocodec", "width"),
        # Of GStreamer's elements.
        *("drop", "flip-method", "format", "max-buffers", "sync"),
    )
)
ELEMENT = re.compile(r"[a-z][a-z0-9]{0,30}")
CAPS = re.compile(r"(?:video|image|audio)/[a-z0-9.-]{1,20}(?:\(memory:[A-Za-z]{1,12}\))?")
PIPELINE_TOKEN = re.compile(r"""(?:[^\s"'!]|"[^"]*"|'[^']*')+|!""")
LINK = " ! "
STDIN = "-"
HIDDEN = "***"

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUri:
    """A parsed source URI.

    `kind` is `camera` (a local device), `network` (a live stream or a recording behind a URL),
    `pipeline` (GStreamer's), `pipe` (standard input), `path` (a file or folder), `glob` or `test`
    (frames made by code). `target` is what to open: the path, pattern, device path or index, the
    full URL, or the name after `test://`; it may hold credentials, never print it. `shown` is the
    URI without them, for messages and `source_id`. `params` is the query of a `test://` URI.
    """

    kind: SourceKind
    target: str
    shown: str
    params: Mapping[str, str] = field(default_factory=dict)


def redact(uri: str, /) -> str:
    """What of a URI may be shown to anybody.

    That is the scheme, the host, path segments of short numbers and words that cameras use, and
    parameters whose names are known to be harmless. The rest is `***`: a deny-list never ends.
    `test://`, `file://`, `v4l2://` and plain paths are returned as they are.
    """
    match = SCHEME.match(uri)
    if match is None:
        return _shown_pipeline(uri) if LINK in uri else uri
    if match.group(1).lower() in ("test", "file", "v4l2"):
        return uri
    head, rest = uri[: match.end()], uri[match.end() :]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    below = rest[len(authority) :]
    if "@" in below:
        # A password may hold an unescaped slash: nobody can tell where the host begins.
        return head + HIDDEN
    _, at, host = authority.rpartition("@")
    shown_host = host if SHOWN_HOST.fullmatch(host) else HIDDEN
    return f"{head}{HIDDEN + '@' if at else ''}{shown_host}{_shown_below(below)}"


def redact_to_host(uri: str, /) -> str:
    """Scheme and host alone: the path of a webhook is its password."""
    scheme, separator, rest = redact(uri).partition("://")
    return f"{scheme}://{rest.split('/')[0].split('?')[0].split('#')[0]}" if separator else HIDDEN


def _shown_below(below: str) -> str:
    """Path, parameters and fragment of a URL, as far as they may be shown."""
    target, fragment, _ = below.partition("#")
    path, question, query = target.partition("?")
    segments = [
        segment if not segment or SHOWN_SEGMENT.fullmatch(segment) else HIDDEN
        for segment in path.split("/")
    ]
    shown = "/".join(segments)
    if question:
        pairs = [_shown_pair(pair) for pair in re.split("[&;]", query)]
        kept = [pair for pair in pairs if pair is not None]
        hidden = [HIDDEN] if len(kept) < len(pairs) else []
        shown += "?" + "&".join([*kept, *hidden])
    return shown + (fragment and f"#{HIDDEN}")


def _shown_pair(pair: str) -> str | None:
    """A parameter that may be shown, or None."""
    key, _, value = pair.partition("=")
    harmless = key.lower() in SHOWN_KEYS and SHOWN_VALUE.fullmatch(value)
    return pair if harmless else None


def _shown_pipeline(text: str) -> str:
    """Elements, caps and harmless properties of a GStreamer pipeline."""
    if text.count('"') % 2 or text.count("'") % 2:
        return HIDDEN
    parts = []
    # GStreamer takes `user-pw = word`, too, whose word alone would look like an element.
    for token in PIPELINE_TOKEN.findall(re.sub(r"\s*=\s*", "=", text)):
        key, equals, value = token.partition("=")
        if equals and key.lower() in ("location", "uri"):
            parts.append(f"{key}={redact(value.strip(chr(34) + chr(39)))}")
        elif token == "!" or (not equals and ELEMENT.fullmatch(token)):
            parts.append(token)
        else:
            parts.append(_shown_caps(token))
    return " ".join(parts)


def _shown_caps(token: str) -> str:
    """`video/x-raw,width=640` or one property, item by item."""
    items = []
    for item in token.split(","):
        key, _, value = item.partition("=")
        # Types in brackets, as in (int)640.
        value = re.sub(r"^\([a-z]+\)", "", value)
        shown = CAPS.fullmatch(item) or _shown_pair(f"{key}={value}") is not None
        items.append(item if shown else HIDDEN)
    return ",".join(items)


def has_magic(text: str, /) -> bool:
    """Whether a path holds glob characters."""
    return any(character in text for character in "*?[")


def parse_uri(uri: str, /) -> SourceUri:
    """Tell what kind of source a URI names; the disk only tells a glob and a device from a file.

    A path that exists is a path even if it holds glob characters; a file named like a camera index
    is reached as `./0`. Raises ConfigError if the URI is empty, of an unknown scheme or malformed.
    """
    text = uri.strip()
    if "\0" in text:
        raise ConfigError(f"source: expected {GRAMMAR}, got a NUL character in it")
    if text == STDIN:
        return SourceUri(kind="pipe", target=text, shown="stdin")
    if not text:
        raise ConfigError(f"source: expected {GRAMMAR}, got an empty string")
    match = SCHEME.match(text)
    if match is not None:
        return _parse_scheme(match.group(1).lower(), text)
    if text.isascii() and text.isdigit():
        return SourceUri(kind="camera", target=str(int(text)), shown=f"camera {int(text)}")
    if LINK in text and not os.path.lexists(text):
        if not text.rpartition(LINK)[2].startswith("appsink"):
            raise ConfigError(
                f"{redact(text)}: expected a pipeline that ends in appsink; "
                "add ' ! videoconvert ! video/x-raw,format=BGR ! appsink drop=true max-buffers=1'"
            )
        return SourceUri(kind="pipeline", target=text, shown=redact(text))
    if _is_device(text):
        return SourceUri(kind="camera", target=text, shown=text)
    if has_magic(text) and not os.path.lexists(text):
        return SourceUri(kind="glob", target=text, shown=text)
    return SourceUri(kind="path", target=text, shown=text)


def _is_device(text: str) -> bool:
    """Whether a path is a camera's: `/dev/` holds files and pipes, too."""
    if not text.startswith("/dev/"):
        return False
    try:
        return stat.S_ISCHR(Path(text).stat().st_mode)
    except OSError:
        # Whatever was unplugged is missed as a device; /dev/shm is a disk.
        return not has_magic(text) and not text.startswith("/dev/shm/")


def _parse_csi(rest: str, shown: str) -> SourceUri:
    """`csi://SENSOR?width=1280&...` as the pipeline it stands for."""
    sensor, _, query = rest.partition("?")
    if not (sensor.isascii() and sensor.isdigit() and len(sensor) <= 3):
        raise ConfigError(f"{shown}: expected csi://NUMBER such as csi://0?width=1280&height=720")
    params = record_from_params(CsiParams, _params(query, shown), owner=f"csi://{sensor}")
    # It hands OpenCV the newest frame, BGR.
    target = (
        f"nvarguscamerasrc sensor-id={int(sensor)} ! "
        f"video/x-raw(memory:NVMM), width=(int){params.width}, height=(int){params.height}, "
        f"framerate=(fraction){params.rate}/1 ! nvvidconv flip-method={params.flip} ! "
        "video/x-raw, format=(string)BGRx ! videoconvert ! video/x-raw, format=(string)BGR ! "
        "appsink drop=true max-buffers=1 sync=false"
    )
    return SourceUri(kind="pipeline", target=target, shown=f"csi://{int(sensor)}")


def _parse_scheme(scheme: str, text: str) -> SourceUri:
    """Parse `scheme://...`."""
    shown = redact(text)
    if scheme in NETWORK_SCHEMES:
        try:
            parts = urlsplit(text)
            _ = parts.port  # raises where it is no number
            known = parts.hostname is not None
        except ValueError:
            known = False
        if not known and scheme not in HOSTLESS_SCHEMES:
            raise ConfigError(f"{shown}: expected {scheme}://HOST/..., got no valid host or port")
        return SourceUri(kind="network", target=text, shown=shown)
    rest = text[len(scheme) + 3 :]
    if scheme == "file":
        path = unquote(rest.removeprefix("localhost"))
        if not path or "\0" in path:
            raise ConfigError(f"{shown}: expected file:///PATH")
        return SourceUri(kind="path", target=path, shown=text)
    if scheme == "v4l2":
        if not rest.startswith("/dev/"):
            raise ConfigError(f"{shown}: expected v4l2:///dev/NAME (three slashes)")
        return SourceUri(kind="camera", target=rest, shown=rest)
    if scheme == "csi":
        return _parse_csi(rest, shown)
    if scheme == "test":
        name, _, query = rest.partition("?")
        return SourceUri(
            kind="test", target=name.strip("/"), shown=text, params=_params(query, shown)
        )
    raise ConfigError(f"{shown}: unknown scheme {scheme}://; expected {GRAMMAR}")


def _params(query: str, shown: str) -> dict[str, str]:
    """Parse a query whose keys must be unique."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError as err:
        raise ConfigError(
            f"{shown}: expected key=value&key=value after '?', got {query!r}"
        ) from err
    params = dict(pairs)
    if len(params) != len(pairs):
        repeated = sorted({key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1})
        raise ConfigError(f"{shown}: {', '.join(repeated)} given more than once")
    return params


def record_from_params(record: type[Record], params: Mapping[str, str], /, *, owner: str) -> Record:
    """Fill a dataclass from URI parameters; its fields' defaults are int, float, bool or str.

    Raises ConfigError, begun by `owner` (`test://pattern`), if a parameter is unknown or not of its
    field's type; whatever `record` itself raises.
    """
    defaults: dict[str, Any] = {
        entry.name: entry.default
        for entry in fields(record)  # type: ignore[arg-type]
        if entry.default is not MISSING
    }
    unknown = sorted(set(params) - set(defaults))
    if unknown:
        raise ConfigError(
            f"{owner}: unknown parameter {', '.join(unknown)}; expected {', '.join(defaults)}"
        )
    values = {
        key: _convert(text, type(defaults[key]), f"{owner}: {key}") for key, text in params.items()
    }
    return record(**values)


def _convert(text: str, kind: type, name: str) -> bool | int | float | str:
    """Convert one parameter."""
    if kind is bool:
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text.lower() in words:
            return words[text.lower()]
    elif kind in (int, float):
        try:
            return int(text) if kind is int else float(text)
        except ValueError:
            pass
    else:
        return text
    raise ConfigError(f"{name}: expected {kind.__name__}, got {text!r}")

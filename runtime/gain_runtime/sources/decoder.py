"""FFmpeg's decoders through PyAV: upright RGB frames with square pixels, never interlaced."""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import av
import numpy as np
import numpy.typing as npt
from av.sidedata.sidedata import SideDataContainer
from av.sidedata.sidedata import Type as SideDataType

from gain_core.errors import StreamError, one_line
from gain_runtime.files.images import MOST_PIXELS
from gain_runtime.sources.reader import POLL_S, Guarded, PipeReader

logger = logging.getLogger(__name__)

# Wider or taller pixels than that are a mistake in the header, not a picture.
MOST_STRETCH = 4.0
# A camera that runs on one of many streams needs no thread for each core.
MOST_LIVE_THREADS = 4
# Only frames that are marked interlaced are touched, and every frame stays one frame. yadif gives
# the same bits in every FFmpeg since 5.1; bwdif, as near to the truth, does not.
DEINTERLACE = "mode=send_frame:parity=auto:deint=interlaced"
# Marks copies of a packet, whose frames nobody wants; no file has that time.
COPY_PTS = -(2**60)
# FFmpeg starts 16 threads at most, so a frame comes out that many packets after its own.
MOST_LATE = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Longest waits in seconds: for opening, and for the next piece of data."""

    open_s: float = 30.0
    read_s: float = 30.0


class Decoded(NamedTuple):
    """One decoded frame.

    `image` is (H, W, 3) uint8 RGB, `position_s` its presentation time in seconds from the start of
    the stream, None where the container has none, `stamp_ns` the monotonic clock when its data
    had arrived.
    """

    image: npt.NDArray[np.uint8]
    position_s: float | None
    stamp_ns: int


class VideoDecoder(Guarded):
    """The frames of a file, a pipe or a network stream, one after another.

    The container's rotation, mirroring, pixel shape, colour matrix and range are applied. Frames
    marked interlaced are deinterlaced (yadif, one frame for each); frames may change their size.

    `source` is an absolute path, a URL, or what gives the bytes (not owned); messages call it
    `shown`, without credentials. A `live` one is decoded without reading ahead; if it ends that is
    still an end, and if it fails an error. `options` are FFmpeg's, for its protocol and demuxer;
    `hwaccel` is one of its hardware decoders (`cuda`, `vaapi`, `videotoolbox`), never replaced.
    Raises StreamError that says why if it cannot be opened, holds no video, or the hardware decoder
    cannot be used.
    """

    def __init__(
        self,
        source: str | PipeReader,
        /,
        *,
        shown: str,
        live: bool = False,
        limits: Limits | None = None,
        options: Mapping[str, str] | None = None,
        hwaccel: str | None = None,
    ) -> None:
        super().__init__()
        self._source = source
        self._shown = shown
        self._live = live
        self._limits = limits or Limits()
        self._options = dict(options or {})
        self._hwaccel = hwaccel
        self._container: Any = None
        self._stream: Any = None
        self._graph: Any = None
        self._graph_key: tuple[object, ...] | None = None
        self._interlaced = False
        # Pieces of data so far from which no frame could be decoded.
        self.damaged = 0
        # What decodes: the codec's name, and the hardware where it takes part.
        self.decoder = ""
        # What the container claims, None where it does not; the rate may be a time base.
        self.rate_hz: float | None = None
        self.num_frames: int | None = None
        self.duration_s: float | None = None
        self._num_decoded = 0
        self._keyframes: deque[Any] = deque(maxlen=MOST_LATE)
        self._whole_keyframe: Any = None
        self._first: Decoded | None = None
        self._frames = self._read_on()
        try:
            in_thread(lambda: self._use(self._open), closed=self._closing)
        except BaseException:
            self.close()
            raise

    def read(self) -> Decoded | None:
        """Next frame; None at the end and once closed.

        Raises StreamError if a live source fails, or no data comes for `limits.read_s`.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._use(lambda: next(self._frames, None))

    def count_packets(self) -> int:
        """Frames in the file by its packets, where its header does not tell; nothing can be read
        after it."""
        with self._lock:
            self._container.seek(0)
            return sum(1 for packet in self._container.demux(self._stream) if packet.size)

    def _release(self) -> None:
        container, self._container = self._container, None
        self._graph = self._stream = None
        self._frames.close()
        if container is not None:
            container.close()

    def _open(self) -> None:
        """Open the container, learn what it says, and decode its first frame."""
        started = time.monotonic()
        try:
            self._container = self._open_container()
            self._learn()
            self._first = next(self._frames, None)
        except av.error.FFmpegError as err:
            is_url = isinstance(self._source, str) and "://" in self._source
            what = "cannot be opened" if is_url else "expected a video, but it cannot be opened"
            # Interrupted in the middle of an answer, RTSP says that the answer is invalid.
            waited_s = time.monotonic() - started
            cause = TimeoutError() if waited_s >= self._limits.open_s else err
            limit_s = self._limits.open_s
            raise self._failure(cause, what, waited_s=limit_s, opening=True) from err

    def _open_container(self) -> Any:
        hwaccel = None
        if self._hwaccel is not None:
            hwaccel = _hardware(self._hwaccel, self._shown)
        try:
            return av.open(
                self._source,
                options=self._options,
                timeout=(self._limits.open_s, self._limits.read_s),
                metadata_errors="replace",
                hwaccel=hwaccel,
            )
        except (av.error.FFmpegError, RuntimeError) as err:
            # Errors of the file carry its name, those of the device do not.
            if self._hwaccel is None or getattr(err, "filename", None) is not None:
                raise
            raise StreamError(
                f"{self._shown}: --set hwaccel={self._hwaccel} cannot decode it here "
                f"({' '.join(str(err).split())}); leave it out to decode on the CPU"
            ) from err

    def _learn(self) -> None:
        """Choose the video stream and read what the container says of it."""
        # Cover pictures of audio files are video streams of one frame.
        streams = [item for item in self._container.streams.video if item.codec_context is not None]
        if not streams:
            raise StreamError(f"{self._shown}: expected a video, got a file without pictures in it")
        stream = self._stream = max(
            streams,
            key=lambda item: (item.codec_context.width or 0) * (item.codec_context.height or 0),
        )
        context = stream.codec_context
        context.options = {"max_pixels": str(MOST_PIXELS)}
        # Frame threads give every frame late by as many frames as there are threads.
        context.thread_type = "SLICE" if self._live else "AUTO"
        if self._live:
            context.thread_count = min(os.cpu_count() or 1, MOST_LIVE_THREADS)
        self.decoder = context.name
        if self._hwaccel is not None:
            if not context.is_hwaccel:
                raise StreamError(
                    f"{self._shown}: --set hwaccel={self._hwaccel} has no decoder for "
                    f"{context.name}; leave it out to decode on the CPU"
                )
            self.decoder = f"{context.name} on {self._hwaccel}"
        rate = stream.average_rate or stream.guessed_rate
        self.rate_hz = None if rate is None else float(rate)
        self._start_s = float((stream.start_time or 0) * (stream.time_base or 0))
        lengths = [
            float(length * unit)
            for length, unit in (
                (stream.duration, stream.time_base),
                (self._container.duration, Fraction(1, av.time_base)),
            )
            if length is not None and unit is not None and length > 0
        ]
        self.num_frames = stream.frames if 0 < stream.frames < 2**31 else None
        # Of an mp4, the shorter one knows what an edit list leaves out; of others, both may be
        # estimates from the bytes that are there.
        self._is_transport = self._container.format.name == "mpegts"
        if "mp4" not in self._container.format.name and self.num_frames and self.rate_hz:
            lengths = [self.num_frames / self.rate_hz]
        self.duration_s = min(lengths, default=None)

    def _read_on(self) -> Generator[Decoded, None, None]:
        """Every frame of the container."""
        for packet in self._packets():
            stamp_ns = time.monotonic_ns()
            for frame in self._decode(packet):
                for image, position_s in self._finish(frame):
                    self._num_decoded += 1
                    yield Decoded(image, position_s, stamp_ns)
        for image, position_s in self._finish(None):
            yield Decoded(image, position_s, time.monotonic_ns())

    def _packets(self) -> Iterator[Any]:
        """The stream's packets; the last one, empty, fetches what the decoder still holds."""
        packets = self._container.demux(self._stream)
        while not self.closed:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except BlockingIOError:
                # A transport stream that ends in other bytes says so, too.
                self._closing.wait(0.01)
                packets = self._container.demux(self._stream)
                continue
            except av.error.FFmpegError as err:
                # A recording that breaks off ends here.
                if self._live or isinstance(err, (av.error.ExitError, TimeoutError)):
                    lost = f"signal lost after {self._num_decoded} frames"
                    what = lost if self._num_decoded else "cannot be opened"
                    raise self._failure(err, what, waited_s=self._limits.read_s) from err
                packet = None
            if packet is None or not packet.size:
                yield from self._copies()
            yield packet

    def _copies(self) -> Iterator[Any]:
        """A packet for each of the decoder's threads, to get out what they hold.

        At the end PyAV takes frames up to the first error only; every packet before it gives one
        frame or one error. A keyframe that was decoded before gives no error of its own.
        """
        keyframe = self._whole_keyframe
        if keyframe is not None and not self._live and self._hwaccel is None:
            keyframe.pts = COPY_PTS
            for _ in range(self._stream.codec_context.thread_count):
                yield keyframe

    def _decode(self, packet: Any) -> list[Any]:
        """The frames that a packet completes; counted where it is damaged."""
        # The file was cut in the middle of it. Its error would take the frames along that the
        # decoder's threads still hold. In a transport stream the mark means something else.
        if packet is not None and packet.is_corrupt and not self._is_transport:
            return []
        if packet is not None and packet.is_keyframe:
            self._keyframes.append(packet)
        try:
            frames = list(self._stream.codec_context.decode(packet))
        except EOFError:
            return []
        except (av.error.FFmpegError, ValueError, MemoryError) as err:
            logger.debug("%s: a piece of data cannot be decoded (%s)", self._shown, err)
            self.damaged += 1
            return []
        for frame in frames:
            while frame.key_frame and self._keyframes:
                keyframe = self._keyframes.popleft()
                if keyframe.pts == frame.pts:
                    self._whole_keyframe = keyframe
                    break
        return [frame for frame in frames if frame.pts != COPY_PTS]

    def _finish(self, frame: Any) -> Iterator[tuple[npt.NDArray[np.uint8], float | None]]:
        """A decoded frame, or None for the end, as what the filters make of it."""
        try:
            finished = self._filtered(frame)
        except (av.error.FFmpegError, ValueError, MemoryError) as err:
            logger.debug("%s: a frame cannot be converted (%s)", self._shown, err)
            self.damaged += 1
            self._graph = self._graph_key = None
            return
        for item in finished:
            position_s = None
            if item.pts is not None and item.time_base is not None:
                position_s = float(item.pts * item.time_base) - self._start_s
            yield item.to_ndarray(), position_s

    def _filtered(self, frame: Any) -> list[Any]:
        """What comes out of the filters when a frame, or None for the end, is put in."""
        if frame is None:
            return [] if self._graph is None else _drain(self._graph)
        self._interlaced |= bool(frame.interlaced_frame)
        matrix = _display_matrix(frame)
        key = (
            *(frame.width, frame.height, frame.format.name, frame.time_base, self._interlaced),
            *(int(frame.colorspace), int(frame.color_range), matrix),
        )
        before: list[Any] = []
        if key != self._graph_key:
            before = [] if self._graph is None else _drain(self._graph)
            self._graph_key, self._graph = key, self._make_graph(frame, matrix)
        self._graph.push(frame)
        return before + _pull_all(self._graph)

    def _make_graph(self, frame: Any, matrix: tuple[int, ...] | None) -> Any:
        """Filters for frames of this kind: deinterlace, turn, make square, convert, all at once."""
        ratio = float(self._stream.sample_aspect_ratio or 1)
        if not 1.0 / MOST_STRETCH <= ratio <= MOST_STRETCH:
            ratio = 1.0
        # No pixel is thrown away: the shorter side of each pixel grows.
        width = max(round(frame.width * max(ratio, 1.0)), 1)
        height = max(round(frame.height / min(ratio, 1.0)), 1)
        turns, transposed = _turns(matrix)
        if transposed:
            width, height = height, width
        graph = av.filter.Graph()
        # The decoder has threads already; more of them take a fifth more processor time.
        if hasattr(graph, "threads"):
            graph.threads = 1
        nodes = [
            graph.add_buffer(
                width=frame.width,
                height=frame.height,
                format=frame.format,
                time_base=frame.time_base or Fraction(1, 90_000),
            )
        ]
        if self._interlaced:
            nodes.append(graph.add("yadif", DEINTERLACE))
        nodes += [graph.add(name, value) for name, value in turns]
        nodes.append(graph.add("scale", f"{width}:{height}:flags=bicubic"))
        nodes.append(graph.add("format", "rgb24"))
        nodes.append(graph.add("buffersink"))
        for earlier, later in pairwise(nodes):
            earlier.link_to(later)
        graph.configure()
        return graph

    def _failure(
        self, err: BaseException, what: str, *, waited_s: float, opening: bool = False
    ) -> StreamError:
        """The error of this source, in words."""
        url = self._source if isinstance(self._source, str) else ""
        reason = _reason(err, url=url, waited_s=waited_s, opening=opening)
        remedy = _remedy(err, url=url)
        return StreamError(f"{self._shown}: {what}: {reason}" + (f"; {remedy}" if remedy else ""))


def in_thread(work: Callable[[], T], /, *, closed: threading.Event) -> T:
    """Do what may block in a thread, so that a signal or `closed` ends the wait at once.

    It goes on by itself then. Raises StreamError if `closed` was set first; else whatever `work`
    raises.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as err:  # noqa: BLE001 - handed over to the one who waits
            outcome.set_exception(err)

    threading.Thread(target=run, name="opening", daemon=True).start()
    while not wait([outcome], POLL_S).done:
        if closed.is_set():
            raise StreamError("closed while opening")
    return outcome.result()


def _hardware(name: str, shown: str) -> Any:
    """PyAV's handle of a hardware decoder."""
    known = av.codec.hwaccel.hwdevices_available()
    if name not in known:
        raise StreamError(
            f"{shown}: --set hwaccel={name}: this FFmpeg has {', '.join(known) or 'none'}; leave "
            "that out to decode on the CPU (on a Jetson, see docs/how-to/jetson.md)"
        )
    return av.codec.hwaccel.HWAccel(name, allow_software_fallback=False)


def _pull_all(graph: Any) -> list[Any]:
    """Every frame that is ready."""
    frames = []
    while True:
        try:
            frames.append(graph.pull())
        except (BlockingIOError, EOFError):
            return frames


def _drain(graph: Any) -> list[Any]:
    """What the filters still hold."""
    graph.push(None)
    return _pull_all(graph)


def _display_matrix(frame: Any) -> tuple[int, ...] | None:
    """How the container wants the frame turned and mirrored: a, b, c, d as signs."""
    # `frame.side_data` would hold the frame that holds it, until the garbage is collected.
    data = SideDataContainer(frame).get(SideDataType.DISPLAYMATRIX)  # type: ignore[call-arg]
    if data is None or len(bytes(data)) < 36:
        return None
    values = struct.unpack("=9i", bytes(data)[:36])
    return values[0], values[1], values[3], values[4]


def _turns(matrix: tuple[int, ...] | None) -> tuple[list[tuple[str, str | None]], bool]:
    """The filters that a display matrix asks for, and whether they swap width and height."""
    if matrix is None:
        return [], False
    a, b, c, d = matrix
    if abs(b) + abs(c) > abs(a) + abs(d):
        # (x, y) goes to (cy, bx): transposed, then mirrored where a sign is negative.
        kind = {(1, 1): "0", (1, -1): "1", (-1, 1): "2", (-1, -1): "3"}
        return [("transpose", kind[1 if b > 0 else -1, 1 if c > 0 else -1])], True
    turns: list[tuple[str, str | None]] = []
    if a < 0:
        turns.append(("hflip", None))
    if d < 0:
        turns.append(("vflip", None))
    return turns, False


# PyAV's wheels are without libxml2.
NO_DASH = (
    "a DASH manifest (.mpd), which the FFmpeg inside this PyAV cannot read; take the HLS playlist "
    "(.m3u8) of the same video, or: ffmpeg -i IN.mpd -c copy OUT.mkv"
)
CREDENTIALS = "put them into the URL: SCHEME://USER:PASSWORD@HOST/..."


def _reason(
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
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            return f"no host is called {host} (DNS)"
        # A web page of unknown length, such as a login, ends like a broken connection.
        return f"the other side {'sent no video and ' if opening else ''}hung up"
    return str(getattr(err, "strerror", None) or one_line(err))


def _remedy(err: BaseException, /, *, url: str = "") -> str:
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

"""Annotated video files: encoded through PyAV, each frame at its time, checked to be playable."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace

from gain_core.errors import ArrayError, StreamError, one_line
from gain_runtime.files.paths import is_folder, sync
from gain_runtime.frames import Closing, FrameResult, rate_or_none
from gain_runtime.sources.decoder import VideoDecoder

logger = logging.getLogger(__name__)

# One thread and a fast preset: the cores belong to the network.
OPTIONS = {
    # Without B-frames a file is as long as its frames say, whatever the gaps between them.
    "libx264": {"preset": "veryfast", "crf": "25", "threads": "1", "bf": "0"},
    "libopenh264": {"threads": "1"},
    "mpeg4": {"qscale:v": "4", "threads": "1"},
    "mjpeg": {"qscale:v": "4", "threads": "1"},
}
# Noise costs as many bits as there are; so much must do: 2.8 Mbit/s for 720p at 30 Hz.
MOST_BITS_PER_PX = 0.1
BUFFER_S = 2.0
# Exact for 24000/1001 and its relatives; MPEG-4 part 2 can count no finer than to 65535.
UNIT, MPEG4_UNIT = Fraction(1, 120_000), Fraction(1, 60_000)
MOST_DENOMINATOR = 1001
PIXEL_FORMATS = {"mjpeg": "yuvj420p", "ffv1": "bgr0"}
# Of FFmpeg's enumerations: BT.709 for matrix, primaries and transfer, which browsers expect of
# files that say nothing.
BT709 = 1
# So that a browser can play while it still loads.
INDEX_FIRST = {"movflags": "+faststart"}


class AvWriter(Closing):
    """Encodes RGB frames of one size (width, height in px, both even); an absolute path.

    Its suffix chooses the container. `rate_hz` is the usual frame rate. AVI knows no other: there,
    times are rounded to it, gaps stay gaps, and of two frames in one period the first is kept.
    Raises StreamError if the encoder (FFmpeg's name) is not there or refuses.
    """

    def __init__(
        self, path: Path, /, *, encoder: str, rate_hz: float, size: tuple[int, int]
    ) -> None:
        self._path = path
        self._last = -1
        self._container: Any = None
        rate = Fraction(rate_hz).limit_denominator(MOST_DENOMINATOR)
        self._unit = MPEG4_UNIT if encoder == "mpeg4" else UNIT
        if path.suffix.lower() == ".avi":
            self._unit = 1 / rate
        self._pixel_format = PIXEL_FORMATS.get(encoder, "yuv420p")
        is_mp4 = path.suffix.lower() in (".mp4", ".m4v", ".mov")
        try:
            self._container = av.open(
                str(path), "w", container_options=INDEX_FIRST if is_mp4 else None
            )
            options = dict(OPTIONS.get(encoder, {}))
            if encoder == "libx264":
                most = round(MOST_BITS_PER_PX * size[0] * size[1] * rate_hz)
                options |= {"maxrate": str(most), "bufsize": str(round(BUFFER_S * most))}
            stream = self._container.add_stream(encoder, rate=rate, options=options)
            stream.width, stream.height = size
            stream.pix_fmt = self._pixel_format
            context = stream.codec_context
            context.time_base = stream.time_base = self._unit
            # Only H.264 keeps in every container which matrix its colours were made with; players
            # take the one of BT.601 for others.
            self._is_bt709 = "264" in encoder
            if self._is_bt709:
                context.colorspace = context.color_primaries = context.color_trc = BT709
                context.color_range = ColorRange.MPEG
            self._stream = stream
            # An encoder that refuses shall do so now, while another can be taken.
            self._container.start_encoding()
        except (av.error.FFmpegError, OSError, ValueError) as err:
            self._let_go()
            raise StreamError(
                f"{path.name}: the encoder {encoder} cannot be used ({_reason(err)})"
            ) from err

    def write(self, image: npt.NDArray[np.uint8], position_s: float, /) -> bool:
        """Append a frame, (H, W, 3) uint8 RGB, shown at `position_s` from the start of the video.

        False where its period was taken already (AVI); raises StreamError if it cannot be encoded
        or written.
        """
        at = round(Fraction(position_s).limit_denominator(1_000_000) / self._unit)
        if at <= self._last and self._path.suffix.lower() == ".avi":
            return False
        self._last = max(at, self._last + 1)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame = frame.reformat(
            format=self._pixel_format,
            dst_colorspace=Colorspace.ITU709 if self._is_bt709 else None,
            interpolation="BICUBIC",
        )
        frame.pts, frame.time_base = self._last, self._unit
        self._mux(frame)
        return True

    def close(self) -> None:
        """Write what the encoder still holds and close; may be called twice.

        Raises StreamError if that fails; the file is closed all the same.
        """
        if self._container is None:
            return
        try:
            self._mux(None)
            self._container.close()
            self._container = None
        except (av.error.FFmpegError, OSError) as err:
            raise StreamError(f"cannot be finished ({_reason(err)})") from err
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Close without finishing; whoever reads the file back finds it incomplete."""
        container, self._container = self._container, None
        if container is not None:
            with suppress(av.error.FFmpegError, OSError):
                container.close()

    def _mux(self, frame: Any) -> None:
        """Encode a frame, or None for what is left, and write the packets."""
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
        except (av.error.FFmpegError, OSError) as err:
            if isinstance(err, StreamError):
                raise
            raise StreamError(f"cannot be written ({_reason(err)})") from err


def _reason(err: BaseException) -> str:
    """One clause."""
    return str(getattr(err, "strerror", None) or one_line(err))


Render = Callable[[FrameResult], npt.NDArray[np.uint8]]

DEFAULT_RATE_HZ = 30.0
# H.264 plays everywhere, browsers included. An FFmpeg built without an encoder for it has MPEG-4
# part 2. VP9 would play in browsers and takes 40 times as long.
H264_FIRST = ("libx264", "libopenh264", "mpeg4")
ENCODERS = {
    ".mp4": H264_FIRST,
    ".m4v": H264_FIRST,
    ".mov": H264_FIRST,
    ".mkv": H264_FIRST,
    ".avi": ("mpeg4", "mjpeg"),
}
PROBE_SIZE = (320, 240)
PROBE_FRAMES = 8
# A camera that was away for an hour is shown as away for this long.
LONGEST_GAP_S = 10.0


class VideoSink(Closing):
    """Writes what `render` draws for each result into a video file.

    Opening tries the encoders until a short clip was written and read back, so that errors show
    before the first frame. The first frame fixes the size (rounded up to even numbers); later ones
    are scaled to fit and centred on black.

    The file is written as `NAME.partial-XXXX.SUFFIX` beside its final name. `close` reads it back
    and renames it, so an earlier file of that name survives a failure. A process that is killed
    leaves the partial file.

    Parameters
    ----------
    path : str or Path
        Ends in .mp4, .m4v, .mov, .mkv or .avi.
    render : callable
        FrameResult to (H, W, 3) uint8 RGB.
    rate_hz : float or None
        Usual frame rate; 30 if it is None or not believable. A frame whose time stamp does not
        grow is shown one period after the frame before.
    constant : bool
        Ignore time stamps and show every frame for one period, as for photos.
    longest_gap_s : float or None
        Longest time between two frames, in seconds; longer gaps are cut to it. None keeps all.
    encoders : sequence of str or None
        FFmpeg's names of encoders to try in order; None means a list by suffix.

    Raises
    ------
    StreamError
        If the folder cannot be written, the suffix is unknown, or no encoder works.
    """

    def __init__(
        self,
        path: str | Path,
        /,
        *,
        render: Render,
        rate_hz: float | None = None,
        constant: bool = False,
        longest_gap_s: float | None = None,
        encoders: Sequence[str] | None = None,
    ) -> None:
        self._path = Path(path)
        suffix = self._path.suffix.lower()
        if suffix not in ENCODERS:
            raise StreamError(
                f"{path}: expected a video file name ending in {', '.join(ENCODERS)}, "
                f"got {suffix or 'no suffix'}"
            )
        # FFmpeg takes `a:b.mp4` for a protocol; an absolute path is none.
        self._partial = self._path.absolute().with_name(
            f"{self._path.stem}.partial-{secrets.token_hex(4)}{suffix}"
        )
        _check_writable(self._path, self._partial)
        self._render = render
        self._rate_hz = rate_or_none(rate_hz) or DEFAULT_RATE_HZ
        self._constant = constant
        self._longest_gap_s = longest_gap_s
        tried = encoders or ENCODERS[suffix]
        self._encoders = _usable(tried, self._partial, rate_hz=self._rate_hz)
        if not self._encoders:
            raise StreamError(
                f"{path}: none of the encoders {', '.join(tried)} is available in this PyAV "
                f"({av.__version__}); try another suffix: {', '.join(ENCODERS)}"
            )
        self._writer: AvWriter | None = None
        self._size = (0, 0)
        self._num_frames = 0
        self._position_s = 0.0
        self._last_ns: int | None = None
        self._broken = False
        self._closed = False

    def write(self, result: FrameResult, /) -> None:
        """Render and append one frame, at the time of its stamp.

        Raises
        ------
        ArrayError
            If `render` gives no (H, W, 3) uint8 array.
        StreamError
            If the sink is closed, no encoder takes this size, or the file cannot be written.
        """
        if self._closed:
            raise StreamError(f"{self._path}: already closed")
        image = self._render(result)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ArrayError(
                f"render: expected (H, W, 3) uint8 RGB, got {image.shape} {image.dtype}"
            )
        if self._writer is None:
            self._writer = self._open(image)
        position_s = self._next_position(result.frame.timestamp_ns)
        try:
            self._num_frames += self._writer.write(_letterbox(image, self._size), position_s)
        except StreamError as err:
            self._broken = True
            raise StreamError(
                f"{self._path}: frame {self._num_frames} {err}; is the disk full?"
            ) from err

    def close(self) -> None:
        """Finish, read back and rename the file; may be called twice.

        After a failed `write` it only removes the partial file.

        Raises
        ------
        StreamError
            If the file cannot be written or read back.
        """
        if self._closed:
            return
        self._closed = True
        if self._writer is None:
            logger.warning("%s: no frame was given, so no file was written", self._path)
            return
        try:
            self._writer.close()
            if not self._broken:
                self._verify()
                sync(self._partial)  # before it takes its final name
                self._partial.replace(self._path)
        except OSError as err:
            if self._broken:
                return
            if str(err).startswith(str(self._path)):
                raise
            reason = err if isinstance(err, StreamError) else f"cannot be finished ({err.strerror})"
            raise StreamError(f"{self._path}: {reason}; is the disk full?") from err
        finally:
            self._remove_partial()

    def _next_position(self, stamp_ns: int) -> float:
        """When a frame is shown: as long after the one before as its stamp is."""
        last_ns, self._last_ns = self._last_ns, stamp_ns
        if last_ns is None:
            return self._position_s
        gap_s = 0.0 if self._constant else (stamp_ns - last_ns) / 1e9
        if gap_s <= 0.0:
            gap_s = 1.0 / self._rate_hz
        if self._longest_gap_s is not None:
            gap_s = min(gap_s, self._longest_gap_s)
        self._position_s += gap_s
        return self._position_s

    def _remove_partial(self) -> None:
        """Delete what is left of the file; a failure must not hide why it is left."""
        try:
            self._partial.unlink(missing_ok=True)
        except OSError as err:
            logger.warning("%s: cannot be removed (%s); delete it", self._partial, err.strerror)

    def _open(self, image: npt.NDArray[np.uint8]) -> AvWriter:
        """Open the writer at the first frame's size with the first encoder that takes it."""
        height, width = image.shape[:2]
        self._size = (width + width % 2, height + height % 2)
        refused = []
        for encoder in self._encoders:
            try:
                writer = AvWriter(
                    self._partial, encoder=encoder, rate_hz=self._rate_hz, size=self._size
                )
            except StreamError as err:
                refused.append(str(err))
                self._partial.unlink(missing_ok=True)
                continue
            logger.info("%s: %d x %d px, encoder %s", self._path, *self._size, encoder)
            return writer
        raise StreamError(
            f"{self._path}: no encoder of {', '.join(self._encoders)} takes frames of "
            f"{self._size[0]} x {self._size[1]} px: {'; '.join(refused)}"
        )

    def _verify(self) -> None:
        """Raise unless the finished file plays and holds the frames it was given.

        A full disk leaves a file whose header was never completed.
        """
        size = self._partial.stat().st_size if self._partial.exists() else 0
        held = _read_back(self._partial) if size else 0
        if held != self._num_frames:
            raise StreamError(
                f"{self._path}: the finished video does not play back ({size} bytes, "
                f"{held} of {self._num_frames} frames), disk full?"
            )


def _check_writable(path: Path, partial: Path) -> None:
    """Raise unless the folder takes a new file and the name is free or a file's."""
    if is_folder(path, error=StreamError):
        raise StreamError(f"{path}: expected a file name, got a folder")
    try:
        partial.touch(exist_ok=False)
        partial.unlink()
    except OSError as err:
        raise StreamError(
            f"{path}: cannot be created ({err.strerror}); name a file in an existing, "
            "writable folder"
        ) from err


def _usable(encoders: Sequence[str], probe: Path, *, rate_hz: float) -> tuple[str, ...]:
    """The encoders from the first one that works on; the later ones are its substitutes."""
    frame = np.zeros((PROBE_SIZE[1], PROBE_SIZE[0], 3), dtype=np.uint8)
    for at, encoder in enumerate(encoders):
        try:
            with AvWriter(probe, encoder=encoder, rate_hz=rate_hz, size=PROBE_SIZE) as writer:
                for shade in range(PROBE_FRAMES):
                    writer.write(frame + np.uint8(shade * 8), shade / rate_hz)
            if _read_back(probe) == PROBE_FRAMES:
                return tuple(encoders[at:])
        except StreamError as err:
            logger.debug("%s: %s", encoder, err)
        finally:
            probe.unlink(missing_ok=True)
    return ()


def _read_back(path: Path) -> int:
    """Frames in a file, 0 where the first one cannot be decoded."""
    try:
        with VideoDecoder(str(path), shown=str(path)) as decoder:
            if decoder.read() is None:
                return 0
            # AVI counts the periods in which nothing new is shown, too; Matroska counts nothing.
            exact = path.suffix.lower() in (".mp4", ".m4v", ".mov")
            return (decoder.num_frames or 0) if exact else decoder.count_packets()
    except StreamError:
        return 0


def _letterbox(image: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Scale into `size` (width, height) keeping the aspect ratio, centred on black."""
    width, height = size
    if image.shape[:2] == (height, width):
        return image
    scale = min(width / image.shape[1], height / image.shape[0])
    inner_w = min(max(round(image.shape[1] * scale), 1), width)
    inner_h = min(max(round(image.shape[0] * scale), 1), height)
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    top, left = (height - inner_h) // 2, (width - inner_w) // 2
    shrink = inner_w < image.shape[1]
    canvas[top : top + inner_h, left : left + inner_w] = cv2.resize(
        image, (inner_w, inner_h), interpolation=cv2.INTER_AREA if shrink else cv2.INTER_LINEAR
    )
    return canvas

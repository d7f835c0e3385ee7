"""Paths: what lies there, the project's data, files written whole, folders in object stores."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from gain_core.errors import ArtifactError, ConfigError, GainError, StreamError
from gain_runtime.optional import require

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two processes out of one file there
    fcntl = None  # type: ignore[assignment]

Content = Literal["picture", "heif", "raw", "video", "lfs pointer", "other"]

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Enough for every signature below.
HEAD_BYTES = 64
PICTURES = (
    *(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a"),
    *(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"\0\0\0\x0cjP  \r\n", b"\xff\x4f\xff\x51"),
    *(b"P1\n", b"P2\n", b"P3\n", b"P4\n", b"P5\n", b"P6\n", b"P1 ", b"P2 ", b"P3 "),
    *(b"P4 ", b"P5 ", b"P6 ", b"qoif", b"8BPS", b"\0\0\1\0"),
)
RAW = (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\0", b"FOVb", b"\0MRM")
# ISO media files say after `ftyp` what they are.
AVIF_BRANDS = (b"avif", b"avis")
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
VIDEOS = (
    *(b"\x1aE\xdf\xa3", b"FLV\1", b"OggS", b"\0\0\1\xba", b"\0\0\1\xb3", b"\x30\x26\xb2\x75"),
    *(b"YUV4MPEG2", b"#EXTM3U", b"\x06\x0e\x2b\x34", b"DKIF"),
)
MISSING = (errno.ENOENT, errno.ENOTDIR)


def file_status(
    path: str | Path, /, *, error: type[GainError] = ConfigError
) -> os.stat_result | None:
    """Status of a file or folder, links followed; None if nothing is there.

    An `error` if the path cannot be accessed: no permission for a folder above, a link that points
    to itself, a name that no file system takes.
    """
    try:
        return Path(path).stat()
    except OSError as err:
        if err.errno in MISSING:
            return None
        raise error(f"{_shown(path)}: cannot be accessed ({_why(err)})") from err
    except ValueError as err:
        raise error(f"{_shown(path)}: expected a file name, got a NUL character in it") from err


def exists(path: str | Path, /, *, error: type[GainError] = ConfigError) -> bool:
    """Whether something is there; raises as `file_status`."""
    return file_status(path, error=error) is not None


def is_folder(path: str | Path, /, *, error: type[GainError] = ConfigError) -> bool:
    """Whether a folder is there; raises as `file_status`."""
    status = file_status(path, error=error)
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_file(path: str | Path, /, *, error: type[GainError] = ConfigError) -> bool:
    """Whether a regular file is there; raises as `file_status`."""
    status = file_status(path, error=error)
    return status is not None and stat.S_ISREG(status.st_mode)


def resolved(path: str | Path, /, *, error: type[GainError] = ConfigError) -> Path:
    """The absolute path without links; raises as `file_status`."""
    file_status(path, error=error)
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as err:
        raise error(f"{_shown(path)}: cannot be accessed ({_why(err)})") from err


def regular_file(path: Path, /) -> None:
    """Raises StreamError if a file is missing, not accessible or not regular: a pipe never ends."""
    status = file_status(path, error=StreamError)
    if status is None:
        raise StreamError(f"{path}: no such file or folder")
    if stat.S_ISFIFO(status.st_mode):
        raise StreamError(
            f"{path}: expected a regular file, got a named pipe; read it with: "
            f"gain-stream - < {path}"
        )
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or socket"
        raise StreamError(f"{path}: expected a regular file, got {what}")


def read_head(path: Path, size: int = HEAD_BYTES, /) -> bytes:
    """The first bytes of a file, or all it has; raises StreamError if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as stream:
            return stream.read(size)
    except OSError as err:
        raise StreamError(f"{path}: cannot be read ({_why(err)})") from err


def content_of(head: bytes, /) -> Content:
    """Kind of a file, from its first `HEAD_BYTES` bytes; a camera's raw data may pass for TIFF."""
    if head.startswith(LFS_POINTER):
        return "lfs pointer"
    if head.startswith(RAW) or head[8:10] == b"CR" or head[4:11] == b"ftypcrx":
        return "raw"
    if head[4:8] == b"ftyp":
        brands = (head[8:12], *(head[at : at + 4] for at in range(16, len(head), 4)))
        if brands[0] in AVIF_BRANDS or (brands[0] == b"mif1" and b"avif" in brands):
            return "picture"
        return "heif" if brands[0] in HEIF_BRANDS else "video"
    if head[:4] == b"RIFF":
        return "picture" if head[8:12] == b"WEBP" else "video"
    # Two letters begin many texts; a bitmap has four bytes of nothing behind its size.
    if head.startswith(PICTURES) or (head[:2] == b"BM" and head[6:10] == b"\0\0\0\0"):
        return "picture"
    if head.startswith(VIDEOS) or head[4:8] in (b"moov", b"mdat", b"wide", b"free"):
        return "video"
    return "other"


def _shown(path: str | Path) -> str:
    """A path that may hold anything, short enough for one line."""
    text = ascii(str(path))[1:-1] if "\0" in str(path) else str(path)
    return text if len(text) <= 200 else f"{text[:100]}...{text[-40:]}"


def _why(err: BaseException) -> str:
    """One clause."""
    number = getattr(err, "errno", None)
    if number == errno.ELOOP or isinstance(err, RuntimeError):
        return "it is a link that leads back to itself"
    if number == errno.EACCES:
        return "permission denied: a folder on the way, or the file, is closed to this user"
    if number == errno.ENAMETOOLONG:
        return "the name is longer than the file system takes"
    return str(getattr(err, "strerror", None) or err)


def check_output(path: Path, /, *, force: bool) -> None:
    """Raises ArtifactError if a result exists, without `force`, or could not be written."""
    if is_folder(path, error=ArtifactError):
        raise ArtifactError(f"{path}: expected a file to write, got a folder; name another file")
    if exists(path, error=ArtifactError) and not force:
        raise ArtifactError(f"{path}: exists already; --force replaces it")
    if not is_folder(path.parent, error=ArtifactError):
        raise ArtifactError(f"{path}: expected its folder to exist, found none; create it first")
    if not os.access(path.parent, os.W_OK):
        raise ArtifactError(f"{path}: its folder cannot be written; allow it, or choose another")


def lock_alone(descriptor: int, /) -> bool:
    """Lock a file until it is closed or the process dies; False where another process has it."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_models_dir() -> Path:
    """`gain_runtime/_models` of a wheel, or `models/` of a source checkout; else ArtifactError."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "_models"
    if packaged.is_dir():
        return packaged
    root = package.parents[1]
    # The pyproject check keeps a stranger's `models` folder near site-packages out.
    if (root / "models").is_dir() and (root / "pyproject.toml").is_file():
        return root / "models"
    raise ArtifactError(
        f"models: expected the folder {packaged}, found none; install gain-edge again"
    )


def write_atomically(
    path: Path,
    data: bytes,
    /,
    *,
    mode: int | None = None,
    error: type[GainError] | None = None,
) -> None:
    """Write a file so that a crash or power cut leaves either the old one or the new one.

    Its folder must exist; a device or a pipe is written to. `mode` holds from the first byte on.
    Raises OSError, or an `error` in one line in its place, if the folder is missing, full or not
    writable; nothing is left behind then.
    """
    try:
        _write(path, data, mode)
    except OSError as err:
        if error is None:
            raise
        raise error(
            f"{path}: cannot be written ({err.strerror or err}); "
            "check that the folder exists, is writable and has room"
        ) from err


def _write(path: Path, data: bytes, mode: int | None) -> None:
    """Write beside the file, then rename."""
    if path.exists() and not path.is_file():
        # A superuser's rename would put a file in the place of /dev/null.
        path.write_bytes(data)
        return
    # In the same folder, because a rename across file systems is a copy.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The rename itself. Windows cannot open folders and some network mounts cannot sync them.
    with suppress(OSError):
        sync(path.parent)


def sync(path: Path, /) -> None:
    """Have what a file or folder holds on the disk."""
    # Windows syncs only what may be written, and no system opens a folder for that.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FsspecFolder:
    """Files below a path or any URL fsspec knows (`s3://bucket/folder`), each whole or not at all.

    Raises BackendUnavailableError without fsspec, ConfigError if it does not know the protocol or
    lacks the library for it; every method raises ArtifactError where the store fails.
    """

    def __init__(self, url: str | Path, /) -> None:
        self.url = str(url).rstrip("/")
        fsspec = require("fsspec", extra="ray")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as err:
            raise ConfigError(
                f"{self.url}: expected a folder or an fsspec URL, got one that cannot be opened "
                f"({err})"
            ) from err
        # Object stores put a file whole or not at all; on a disk we have to see to it.
        self._on_disk = "file" in self._files.protocol

    def read(self, name: str, /) -> bytes | None:
        """A file's bytes; None where there is none."""
        data: bytes | None = None
        with self._errors(name, "read"), suppress(FileNotFoundError):
            data = self._files.cat_file(f"{self._root}/{name}")
        return data

    def write(self, name: str, data: bytes, /) -> None:
        """Write a file; folders are made. A failure leaves what was there before untouched."""
        with self._errors(name, "written"):
            path = f"{self._root}/{name}"
            if self._on_disk:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(Path(path), data)
            else:
                self._files.pipe_file(path, data)

    def names(self, folder: str = "", /) -> list[str]:
        """Names of the files directly in a folder below; none where there is no such folder."""
        found: list[str] = []
        with self._errors(folder, "listed"), suppress(FileNotFoundError):
            self._files.invalidate_cache()
            found = self._files.ls(f"{self._root}/{folder}".rstrip("/"), detail=False)
        return [str(path).rsplit("/", 1)[-1] for path in found]

    def remove(self, name: str, /) -> None:
        """Delete a file, or a folder below and all in it."""
        with self._errors(name, "deleted"), suppress(FileNotFoundError):
            self._files.rm(f"{self._root}/{name}", recursive=True)

    @contextmanager
    def _errors(self, name: str, what: str) -> Iterator[None]:
        """Whatever the store's library raises, in one line that names the file."""
        try:
            yield
        except GainError:
            raise
        except Exception as err:
            reason = " ".join(f"{type(err).__name__}: {err}".split())
            raise ArtifactError(
                f"{self.url}/{name}: cannot be {what} ({reason}); check the address and the "
                "rights there"
            ) from err

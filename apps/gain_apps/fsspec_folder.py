"""A folder on a disk or in an object store, by its fsspec URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gain_core.errors import ArtifactError, ConfigError, GainError
from gain_runtime.files.paths import write_atomically
from gain_runtime.optional import require

__all__ = ["FsspecFolder"]


class FsspecFolder:
    """Files below a URL; what is written is there whole or not at all.

    Parameters
    ----------
    url : str or Path
        A path, or any URL fsspec knows: `s3://bucket/folder`, `gs://bucket/folder`, `file:///mnt`.

    Raises
    ------
    BackendUnavailableError
        If fsspec is not installed.
    ConfigError
        If fsspec does not know the protocol, or lacks the library for it.
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
        """A file's bytes; None where there is none.

        Raises
        ------
        ArtifactError
            If it cannot be read.
        """
        with self._errors(name, "read"):
            try:
                data: bytes = self._files.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None
            return data
        raise AssertionError("unreachable")

    def write(self, name: str, data: bytes, /) -> None:
        """Write a file; folders are made.

        Raises
        ------
        ArtifactError
            If it cannot be written; a file that was there before is untouched then.
        """
        with self._errors(name, "written"):
            path = f"{self._root}/{name}"
            if self._on_disk:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(Path(path), data)
            else:
                self._files.pipe_file(path, data)

    def names(self, folder: str = "", /) -> list[str]:
        """Names of the files directly in a folder below; none where there is no such folder.

        Raises
        ------
        ArtifactError
            If it cannot be listed.
        """
        with self._errors(folder, "listed"):
            self._files.invalidate_cache()
            with suppress(FileNotFoundError):
                found = self._files.ls(f"{self._root}/{folder}".rstrip("/"), detail=False)
                return [str(path).rsplit("/", 1)[-1] for path in found]
        return []

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

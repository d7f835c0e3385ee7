"""The settings file as the memory of cameras that were added and removed while running."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gain_core._optional import require
from gain_core.errors import ConfigError
from gain_runtime.atomic_file import write_atomically

__all__ = ["CameraFile"]

# A file that is made here may come to hold passwords.
NEW_MODE = 0o600


class CameraFile:
    """The tables `[cameras.NAME]` of a TOML file; comments and all other settings stay as they are.

    Parameters
    ----------
    path : str or Path
        Created at the first change if it is missing.
    """

    def __init__(self, path: str | Path, /) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The file's name, without its folder."""
        return self._path.name

    @property
    def writable(self) -> bool:
        """Whether changes can be kept: a file handed over by systemd cannot be written."""
        target = self._path if self._path.exists() else self._path.parent
        return os.access(target, os.W_OK) and os.access(self._path.parent, os.W_OK)

    def put(self, name: str, settings: Mapping[str, Any], /) -> None:
        """Add a camera, or replace its settings.

        Parameters
        ----------
        name : str
        settings : mapping
            Keys as in the file (`update-every`).

        Raises
        ------
        ConfigError
            If the file cannot be read or written; it is as before then.
        """
        self._change(lambda tables: tables.update({name: dict(settings)}) is None)

    def set(self, name: str, key: str, value: Any, /) -> bool:
        """Change one setting of a camera; whether it stands in this file."""

        def change(tables: Any) -> bool:
            if name in tables:
                tables[name][key] = value
            return name in tables

        return self._change(change)

    def remove(self, name: str, /) -> bool:
        """Remove a camera's table; whether there was one."""
        return self._change(lambda tables: tables.pop(name, None) is not None)

    def _change(self, change: Callable[[Any], bool]) -> bool:
        """Read the file anew, change it and replace it where it changed."""
        toml = require("tomlkit", extra="serve")
        with self._lock:
            try:
                mode = stat.S_IMODE(self._path.stat().st_mode) if self._path.exists() else NEW_MODE
                text = self._path.read_text("utf-8") if self._path.exists() else ""
                document = toml.parse(text)
                if "cameras" not in document:
                    # Without a line of its own: only [cameras.NAME] is written.
                    document["cameras"] = toml.table(is_super_table=True)
                if not change(document["cameras"]):
                    return False
                write_atomically(self._path, toml.dumps(document).encode(), mode=mode)
            except (OSError, ValueError) as err:
                raise ConfigError(
                    f"{self._path}: the cameras cannot be kept there ({err}); check the file"
                ) from err
        return True

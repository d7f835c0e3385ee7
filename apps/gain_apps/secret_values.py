"""Filling in secrets that settings only name: `rtsp://${USER}:${PASSWORD}@camera/1`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gain_core.errors import ConfigError

__all__ = ["fill_in", "find_secret", "holds_reference"]

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]{0,127})\}")
DOCKER_SECRETS = Path("/run/secrets")
MOST_BYTES = 4096


def holds_reference(text: str, /) -> bool:
    """Whether a text names a secret."""
    return REFERENCE.search(text) is not None


def fill_in(text: str, /, *, where: str) -> str:
    """Replace each `${NAME}` by what systemd, Docker or the environment knows under that name.

    Parameters
    ----------
    text : str
    where : str
        What messages call it.

    Returns
    -------
    str
        Holds secrets; never print it.

    Raises
    ------
    ConfigError
        If one is not known or cannot be read.
    """

    def value(match: re.Match[str]) -> str:
        found = find_secret(match[1])
        if found is None:
            raise ConfigError(
                f"{where}: ${{{match[1]}}}: expected a systemd credential, a Docker secret or an "
                "environment variable of that name, found none; set one"
            )
        return found

    return REFERENCE.sub(value, text)


def find_secret(name: str, /) -> str | None:
    """A secret by its name; None where nobody knows it.

    Looked for as a file in `$CREDENTIALS_DIRECTORY` (systemd's `LoadCredential=`), then in
    `/run/secrets` (Docker), then as an environment variable.

    Raises
    ------
    ConfigError
        If it is there and cannot be read.
    """
    folders = [DOCKER_SECRETS]
    if "CREDENTIALS_DIRECTORY" in os.environ:
        folders.insert(0, Path(os.environ["CREDENTIALS_DIRECTORY"]))
    for folder in folders:
        path = folder / name
        try:
            with path.open("rb") as file:
                return file.read(MOST_BYTES).decode().strip()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"{path}: the secret cannot be read ({err})") from err
    return os.environ.get(name)

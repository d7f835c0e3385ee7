"""Where a server listens and who may ask it; opening it needs the extra `serve`."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gain_apps.system import find_secret
from gain_core.errors import ConfigError
from gain_runtime.optional import require

if TYPE_CHECKING:
    from gain_apps.serve.cameras import Cameras
    from gain_apps.serve.server import PageServer

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# 16 characters of base64 are 96 bits: out of reach of guessing over a network.
LEAST_TOKEN_CHARS = 16
MOST_TOKEN_CHARS = 512
MAKE_TOKEN = "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(24))' > FILE"
# [HOST:]PORT; an IPv6 address stands in brackets, as in a URL.
PATTERN = re.compile(r"(?:(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:/@?#\s]+)):)?(?P<port>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeAddress:
    """A host and a TCP port.

    Attributes
    ----------
    host : str
        Name or address, without brackets.
    port : int
        0 lets the system choose.
    """

    host: str = LOOPBACK
    port: int

    @classmethod
    def parse(cls, text: str, /) -> ServeAddress:
        """Read `[HOST:]PORT`.

        Parameters
        ----------
        text : str
            `8080`, `0.0.0.0:8080`, `[::1]:8080`. Default of the host: the loopback address.

        Returns
        -------
        ServeAddress

        Raises
        ------
        ConfigError
            If `text` has another form, or the port is above 65535.
        """
        match = PATTERN.fullmatch(text)
        # Digits of other scripts are digits to a regular expression.
        if match is None or not match["port"].isascii() or int(match["port"]) > 65535:
            raise ConfigError(
                f"--serve: expected [HOST:]PORT such as 8080, 0.0.0.0:8080 or [::]:8080, "
                f"got {text!r}"
            )
        return cls(host=match["v6"] or match["host"] or LOOPBACK, port=int(match["port"]))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; False for names other than `localhost`."""
        return is_loopback(self.host)

    @property
    def url(self) -> str:
        """The page's address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"


def is_loopback(host: str, /) -> bool:
    """Whether a host is the loopback address, which only this machine can reach.

    A name or an address without brackets; of names only `localhost` is known.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: str | Path, /) -> str:
    """Read the token that viewers must know; white space around it is ignored.

    ConfigError if the file cannot be read, or the token is too short, too long or not printable
    ASCII.
    """
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(4 * MOST_TOKEN_CHARS)
    except OSError as err:
        raise ConfigError(
            f"--serve-token-file: {path}: cannot be read ({err.strerror}); {MAKE_TOKEN}"
        ) from err
    token = _checked(content, f"--serve-token-file: {path}")
    if os.name == "posix" and stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
        logger.warning("%s: other users may read the token; chmod 600 it", path)
    return token


def token_from_secrets() -> str | None:
    """The token that systemd, Docker or the environment provides; ConfigError as `read_token`.

    From the credential or secret `serve-token`, or the variable `GAIN_SERVE_TOKEN`; None if there
    is neither.
    """
    for name in ("serve-token", "GAIN_SERVE_TOKEN"):
        found = find_secret(name)
        if found is not None:
            return _checked(found.encode("utf-8", "surrogateescape"), name)
    return None


def _checked(content: bytes, where: str) -> str:
    """A token that is long and printable."""
    token = content.strip()
    printable = all(0x21 <= byte <= 0x7E for byte in token)
    if not printable or not LEAST_TOKEN_CHARS <= len(token) <= MOST_TOKEN_CHARS:
        raise ConfigError(
            f"{where}: expected one line of {LEAST_TOKEN_CHARS} to "
            f"{MOST_TOKEN_CHARS} printable ASCII characters, got {len(token)} bytes"
            f"{'' if printable else ' with others in them'}; {MAKE_TOKEN}"
        )
    return token.decode("ascii")


LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")


def open_server(
    cameras: Cameras,
    /,
    *,
    address: ServeAddress,
    token: str | None = None,
) -> PageServer:
    """Serve the page of all cameras in a thread of its own.

    Parameters
    ----------
    cameras : Cameras
        What the page shows.
    address : ServeAddress
        Where to listen.
    token : str, optional
        Token that viewers must give.

    Returns
    -------
    PageServer
        Already listening; a context manager.

    Raises
    ------
    ConfigError
        If other machines can reach the address and there is no token.
    BackendUnavailableError
        If the extra `serve` is not installed.
    StreamError
        If the address cannot be listened on.
    """
    if token is None and not address.is_loopback:
        raise ConfigError(
            f"--serve {address.host}:{address.port}: other machines can reach it, so it needs "
            "--serve-token-file FILE; leave the host out to serve this machine only"
        )
    for library in LIBRARIES:
        require(library, extra="serve")
    from gain_apps.serve.server import PageServer

    return PageServer(cameras, address=address, token=token)

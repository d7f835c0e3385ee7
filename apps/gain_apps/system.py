"""What is asked of the operating system: files, heat, systemd, secrets, process title, streams."""

from __future__ import annotations

import logging
import os
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from gain_core.errors import ConfigError, StreamError
from gain_runtime.optional import install_line
from gain_runtime.sources.uri import redact, redact_to_host

logger = logging.getLogger(__name__)


def read_text(path: Path, /) -> str:
    """What a kernel file says; nothing where it cannot be read."""
    try:
        return path.read_text("ascii", "replace").strip().rstrip("\0")
    except OSError:
        return ""


def whole_number(text: str, /) -> int | None:
    """A whole number, or None."""
    try:
        return int(text)
    except ValueError:
        return None


def read_number(path: Path, /) -> int | None:
    """The whole number in a kernel file, or None."""
    return whole_number(read_text(path))


def read_numbers(paths: Iterable[Path], /) -> list[int]:
    """The numbers that can be read; a sensor may be asleep."""
    return [value for path in paths if (value := read_number(path)) is not None]


def peak_memory_bytes() -> int:
    """The most memory this process has held at once (resident set size)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024


def notify(message: str, /) -> None:
    """Send `READY=1`, `STATUS=...` or the like to the service manager, if any: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # An abstract socket's name begins with NUL, written as @.
    target = f"\0{address[1:]}" if address[0] == "@" else address
    # A manager that has gone is no reason to end.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.sendto(message.encode("utf-8", "replace"), target)


def watchdog_interval_s() -> float | None:
    """Seconds within which systemd wants a sign of life (`WatchdogSec=`); None without."""
    # Meant for another process, where a wrapper was started.
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(os.environ.get("WATCHDOG_USEC", "")) / 1e6 or None
    except ValueError:
        return None


EVERY_S = 10.0
COOLING = "class/thermal/cooling_device*"
ZONES = "class/thermal/thermal_zone*/temp"
# x86 counts the times each core was slowed down.
COUNTERS = "devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"


class ThermalWatch:
    """Looks at sysfs every ten seconds and says when throttling begins and ends.

    Slowed down means that a passive cooling device (a limit on a clock, not a fan) is in use, or
    that a core's counter of throttling has grown since the last look. `clock` gives monotonic
    seconds.
    """

    def __init__(
        self, *, root: Path = Path("/sys"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._clock = clock
        self._next_s = clock()
        self._count = self._counted()
        # At the last look; the hottest zone is None where none could be read.
        self.throttled = False
        self.celsius = self._hottest()

    def tick(self) -> None:
        """Look, if the last look is old enough, and say what changed."""
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        before, self._count = self._count, self._counted()
        self.celsius = self._hottest()
        throttled = self._count > before or self._limited()
        if throttled == self.throttled:
            return
        self.throttled = throttled
        known = self.celsius is not None
        degrees = f"{self.celsius:.0f} °C" if known else "temperature unknown"
        if throttled:
            logger.warning(
                "the device slows itself down (%s); improve its cooling or lower its load", degrees
            )
        else:
            logger.warning("the device runs at full speed again (%s)", degrees)

    def _hottest(self) -> float | None:
        """The hottest zone now."""
        degrees = [value / 1000.0 for value in read_numbers(self._root.glob(ZONES))]
        return max(degrees, default=None)

    def _limited(self) -> bool:
        """Whether a clock is limited."""
        return any(
            "fan" not in read_text(device / "type").lower() and read_number(device / "cur_state")
            for device in self._root.glob(COOLING)
        )

    def _counted(self) -> int:
        """All cores' counters together."""
        return sum(read_numbers(self._root.glob(COUNTERS)))


def hide_credentials(arguments: Sequence[str], /) -> None:
    """Hide the credentials in URIs of the command line from the list of processes."""
    shown = [_shown(argument) for argument in arguments]
    if shown == list(arguments):
        return
    if find_spec("setproctitle") is None:
        logger.warning(
            "the list of processes shows the credentials of the command line to every user of "
            "this machine; put them into a file for --config, or %s",
            install_line("serve"),
        )
        return
    import setproctitle

    setproctitle.setproctitle(" ".join([os.path.basename(sys.argv[0]), *shown]))  # noqa: PTH119


# `--flag=URI`, and `webhook=URI` of --set.
NAMED = re.compile(r"^((?:--[\w-]+=)?(?:[\w-]+=)?)(.*)", re.DOTALL)


def _shown(argument: str) -> str:
    """An argument without credentials, also as `--flag=URI` and `KEY=URI`."""
    name, text = NAMED.findall(argument)[0]
    # The path of a webhook is its password, and nobody can tell from here what a URL is for.
    web = text.lower().startswith(("http://", "https://"))
    return f"{name}{redact_to_host(text) if web else redact(text)}"


# Our packages only: at debug level Pillow alone would log every chunk of every image.
PACKAGES = ("gain_apps", "gain_scenes", "gain_runtime", "gain_core")


@contextmanager
def logging_to(handler: logging.Handler, level: int, /) -> Iterator[None]:
    """Our packages' log lines go to a handler, from a level on, while the block runs."""
    loggers = [logging.getLogger(name) for name in PACKAGES]
    previous = [each.level for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(level)
    try:
        yield
    finally:
        for each, before in zip(loggers, previous, strict=True):
            each.removeHandler(handler)
            each.setLevel(before)


NAMES = ("standard input", "standard output", "standard error")


def open_missing_streams() -> frozenset[int]:
    """Put the null device where a standard stream was closed (`>&-`); the numbers of those.

    Without it, the next file that is opened would get its number, and whatever a library prints.
    """
    closed = set()
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            # The lowest free number is given, which is this one.
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    return frozenset(closed)


def closed_stream(number: int, /, *, wanted_by: str) -> ConfigError:
    """The error where a standard stream is wanted that was closed."""
    return ConfigError(
        f"{wanted_by}: {NAMES[number]} is closed; name a file instead, or do not close it"
    )


def say(line: str, /) -> None:
    """Write a line to standard error; where nobody can read it, nobody is told."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def write_result(line: str, /) -> None:
    """Write a line of results to standard output; StreamError as `finish_output`."""
    with _writing_results():
        print(line, flush=True)


def finish_output() -> None:
    """Write out what standard output holds; a reader that has gone (`| head`) is no error of ours.

    StreamError if it cannot be written: the results are not where the caller looks for them.
    """
    with _writing_results():
        sys.stdout.flush()


@contextmanager
def _writing_results() -> Iterator[None]:
    """Standard output, given up once it cannot be written."""
    try:
        yield
    except OSError as err:
        # Python flushes once more when it exits, and would complain.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        if not isinstance(err, BrokenPipeError):
            raise StreamError(
                f"standard output: cannot be written ({err.strerror}); results are lost"
            ) from err


REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]{0,127})\}")
DOCKER_SECRETS = Path("/run/secrets")
MOST_BYTES = 4096


def fill_in(text: str, /, *, where: str) -> str:
    """Replace each `${NAME}` by what systemd, Docker or the environment knows under that name.

    The result holds secrets; never print it. ConfigError beginning with `where` if one is not known
    or cannot be read.
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
    """A secret by its name; None where nobody knows it, ConfigError if it cannot be read.

    Looked for as a file in `$CREDENTIALS_DIRECTORY` (systemd's `LoadCredential=`), then in
    `/run/secrets` (Docker), then as an environment variable.
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

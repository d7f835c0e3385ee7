"""What `ps` shows of a command line that holds credentials."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from gain_runtime.uri import redact, redact_to_host

__all__ = ["hide_credentials"]

logger = logging.getLogger(__name__)


def hide_credentials(arguments: Sequence[str], /) -> None:
    """Show URIs of the command line without their credentials in the list of processes.

    Parameters
    ----------
    arguments : sequence of str
        As they were given, without the program's name.
    """
    shown = [_shown(argument) for argument in arguments]
    if shown == list(arguments):
        return
    if find_spec("setproctitle") is None:
        logger.warning(
            "the list of processes shows the credentials of the command line to every user of "
            "this machine; put them into a file for --config, or install gain-edge[serve]"
        )
        return
    import setproctitle

    setproctitle.setproctitle(" ".join([os.path.basename(sys.argv[0]), *shown]))  # noqa: PTH119


def _shown(argument: str) -> str:
    """An argument without credentials, also as `--flag=URI`."""
    flag, equals, value = argument.partition("=")
    named = equals and flag.startswith("--")
    text = value if named else argument
    # The path of a webhook is its password, and nobody can tell from here what a URL is for.
    web = text.lower().startswith(("http://", "https://"))
    shown = redact_to_host(text) if web else redact(text)
    return f"{flag}={shown}" if named else shown

"""Importing optional libraries, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from gain_core.errors import BackendUnavailableError


def install_line(*extras: str) -> str:
    """The command that installs one of these extras of this project, which is not on PyPI."""
    names = " or ".join(f"'.[{extra}]'" for extra in extras)
    return f"pip install -e {names} in a checkout of gain-edge"


def require(module: str, /, *, extra: str) -> ModuleType:
    """Import an optional library, or a BackendUnavailableError that says which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise BackendUnavailableError(
            f"{module}: needed here but cannot be imported ({err}); "
            f"install it with: {install_line(extra)}"
        ) from err

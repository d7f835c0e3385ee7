"""Importing optional libraries, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from gain_core.errors import BackendUnavailableError


def install_line(*extras: str) -> str:
    """The command that installs an extra of this project, which is not on PyPI.

    Parameters
    ----------
    *extras : str
        Names from `pyproject.toml`; several are alternatives.

    Returns
    -------
    str
    """
    names = " or ".join(f"'.[{extra}]'" for extra in extras)
    return f"pip install -e {names} in a checkout of gain-edge"


def require(module: str, /, *, extra: str) -> ModuleType:
    """Import an optional library or say which extra brings it.

    Parameters
    ----------
    module : str
        Dotted module name.
    extra : str
        Name of the extra of this project that installs it.

    Returns
    -------
    module

    Raises
    ------
    BackendUnavailableError
        If the import fails; the cause is chained.
    """
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise BackendUnavailableError(
            f"{module}: needed here but cannot be imported ({err}); "
            f"install it with: {install_line(extra)}"
        ) from err

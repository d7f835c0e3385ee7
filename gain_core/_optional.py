"""Importing optional libraries, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from gain_core.errors import BackendUnavailableError


def require(module: str, /, *, extra: str) -> ModuleType:
    """Import an optional library or say which extra brings it.

    Parameters
    ----------
    module : str
        Dotted module name.
    extra : str
        Name of the extra of the `gain-edge` distribution that installs it.

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
            f"install it with: pip install 'gain-edge[{extra}]'"
        ) from err

"""Getting a pre-trained timm model from its hub, or saying in one line why that failed."""

from __future__ import annotations

import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gain_core._optional import require
from gain_core.errors import ArtifactError

timm = require("timm", extra="export")
hub_constants: Any = require("huggingface_hub.constants", extra="export")

__all__ = ["create_pretrained"]

_TIMEOUT_S = 5.0


def create_pretrained(tag: str, /, **settings: Any) -> Any:
    """Create a timm model with its published weights, from the local cache or the hub.

    Parameters
    ----------
    tag : str
        Full timm tag.
    settings
        Passed to `timm.create_model`.

    Returns
    -------
    timm model

    Raises
    ------
    ArtifactError
        If the weights are neither cached nor to be had; what was tried is named.
    """
    chosen: bool = hub_constants.HF_HUB_OFFLINE
    unreachable = None if chosen else _why_unreachable()
    offline = chosen or unreachable is not None
    try:
        with _hub_offline(offline):
            return timm.create_model(tag, pretrained=True, **settings)
    except _hub_errors() as err:
        if offline:
            reason = unreachable or "HF_HUB_OFFLINE is set"
        else:
            reason = " ".join(str(err).split()) or type(err).__name__
        name = timm.get_pretrained_cfg(tag).hf_hub_id or f"timm/{tag}"
        page = f"{hub_constants.ENDPOINT}/{name}"
        raise ArtifactError(
            f"{tag}: its weights are not in the cache {hub_constants.HF_HUB_CACHE} and cannot be "
            f"fetched from {page} ({reason}); fetch model.safetensors from there on another "
            "machine and give it with --weights FILE"
        ) from err


def _why_unreachable() -> str | None:
    """Why the hub does not answer; None if it does.

    Asked once up front, because the hub's client retries for most of a minute.
    """
    request = urllib.request.Request(hub_constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as err:
        return str(err.reason)
    except (OSError, ValueError, http.client.HTTPException) as err:
        return str(err) or type(err).__name__
    return None


@contextmanager
def _hub_offline(offline: bool) -> Iterator[None]:
    """Keep the hub's client to its cache meanwhile."""
    before: bool = hub_constants.HF_HUB_OFFLINE
    hub_constants.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        hub_constants.HF_HUB_OFFLINE = before


def _hub_errors() -> tuple[type[Exception], ...]:
    """What loading from the hub can raise; its HTTP library's errors have a base of their own."""
    httpx = sys.modules.get("httpx")
    return (OSError, RuntimeError, ValueError, *([httpx.HTTPError] if httpx else []))

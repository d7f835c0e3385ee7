"""What tests of every folder share."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gain_export import write


@pytest.fixture(scope="session", autouse=True)
def drawn_once() -> Iterator[None]:
    """The images that every verification draws anew are the same each time."""
    draw = functools.cache(write.synthetic_images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            write, "synthetic_images", lambda *args, **settings: [*draw(*args, **settings)]
        )
        yield


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], Any]], Any]:
    """Waits for the first true value of a condition; a failure after two minutes."""

    def wait_until(happened: Callable[[], Any]) -> Any:
        end = time.monotonic() + 120.0
        while time.monotonic() < end:
            if value := happened():
                return value
            time.sleep(0.01)
        raise AssertionError(f"did not happen within 120 s: {happened}")

    return wait_until

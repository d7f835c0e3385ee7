"""What tests of every folder share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

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

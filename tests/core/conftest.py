"""What the core's tests share: the array libraries, and arrays that no test may write to."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest


@dataclass(frozen=True)
class Library:
    """One array library with its way in and out.

    Attributes
    ----------
    name : str
    from_numpy : callable
        NumPy array to an array of the library, on the device under test.
    to_numpy : callable
        And back; the only host read a test makes.
    """

    name: str
    from_numpy: Callable[[np.ndarray], Any]
    to_numpy: Callable[[Any], np.ndarray]


def _read_only(array: np.ndarray) -> np.ndarray:
    copy = np.array(array)
    copy.setflags(write=False)
    return copy


class HostReadError(RuntimeError):
    """An array on the device was read by the host."""


HOST_READS = (
    "__array__",
    "__bool__",
    "__complex__",
    "__dlpack__",
    "__float__",
    "__index__",
    "__int__",
    "__iter__",
)


@contextmanager
def _strict_library() -> Iterator[Library]:
    """array_api_strict on its second device, every host read and data-dependent shape an error.

    The library by itself refuses `np.asarray` there only; `float()` and `bool()` would pass.
    """
    strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed")
    device = strict.Device("device1")
    kind = type(strict.asarray(0.0))

    def from_numpy(array: np.ndarray) -> Any:
        return strict.asarray(np.array(array), device=device)

    def to_numpy(array: Any) -> np.ndarray:
        assert array.device == device
        return np.array(array._array)

    def refuse(name: str) -> Callable[..., Any]:
        def read(*_args: object, **_kwargs: object) -> Any:
            raise HostReadError(f"host read through {name}")

        return read

    flags = strict.ArrayAPIStrictFlags(boolean_indexing=False, data_dependent_shapes=False)
    with flags, pytest.MonkeyPatch.context() as patch:
        for name in HOST_READS:
            patch.setattr(kind, name, refuse(name), raising=False)
        yield Library("array_api_strict", from_numpy, to_numpy)


def _torch_library(device: str) -> Library:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return Library(
        f"torch on {device}",
        lambda array: torch.from_numpy(np.array(array)).to(device),
        lambda tensor: tensor.cpu().numpy(),
    )


def _cupy_library() -> Library:
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        pytest.skip("cupy is not installed")
    if cupy.cuda.runtime.getDeviceCount() == 0:
        pytest.skip("cupy has no CUDA device")
    return Library("cupy", cupy.asarray, cupy.asnumpy)


@pytest.fixture(
    params=[
        pytest.param("numpy", id="numpy"),
        pytest.param("read-only", id="numpy-read-only"),
        pytest.param("strict", id="array_api_strict"),
        pytest.param("torch", id="torch"),
        pytest.param("torch-cuda", id="torch-cuda", marks=pytest.mark.gpu),
        pytest.param("cupy", id="cupy", marks=pytest.mark.gpu),
    ]
)
def xp(request: pytest.FixtureRequest) -> Iterator[Library]:
    """The array libraries, `array_api_strict` with every host read an error."""
    match request.param:
        case "numpy":
            yield Library("numpy", np.array, np.asarray)
        case "read-only":
            yield Library("read-only numpy", _read_only, np.asarray)
        case "strict":
            with _strict_library() as library:
                yield library
        case "torch":
            yield _torch_library("cpu")
        case "torch-cuda":
            yield _torch_library("cuda")
        case "cupy":
            yield _cupy_library()


@pytest.fixture
def strict() -> Iterator[Library]:
    """array_api_strict alone, with every host read an error."""
    with _strict_library() as library:
        yield library

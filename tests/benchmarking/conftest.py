"""The shipped road signs as an artifact, and as a session of a device that works lazily."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lazy_streams import LazyArray, LazyDevice, LazyStream, lazy_cupy

from gain_export import PreprocessOverrides, export_onnx
from gain_runtime.session import Features

# What a forward pass takes on the device, in milliseconds.
FORWARD_MS = 10.0
ROADSIGNS = Path(__file__).resolve().parents[2] / "models" / "roadsigns"


@pytest.fixture(scope="session")
def artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """53 classes of 64 x 64 px, some 20 ms a frame on one core."""
    output = tmp_path_factory.mktemp("artifact") / "roadsigns.gain.onnx"
    half = (0.5, 0.5, 0.5)
    export_onnx(
        ROADSIGNS / "roadsigns.onnx",
        output=output,
        labels=ROADSIGNS / "labels.txt",
        preprocess=PreprocessOverrides(
            img_size=(64, 64), mean=half, std=half, interpolation="bicubic", crop_fraction=1.0
        ),
    )
    return output


class LazySession:
    """A session of the host behind a stream; takes device arrays alone.

    Attributes
    ----------
    read : list of (address, shape)
        Where each batch was read from.
    """

    provider = "CUDAExecutionProvider"

    def __init__(self, session: Any, device: LazyDevice, cupy: Any) -> None:
        self._session, self._device, self._cupy = session, device, cupy
        self.artifact = session.artifact
        self.stream = LazyStream(device)
        self.read: list[tuple[int, tuple[int, ...]]] = []

    def infer(self, pixel_values: LazyArray, /) -> Features:
        assert isinstance(pixel_values, LazyArray), "the session would copy pageable memory itself"
        assert self._device.current is self.stream
        self.read.append((pixel_values.data.ptr, pixel_values.shape))
        manifest = self.artifact.manifest
        features, logits = (
            self._cupy.empty((len(pixel_values), size), np.float32)
            for size in (manifest.feature_dim, manifest.num_classes)
        )
        # As a network does, whoever owns the memory by then.
        self.stream.add(
            partial(self._run, pixel_values.values, features.values, logits.values),
            took_ms=FORWARD_MS,
        )
        return Features(features, logits)

    def _run(self, pixels: np.ndarray, features: np.ndarray, logits: np.ndarray) -> None:
        features[...], logits[...] = self._session.infer(pixels.copy())


@pytest.fixture
def lazy_device(request: pytest.FixtureRequest) -> LazyDevice:
    """Works as late and in as odd an order as CUDA allows; the parameter is its seed."""
    return LazyDevice(getattr(request, "param", 0))


@pytest.fixture
def lazy_module(monkeypatch: pytest.MonkeyPatch, lazy_device: LazyDevice) -> Any:
    """What is used of CuPy, on that device; `pinned` holds the memory that was asked for."""
    module = lazy_cupy(lazy_device)
    module.pinned = []
    allocate = module.cuda.alloc_pinned_memory

    def alloc_pinned_memory(num_bytes: int) -> bytearray:
        module.pinned.append(allocate(num_bytes))
        return module.pinned[-1]

    module.cuda.alloc_pinned_memory = alloc_pinned_memory
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def lazily(lazy_device: LazyDevice, lazy_module: Any) -> Callable[[Any], LazySession]:
    """Puts a session of the host on the device."""
    return lambda session: LazySession(session, lazy_device, lazy_module)

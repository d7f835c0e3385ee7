"""Sessions on engines: refused clearly where they cannot run, exact where they can."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from gain_core.errors import (
    ArrayError,
    BackendUnavailableError,
    ConfigError,
    EngineError,
)
from gain_export.engine import EngineOptions, build_engine
from gain_runtime.sessions.onnx import OnnxSession
from gain_runtime.sessions.session import open_adaptive_session, open_session
from gain_runtime.sessions.tensorrt import TensorRTSession
from gain_runtime.sessions.tensorrt_library import (
    cache_file,
    create,
    installed_library,
    load_library,
    make_log,
)

SM89 = EngineOptions(compute_capabilities=(89,), builder_level=0)
HAS_GPU = Path("/dev/nvidia0").exists()


@pytest.mark.skipif(HAS_GPU, reason="there is a driver")
def test_missing_driver_is_one_clear_line(artifact_path, lay_engine):
    lay_engine(SM89)
    with pytest.raises(BackendUnavailableError, match="no usable NVIDIA driver") as caught:
        open_session(artifact_path, device="tensorrt")
    assert str(caught.value).startswith("tensorrt_rtx: ")
    assert "CUDA driver version is insufficient" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"artifact_sha256": "0" * 64}, "artifact_sha256: built with 000", id="stale"),
        pytest.param({"library": "other"}, "library: built with other, expected", id="library"),
    ],
)
def test_foreign_engine_is_refused_before_the_library_reads_it(
    artifact_path, lay_engine, changes, words
):
    lay_engine(SM89, **changes)
    with pytest.raises(EngineError, match=words):
        open_session(artifact_path, device="tensorrt")


def test_engine_with_host_code_must_be_allowed(artifact_path, lay_engine):
    lay_engine(SM89, flags=("TF32", "VERSION_COMPATIBLE"))
    with pytest.raises(EngineError, match=r"code that would run on the host; .*allow_host_code"):
        open_session(artifact_path, device="tensorrt")
    if not HAS_GPU:
        with pytest.raises(BackendUnavailableError, match="no usable NVIDIA driver"):
            open_session(artifact_path, device="tensorrt", allow_host_code=True)


def test_adaptive_files_are_refused():
    with pytest.raises(ConfigError, match="tensorrt runs artifacts"):
        open_adaptive_session(None, device="tensorrt")


def test_missing_library_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(BackendUnavailableError, match=r"'\.\[tensorrt-rtx\]'"):
        load_library("tensorrt_rtx")


def test_no_library_at_all_names_both(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendUnavailableError, match="neither tensorrt nor tensorrt_rtx"):
        installed_library()


def test_object_the_library_cannot_make_is_one_clear_line(rtx):
    library = load_library(rtx)
    log = make_log(library)
    log.log(log.ERROR, "no driver\nat all")
    with pytest.raises(
        BackendUnavailableError, match=r"^tensorrt_rtx: cannot start here: no driver at all; "
    ):
        # An abstract class of the library: the bindings answer with the same TypeError.
        create(library.IHostMemory, log)


def test_log_keeps_the_loud_lines_and_the_first_error(rtx):
    log = make_log(load_library(rtx))
    assert log.first_error() == "no reason was given"
    for severity, line in (
        (log.VERBOSE, "chatter"),
        (log.WARNING, "slow"),
        (log.ERROR, "the cause"),
        (log.INTERNAL_ERROR, "what followed"),
    ):
        log.log(severity, line)
    assert list(log.tail) == ["slow", "the cause", "what followed"]
    assert log.first_error() == "the cause"


def test_cache_lies_in_the_users_folder_by_library_and_version(rtx, tmp_path):
    library = load_library(rtx)
    name = f"tensorrt_rtx-{library.__version__}-no-gpu.timing"
    assert cache_file(library, None, "timing") == tmp_path / "cache/gain-edge/tensorrt" / name


class Native:
    """What the library made, as far as it is asked here."""

    def create_execution_context(self) -> Native:
        return Native()


class FailingMemory:
    """A device that reports a failure whenever it is waited for."""

    def __init__(self) -> None:
        self.buffers: list[weakref.ref] = []

    def empty(self, shape):
        array = np.empty(shape, np.float32)
        self.buffers.append(weakref.ref(array))
        return array

    def synchronize(self):
        raise EngineError("cuda:0: cudaErrorIllegalAddress")


def test_closing_releases_everything_where_the_device_has_failed(
    artifact_path, lay_engine, monkeypatch
):
    lay_engine(SM89)
    monkeypatch.setattr(
        "gain_runtime.sessions.tensorrt._deserialise", lambda *args: (Native(), Native())
    )
    monkeypatch.setattr("gain_runtime.sessions.tensorrt.CudaMemory", FailingMemory)
    monkeypatch.setattr(TensorRTSession, "_check_tensors", lambda self, path: None)
    session = TensorRTSession(artifact_path)
    held = [weakref.ref(session._context), weakref.ref(session._engine)]
    held += [weakref.ref(session._runtime), *session._memory.buffers]
    # The input, features and logits.
    assert len(held) == 3 + 3
    with pytest.raises(EngineError, match="cudaErrorIllegalAddress"):
        session.close()
    gc.collect()
    assert [item() for item in held] == [None] * 6
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.infer(images(1))


def images(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, 3, 32, 32)).astype(np.float32)


@pytest.mark.gpu
@pytest.mark.trt
def test_engine_agrees_with_onnx_runtime(artifact_path):
    build_engine(artifact_path, options=EngineOptions(max_batch=4))
    with TensorRTSession(artifact_path) as session, OnnxSession(artifact_path) as reference:
        session.warm_up()
        for size in (0, 1, 3, 4):
            pixel_values = images(size, seed=size)
            pairs = zip(session.infer(pixel_values), reference.infer(pixel_values), strict=True)
            for got, expected in pairs:
                np.testing.assert_allclose(got, expected, rtol=1e-2, atol=1e-2)
        with pytest.raises(ArrayError, match="--set max-batch=5"):
            session.infer(images(5))
    with pytest.raises(EngineError, match="closed"):
        session.infer(images(1))

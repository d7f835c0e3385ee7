"""Loading a graph into ONNX Runtime on the provider that was asked for, and on no other."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gain_core.errors import BackendUnavailableError, EngineError

try:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as native
except ImportError as err:
    raise BackendUnavailableError(
        f"onnxruntime: cannot be imported ({err}); reinstall it with: pip install "
        "--force-reinstall --no-deps onnxruntime, or onnxruntime-gpu and the CUDA libraries it was "
        "built for; where both are installed uninstall both first, they hold the same files"
    ) from err

__all__ = [
    "CPU_PROVIDER",
    "CUDA_PROVIDER",
    "NATIVE_ERRORS",
    "check_provider",
    "create_native",
    "cuda_options",
    "log_placement",
    "one_line",
]

logger = logging.getLogger(__name__)

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

_LOG_ERRORS_ONLY = 3

# ONNX Runtime's exceptions share no base class of their own.
NATIVE_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        value
        for value in vars(native).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ),
)

_Native: TypeAlias = "onnxruntime.InferenceSession"


def cuda_options(*, tf32: bool = False) -> dict[str, str]:
    """The CUDA provider's options.

    Parameters
    ----------
    tf32 : bool, optional
        Whether matrix products of float32 may be rounded to ten bits of mantissa.

    Returns
    -------
    dict
    """
    return {"use_tf32": str(int(tf32))}


def check_provider(provider: str, /) -> None:
    """Refuse a provider that this ONNX Runtime was built without.

    Parameters
    ----------
    provider : str

    Raises
    ------
    BackendUnavailableError
        If it is not there; one that is there may still find no driver.
    """
    available = onnxruntime.get_available_providers()
    if provider not in available:
        raise _unavailable(provider, f"this ONNX Runtime has {', '.join(available)} only")


def create_native(
    path: Path,
    provider: str,
    num_threads: int | None,
    *,
    options: Mapping[str, str] | None = None,
) -> _Native:
    """Load the graph and make sure the provider in use is the one that was asked for.

    ONNX Runtime lists providers that are compiled in but cannot run here, and replaces one that
    fails by the CPU with a mere warning (microsoft/onnxruntime#27177). `options` are the
    provider's; on CUDA they are `cuda_options` unless others are given.
    """
    check_provider(provider)
    if provider == CUDA_PROVIDER:
        _preload_cuda()
        options = cuda_options() if options is None else options
    try:
        session = onnxruntime.InferenceSession(
            path,
            _session_options(num_threads),
            providers=_providers(provider, options),
            enable_fallback=0,
        )
    except NATIVE_ERRORS as err:
        if provider != CPU_PROVIDER:
            raise _unavailable(provider, one_line(err)) from err
        raise EngineError(
            f"{path}: ONNX Runtime {onnxruntime.__version__} cannot load it: {one_line(err)}; "
            "export the model again or update onnxruntime"
        ) from err
    session.disable_fallback()
    in_use = session.get_providers()[0]
    if in_use != provider:
        raise _unavailable(provider, f"ONNX Runtime put {in_use} in its place")
    return session


def _session_options(num_threads: int | None) -> Any:
    """Quiet, and able to say afterwards where the nodes went."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS_ONLY
    if num_threads is not None:
        options.intra_op_num_threads = num_threads
    with contextlib.suppress(*NATIVE_ERRORS):  # an entry older versions do not know
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def _providers(provider: str, options: Mapping[str, str] | None) -> list[Any]:
    """The provider with its options; the CPU stays second, for shape arithmetic belongs there."""
    first = (provider, dict(options)) if options else provider
    return [first] if provider == CPU_PROVIDER else [first, CPU_PROVIDER]


def _unavailable(provider: str, reason: str) -> BackendUnavailableError:
    """The error for a provider that cannot be used, with its remedy."""
    remedy = "choose another provider"
    if provider == CUDA_PROVIDER:
        # The wheel without CUDA holds the same files, and may be the one that was written last.
        remedy = (
            "install CUDA, and then: pip install 'gain-edge[gpu]' && pip uninstall -y onnxruntime "
            "&& pip install --force-reinstall --no-deps onnxruntime-gpu; or use the device cpu"
        )
    return BackendUnavailableError(f"{provider}: cannot be used here ({reason}); {remedy}")


def _preload_cuda() -> None:
    """Load CUDA's libraries from their wheels where this ONNX Runtime knows how to."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:
        return
    said = io.StringIO()
    with contextlib.redirect_stdout(said):  # it prints what it did not find
        preload()
    if said.getvalue():
        logger.debug("preload_dlls: %s", said.getvalue().strip())


def log_placement(session: _Native, provider: str) -> None:
    """Say how many nodes run on the provider, where ONNX Runtime can tell (1.24 on)."""
    assignment = getattr(session, "get_provider_graph_assignment_info", None)
    if assignment is None:
        return
    nodes = [(part.ep_name, node.op_type) for part in assignment() for node in part.get_nodes()]
    elsewhere = sorted({op_type for name, op_type in nodes if name != provider})
    logger.info(
        "%s executes %d of %d nodes%s",
        provider,
        sum(name == provider for name, _ in nodes),
        len(nodes),
        f"; elsewhere: {', '.join(elsewhere)}" if elsewhere else "",
    )


def one_line(err: Exception) -> str:
    """ONNX Runtime's messages span lines; ours do not."""
    return " ".join(str(err).split())

"""The same forward pass in other libraries, in the same run and on the same pixel values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from gain_apps.benchmarking.stages import percentiles
from gain_core.errors import BackendUnavailableError, EngineError, GainError, one_line
from gain_runtime.files.artifact import Artifact
from gain_runtime.optional import require
from gain_runtime.sessions.session import Device, open_session

if TYPE_CHECKING:
    from gain_apps.bench import BenchConfig

__all__ = [
    "Rival",
    "compare_rivals",
    "list_rivals",
]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
# (B, 3, height_px, width_px) pixel values to (B, K) logits in host memory.
Forward = Callable[[Floats], Floats]

Given = ParamSpec("Given")
Result = TypeVar("Result")

WARM_UP_ROUNDS = 3
TORCH_NOT_ASKED = "needs --timm NAME, because an artifact holds no PyTorch model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One way to run the network.

    Attributes
    ----------
    name : str
    open : callable
        Opens it for as long as the context lasts; `BackendUnavailableError` where it is not there.
    same_weights : bool
        Whether its predictions are expected to be the artifact's.
    """

    name: str
    open: Callable[[], AbstractContextManager[Forward]]
    same_weights: bool = True


def list_rivals(artifact: Artifact, config: BenchConfig, /) -> list[Rival]:
    """Everything a comparison names, whether or not it is there."""
    trained = config.weights is not None
    return [
        Rival(name="onnxruntime cpu", open=lambda: _session(artifact, "cpu", config)),
        Rival(name="onnxruntime cuda", open=lambda: _session(artifact, "cuda", config)),
        Rival(name="tensorrt", open=lambda: _session(artifact, "tensorrt", config)),
        *(
            Rival(
                name=f"torch {kind} {device}",
                open=lambda kind=kind, device=device: _torch(  # type: ignore[misc]
                    artifact, config, device=device, compiled=kind == "compile"
                ),
                same_weights=trained,
            )
            for device in ("cpu", "cuda")
            for kind in ("eager", "compile")
        ),
    ]


def compare_rivals(
    rivals: list[Rival], pixel_values: Floats, /, *, rounds: int, expected: Floats
) -> list[dict[str, Any]]:
    """Measure one after another; each is closed before the next is opened.

    They do not take turns: a library's threads that wait by spinning would slow down the next.

    Parameters
    ----------
    rivals : list of Rival
    pixel_values : array, (B, 3, height_px, width_px) float32
    rounds : int
        Measured forward passes of each.
    expected : array, (B, K) float32
        The artifact's logits.

    Returns
    -------
    list of dict
        `name`, and either `forward_ms` per batch, `rate_hz` and `top1_agreement_percent`, or
        `absent` with the reason.
    """
    rows: list[dict[str, Any]] = []
    for rival in rivals:
        logger.info("comparing: %s", rival.name)
        try:
            with rival.open() as forward:
                row = _measured(forward, pixel_values, rounds=rounds)
        except GainError as err:
            # The others' numbers are worth keeping; the reason stands in this one's place.
            rows.append({"name": rival.name, "absent": one_line(err)})
            continue
        same = np.argmax(row.pop("logits"), axis=1) == np.argmax(expected, axis=1)
        agreement = 100.0 * float(np.mean(same)) if rival.same_weights else None
        rows.append({"name": rival.name, **row, "top1_agreement_percent": agreement})
    return rows


def _measured(forward: Forward, pixel_values: Floats, *, rounds: int) -> dict[str, Any]:
    """Times of one library, and its last logits."""
    for _ in range(WARM_UP_ROUNDS):
        logits = forward(pixel_values)
    spent = []
    for _ in range(rounds):
        started = perf_counter_ns()
        logits = forward(pixel_values)
        spent.append((perf_counter_ns() - started) / 1e6)
    rate_hz = 1e3 * len(pixel_values) * rounds / sum(spent)
    return {"forward_ms": percentiles(spent), "rate_hz": round(rate_hz, 3), "logits": logits}


@contextmanager
def _session(artifact: Artifact, device: Device, config: BenchConfig) -> Iterator[Forward]:
    """A session of our own, on the device asked for and on no other."""
    with open_session(
        artifact,
        device=device,
        num_threads=config.num_threads,
        allow_host_code=config.allow_host_code,
    ) as session:
        yield lambda pixel_values: session.infer(pixel_values).logits


@contextmanager
def _torch(
    artifact: Artifact, config: BenchConfig, *, device: str, compiled: bool
) -> Iterator[Forward]:
    """PyTorch on the timm model that was named, at float32 as the artifact is."""
    if config.timm is None:
        raise BackendUnavailableError(f"torch: {TORCH_NOT_ASKED}")
    torch: Any = require("torch", extra="export")
    if device == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError("torch: no CUDA device can be used")
    name = "torch.compile" if compiled else "torch"

    def load() -> Any:
        model = _torch_model(artifact, config).to(device)
        return torch.compile(model) if compiled else model

    with _torch_settings(torch, threads=config.num_threads, compiled=compiled):
        run = _reporting(load, name)()

        def forward(pixel_values: Floats) -> Floats:
            with torch.inference_mode():
                logits: Floats = run(torch.from_numpy(pixel_values).to(device)).cpu().numpy()
            return logits

        yield _reporting(forward, name)


@contextmanager
def _torch_settings(torch: Any, *, threads: int | None, compiled: bool) -> Iterator[None]:
    """Our threads, and float32 that is float32; what was set before comes back afterwards."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        # cuDNN's convolutions are rounded to TF32 unless they are told not to be.
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
        torch.backends.cudnn.allow_tf32 = convolutions
        if compiled:
            torch.compiler.reset()


def _torch_model(artifact: Artifact, config: BenchConfig) -> Any:
    """The timm model, with the artifact's classes and input size."""
    # Imported late: torch is an extra, and most runs compare nothing.
    from gain_export.from_timm import build
    from gain_export.labels import Alias, load_aliases

    manifest, name = artifact.manifest, config.timm or ""
    size = manifest.preprocess
    weights = config.weights
    source = build(
        load_aliases().get(name) or Alias(model=name),
        weights=None if weights is None else Path(weights),
        random_seed=0 if weights is None else None,
        num_classes=manifest.num_classes,
        img_size=(size.height_px, size.width_px),
    )
    return source.model


def _reporting(work: Callable[Given, Result], name: str) -> Callable[Given, Result]:
    """The same, with torch's failures (no compiler, no memory) as our error."""

    def run(*args: Given.args, **settings: Given.kwargs) -> Result:
        try:
            return work(*args, **settings)
        except GainError:
            raise
        except RuntimeError as err:
            first = next(iter(str(err).strip().splitlines()), type(err).__name__)
            raise EngineError(f"{name}: failed: {first}") from err

    return run

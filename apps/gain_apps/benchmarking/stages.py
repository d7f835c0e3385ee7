"""What is timed: frozen source and adapted stream by stage, batch about; other libraries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise, product
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.methods.protocol import log_softmax
from gain_apps.streaming.loop import rank
from gain_core.errors import (
    BackendUnavailableError,
    ConfigError,
    EngineError,
    GainError,
    NumericsError,
    StreamError,
    one_line,
)
from gain_runtime.adapter import STAGES, AdaptedBatch, Adapter
from gain_runtime.engine import NetworkEngine
from gain_runtime.files.artifact import Artifact
from gain_runtime.frames import Closing, Frame, FrameResult, Sink
from gain_runtime.optional import require
from gain_runtime.preprocess import BatchPreprocessor, Region
from gain_runtime.sessions.session import Device, Session, open_session
from gain_runtime.sources.opening import open_source
from gain_scenes.sources import app_schemes

if TYPE_CHECKING:
    from gain_apps.bench import BenchConfig

logger = logging.getLogger(__name__)


class FrozenSource(Closing):
    """A session, not owned, with a softmax behind it, and an adapter's preprocessing before it."""

    def __init__(self, session: Session, /, *, preprocess_threads: int | None) -> None:
        self._session = session
        spec = session.artifact.manifest.preprocess
        self._preprocess = BatchPreprocessor(spec, threads=preprocess_threads)

    def step(
        self,
        images: Sequence[npt.NDArray[np.uint8]],
        /,
        *,
        regions: Sequence[Region | None] | None = None,
    ) -> AdaptedBatch:
        """Classify a batch as `Adapter.step` does; source and adapted prediction are the same.

        The stage `adapt` is the softmax. Raises `ArrayError` if a frame cannot be preprocessed,
        `EngineError` if the forward pass fails, and `NumericsError` if the network returned NaN or
        infinity.
        """
        stamps = [perf_counter_ns()]
        pixel_values = self._preprocess(images, regions=regions)
        stamps.append(perf_counter_ns())
        logits = self._session.infer(pixel_values).logits
        stamps.append(perf_counter_ns())
        if not np.all(np.isfinite(logits)):
            raise NumericsError(
                f"{self._session.artifact.path}: logits: expected finite values, got NaN or "
                "infinity; export the model again"
            )
        log_probs = log_softmax(logits)
        probs, nothing = np.exp(log_probs), np.zeros(len(logits), dtype=np.float32)
        stamps.append(perf_counter_ns())
        preprocess, forward, adapt = (b - a for a, b in pairwise(stamps))
        return AdaptedBatch(
            source_probs=probs,
            source_log_probs=log_probs,
            probs=probs,
            log_probs=log_probs,
            strength=nothing,
            gain=nothing,
            stage_ns={"preprocess": preprocess, "forward": forward, "adapt": adapt},
        )

    def close(self) -> None:
        """End the threads that preprocess; may be called twice. The session stays open."""
        self._preprocess.close()


Variant = Literal["frozen", "adapted"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
BENCH_STAGES = ("decode", *STAGES, "sink", "total")
TOP_K = 3
PERCENTS = (50, 90, 99)

Step = Callable[..., AdaptedBatch]


@dataclass(slots=True)
class StageTimes:
    """Nanoseconds of every measured batch in each of `BENCH_STAGES`."""

    batch_size: int
    stage_ns: dict[str, list[int]] = field(
        default_factory=lambda: {stage: [] for stage in BENCH_STAGES}
    )

    def add(self, times: Mapping[str, int], /) -> None:
        """Note one batch."""
        for stage, spent in times.items():
            self.stage_ns[stage].append(spent)

    @property
    def rate_hz(self) -> float:
        """Frames per second, one stage after another and decoding included."""
        total = self.stage_ns["total"]
        return 1e9 * len(total) * self.batch_size / sum(total)

    def to_dict(self) -> dict[str, Any]:
        """Percentiles of every stage in milliseconds per frame, and the rate."""
        per_frame = 1e-6 / self.batch_size
        return {
            "rate_hz": round(self.rate_hz, 3),
            "stages_ms": {
                stage: percentiles([spent * per_frame for spent in values])
                for stage, values in self.stage_ns.items()
            },
        }


def percentiles(values: Sequence[float], /) -> dict[str, float]:
    """p50, p90, p99 and max of what was measured, at least one value, in its unit."""
    found = np.percentile(values, PERCENTS)
    named = {f"p{percent}": float(value) for percent, value in zip(PERCENTS, found, strict=True)}
    return {name: round(value, 4) for name, value in (named | {"max": max(values)}).items()}


def measure_stages(
    session: Session,
    sink: Sink,
    config: BenchConfig,
    /,
    *,
    on_batch: Callable[[], None] | None = None,
) -> dict[Variant, StageTimes]:
    """Run both variants over the same batches and time their stages.

    Each batch is decoded once and then passes both variants, which take turns in going first, so
    that neither profits from caches or clocks. Both preprocess in as many threads. The sink
    receives every result of both and is not closed; `on_batch` is called outside what is timed.
    Raises a `GainError` if the source cannot be opened or ends in error, or a batch cannot be
    classified.
    """
    engine = NetworkEngine(session, config.gain_config(), update_every=config.update_every)
    with (
        Adapter(engine, preprocess_threads=config.num_threads) as adapter,
        FrozenSource(session, preprocess_threads=config.num_threads) as frozen,
    ):
        adapter.warm_up(config.batch_size)
        steps: dict[Variant, Step] = {"frozen": frozen.step, "adapted": adapter.step}
        labels = session.artifact.manifest.labels
        return _take_turns(steps, sink, config, labels=labels, on_batch=on_batch)


def _take_turns(
    steps: Mapping[Variant, Step],
    sink: Sink,
    config: BenchConfig,
    *,
    labels: Sequence[str],
    on_batch: Callable[[], None] | None,
) -> dict[Variant, StageTimes]:
    """Every batch through both, and what those behind the warm-up took."""
    times = {variant: StageTimes(config.batch_size) for variant in VARIANTS}
    warm, measured = (-(-count // config.batch_size) for count in (config.warm_up, config.frames))
    with closing(frame_batches(config)) as batches:
        for number in range(warm + measured):
            started = perf_counter_ns()
            frames = next(batches)
            decoded = perf_counter_ns() - started
            for variant in VARIANTS if number % 2 else reversed(VARIANTS):
                spent = _timed(steps[variant], frames, sink, labels=labels)
                if number >= warm:
                    total = spent["total"] + decoded
                    times[variant].add(spent | {"decode": decoded, "total": total})
            if on_batch is not None:
                on_batch()
    return times


def _timed(
    step: Step, frames: Sequence[Frame], sink: Sink, *, labels: Sequence[str]
) -> dict[str, int]:
    """Nanoseconds of one batch in each stage but decoding."""
    started = perf_counter_ns()
    images, regions = zip(*((frame.image, frame.region) for frame in frames), strict=True)
    batch = step(images, regions=regions)
    stepped = perf_counter_ns()
    for row, frame in enumerate(frames):
        sink.write(
            FrameResult(
                frame=frame,
                source_top=rank(batch.source_probs[row], labels, top_k=TOP_K),
                adapted_top=rank(batch.probs[row], labels, top_k=TOP_K),
                strength=float(batch.strength[row]),
                gain=float(batch.gain[row]),
            )
        )
    ended = perf_counter_ns()
    return {**batch.stage_ns, "sink": ended - stepped, "total": ended - started}


def frame_batches(config: BenchConfig, /) -> Generator[list[Frame], None, None]:
    """Whole batches without end: a source that is over is opened again.

    A live source is a `ConfigError`; one that cannot be opened or yields nothing is a
    `StreamError`.
    """
    with closing(_endless(config)) as frames:
        while True:
            yield list(islice(frames, config.batch_size))


def _endless(config: BenchConfig) -> Generator[Frame, None, None]:
    """Every frame of the source, again and again."""
    while True:
        count = 0
        with open_source(config.input, schemes=app_schemes(), seed=config.seed) as source:
            if source.info.live:
                raise ConfigError(
                    f"{source.info.source_id}: a live source sets the pace itself, so its rate "
                    "would be measured and not the device's; use a file or test://pattern"
                )
            for frame in source:
                count += 1
                yield frame
        if not count:
            raise StreamError(f"{source.info.source_id}: expected at least one frame, got none")


Floats = npt.NDArray[np.float32]
# (B, 3, height_px, width_px) pixel values to (B, K) logits in host memory.
Forward = Callable[[Floats], Floats]

WARM_UP_ROUNDS = 3
TORCH_NOT_ASKED = "needs --timm NAME, because an artifact holds no PyTorch model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One way to run the network; `BackendUnavailableError` where it is not there."""

    name: str
    open: Callable[[], AbstractContextManager[Forward]]
    same_weights: bool = True  # whether its predictions are expected to be the artifact's


def list_rivals(artifact: Artifact, config: BenchConfig, /) -> list[Rival]:
    """Everything a comparison names, whether or not it is there."""
    sessions: dict[str, Device] = {
        "onnxruntime cpu": "cpu",
        "onnxruntime cuda": "cuda",
        "tensorrt": "tensorrt",
    }
    rivals = [
        Rival(name=name, open=partial(_session, artifact, device, config))
        for name, device in sessions.items()
    ]
    for device, kind in product(("cpu", "cuda"), ("eager", "compile")):
        start = partial(_torch, artifact, config, device=device, compiled=kind == "compile")
        trained = config.weights is not None
        rivals.append(Rival(name=f"torch {kind} {device}", open=start, same_weights=trained))
    return rivals


def compare_rivals(
    rivals: list[Rival], pixel_values: Floats, /, *, rounds: int, expected: Floats
) -> list[dict[str, Any]]:
    """Measure one after another; each is closed before the next is opened.

    They do not take turns: a library's threads that wait by spinning would slow down the next. Each
    row has a `name`, and either `forward_ms` per batch, `rate_hz` and `top1_agreement_percent` with
    the artifact's logits, (B, K), or `absent` with the reason.
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
    with _torch_settings(torch, threads=config.num_threads, compiled=compiled):
        with _reporting(name):
            model = _torch_model(artifact, config).to(device)
            run = torch.compile(model) if compiled else model

        def forward(pixel_values: Floats) -> Floats:
            with _reporting(name), torch.inference_mode():
                logits: Floats = run(torch.from_numpy(pixel_values).to(device)).cpu().numpy()
            return logits

        yield forward


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


@contextmanager
def _reporting(name: str) -> Iterator[None]:
    """Torch's failures (no compiler, no memory) as our error."""
    try:
        yield
    except GainError:
        raise
    except RuntimeError as err:
        first = next(iter(str(err).strip().splitlines()), type(err).__name__)
        raise EngineError(f"{name}: failed: {first}") from err

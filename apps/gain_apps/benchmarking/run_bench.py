"""One benchmark from its settings to its result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.benchmarking.bench_config import BenchConfig
from gain_apps.benchmarking.device_memory import DevicePeak
from gain_apps.benchmarking.machine import Machine, tool_versions
from gain_apps.benchmarking.rivals import compare_rivals, list_rivals
from gain_apps.benchmarking.stages import StageTimes, frame_batches, measure_stages
from gain_apps.system_files import peak_memory_bytes
from gain_runtime.artifact import Artifact, load_artifact
from gain_runtime.batch_preprocess import usable_cores
from gain_runtime.jsonl_sink import JsonlSink
from gain_runtime.open_session import open_session
from gain_runtime.preprocess import preprocess_batch

__all__ = ["SCHEMA", "run_benchmark"]

SCHEMA = 3


def run_benchmark(
    config: BenchConfig, /, *, command: str, on_batch: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Measure what the settings ask for.

    Parameters
    ----------
    config : BenchConfig
    command : str
        As it was typed; kept with the result.
    on_batch : callable, optional
        Called after every batch, for progress.

    Returns
    -------
    dict
        Plain values, as `--json` writes them.

    Raises
    ------
    GainError
        If something cannot be opened, or fails while it is measured.
    """
    machine = Machine()
    artifact = load_artifact(config.artifact)
    before = machine.now()
    # As gain-stream has it: BLAS threads that wait by spinning would take ONNX Runtime's cores.
    with threadpool_limits(limits=1, user_api="blas"):
        measured = _measure(artifact, config, on_batch=on_batch)
    pixel_values, logits = measured.pop("pixel_values"), measured.pop("logits")
    after = machine.now()
    # Only now, because other libraries' memory is not the stream's.
    memory = {"process_peak": peak_memory_bytes(), "device": measured.pop("device_memory")}
    compared = None
    if config.compare:
        rounds = -(-config.frames // config.batch_size)
        compared = compare_rivals(
            list_rivals(artifact, config), pixel_values, rounds=rounds, expected=logits
        )
    return {
        "schema": SCHEMA,
        "command": command,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "artifact": {
            "path": str(artifact.path),
            "sha256": artifact.sha256,
            "source": artifact.manifest.source,
            "num_classes": artifact.manifest.num_classes,
            "feature_dim": artifact.manifest.feature_dim,
        },
        "config": config.to_dict(),
        **measured,
        "memory_bytes": memory,
        "compare": compared,
        "device": {**machine.facts(), "before": before, "after": after},
        "versions": tool_versions(),
    }


def _measure(
    artifact: Artifact, config: BenchConfig, *, on_batch: Callable[[], None] | None
) -> dict[str, Any]:
    """Stages and memory, with the session open for them only."""
    with ExitStack() as stack:
        session = stack.enter_context(
            open_session(
                artifact,
                device=config.device,
                num_threads=config.num_threads,
                allow_host_code=config.allow_host_code,
            )
        )
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gain-bench-"))
        sink = stack.enter_context(closing(JsonlSink(Path(folder) / "results.jsonl")))
        peak = DevicePeak(session.provider)

        def after_batch() -> None:
            peak.read()
            if on_batch is not None:
                on_batch()

        times = measure_stages(session, sink, config, on_batch=after_batch)
        pixel_values = _pixel_values(artifact, config)
        return {
            "provider": session.provider,
            "preprocess_threads": _preprocess_threads(config),
            "measured_frames": len(times["frozen"].stage_ns["total"]) * config.batch_size,
            "frozen": times["frozen"].to_dict(),
            "adapted": times["adapted"].to_dict(),
            "adapted_over_frozen": _ratios(times["frozen"], times["adapted"]),
            "device_memory": peak.to_dict(),
            "pixel_values": pixel_values,
            "logits": session.infer(pixel_values).logits,
        }


def _preprocess_threads(config: BenchConfig) -> int:
    """How many frames of a batch may be preprocessed at once."""
    return usable_cores() if config.num_threads is None else config.num_threads


def _pixel_values(artifact: Artifact, config: BenchConfig) -> npt.NDArray[np.float32]:
    """The first batch of the source, ready for the network."""
    with closing(frame_batches(config)) as batches:
        frames = next(batches)
    return preprocess_batch(
        [frame.image for frame in frames],
        artifact.manifest.preprocess,
        regions=[frame.region for frame in frames],
    )


def _ratios(frozen: StageTimes, adapted: StageTimes) -> dict[str, float]:
    """Throughput of adapted over frozen: of the whole run, without decoding, of the middle batch.

    The first counts everything, stalls of the machine included. The second is a stream's whose
    frames another thread decodes. The third is deaf to stalls, and to updates that come in fewer
    than half of the batches.
    """
    totals, decoded = (
        [np.asarray(times.stage_ns[stage], dtype=np.float64) for times in (frozen, adapted)]
        for stage in ("total", "decode")
    )
    working = [total - decode for total, decode in zip(totals, decoded, strict=True)]
    ratios = {
        "throughput_ratio": totals[0].sum() / totals[1].sum(),
        "throughput_ratio_without_decode": working[0].sum() / working[1].sum(),
        "throughput_ratio_p50": np.median(totals[0] / totals[1]),
    }
    return {name: round(float(ratio), 4) for name, ratio in ratios.items()}

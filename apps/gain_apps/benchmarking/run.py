"""One benchmark from its settings to its result, and the tables a person reads after it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gain_apps.benchmarking.machine import DevicePeak, Machine, tool_versions
from gain_apps.benchmarking.stages import (
    BENCH_STAGES,
    VARIANTS,
    StageTimes,
    compare_rivals,
    frame_batches,
    list_rivals,
    measure_stages,
)
from gain_apps.system import peak_memory_bytes
from gain_runtime.files.artifact import Artifact, load_artifact
from gain_runtime.preprocess import preprocess_batch, usable_cores
from gain_runtime.sessions.session import open_session
from gain_runtime.sinks.jsonl import JsonlSink

if TYPE_CHECKING:
    from gain_apps.bench import BenchConfig

SCHEMA = 3


def run_benchmark(
    config: BenchConfig, /, *, command: str, on_batch: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Measure what the settings ask for; plain values, as `--json` writes them.

    The command, as it was typed, is kept with the result. Raises a `GainError` if something cannot
    be opened, or fails while it is measured.
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
        threads = usable_cores() if config.num_threads is None else config.num_threads
        return {
            "provider": session.provider,
            "preprocess_threads": threads,
            "measured_frames": len(times["frozen"].stage_ns["total"]) * config.batch_size,
            "frozen": times["frozen"].to_dict(),
            "adapted": times["adapted"].to_dict(),
            "adapted_over_frozen": _ratios(times["frozen"], times["adapted"]),
            "device_memory": peak.to_dict(),
            "pixel_values": pixel_values,
            "logits": session.infer(pixel_values).logits,
        }


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


MEASURES = ("p50", "p90", "p99", "max")


def print_benchmark(result: Mapping[str, Any], console: Console, /) -> None:
    """Print the tables of what `run_benchmark` gave."""
    console.print(_stage_table(result))
    console.print(_run_table(result))
    if result["compare"] is not None:
        console.print(_rival_table([row for row in result["compare"] if "absent" not in row]))
        for row in result["compare"]:
            if "absent" in row:
                text = f"not measured: {row['name']}: {row['absent']}"
                console.print(text, markup=False, highlight=False)


def _stage_table(result: Mapping[str, Any]) -> Table:
    """Milliseconds per frame of every stage, the variants one above the other."""
    title = f"gain-bench: {result['config']['input']}, {result['measured_frames']} frames"
    table = Table(title=title, title_style="bold")
    table.add_column("ms per frame")
    for measure in MEASURES:
        table.add_column(measure, justify="right")
    for variant in VARIANTS:
        table.add_section()
        table.add_row(variant, f"{result[variant]['rate_hz']:.1f} frames/s", style="bold")
        for stage in BENCH_STAGES:
            times = result[variant]["stages_ms"][stage]
            table.add_row(f"  {stage}", *(f"{times[measure]:.3f}" for measure in MEASURES))
    return table


def _run_table(result: Mapping[str, Any]) -> Table:
    """The ratio, and on what it was measured."""
    table = Table(show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    ratio, device, config = result["adapted_over_frozen"], result["device"], result["config"]
    table.add_row(
        "adapted over frozen",
        f"{ratio['throughput_ratio']:.3f} of the throughput (without decoding "
        f"{ratio['throughput_ratio_without_decode']:.3f}, middle batch "
        f"{ratio['throughput_ratio_p50']:.3f})",
    )
    memory = result["memory_bytes"]
    table.add_row("peak memory", _mib(memory["process_peak"]))
    used = memory["device"]["peak_used"]
    of_device = memory["device"]["note"] if used is None else f"{_mib(used)}, of all processes"
    table.add_row("peak device memory", of_device)
    artifact = result["artifact"]
    table.add_row("artifact", f"{artifact['path']} (sha256 {artifact['sha256'][:12]})")
    table.add_row("provider", result["provider"])
    table.add_row("device", _device(device))
    table.add_row("clocks, heat", _conditions(device["after"]))
    threads = "library's choice" if config["num_threads"] is None else config["num_threads"]
    table.add_row(
        "config",
        f"preset {config['preset']}, batch size {config['batch_size']}, update every "
        f"{config['update_every']}, threads {threads}, preprocessing in "
        f"{result['preprocess_threads']}",
    )
    return table


def _device(device: Mapping[str, Any]) -> str:
    """Board, processor, cores and cards."""
    names = [device["board"], device["cpu"], *device["gpus"]]
    known = [name for name in names if name is not None] or [device["architecture"]]
    return f"{', '.join(known)}; {device['cores_allowed']} of {device['cores']} cores"


def _conditions(now: Mapping[str, Any]) -> str:
    """What the result depends on and nobody sees."""
    clocks = {**now["cpu_clocks_mhz"], **now["other_clocks_mhz"]}
    parts = [f"{name} {mhz:.0f} MHz" for name, mhz in clocks.items()] or ["clocks unknown"]
    parts.append(f"power mode {now['power_mode'] or 'unknown'}")
    celsius = now["celsius"]
    parts.append("temperature unknown" if celsius is None else f"{celsius:.0f} °C")
    if now["throttled"]:
        parts.append("slowed down by heat")
    return ", ".join(parts)


def _rival_table(rows: list[Mapping[str, Any]]) -> Table:
    """Forward passes alone, of what is there."""
    table = Table(title="forward pass alone, per batch", title_style="bold")
    table.add_column()
    for measure in ("p50 ms", "p90 ms", "frames/s", "top-1 as artifact"):
        table.add_column(measure, justify="right")
    for row in rows:
        agreement = row["top1_agreement_percent"]
        table.add_row(
            row["name"],
            f"{row['forward_ms']['p50']:.3f}",
            f"{row['forward_ms']['p90']:.3f}",
            f"{row['rate_hz']:.1f}",
            "random weights" if agreement is None else f"{agreement:.1f} %",
        )
    return table


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"

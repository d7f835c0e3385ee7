"""The tables a person reads after a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from gain_apps.benchmarking.stages import BENCH_STAGES, VARIANTS

__all__ = ["print_benchmark"]

MEASURES = ("p50", "p90", "p99", "max")


def print_benchmark(result: Mapping[str, Any], console: Console, /) -> None:
    """Print the tables.

    Parameters
    ----------
    result : mapping
        Of `run_benchmark`.
    console : Console
    """
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
            _add_times(table, stage, result[variant]["stages_ms"][stage])
    return table


def _add_times(table: Table, name: str, times: Mapping[str, float]) -> None:
    """One stage's row."""
    table.add_row(f"  {name}", *(f"{times[measure]:.3f}" for measure in MEASURES))


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

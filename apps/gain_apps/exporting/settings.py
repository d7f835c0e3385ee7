"""Settings of gain-export without a flag, and what its parts share; light, for --help's sake."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

from gain_apps.flags import read_given, spelled
from gain_core import DEFAULT_PRESET, UPDATE_EVERY, WARMUP_FRAMES
from gain_core.errors import ConfigError

# A key of --set and what stands for its value, to what it is for.
SETTINGS = {
    "ema=true": "of a checkpoint with both, take the weights averaged over training, or the last "
    "(default: averaged, as timm does)",
    "random-weights=true": "untrained weights, for benchmarks and tests",
    "seed=N": "of the random weights (default: 0)",
    "opset=N": "ONNX operator set of a timm model, 17 to 20 (default: 18)",
    "layout=NAME": "NCHW or NHWC: where the channels are, if the graph leaves it open",
    "channel-order=NAME": "RGB or BGR: order of the planes (default: RGB)",
    "int8-ranges=NAME": "how they come from the images of --calibrate: minmax or percentile "
    "(default: minmax, and percentile where that misses the bar)",
    "preset=NAME": f"baked in by --adaptive (default: {DEFAULT_PRESET})",
    "update-every=N": f"of --adaptive: frames between two updates (default: {UPDATE_EVERY})",
    "warm-up=FRAMES": f"of --adaptive: the first update waits for them (default: {WARMUP_FRAMES})",
    "features-only=true": "of --adaptive: leave the network out; features and logits in",
    "triton-backend=NAME": "of --triton: onnxruntime or tensorrt, for which a plan has to be built "
    "(default: onnxruntime)",
    "compute-capability=N,N": "of --engine: GPUs to build for, as 86 for 8.6 (default: the one "
    "here)",
    "max-batch=N": "of --engine: largest batch size (default: 8)",
    "builder-level=N": "of --engine: 0 builds fastest, 5 looks longest for fast kernels (default: "
    "the library's)",
    "hardware-compatible=true": "of --engine: for every GPU of compute capability 8.0 or more, "
    "somewhat slower (tensorrt only)",
    "version-compatible=true": "of --engine: for later versions of the library, too; its plan "
    "brings code that runs on the host",
    "build=false": "of --engine: only check the one that is there, refused if it is missing or "
    "stale",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """What `--set` changes; None is not given. ConfigError if one is none of its choices."""

    ema: bool | None = None
    random_weights: bool | None = None
    seed: int | None = None
    opset: int | None = None
    layout: Literal["NCHW", "NHWC"] | None = None
    channel_order: Literal["RGB", "BGR"] | None = None
    int8_ranges: Literal["minmax", "percentile"] | None = None
    preset: str | None = None
    update_every: int | None = None
    warm_up: int | None = None
    features_only: bool | None = None
    triton_backend: Literal["onnxruntime", "tensorrt"] | None = None
    compute_capability: tuple[int, ...] | None = None
    max_batch: int | None = None
    builder_level: int | None = None
    hardware_compatible: bool | None = None
    version_compatible: bool | None = None
    build: bool | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("layout", ("NCHW", "NHWC")),
            ("channel_order", ("RGB", "BGR")),
            ("int8_ranges", ("minmax", "percentile")),
            ("triton_backend", ("onnxruntime", "tensorrt")),
        ):
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise ConfigError(
                    f"{flag(name)}: expected one of {', '.join(choices)}, got {value!r}"
                )


def take_settings(args: argparse.Namespace, /) -> None:
    """Put every setting beside the flags in the namespace, None where it was not given.

    Raises ConfigError as `read_given` and `ExportSettings`.
    """
    settings = ExportSettings(**read_given(vars(args), ExportSettings))
    vars(args).update(asdict(settings))


def flag(name: str, /) -> str:
    """How a flag or setting of gain-export is spelled."""
    return spelled(name, SETTINGS)


def refuse_without(wanted: str, args: argparse.Namespace, names: Iterable[str], /) -> None:
    """Raise ConfigError for a setting that was given without the flag it belongs to."""
    for name in names:
        if getattr(args, name) is not None:
            raise ConfigError(f"{flag(name)}: is a setting of {wanted}; add that, or leave it out")


@contextmanager
def progress_line(*, enabled: bool) -> Iterator[Callable[[str], None]]:
    """Show the step at work and its time on a terminal, and nothing elsewhere.

    What it yields takes the name of each step as it begins.
    """
    if not (enabled and sys.stderr.isatty()):
        yield lambda step: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # This very stream: steps that silence torch replace sys.stderr meanwhile.
    console = Console(file=sys.stderr)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        task = progress.add_task("start", total=None)

        def show(step: str) -> None:
            progress.reset(task, description=step)

        yield show

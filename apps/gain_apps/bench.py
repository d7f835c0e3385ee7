"""`gain-bench`: what a frame costs on this device, stage by stage, frozen against adapted."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gain_apps.flags import (
    STDOUT,
    Given,
    add_device_flags,
    add_json_flag,
    add_old_settings,
    add_old_spelling,
    add_removed,
    add_set_flag,
    check_json_target,
    read_given,
    settings_text,
    spelled,
    write_json_lines,
)
from gain_core import DEFAULT_PRESET, PRESETS, UPDATE_EVERY, Config, config_to_dict, preset
from gain_core.errors import ConfigError, GainError, one_line
from gain_runtime.files.paths import is_file
from gain_runtime.sources.uri import redact

if TYPE_CHECKING:
    from gain_runtime.sessions.session import Device

# What has no flag: a key of --set, and what it is for.
SETTINGS = {
    "update-every=N": f"frames between two updates (default {UPDATE_EVERY})",
    "preset=NAME": f"one of {', '.join(PRESETS)} (default {DEFAULT_PRESET})",
    "allow-host-code=true": "run an engine built as version-compatible, which brings code for the "
    "CPU",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is measured, on what and how long; names are those of the flags.

    The input is a source's URI, opened again when it ends before enough frames were measured; these
    are rounded up to whole batches. A value that is out of range, two that contradict each other, a
    checkpoint that is missing and a result without a folder are each a `ConfigError`.
    """

    artifact: str
    input: str = "test://pattern"
    frames: int = 200
    warm_up: int = 20  # frames before those that are measured
    batch_size: int = 1  # frames per forward pass
    update_every: int = UPDATE_EVERY  # frames between two updates
    preset: str = DEFAULT_PRESET
    seed: int = 0  # of the source
    device: Device = "cpu"
    allow_host_code: bool = False  # run an engine that brings code for the CPU
    # Within one operator of the network, None lets the library choose; and those that take a frame
    # of the batch each to preprocess it on the host, None is one for each core.
    num_threads: int | None = None
    compare: bool = False  # measure the same network in other libraries too
    timm: str | None = None  # for the comparison
    weights: str | None = None  # its checkpoint; random weights without one
    json: str | None = None  # result file; `-` for stdout

    def __post_init__(self) -> None:
        for name, least in (
            ("frames", 1),
            ("warm_up", 0),
            ("batch_size", 1),
            ("update_every", 1),
            ("seed", 0),
            ("num_threads", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(
                    f"{spelled(name, SETTINGS)}: expected at least {least}, got {value}"
                )
        for name, needed in (("timm", "compare"), ("weights", "timm")):
            if getattr(self, name) is not None and not getattr(self, needed):
                raise ConfigError(
                    f"--{name}: expected --{needed} beside it; add that or leave --{name} out"
                )
        if self.weights is not None and not is_file(self.weights):
            raise ConfigError(f"--weights: expected a file, found no {self.weights}")
        self.gain_config()
        check_json_target(self.json, other_than=self.artifact)

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any], /) -> BenchConfig:
        """The settings for the flags given, also with `--set`; the others keep their defaults."""
        plain = {name: value for name, value in flags.items() if not isinstance(value, Given)}
        return cls(**plain, **read_given(flags, cls))

    def gain_config(self) -> Config:
        """The preset."""
        return preset(self.preset)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the resolved preset under `gain`."""
        return asdict(self) | {
            "input": redact(self.input),
            "gain": config_to_dict(self.gain_config()),
        }


EPILOG = f"""\
{settings_text(SETTINGS)}

examples:
  gain-bench vit_b16.onnx
  gain-bench roadsigns.gain.onnx test://drive --batch-size 4 --json result.json
  gain-bench vit_b16.onnx --compare --timm vit_b16 --weights vit_b16.safetensors

Stages run one after another here. gain-stream decodes in a thread of its own and may be faster.

exit status:
  0 success, 1 an error (one line says which), 2 wrong usage, 130 Ctrl-C.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line; flags that are not given are absent from the result."""
    parser = argparse.ArgumentParser(
        prog="gain-bench",
        description="Measure what a frame costs, stage by stage, frozen against adapted.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("artifact", metavar="ARTIFACT", help=".onnx file made by gain-export")
    parser.add_argument(
        "input",
        metavar="INPUT",
        nargs="?",
        help="test://pattern (default), test://drive, a video, a photo or a folder; "
        "read again from its start when it ends",
    )
    _add_measurement(parser)
    _add_comparison(parser)
    add_set_flag(parser, example="update-every=1")
    add_json_flag(parser, what="the result as one JSON object")
    parser.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
    return parser


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    """What runs, and how long."""
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--frames", type=int, metavar="N", help="frames measured, in whole batches (default 200)"
    )
    batch_size = group.add_argument(
        "--batch-size", type=int, metavar="N", help="frames per forward pass (default 1)"
    )
    add_old_spelling(group, "--batch", batch_size)
    add_device_flags(group)
    add_old_settings(group, SETTINGS)
    for name in ("--warm-up", "--seed"):
        add_removed(group, name, num_values=1, why="nobody needs another value")


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    """Other libraries."""
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--compare",
        action="store_true",
        help="time the forward pass in the other libraries too; what is not there is named",
    )
    name = group.add_argument(
        "--timm", metavar="NAME", help="timm model for PyTorch eager and torch.compile"
    )
    weights = group.add_argument(
        "--weights", metavar="FILE", help="its checkpoint; random weights without"
    )
    add_old_spelling(group, "--torch-model", name)
    add_old_spelling(group, "--torch-weights", weights)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    flags = vars(build_parser().parse_args(given))
    debug = bool(flags.pop("debug", False))
    try:
        return _run(flags, command=shlex.join(["gain-bench", *given]), debug=debug)
    except GainError as err:
        if debug:
            traceback.print_exc()
        print(f"gain-bench: error: {one_line(err)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gain-bench: interrupted", file=sys.stderr)
        return 130


def _run(flags: dict[str, Any], *, command: str, debug: bool) -> int:
    """Measure, print the tables and write the result."""
    # Imported late, so that --help and wrong usage do not wait for OpenCV and ONNX Runtime.
    from rich.console import Console

    from gain_apps.benchmarking.run import print_benchmark, run_benchmark
    from gain_apps.streaming.summary import ConsoleHandler
    from gain_apps.system import logging_to

    config = BenchConfig.from_flags(flags)
    console = Console(stderr=True)
    on_batch = _progress(console, frames=config.warm_up + config.frames, batch=config.batch_size)
    handler = ConsoleHandler(console)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    with logging_to(handler, logging.DEBUG if debug else logging.INFO):
        result = run_benchmark(config, command=command, on_batch=on_batch)
    if config.json is not None:
        write_json_lines(config.json, [result])
    print_benchmark(result, console if config.json == STDOUT else Console())
    return 0


def _progress(console: Any, /, *, frames: int, batch: int) -> Callable[[], None]:
    """What counts frames on a terminal; no thread draws it, which would be measured too."""
    done = 0

    def on_batch() -> None:
        nonlocal done
        done = min(done + batch, frames)
        if console.is_terminal:
            console.print(f"{done} of {frames} frames", end="\r", highlight=False)

    return on_batch


if __name__ == "__main__":
    sys.exit(main())

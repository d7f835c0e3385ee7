"""gain-export: turns a timm model or any ONNX classifier into an artifact."""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gain_apps.exporting.adaptation import (
    add_adaptive_arguments,
    calibration_folder,
    check_adaptive_arguments,
    check_calibration,
    write_adaptive,
    write_triton_model,
)
from gain_apps.exporting.deployment import (
    add_engine_arguments,
    add_precision_arguments,
    check_engine_arguments,
    check_engine_settings,
    check_precision_arguments,
    write_engine,
    write_precision,
)
from gain_apps.exporting.settings import SETTINGS, flag, progress_line, take_settings
from gain_apps.exporting.text import Written, check_artifact, is_finished, print_json, print_text
from gain_apps.flags import (
    STDOUT,
    add_json_flag,
    add_old_settings,
    add_old_spelling,
    add_set_flag,
    check_json_target,
    parse_arguments,
    settings_text,
)
from gain_core import __version__
from gain_core.errors import ArtifactError, ConfigError, GainError
from gain_runtime.files.paths import exists, is_folder

if TYPE_CHECKING:
    from gain_export import ExportReport, PreprocessOverrides
    from gain_export.write import OnStep

_EPILOG = f"""\
{settings_text(SETTINGS)}

examples:
  gain-export vit_b16.onnx                    no such file: an alias of models/*.toml
  gain-export out.onnx --timm vit_tiny_patch16_224.augreg_in21k_ft_in1k
  gain-export mine.onnx --timm resnet18.a1_in1k --weights mine.pth --labels names.txt
  gain-export mine.onnx --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --crop-pct 1 --interpolation bilinear
  gain-export mine.onnx --like resnet50.a1_in1k    the file exists: written to mine.gain.onnx
  gain-export vit_b16.onnx --adaptive --set update-every=1    and vit_b16.adaptive.onnx beside it
  gain-export vit_b16.adaptive.onnx --triton models/    and models/vit_b16 for a Triton server
  gain-export mine.onnx --output-name probs --input-range 0 255 --crop-pct 1 ...
  gain-export vit_b16.onnx --calibrate photos/    an artifact: adds its fitness report
  gain-export vit_b16.onnx --precision fp16 --verify-images photos/
  gain-export vit_b16.onnx --precision int8 --calibrate photos/    vit_b16.int8.gain.onnx
  gain-export vit_b16.onnx --engine --set max-batch=16    an artifact: builds vit_b16.engine
  gain-export vit_b16.onnx --precision fp16 --engine --verify-images photos/    both, verified
"""

# Flags of a timm model only, and of an existing ONNX file only.
_TIMM_ONLY = ("weights", "ema", "random_weights", "seed", "classes", "opset")
_ONNX_ONLY = ("output_name", "head", "layout", "input_range", "like")


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="gain-export",
        description=(
            "Write a classifier as one self-describing ONNX file (an artifact) with the output "
            "logits, and features where its head is linear, verified against the model's own "
            "output."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target",
        type=Path,
        metavar="NAME.onnx",
        help="an existing ONNX classifier, or the file to write: its stem is then an alias, "
        "unless --timm names the model",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there instead")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="class names, one per line, or 'imagenet' for its 1000 (default: those that the "
        "file itself states; ImageNet's for timm models of it)",
    )
    _add_timm_arguments(parser.add_argument_group("a timm model"))
    _add_onnx_arguments(parser.add_argument_group("an existing ONNX file"))
    _add_preprocessing_arguments(
        parser.add_argument_group(
            "preprocessing",
            "a timm model's own is the default; for an ONNX file it has to be given",
        )
    )
    add_precision_arguments(parser.add_argument_group("lower precision"))
    add_adaptive_arguments(parser.add_argument_group("an adaptive file"))
    add_engine_arguments(parser.add_argument_group("a TensorRT engine"))
    _add_check_arguments(parser.add_argument_group("checks and output"))
    add_set_flag(parser, example="opset=17")
    # What flags were called in the release before.
    others = {
        "--no-ema": "ema=false",
        "--calibration": "int8-ranges=NAME",
        "--no-build": "build=false",
    }
    never = {"build=false", "int8-ranges=NAME", "triton-backend=NAME"}
    add_old_settings(parser, SETTINGS.keys() - never, others=others)
    parser.add_argument("--version", action="version", version=f"gain-edge {__version__}")
    return parser


def _add_check_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--verify-images",
        type=Path,
        metavar="DIR",
        help="photographs to verify on (default: drawn images)",
    )
    group.add_argument(
        "--calibrate",
        metavar="DIR",
        help="unlabelled clean images of the known classes: measure the network on them, so that "
        "the method recognises streams of one class, and calibrate --precision int8; of an "
        "artifact, only that. test://signs: for the road-sign network, signs drawn by code",
    )
    add_json_flag(group, what="the report as one JSON object")
    group.add_argument("--debug", action="store_true", help="log everything, show tracebacks")


def _add_timm_arguments(group: argparse._ArgumentGroup) -> None:
    name = group.add_argument("--timm", metavar="NAME", help="alias or full timm tag")
    add_old_spelling(group, "--model", name)
    group.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="local checkpoint (.pt, .pth, .safetensors) instead of the published weights",
    )
    group.add_argument(
        "--classes", type=int, metavar="K", help="number of classes (default: the checkpoint's)"
    )


def _add_onnx_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-name",
        metavar="NAME",
        help="the output with the scores of the classes, where several may be it",
    )
    group.add_argument(
        "--head",
        metavar="NODE",
        help="node or value inside the graph to take as logits instead of an output; where an "
        "output has as many columns it must agree with that",
    )
    group.add_argument(
        "--input-range",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="what black and white are to a network that normalises its pixels itself, for "
        "instance 0 255, instead of --mean and --std",
    )
    group.add_argument(
        "--like", metavar="NAME", help="take over the preprocessing of this alias or timm tag"
    )


def _add_preprocessing_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--img-size", type=int, nargs="+", metavar="PX", help="input size: one number, or H W"
    )
    for name in ("mean", "std"):
        group.add_argument(
            f"--{name}",
            type=float,
            nargs="+",
            metavar="X",
            help=f"{name} per channel, in units of [0, 1] pixels; one number stands for all three",
        )
    group.add_argument(
        "--crop-pct", type=float, metavar="X", help="share of the resized side that is kept, (0, 1]"
    )
    group.add_argument(
        "--interpolation",
        choices=("nearest", "bilinear", "bicubic", "lanczos"),
        help="resize filter",
    )
    group.add_argument(
        "--crop-mode",
        choices=("center", "squash"),
        help="keep the aspect ratio and cut, or squash (default: center)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command on `argv`, or on the process's arguments.

    Returns 0 written, 1 refused (one line says why), 130 interrupted; 2 is argparse's own.
    """
    args = parse_arguments(build_parser(), list(sys.argv[1:] if argv is None else argv))
    written: list[str] = []
    try:
        with _logging(debug=args.debug):
            take_settings(args)
            check_json_target(args.json, other_than=args.target)
            check_calibration(args.calibrate)
            check_precision_arguments(args)
            check_adaptive_arguments(args)
            check_engine_arguments(args)
            finished = is_finished(args)
            if finished:
                check_artifact(args)
            else:
                check_engine_settings(args)
            report = None if finished else _export(args)
            path = args.target if report is None else report.path
            if report is not None:
                written.append(str(path))
            fitness = precision = adaptive = engine = None
            with calibration_folder(args.calibrate) as images:
                if images is not None:
                    from gain_export.images import add_fitness

                    fitness = add_fitness(path, images)
                    written.append(f"the fitness report in {path}")
                    if report is not None:
                        data = path.read_bytes()
                        sha256 = hashlib.sha256(data).hexdigest()
                        report = replace(report, sha256=sha256, size_bytes=len(data))
                if args.precision is not None:
                    precision = write_precision(args, path, calibration_images=images)
                    # What follows is made of the lower precision.
                    path = precision.path
                    if precision.written:
                        written.append(str(path))
                if args.adaptive:
                    adaptive = write_adaptive(args, path)
                    written.append(str(adaptive.path))
                triton = write_triton_model(args, adaptive)
                if triton is not None:
                    written.append(str(triton))
                if args.engine:
                    engine = write_engine(args, path, calibration_images=images)
            everything = Written(report, fitness, precision, adaptive, engine, triton)
            if args.json is not None:
                print_json(everything, args.json)
    except GainError as err:
        if args.debug:
            traceback.print_exc()
        before = f" (written before: {', '.join(written)})" if written else ""
        print(f"gain-export: {err}{before}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        before = f"written before: {', '.join(written)}" if written else "nothing was written"
        print(f"gain-export: interrupted; {before}", file=sys.stderr)
        return 130
    if args.json != STDOUT:
        print_text(everything)
    return 0


@contextmanager
def _logging(*, debug: bool) -> Iterator[None]:
    """Send log records to standard error, for as long as this command runs."""
    root, handler = logging.getLogger(), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG if debug else logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def _export(args: argparse.Namespace) -> ExportReport:
    """Export a timm model or an ONNX file, with a progress line meanwhile."""
    export = _export_onnx if _is_existing_file(args) else _export_timm
    with progress_line(enabled=args.json != STDOUT) as on_step:
        return export(args, on_step)


def _is_existing_file(args: argparse.Namespace) -> bool:
    """Whether the target is a model to read; checks that no flag of the other kind is given."""
    from gain_export.labels import load_aliases

    reads = args.timm is None and exists(args.target)
    if reads and args.target.stem in load_aliases() and not is_folder(args.target):
        # What an alias was exported to before is no original to be read.
        from gain_export.onnx_file import is_artifact

        reads = not is_artifact(args.target)
    foreign, kind = (_TIMM_ONLY, "a timm model") if reads else (_ONNX_ONLY, "an existing ONNX file")
    given = [name for name in foreign if getattr(args, name) is not None]
    if given:
        reason = f"{args.target} is to be {'read' if reads else 'written'}"
        raise ConfigError(f"{flag(given[0])}: belongs to the export of {kind}, but {reason}")
    return reads


def _export_onnx(args: argparse.Namespace, on_step: OnStep) -> ExportReport:
    from gain_export import export_onnx

    return export_onnx(
        args.target,
        output=args.output,
        preprocess=_overrides(args),
        like=args.like,
        labels=args.labels,
        head=args.head,
        output_name=args.output_name,
        layout=args.layout,
        verify_images=args.verify_images,
        force=args.force,
        on_step=on_step,
    )


def _export_timm(args: argparse.Namespace, on_step: OnStep) -> ExportReport:
    from gain_export.labels import load_aliases

    name = args.timm or args.target.stem
    if args.timm is None and name not in load_aliases():
        raise ArtifactError(
            f"{args.target}: no such file, and {name} is no alias; give an ONNX file, --timm with "
            f"a timm tag, or one of: {', '.join(sorted(load_aliases()))}"
        )
    if args.seed is not None and not args.random_weights:
        raise ConfigError(
            f"{flag('seed')}: is the seed of {flag('random_weights')}; give both or neither"
        )
    if args.weights is not None:
        # What cannot be accessed is said before torch is imported, which takes seconds.
        exists(args.weights, error=ArtifactError)
    from gain_export import export_timm
    from gain_export.onnx_file import DEFAULT_OPSET

    return export_timm(
        name,
        args.output or args.target,
        weights=args.weights,
        random_seed=(args.seed or 0) if args.random_weights else None,
        num_classes=args.classes,
        labels=args.labels,
        preprocess=_overrides(args),
        opset=DEFAULT_OPSET if args.opset is None else args.opset,
        ema=args.ema,
        verify_images=args.verify_images,
        force=args.force,
        on_step=on_step,
    )


def _overrides(args: argparse.Namespace) -> PreprocessOverrides:
    """The preprocessing flags that were given."""
    from gain_export import PreprocessOverrides

    size = args.img_size
    if size is not None and len(size) > 2:
        raise ConfigError(f"--img-size: expected one number or H W, got {len(size)} numbers")
    return PreprocessOverrides(
        img_size=None if size is None else (size[0], size[-1]),
        mean=_per_channel("--mean", args.mean),
        std=_per_channel("--std", args.std),
        crop_fraction=args.crop_pct,
        interpolation=args.interpolation,
        crop_mode=args.crop_mode,
        channel_order=args.channel_order,
        value_range=None if args.input_range is None else tuple(args.input_range),
    )


def _per_channel(name: str, values: list[float] | None) -> tuple[float, float, float] | None:
    """Three numbers, one of which may stand for all."""
    if values is None:
        return None
    if len(values) not in (1, 3):
        raise ConfigError(f"{name}: expected one number or three, got {len(values)}")
    return values[0], values[len(values) // 2], values[-1]


if __name__ == "__main__":
    sys.exit(main())

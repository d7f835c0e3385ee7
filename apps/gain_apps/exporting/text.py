"""What gain-export makes of an artifact that is there, and what it tells of files it wrote."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gain_apps.exporting.adaptation import check_adaptive_source
from gain_apps.exporting.deployment import (
    check_engine_settings,
    check_precision_source,
    engine_rows,
    precision_rows,
)
from gain_apps.flags import write_json_lines
from gain_runtime.files.paths import check_output, is_file

if TYPE_CHECKING:
    from gain_export import ExportReport
    from gain_export.adaptive import AdaptiveReport
    from gain_export.engine import EngineReport
    from gain_export.precision import PrecisionReport
    from gain_runtime.files.manifest import Fitness


def is_finished(args: argparse.Namespace) -> bool:
    """Whether the target is an artifact already and only what is made from it is wanted.

    Raises ArtifactError if it is no ONNX model.
    """
    wanted = args.adaptive or args.engine or args.precision
    wanted = wanted or args.calibrate is not None or args.triton is not None
    if not wanted or args.output is not None or not is_file(args.target):
        return False
    from gain_export.onnx_file import is_artifact

    return is_artifact(args.target)


def check_artifact(args: argparse.Namespace) -> None:
    """Refuse what a later step could not take, before an earlier one works on the artifact.

    Raises ArtifactError if its folder cannot be written, it cannot be lowered or made adaptive as
    it is, or there is no photograph to verify on; and as `check_engine_settings`.
    """
    if args.calibrate is None and args.precision is None:
        # The only step there is finds it out itself, as soon.
        return
    from gain_export.images import read_photographs

    check_output(args.target, force=True)
    if args.precision is not None:
        check_precision_source(args)
    if args.adaptive:
        check_adaptive_source(args)
    if args.verify_images is not None:
        read_photographs(args.verify_images)
    check_engine_settings(args)


_ENDINGS = {
    "none": "",
    "probabilities": "; the logits are the logarithm of the model's probabilities",
    "class_number": "; the model gives the number of the class only",
}


class Written(NamedTuple):
    """Everything one call wrote; None for what was not asked for."""

    artifact: ExportReport | None
    fitness: Fitness | None
    precision: PrecisionReport | None
    adaptive: AdaptiveReport | None
    engine: EngineReport | None
    triton: Path | None = None


def print_json(written: Written, target: str, /) -> None:
    """Everything that was written, as one object in a file or, for `-`, on standard output.

    Raises StreamError if the file cannot be written.
    """
    record = {} if written.artifact is None else written.artifact.to_dict()
    if written.fitness is not None:
        record["fitness"] = asdict(written.fitness)
    for name in ("precision", "adaptive", "engine"):
        part: PrecisionReport | AdaptiveReport | EngineReport | None = getattr(written, name)
        if part is not None:
            record[name] = part.to_dict()
    if written.triton is not None:
        record["triton"] = str(written.triton)
    write_json_lines(target, [record])


def print_text(written: Written) -> None:
    """Everything that was written, for a person."""
    if written.artifact is not None:
        _print_report(written.artifact)
    if written.fitness is not None:
        _print_fitness(written.fitness)
    if written.precision is not None:
        for name, text in precision_rows(written.precision):
            _print_row(name, text)
    if written.adaptive is not None:
        adaptive = written.adaptive
        size = f"{_size(adaptive.size_bytes)}, state {_size(adaptive.state_bytes)}"
        pace = f"update every {adaptive.update_every}, warm-up {adaptive.warmup_frames}"
        _print_row("adaptive", f"{adaptive.path} ({size}, {pace})")
    if written.triton is not None:
        _print_row("triton", str(written.triton))
    if written.engine is not None:
        for name, text in engine_rows(written.engine):
            _print_row(name, text)


def _print_report(report: ExportReport) -> None:
    """What a person wants to know about the artifact, on standard error."""
    spec = report.preprocess
    mean, std = (" ".join(f"{value:.4g}" for value in values) for values in (spec.mean, spec.std))
    head = (
        f"{report.num_classes} classes, logits only"
        if report.feature_dim is None
        else f"{report.num_classes} classes x {report.feature_dim} features"
    )
    ending = _ENDINGS.get(report.activation, f"; the model applies {report.activation} to it")
    rows = [
        (
            "artifact",
            f"{report.path} ({report.size_bytes / 1e6:.1f} MB, sha256 {report.sha256[:12]})",
        ),
        ("source", report.source),
        ("head", head + ending),
        ("labels", report.labels_source),
        (
            "input",
            f"{spec.width_px} x {spec.height_px} px {spec.channel_order}, {spec.interpolation}, "
            f"{spec.crop_mode} crop {spec.crop_fraction:g}, mean {mean}, std {std}",
        ),
        ("format", f"opset {report.opset}, IR {report.ir_version}"),
        *(("note", note) for note in report.notes),
        *_verification(report.verification),
        ("seconds", ", ".join(f"{name} {value:.1f}" for name, value in report.seconds.items())),
    ]
    for name, text in rows:
        _print_row(name, text)


def _verification(numbers: Mapping[str, float | int | str]) -> list[tuple[str, str]]:
    """What was compared, and nothing that was not."""
    if numbers["verified"] == "no":
        return [("verified", f"NOT VERIFIED: {numbers['reason']}")]
    rows = [
        (
            "verified",
            f"against the output of {numbers['reference']} on {numbers['images']} images "
            f"({numbers['image_source']}), batches of {numbers['batch_sizes']}",
        )
    ]
    seen = int(numbers["classes_seen"])
    classes = (
        f"top-1 {float(numbers['top1_agreement']):.1%} ({seen} classes seen)"
        if seen > 1
        else "the same class on all images, of which top-1 says nothing"
    )
    if numbers["verified"] == "class":
        return [*rows, ("agreement", f"{classes}; the model gives no scores to compare")]
    return [
        *rows,
        (
            "agreement",
            f"{classes}, largest difference {float(numbers['output_max_abs_diff']):.2g} "
            f"(allowed {float(numbers['output_allowed_diff']):.2g}), "
            f"smallest cosine {float(numbers['output_cosine_min']):.7f}, mean confidence "
            f"{float(numbers['confidence']):.4f} and {float(numbers['reference_confidence']):.4f}",
        ),
    ]


def _print_fitness(fitness: Fitness) -> None:
    """The fitness report, numbers and words."""
    from gain_export.images import advice

    _print_row(
        "measured",
        f"on {fitness.num_images} clean images: confidence {fitness.confidence:.2f}",
    )
    for line in advice(fitness):
        _print_row("", line)


def _size(num_bytes: int) -> str:
    """In kB below a MB."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.1f} kB"


def _print_row(name: str, text: str) -> None:
    print(f"{name:<10} {text}", file=sys.stderr)

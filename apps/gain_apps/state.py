"""`gain-state`: what saved states say, and several of them as one."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gain_apps.flags import STDOUT, add_json_flag, check_json_target, write_json_lines
from gain_core import __version__, config_from_dict, make_method
from gain_core.errors import ArtifactError, ConfigError, GainError, one_line

if TYPE_CHECKING:
    from gain_core import Method
    from gain_runtime.files.state import StateFile

_EPILOG = """\
examples:
  gain-state show kitchen.safetensors
  gain-state merge north.safetensors south.safetensors -o gate.safetensors
  gain-stream CAMERA --model net.gain.onnx --state-in gate.safetensors    a camera begins with it

States are sums, so those of cameras on one artifact add up. Merge cameras that see the same
weather; docs/how-to/grow.md has what it costs where they do not.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="gain-state",
        description="Show what a saved state was learned from, or merge several.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="show|merge")
    show = commands.add_parser("show", help="method, frames, artifact and summary of a state")
    show.add_argument("file", type=Path, metavar="FILE", help="saved by gain-stream")
    merge = commands.add_parser("merge", help="one state that has learned what several have")
    merge.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="two or more, of one artifact"
    )
    merge.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the state to write"
    )
    merge.add_argument("--force", action="store_true", help="replace an existing file")
    merge.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="the artifact; the presets paper and paper-l2 need its head",
    )
    for command in (show, merge):
        add_json_flag(command, what="the same as one JSON object")
        command.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action="version", version=f"gain-edge {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    0 done, 1 refused (one line says why), 130 interrupted; 2 is argparse's own.
    """
    args = build_parser().parse_args(argv)
    try:
        check_json_target(args.json)
        record = _merge(args) if args.command == "merge" else _show(args.file)
        if args.json is not None:
            write_json_lines(args.json, [record])
    except GainError as err:
        if args.debug:
            traceback.print_exc()
        print(f"gain-state: {one_line(err)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gain-state: interrupted", file=sys.stderr)
        return 130
    if args.json != STDOUT:
        for name, value in record.items():
            shown = f"{value:.4g}" if isinstance(value, float) else value
            print(f"{name:<16} {shown}")
    return 0


def _show(path: Path) -> dict[str, Any]:
    """What a state file says, by name."""
    from gain_runtime.files.state import read_state

    file = read_state(path)
    record = {
        "path": str(path),
        "method": file.config.get("method"),
        "frames": file.frames,
        "artifact_sha256": file.artifact_sha256,
        "bytes": sum(array.nbytes for array in file.arrays.values()),
    }
    # The paper's method needs a head to read its state, and has nothing to summarise.
    if file.config.get("method") == "shift":
        method = _method(file, None)
        summary = method.summary(file.state(method))
        record |= {name: float(np.asarray(value)) for name, value in summary.items()}
    return record


def _merge(args: argparse.Namespace) -> dict[str, Any]:
    """Write the merged state; what `_show` says of it."""
    from gain_runtime.files.paths import check_output, resolved
    from gain_runtime.files.state import read_state, save_state

    if len(args.files) < 2:
        raise ConfigError(f"merge: expected two states or more, got {args.files[0]} alone")
    places = [resolved(path, error=ArtifactError) for path in args.files]
    if twice := sorted({str(path) for path in places if places.count(path) > 1}):
        raise ConfigError(f"merge: {', '.join(twice)} given twice; name each state once")
    check_output(args.output, force=args.force)
    files = [read_state(path) for path in args.files]
    for other in files[1:]:
        _refuse_other(files[0], other)
    method = _method(files[0], args.model)
    save_state(
        args.output,
        reduce(method.merge, [file.state(method) for file in files]),
        config=method.config,
        artifact_sha256=files[0].artifact_sha256,
        frames=sum(file.frames for file in files),
    )
    return _show(args.output)


def _refuse_other(first: StateFile, other: StateFile) -> None:
    """Two states are of one artifact and one config."""
    from gain_runtime.files.state import config_differences

    hashes = first.artifact_sha256, other.artifact_sha256
    if hashes[0] != hashes[1]:
        raise ArtifactError(
            f"{other.path}: artifact hash: expected {hashes[0][:12]}, as {first.path} has, got "
            f"{hashes[1][:12]}; states of one artifact can be merged only"
        )
    if differing := config_differences(other.config, first.config):
        raise ConfigError(
            f"{other.path}: learned with another config than {first.path}: {differing}; "
            "states of one config can be merged only"
        )


def _method(file: StateFile, model: Path | None) -> Method[Any]:
    """The method a state is of: of its artifact where that is given."""
    try:
        config = config_from_dict(file.config)
    except ConfigError as err:
        raise ConfigError(f"{file.path}: {err}") from err
    if model is None:
        if file.config["method"] != "shift":
            raise ConfigError(
                f"{file.path}: a state of the method {file.config['method']} is read with the "
                "head's weight; name the artifact with --model"
            )
        # What it takes out of the logits has one number for each class.
        shift = file.arrays.get("shift")
        if shift is None or shift.ndim != 1:
            raise ArtifactError(f"{file.path}: expected a state of the method shift, got another")
        return make_method(len(shift), config)
    from gain_runtime.engine import artifact_method
    from gain_runtime.files.artifact import load_artifact

    artifact = load_artifact(model)
    if artifact.sha256 != file.artifact_sha256:
        raise ArtifactError(
            f"{model}: artifact hash: expected {file.artifact_sha256[:12]}, as {file.path} has, "
            f"got {artifact.sha256[:12]}; name the artifact it was learned on"
        )
    return artifact_method(artifact, config)


if __name__ == "__main__":
    sys.exit(main())

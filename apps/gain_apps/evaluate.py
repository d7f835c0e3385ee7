"""`gain-eval`: does the correction help? Streams, methods and scores in one command."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gain_core.errors import ConfigError, GainError
from gain_runtime.file_kind import is_folder

__all__ = ["build_parser", "main"]

PACKAGES = ("gain_apps", "gain_runtime", "gain_core")

EPILOG = """\
commands:
  gain-eval MODEL DATA [options]   run an experiment
  gain-eval BED.npz [options]      the same on a bed: frozen features of one network, no artifact
  gain-eval compare A B            put two result files side by side
  gain-eval report RESULT --out F  draw a report (.html or .md) of a result file

data:
  a folder of class folders, a flat folder with classes.tsv and files named WNID_*.jpg, .npz with
  `images` and `labels`, an ImageNet-C or ImageNet-3DCC tree (CORRUPTION/SEVERITY/CLASS/FILE),
  test://NAME. All but the trees hold clean images, which are corrupted on the way.

methods:
  {methods}
  and with --torch-model: {torch_methods}
  each as NAME or NAME:key=value:key=value. GAIN presets take every setting (half_life=100) and
  the ablations rule=retention|full|fixed|entropy|disagreement, fixed_strength=0.5,
  role=evaluator|swapped, assignment=source|proposal, reliability=false,
  prior=uniform|reliability|balancing.

examples:
  gain-eval vit_b16.onnx imagenet-c/ --image-list ids.txt --methods paper,tracked,neo --json r.json
  gain-eval lite0.onnx photos/ --views 5 --severity 3 --seeds 5 --report r.html
  gain-eval lite0.onnx photos/ --config experiment.toml --batch-size 16
  gain-eval bed.npz --order sorted --methods tracked,tracked:rule=full,neo-continual:rate=0.3

exit status:
  0 success, 1 an error (one line says which), 2 wrong usage, 130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of an experiment.

    Returns
    -------
    argparse.ArgumentParser
    """
    from gain_apps.evaluation.methods.registry import METHODS, TORCH_METHODS

    parser = argparse.ArgumentParser(
        prog="gain-eval",
        description="Run adaptation methods over streams of shifting domains and score them.",
        epilog=EPILOG.format(methods=", ".join(METHODS), torch_methods=", ".join(TORCH_METHODS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="artifact (.onnx), a bed (.npz), or -")
    parser.add_argument(
        "data", metavar="DATA", nargs="?", help="data set; with MODEL -, a bed; absent for a bed"
    )
    _add_stream(parser)
    _add_data(parser)
    _add_run(parser)
    return parser


def _add_stream(parser: argparse.ArgumentParser) -> None:
    """What comes when."""
    group = parser.add_argument_group("stream")
    group.add_argument(
        "--stream",
        default="csc",
        choices=("csc", "cdc", "mds", "lha", "ramp", "recurring", "recorded"),
        help="domains in order, in random visits, mixed by sample, in ten rounds, with the "
        "severity climbing and descending, taking turns, or as a test:// source recorded them "
        "(default: csc)",
    )
    group.add_argument(
        "--order",
        choices=("list", "shuffled", "runs", "sorted", "long-tailed", "one-class"),
        help="images within a domain (default: list with --image-list, else shuffled)",
    )
    group.add_argument("--domains", metavar="A,B", type=_names, help="domains, in order")
    group.add_argument(
        "--severity",
        metavar="S,S",
        type=_numbers,
        default=(5.0,),
        help="one stream per severity (default: 5); a bed has one only, which this then names",
    )
    group.add_argument("--batch-size", metavar="B", type=int, default=64)
    group.add_argument("--seed", metavar="N", type=int, default=0, help="first seed (default: 0)")
    group.add_argument("--seeds", metavar="N", type=int, default=1, help="number of seeds")
    group.add_argument("--delta", metavar="X", type=float, default=1.0, help="CDC's Dirichlet")
    group.add_argument("--rounds", metavar="N", type=int, default=10, help="of lha (default: 10)")
    group.add_argument("--visits", metavar="N", type=int, default=3, help="of recurring")
    group.add_argument("--only-class", metavar="K", type=int, help="index for --order one-class")


def _add_data(parser: argparse.ArgumentParser) -> None:
    """What is shown to the network."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--normalise",
        choices=("timm", "unit", "imagenet"),
        default="timm",
        help="mean and std: the artifact's own, none, or ImageNet's (default: timm)",
    )
    group.add_argument("--views", metavar="N", type=int, default=1, help="crops and flips each")
    group.add_argument("--classes", metavar="FILE", type=Path, help="classes.tsv for wnids")
    group.add_argument(
        "--class-subset",
        choices=("all", "present"),
        default="all",
        help="predict among all classes, or only those with images (as for ImageNet-R)",
    )
    group.add_argument("--image-list", metavar="FILE", type=Path, help="CLASS/FILE, one a line")
    group.add_argument(
        "--source-data", metavar="PATH", help="clean images for foa-shift, foa, eata"
    )
    group.add_argument("--cache", metavar="DIR", type=Path, help="folder for features")
    group.add_argument("--device", choices=("cpu", "cuda", "tensorrt", "auto"), default="cpu")
    group.add_argument(
        "--torch-model",
        metavar="NAME",
        help="timm name of the artifact's network, for the methods that need it in torch",
    )
    group.add_argument(
        "--torch-weights", metavar="FILE", type=Path, help="the checkpoint it was exported from"
    )
    group.add_argument("--num-threads", metavar="N", type=int)


def _add_run(parser: argparse.ArgumentParser) -> None:
    """What is run and written."""
    from gain_apps.evaluation.flag_defaults import add_config_flag

    group = parser.add_argument_group("run")
    add_config_flag(group)
    group.add_argument(
        "--methods",
        metavar="A,B",
        type=_names,
        default=("tracked", "paper", "paper-l2", "neo"),
        help="see below; source is always run too (default: tracked,paper,paper-l2,neo)",
    )
    group.add_argument("--bins", metavar="N", type=int, default=20, help="of the ECE (default: 20)")
    group.add_argument(
        "--no-diagnosis",
        action="store_true",
        help="skip strength and gain, which are those before a batch is learned from",
    )
    group.add_argument("--json", metavar="FILE", help="result file; - for stdout")
    group.add_argument("--report", metavar="FILE", type=Path, help=".html or .md with pictures")
    group.add_argument("--verbose", action="store_true", help="log more")
    group.add_argument("--debug", action="store_true", help="show tracebacks")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; `sys.argv` without the program name by default.

    Returns
    -------
    int
        Exit status.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, tuple[Callable[[], argparse.ArgumentParser], Callable[..., int]]] = {
        "compare": (_compare_parser, _compare),
        "report": (_report_parser, _report),
    }
    build, run = commands.get(given[0] if given else "", (build_parser, _evaluate))
    debug = "--debug" in given
    try:
        if run is _evaluate:
            from gain_apps.evaluation.flag_defaults import parse_with_config

            args = parse_with_config(build(), given)
            debug = args.debug
        else:
            args = build().parse_args(given[1:])
        return run(args, given)
    except GainError as err:
        if debug:
            traceback.print_exc()
        print(f"gain-eval: error: {' '.join(str(err).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gain-eval: interrupted", file=sys.stderr)
        return 130


def _evaluate(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Run an experiment, and print and write what came out."""
    from rich.console import Console

    from gain_apps.evaluation.experiment import run_experiment
    from gain_apps.evaluation.progress import Progress
    from gain_apps.evaluation.results import make_results, write_results
    from gain_apps.evaluation.settings import make_experiment
    from gain_apps.evaluation.subject import open_subject
    from gain_apps.evaluation.table import print_results

    console = Console(stderr=True)
    _check_outputs(args)
    with _Logging(console, verbose=args.verbose), Progress(console) as progress:
        subject = open_subject(args, on_images=progress.start)
        experiment = make_experiment(args, subject)
        runs = run_experiment(
            experiment,
            subject.store,
            recorded=subject.recorded,
            network=subject.network,
            on_method=progress.start,
        )
    results = make_results(
        experiment,
        runs,
        domains=subject.store.domains,
        subject=subject.record,
        command=shlex.join(["gain-eval", *given]),
    )
    if args.json == "-":
        print(json.dumps(results, allow_nan=False))
    elif args.json is not None:
        write_results(Path(args.json), results)
    print_results(results, console if args.json == "-" else Console())
    if args.report is not None:
        _write_report(args.report, results)
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse what would fail only after hours of work."""
    if args.seeds < 1:
        raise ConfigError(f"seeds: expected at least 1, got {args.seeds}")
    paths = [args.report] if args.report is not None else []
    if args.json not in (None, "-"):
        paths.append(Path(args.json))
    for path in paths:
        if not is_folder(path.parent):
            raise ConfigError(f"{path}: expected an existing folder, found no {path.parent}")
    if args.report is not None:
        from gain_apps.evaluation.report import check_report_path

        check_report_path(args.report)


def _compare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gain-eval compare", description="Put two results side by side."
    )
    parser.add_argument("first", metavar="A", type=Path)
    parser.add_argument("second", metavar="B", type=Path)
    parser.add_argument("--json", action="store_true", help="one object per method on stdout")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _compare(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Compare two result files."""
    from rich.console import Console

    from gain_apps.evaluation.results import read_results
    from gain_apps.evaluation.table import compare_results, print_comparison

    rows = compare_results(read_results(args.first), read_results(args.second))
    if args.json:
        for row in rows:
            print(json.dumps(row, allow_nan=False))
    else:
        print_comparison(rows, Console(), names=(str(args.first), str(args.second)))
    return 0


def _report_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gain-eval report", description="Draw a report of a result file."
    )
    parser.add_argument("result", metavar="RESULT", type=Path)
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help=".html or .md")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _report(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Draw a report of a result file."""
    from gain_apps.evaluation.results import read_results

    _write_report(args.out, read_results(args.result))
    return 0


def _write_report(path: Path, results: dict[str, Any]) -> None:
    from gain_apps.evaluation.report import write_report

    write_report(path, results)


class _Logging:
    """Our packages' log lines on a console while the run lasts (a context manager)."""

    def __init__(self, console: Any, /, *, verbose: bool) -> None:
        from gain_apps.progress import ConsoleHandler

        self._handler = ConsoleHandler(console)
        self._handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        self._level = logging.INFO if verbose else logging.WARNING
        self._loggers = [logging.getLogger(name) for name in PACKAGES]
        self._previous = [logger.level for logger in self._loggers]

    def __enter__(self) -> None:
        for logger in self._loggers:
            logger.addHandler(self._handler)
            logger.setLevel(self._level)

    def __exit__(self, *exc: object) -> None:
        for logger, level in zip(self._loggers, self._previous, strict=True):
            logger.removeHandler(self._handler)
            logger.setLevel(level)


def _names(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    return names


def _numbers(text: str) -> tuple[float, ...]:
    """Comma-separated numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers separated by commas, got {text!r}"
        ) from None


if __name__ == "__main__":
    raise SystemExit(main())

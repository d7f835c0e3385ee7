"""`gain-eval`: does the correction help? Streams, methods and scores in one command."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gain_core.errors import ConfigError, GainError
from gain_runtime.files.paths import is_folder

if TYPE_CHECKING:
    from gain_apps.evaluation.executor import Executor

__all__ = ["build_parser", "main"]

PACKAGES = ("gain_apps", "gain_runtime", "gain_core")

EPILOG = """\
commands:
  gain-eval MODEL DATA [options]   run methods on streams of a data set
  gain-eval DUMP.npz [options]     the same on a feature dump: frozen features of one network
  gain-eval suite NAME [options]   run a suite, and judge its bars
  gain-eval compare A B            put two result files side by side
  gain-eval report RESULT --out F  draw a report (.html or .md) of a result file

data:
  a folder of class folders, a flat folder with classes.tsv and files named WNID_*.jpg, .npz with
  `images` and `labels`, an ImageNet-C or ImageNet-3DCC tree (CORRUPTION/SEVERITY/CLASS/FILE),
  test://NAME. The same in a tar file or a folder of them, not compressed, as they are published;
  WebDataset shards (.tar with .cls files); a data set of the library `datasets`, saved or Parquet.
  All but the trees hold clean images, which are corrupted on the way.

streams, each as NAME or NAME:key=value:
  of a data set: csc (one domain after the other), cdc:delta=1 (random visits), mds (mixed by
  sample), lha:rounds=10 (again and again), ramp (the severity climbs and descends),
  recurring:visits=3
  as a camera sees them, objects that stay for twelve frames: {camera}
  recorded: a test:// source as it is; recorded-one: one class out of it, for hours

methods:
  {methods}
  and with --torch: {torch_methods}
  each as NAME or NAME:key=value:key=value. GAIN presets take every setting (half_life=100),
  update_every and warmup_frames; the paper's the ablations rule=retention|full|fixed|entropy|
  disagreement, fixed_strength=0.5, role=evaluator|swapped, assignment=source|proposal,
  reliability=false, prior=uniform|reliability|balancing.

examples:
  gain-eval vit_b16.onnx imagenet-c/ --image-list ids.txt --methods paper,shift,neo --json r.json
  gain-eval lite0.onnx photos/ --views 5 --severity 3 --seeds 5 --report r.html
  gain-eval dump.npz --stream few --seeds 5 --methods shift,neo-continual:rate=0.3
  gain-eval suite camera --inputs dumps/ --only vit_k36
  gain-eval vit_b16.onnx imagenet-c/ --ray auto --device cuda --cache s3://lab/features

exit status:
  0 success, 1 an error (one line says which), 2 wrong usage, 130 interrupted
"""

# Flags of the release before, with what stands in their place; the first few still work.
RENAMED = {"--source-data": "--source-images", "--classes": "--class-file"}
FOLDED = {
    "--delta": ("--stream", "delta"),
    "--rounds": ("--stream", "rounds"),
    "--visits": ("--stream", "visits"),
    "--only-class": ("--stream", "class"),
}
GONE = {
    "--config": "a suite file: gain-eval suite FILE.toml",
    "--torch-model": "--torch NAME=WEIGHTS",
    "--torch-weights": "--torch NAME=WEIGHTS",
}
IGNORED = {"--no-diagnosis": 0, "--verbose": 0, "--bins": 1}


def build_parser() -> argparse.ArgumentParser:
    """The command line of an experiment.

    Returns
    -------
    argparse.ArgumentParser
    """
    from gain_apps.evaluation.methods.registry import METHODS, TORCH_METHODS
    from gain_apps.evaluation.streams import CAMERA_STREAMS

    parser = argparse.ArgumentParser(
        prog="gain-eval",
        description="Run adaptation methods over streams of shifting domains and score them.",
        epilog=EPILOG.format(
            camera=", ".join(CAMERA_STREAMS),
            methods=", ".join(METHODS),
            torch_methods=", ".join(TORCH_METHODS),
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="artifact (.onnx), or a feature dump (.npz)")
    parser.add_argument("data", metavar="DATA", nargs="?", help="data set; absent for a dump")
    _add_stream(parser)
    _add_data(parser)
    _add_run(parser)
    return parser


def _add_stream(parser: argparse.ArgumentParser) -> None:
    """What comes when."""
    group = parser.add_argument_group("stream")
    group.add_argument("--stream", metavar="NAME", default="csc", help="see below (default: csc)")
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
        help="one stream per severity (default: 5); a dump has one only, which this then names",
    )
    group.add_argument(
        "--batch-size", metavar="B", type=int, help="frames a step (default: 64, a camera's 16)"
    )
    group.add_argument("--seed", metavar="N", type=int, default=0, help="first seed (default: 0)")
    group.add_argument("--seeds", metavar="N", type=int, default=1, help="number of seeds")


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
    group.add_argument("--class-file", metavar="FILE", type=Path, help="classes.tsv for wnids")
    group.add_argument(
        "--class-subset",
        choices=("all", "present"),
        default="all",
        help="predict among all classes, or only those with images (as for ImageNet-R)",
    )
    group.add_argument("--image-list", metavar="FILE", type=Path, help="CLASS/FILE, one a line")
    group.add_argument(
        "--source-images", metavar="PATH", help="clean images, where the data have none"
    )
    _add_cluster(group)
    group.add_argument("--device", choices=("cpu", "cuda", "tensorrt", "auto"), default="cpu")
    group.add_argument("--num-threads", metavar="N", type=int)
    group.add_argument(
        "--torch",
        metavar="NAME=FILE",
        type=_torch,
        help="timm name of the artifact's network and the checkpoint it was exported from, for "
        "the methods that train it",
    )


def _add_cluster(parser: argparse._ActionsContainer) -> None:
    """Where features are kept, and where the work is done."""
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="folder for features; with --ray also an fsspec URL (s3://BUCKET/FOLDER)",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run on a Ray cluster: auto (the one that runs here), HOST:6379, or local (start one)",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    """What is run and written."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--methods",
        metavar="A,B",
        type=_names,
        default=("shift", "paper", "paper-l2", "neo"),
        help="see below; source is always run too (default: shift,paper,paper-l2,neo)",
    )
    group.add_argument(
        "--diagnose",
        action="store_true",
        help="record strength and gain before each batch is learned from; --report does, too",
    )
    group.add_argument("--json", metavar="FILE", help="result file; - for stdout")
    group.add_argument("--report", metavar="FILE", type=Path, help=".html or .md with pictures")
    group.add_argument("--debug", action="store_true", help="log everything, show tracebacks")


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
        "suite": (_suite_parser, _suite),
        "compare": (_compare_parser, _compare),
        "report": (_report_parser, _report),
    }
    build, run = commands.get(given[0] if given else "", (build_parser, _evaluate))
    try:
        if run is _evaluate:
            args = build().parse_args(_without_old_flags(given))
        else:
            args = build().parse_args(given[1:])
        return run(args, given)
    except GainError as err:
        if "--debug" in given:
            traceback.print_exc()
        print(f"gain-eval: error: {' '.join(str(err).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gain-eval: interrupted", file=sys.stderr)
        return 130


def _evaluate(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Run an experiment, and print and write what came out."""
    from rich.console import Console

    from gain_apps.evaluation import InputSettings, evaluate
    from gain_apps.evaluation.table import Progress, print_results

    console = Console(stderr=True)
    _check_outputs(args)
    settings = InputSettings(
        domains=args.domains,
        severities=args.severity,
        views=args.views,
        normalise=args.normalise,
        class_file=args.class_file,
        class_subset=args.class_subset,
        image_list=args.image_list,
        source_images=args.source_images,
        cache=args.cache,
        device=args.device,
        num_threads=args.num_threads,
        torch=args.torch,
    )
    with ExitStack() as stack:
        executor = _executor(args, stack)
        stack.enter_context(_Logging(console, debug=args.debug))
        progress = stack.enter_context(Progress(console))
        results = evaluate(
            args.model,
            args.data,
            stream=args.stream,
            order=args.order,
            methods=args.methods,
            seeds=range(args.seed, args.seed + args.seeds),
            batch_size=args.batch_size,
            settings=settings,
            diagnose=args.diagnose or args.report is not None,
            command=shlex.join(["gain-eval", *given]),
            executor=executor,
            result=None if args.json in (None, "-") else Path(args.json),
            on_task=progress.start,
        )
    if args.json == "-":
        print(json.dumps(results, allow_nan=False))
    print_results(results, console if args.json == "-" else Console())
    if args.report is not None:
        _write_report(args.report, results)
    return 0


def _executor(args: argparse.Namespace, stack: ExitStack) -> Executor:
    """Where the work is done; a connection to a cluster ends with the stack."""
    if args.ray is None:
        from gain_apps.evaluation.executor import LocalExecutor

        return LocalExecutor()
    from gain_apps.evaluation.ray_executor import RayExecutor

    return stack.enter_context(RayExecutor(args.ray))


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


def _suite_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gain-eval suite",
        description="Run what a suite's result file lacks, and judge its bars.",
    )
    parser.add_argument("suite", metavar="NAME", help="in benchmarks/suites, or a .toml file")
    parser.add_argument(
        "--inputs",
        metavar="DIR",
        help="folders of dumps and artifacts, divided as in PATH (default: $GAIN_BEDS)",
    )
    parser.add_argument("--only", metavar="A,B", type=_names, default=(), help="inputs or streams")
    parser.add_argument("--refresh", metavar="A,B", type=_names, default=(), help="methods again")
    parser.add_argument(
        "--seeds", metavar="N", type=int, help="at most so many; 0 judges what was run"
    )
    _add_cluster(parser)
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="result file (default: results/NAME.json beside the folder of the suite); the tables "
        "are written beside it as .md",
    )
    parser.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
    return parser


def _suite(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Run a suite."""
    from rich.console import Console

    from gain_apps.evaluation.suite import run_suite, suite_markdown
    from gain_apps.evaluation.suite_file import folders_of, load_suite, suite_path
    from gain_apps.evaluation.table import Progress, print_bars
    from gain_runtime.files.paths import write_atomically

    console = Console(stderr=True)
    place = suite_path(args.suite)
    suite = load_suite(place)
    target = args.json or place.parent.parent / "results" / f"{suite.name}.json"
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: expected an existing folder, found no {target.parent}")
    with ExitStack() as stack:
        executor = _executor(args, stack)
        stack.enter_context(_Logging(console, debug=args.debug))
        progress = stack.enter_context(Progress(console))
        report = run_suite(
            suite,
            target,
            folders=folders_of(args.inputs),
            cache=args.cache,
            only=args.only,
            refresh=args.refresh,
            seeds=args.seeds,
            executor=executor,
            on_task=progress.start,
            on_pair=lambda line: print(line, flush=True),
        )
    write_atomically(target.with_suffix(".md"), suite_markdown(suite, report).encode())
    print_bars(report["bars"], Console())
    return 0


def _without_old_flags(given: Sequence[str]) -> list[str]:
    """The arguments with flags of the release before in today's words, and a warning for each."""
    left: list[str] = []
    options: list[str] = []
    words = iter(given)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in GONE:
            raise ConfigError(f"{flag}: is gone; use {GONE[flag]}")
        if flag in RENAMED:
            _warn(flag, RENAMED[flag])
            left.append(RENAMED[flag] + equals + value)
        elif flag in FOLDED:
            _warn(flag, f"--stream NAME:{FOLDED[flag][1]}=N")
            options.append(f":{FOLDED[flag][1]}={value if equals else next(words, '')}")
        elif flag in IGNORED:
            _warn(flag, "nothing: it has no effect any more")
            if IGNORED[flag] and not equals:
                next(words, None)
        else:
            left.append(word)
    if options:
        place = left.index("--stream") + 1 if "--stream" in left else None
        if place is None:
            left += ["--stream", "csc"]
            place = len(left) - 1
        left[place] += "".join(options)
    return left


def _warn(flag: str, instead: str) -> None:
    print(f"gain-eval: warning: {flag} goes with the next release; use {instead}", file=sys.stderr)


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

    def __init__(self, console: Any, /, *, debug: bool) -> None:
        from rich.logging import RichHandler

        self._handler = RichHandler(console=console, show_time=False, show_path=False)
        self._level = logging.DEBUG if debug else logging.WARNING
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


def _torch(text: str) -> tuple[str, Path]:
    """timm's name and a checkpoint."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"expected NAME=WEIGHTS, got {text!r}")
    return name, Path(path)


if __name__ == "__main__":
    raise SystemExit(main())

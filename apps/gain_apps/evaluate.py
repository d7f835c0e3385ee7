"""`gain-eval`: does the correction help? Streams, methods and scores in one command."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from gain_apps.flags import (
    STDOUT,
    add_device_flags,
    add_json_flag,
    add_old,
    add_old_settings,
    add_old_spelling,
    add_removed,
    add_set_flag,
    check_json_target,
    parse_arguments,
    read_given,
    settings_text,
    write_json_lines,
)
from gain_core.errors import ConfigError, GainError, one_line
from gain_runtime.files.paths import is_folder, write_atomically

if TYPE_CHECKING:
    from gain_apps.evaluation.eval_input import Normalise
    from gain_apps.evaluation.executor import Executor
    from gain_apps.evaluation.streams import Order

# What has no flag: a key of --set, and what it is for.
SETTINGS = {
    "order=NAME": "images within a domain: list, shuffled, runs, sorted, long-tailed, one-class "
    "(default: list with --image-list, else shuffled)",
    "seed=N": "first seed (default: 0)",
    "views=N": "crops and flips of each image (default: 1)",
    "normalise=NAME": "mean and std: the artifact's own (timm), none (unit), or ImageNet's "
    "(imagenet; default: timm)",
    "class-file=FILE": "classes.tsv for wnids",
    "class-subset=NAME": "predict among all classes, or only those present, as for ImageNet-R "
    "(default: all)",
    "diagnose=true": "record strength and gain before each batch is learned from; --report does, "
    "too",
}
EPILOG = """\
{settings}

commands:
  gain-eval MODEL DATA [options]   run methods on streams of a data set
  gain-eval DUMP.npz [options]     the same on a feature dump: frozen features of one network
  gain-eval suite NAME [options]   run a suite, and judge its bars
  gain-eval compare A B            put two result files side by side
  gain-eval report RESULT --output FILE    draw a report (.html or .md) of a result file

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
  and with --timm: {torch_methods}
  each as NAME or NAME:key=value:key=value. GAIN presets take every setting (half_life=100),
  update_every and warmup_frames; the paper's the ablations rule=retention|full|fixed|entropy|
  disagreement, fixed_strength=0.5, role=evaluator|swapped, assignment=source|proposal,
  reliability=false, prior=uniform|reliability|balancing.

examples:
  gain-eval vit_b16.onnx imagenet-c/ --image-list ids.txt --methods paper,shift,neo --json r.json
  gain-eval lite0.onnx photos/ --set views=5 --severity 3 --seeds 5 --report r.html
  gain-eval dump.npz --stream few --seeds 5 --methods shift,neo-continual:rate=0.3
  gain-eval suite camera --inputs dumps/ --only vit_k36
  gain-eval vit_b16.onnx imagenet-c/ --ray auto --device cuda --cache s3://lab/features

exit status:
  0 success, 1 an error (one line says which), 2 wrong usage, 130 interrupted
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """What `--set` changes; as `evaluate` and `InputSettings` take it, which check it."""

    order: Order | None = None
    seed: int = 0
    views: int = 1
    normalise: Normalise = "timm"
    class_file: Path | None = None
    class_subset: Literal["all", "present"] = "all"
    diagnose: bool = False

    def __post_init__(self) -> None:
        from gain_apps.evaluation.eval_input import Normalise
        from gain_apps.evaluation.streams import Order

        for key, value, choices in (
            ("order", self.order, get_args(Order)),
            ("normalise", self.normalise, get_args(Normalise)),
            ("class-subset", self.class_subset, ("all", "present")),
        ):
            if value is not None and value not in choices:
                raise ConfigError(
                    f"--set {key}: expected one of {', '.join(choices)}, got {value!r}"
                )


def build_parser() -> argparse.ArgumentParser:
    """The command line of an experiment."""
    from gain_apps.evaluation.methods.registry import METHODS, TORCH_METHODS
    from gain_apps.evaluation.streams import CAMERA_STREAMS

    parser = argparse.ArgumentParser(
        prog="gain-eval",
        description="Run adaptation methods over streams of shifting domains and score them.",
        epilog=EPILOG.format(
            settings=settings_text(SETTINGS),
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
    _add_old(parser)
    return parser


def _add_stream(parser: argparse.ArgumentParser) -> None:
    """What comes when."""
    group = parser.add_argument_group("stream")
    group.add_argument("--stream", metavar="NAME", default="csc", help="see below (default: csc)")
    group.add_argument("--domains", metavar="A,B", type=_names, help="domains, in order")
    group.add_argument(
        "--severity",
        metavar="S,S",
        type=_numbers,
        default=(5.0,),
        help="one stream per severity (default: 5); a dump has one only, which this then names",
    )
    group.add_argument(
        "--batch-size", metavar="N", type=int, help="frames a step (default: 64, a camera's 16)"
    )
    group.add_argument("--seeds", metavar="N", type=int, default=1, help="number of seeds")


def _add_data(parser: argparse.ArgumentParser) -> None:
    """What is shown to the network."""
    group = parser.add_argument_group("data")
    group.add_argument("--image-list", metavar="FILE", type=Path, help="CLASS/FILE, one a line")
    group.add_argument(
        "--source-images", metavar="PATH", help="clean images, where the data have none"
    )
    _add_cluster(group)
    add_device_flags(group)
    group.add_argument(
        "--timm",
        metavar="NAME",
        help="timm model that the artifact was exported from, for the methods that train it",
    )
    group.add_argument("--weights", metavar="FILE", help="its checkpoint")


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
    add_set_flag(group, example="views=5")
    add_json_flag(group, what="the result as one JSON object")
    group.add_argument("--report", metavar="FILE", type=Path, help=".html or .md with pictures")
    group.add_argument("--debug", action="store_true", help="log everything, show tracebacks")


def _add_old(parser: argparse.ArgumentParser) -> None:
    """What flags were called in the release before."""
    parser.set_defaults(stream_options="")
    add_old_settings(parser, SETTINGS, others={"--classes": "class-file=FILE"})
    images = next(item for item in parser._actions if item.dest == "source_images")
    add_old_spelling(parser, "--source-data", images)
    for key in ("delta", "rounds", "visits", "class"):
        old = "--only-class" if key == "class" else f"--{key}"
        store = partial(_add_to_stream, key)
        add_old(parser, old, now=f"--stream NAME:{key}=N", store=store)
    add_old(parser, "--torch", now="--timm NAME --weights FILE", store=_store_torch, type=_torch)
    for name, num_values in (("--no-diagnosis", 0), ("--verbose", 0), ("--bins", 1)):
        add_removed(parser, name, num_values=num_values, why="nobody needs another value")


def _add_to_stream(key: str, args: argparse.Namespace, value: str) -> None:
    """Note an option of the stream, which may be named later."""
    args.stream_options += f":{key}={value}"


def _store_torch(args: argparse.Namespace, value: tuple[str, str]) -> None:
    args.timm, args.weights = value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, tuple[Callable[[], argparse.ArgumentParser], Callable[..., int]]] = {
        "suite": (_suite_parser, _suite),
        "compare": (_compare_parser, _compare),
        "report": (_report_parser, _report),
    }
    build, run = commands.get(given[0] if given else "", (build_parser, _evaluate))
    try:
        own = given if run is _evaluate else given[1:]
        # Only here --json was a switch.
        args = parse_arguments(build(), own) if run is _compare else build().parse_args(own)
        return run(args, given)
    except GainError as err:
        if "--debug" in given:
            traceback.print_exc()
        print(f"gain-eval: error: {one_line(err)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("gain-eval: interrupted", file=sys.stderr)
        return 130


def _evaluate(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Run an experiment, and print and write what came out."""
    from rich.console import Console

    from gain_apps.evaluation import InputSettings, evaluate
    from gain_apps.evaluation.results import Progress, print_results

    console = Console(stderr=True)
    _check_outputs(args)
    chosen = EvalSettings(**read_given(vars(args), EvalSettings))
    settings = InputSettings(
        domains=args.domains,
        severities=args.severity,
        views=chosen.views,
        normalise=chosen.normalise,
        class_file=chosen.class_file,
        class_subset=chosen.class_subset,
        image_list=args.image_list,
        source_images=args.source_images,
        cache=args.cache,
        device=args.device or "cpu",
        num_threads=args.num_threads,
        torch=_torch_network(args),
    )
    with ExitStack() as stack:
        executor = _executor(args, stack)
        stack.enter_context(_logging(console, debug=args.debug))
        progress = stack.enter_context(Progress(console))
        results = evaluate(
            args.model,
            args.data,
            stream=args.stream + args.stream_options,
            order=chosen.order,
            methods=args.methods,
            seeds=range(chosen.seed, chosen.seed + args.seeds),
            batch_size=args.batch_size,
            settings=settings,
            diagnose=chosen.diagnose or args.report is not None,
            command=shlex.join(["gain-eval", *given]),
            executor=executor,
            result=None if args.json in (None, STDOUT) else Path(args.json),
            on_task=progress.start,
        )
    if args.json == STDOUT:
        write_json_lines(STDOUT, [results])
    print_results(results, console if args.json == STDOUT else Console())
    if args.report is not None:
        _write_report(args.report, results)
    return 0


def _executor(args: argparse.Namespace, stack: ExitStack) -> Executor | None:
    """Where the work is done, if not here; a connection to a cluster ends with the stack."""
    if args.ray is None:
        return None
    from gain_apps.evaluation.ray_executor import RayExecutor

    return stack.enter_context(RayExecutor(args.ray))


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse what would fail only after hours of work."""
    if args.seeds < 1:
        raise ConfigError(f"seeds: expected at least 1, got {args.seeds}")
    check_json_target(args.json, other_than=args.model)
    if args.report is not None:
        from gain_apps.evaluation.report import check_report_path

        _check_folder(args.report)
        check_report_path(args.report)


def _check_folder(path: Path) -> None:
    if not is_folder(path.parent):
        raise ConfigError(f"{path}: expected an existing folder, found no {path.parent}")


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

    from gain_apps.evaluation.results import Progress, print_bars
    from gain_apps.evaluation.suite import run_suite, suite_markdown
    from gain_apps.evaluation.suite_file import folders_of, load_suite, suite_path

    console = Console(stderr=True)
    place = suite_path(args.suite)
    suite = load_suite(place)
    target = args.json or place.parent.parent / "results" / f"{suite.name}.json"
    _check_folder(target)
    with ExitStack() as stack:
        executor = _executor(args, stack)
        stack.enter_context(_logging(console, debug=args.debug))
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


def _compare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gain-eval compare", description="Put two results side by side."
    )
    parser.add_argument("first", metavar="A", type=Path)
    parser.add_argument("second", metavar="B", type=Path)
    add_json_flag(parser, what="one JSON object per method, one a line")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _compare(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Compare two result files."""
    from rich.console import Console

    from gain_apps.evaluation.results import compare_results, print_comparison, read_results

    check_json_target(args.json)
    rows = compare_results(read_results(args.first), read_results(args.second))
    if args.json is not None:
        write_json_lines(args.json, rows)
    if args.json != STDOUT:
        print_comparison(rows, Console(), names=(str(args.first), str(args.second)))
    return 0


def _report_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gain-eval report", description="Draw a report of a result file."
    )
    parser.add_argument("result", metavar="RESULT", type=Path)
    either = parser.add_mutually_exclusive_group(required=True)
    output = either.add_argument("--output", metavar="FILE", type=Path, help=".html or .md")
    add_old_spelling(either, "--out", output)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _report(args: argparse.Namespace, given: Sequence[str]) -> int:
    """Draw a report of a result file."""
    from gain_apps.evaluation.results import read_results

    _write_report(args.output, read_results(args.result))
    return 0


def _write_report(path: Path, results: dict[str, Any]) -> None:
    from gain_apps.evaluation.report import write_report

    write_report(path, results)


def _logging(console: Any, *, debug: bool) -> AbstractContextManager[None]:
    """Our packages' log lines on the console."""
    from rich.logging import RichHandler

    from gain_apps.system import logging_to

    handler = RichHandler(console=console, show_time=False, show_path=False)
    return logging_to(handler, logging.DEBUG if debug else logging.WARNING)


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


def _torch(text: str) -> tuple[str, str]:
    """timm's name and a checkpoint, as `--torch` had them."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"expected NAME=WEIGHTS, got {text!r}")
    return name, path


def _torch_network(args: argparse.Namespace) -> tuple[str, Path] | None:
    """The network in torch, for the methods that train it."""
    if (args.timm is None) != (args.weights is None):
        raise ConfigError("--timm, --weights: expected both, got one; name the other")
    return None if args.timm is None else (args.timm, Path(args.weights))


if __name__ == "__main__":
    raise SystemExit(main())

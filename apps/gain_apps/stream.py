"""`gain-stream`: classify a video, photos or a camera, and adapt to it while it runs."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from gain_apps.flags import (
    STDOUT,
    add_device_flags,
    add_json_flag,
    add_old,
    add_old_settings,
    add_old_spelling,
    add_removed,
    add_set_flag,
    parse_arguments,
    settings_text,
    write_json_lines,
)
from gain_apps.streaming.settings import SETTINGS
from gain_apps.system import closed_stream, finish_output, open_missing_streams, say
from gain_core import PRESETS, UPDATE_EVERY
from gain_core.errors import ConfigError, GainError, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from gain_apps.streaming.plan import ProcessPlan


class SettingsError(ConfigError):
    """Settings that are refused before anything is opened: starting again does not help."""

    exit_status = 2


# Of a service with more cameras nobody reads them, and drawing them would delay its end.
MOST_TABLES = 4

EPILOG = f"""\
{settings_text(SETTINGS)}

examples:
  gain-stream clip.mp4 --model vit_b16.onnx --output out.mp4 --jsonl out.jsonl
  gain-stream photos/ --model vit_b16.onnx --corrupt fog:0-5 --shuffle --json s.json
  gain-stream 0 --model vit_b16.onnx --display --state-out kitchen.safetensors
  gain-stream 0 --model vit_b16.onnx --serve 8080 --snapshots /var/lib/kitchen
  gain-stream rtsp://cam/1 rtsp://cam/2 --names yard,door --model vit_b16.onnx --snapshots kept
  gain-stream --config cameras.toml --serve 8080
  gain-stream rtsp://cam/1 --model vit_b16.adaptive.onnx --set reconnect=3600 --set watchdog=60

exit status:
  0 success, 1 an error (one line says which), 2 wrong usage or settings, 3 the signal of a live
  source was lost for good, 4 the watchdog ended a stream that hung, 130 Ctrl-C, 143 SIGTERM. Both
  signals finish the files, save the state and print the summary first; a second one ends at once,
  and so does the first while nothing is open yet. SIGHUP opens rotated JSON lines anew.

keys in the window:
  q or Esc quit, f freeze or unfreeze, r reset, s save the state
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line; flags that are not given are absent from the result."""
    parser = argparse.ArgumentParser(
        prog="gain-stream",
        description="Classify a stream of frames with an artifact and adapt to it while it runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "input",
        metavar="INPUT",
        nargs="*",
        help="video file, photo, folder or 'glob', camera index or device, csi://0, rtsp:// or "
        "http:// URL, 'GStreamer pipeline ! appsink', - for JPEGs or a video on stdin, "
        "test://pattern; several photos are one stream, several of the others share the network, "
        "each with a state and output folders of its own",
    )
    parser.add_argument(
        "--names",
        metavar="NAME,NAME,...",
        type=lambda text: text.split(","),
        help="what several streams are called (default stream-1, stream-2, ...)",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with settings, and a table [cameras.NAME] for each camera; flags win",
    )
    add_set_flag(parser, example="watchdog=60")
    parser.add_argument(
        "--cameras",
        metavar="FILE",
        help="file of its own for the cameras, which the page changes (default: that of --config)",
    )
    _add_adaptation(parser)
    _add_input(parser)
    _add_outputs(parser)
    _add_old(parser)
    return parser


def _add_adaptation(parser: argparse.ArgumentParser) -> None:
    """What computes, and how it learns."""
    group = parser.add_argument_group("model and adaptation")
    on_off = argparse.BooleanOptionalAction
    group.add_argument(
        "--model", metavar="FILE", help="artifact or adaptive file made by gain-export"
    )
    add_device_flags(group)
    group.add_argument("--preset", metavar="NAME", help=f"one of {', '.join(PRESETS)}")
    group.add_argument(
        "--update-every",
        type=int,
        metavar="N",
        help=f"frames between two updates; each is predicted at once (default {UPDATE_EVERY})",
    )
    batch_size = group.add_argument(
        "--batch-size", type=int, metavar="N", help="frames per forward pass (default 1)"
    )
    add_old_spelling(group, "--batch", batch_size)
    group.add_argument("--freeze", action=on_off, help="never learn")
    group.add_argument("--state-in", metavar="FILE", help="continue from a saved state")
    group.add_argument("--state-out", metavar="FILE", help="save the state at the end")


def _add_input(parser: argparse.ArgumentParser) -> None:
    """What is done to the frames before they are classified."""
    group = parser.add_argument_group("frames")
    group.add_argument("--max-frames", type=int, metavar="N", help="stop after N frames")
    group.add_argument(
        "--shuffle", action=argparse.BooleanOptionalAction, help="photos in random order"
    )
    group.add_argument(
        "--corrupt",
        metavar="NAME:FROM-TO",
        help="corrupt the frames: fog:3, a ramp fog:0-5, or several with commas, one after another",
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    """What is written and shown, and what keeps a stream alive for months."""
    group = parser.add_argument_group("results")
    on_off = argparse.BooleanOptionalAction
    group.add_argument("--output", metavar="FILE", help="annotated video (.mp4, .mov, .mkv, .avi)")
    group.add_argument("--jsonl", metavar="FILE", help="one JSON object per frame; - is stdout")
    group.add_argument(
        "--timeline",
        metavar="FILE",
        help="picture of accuracy, calibration and strength over the run (extra: report)",
    )
    group.add_argument("--display", action="store_true", help="show a window")
    group.add_argument(
        "--serve",
        metavar="[HOST:]PORT",
        help="show all streams on one page, to this machine unless HOST says otherwise "
        "(extra: serve)",
    )
    group.add_argument(
        "--serve-token-file",
        metavar="FILE",
        help="token that viewers must know; needed where other machines can reach HOST",
    )
    group.add_argument(
        "--side-by-side", action=on_off, help="draw the frozen source beside the adapted prediction"
    )
    add_json_flag(group, what="the summary as one JSON object, of several streams one a line")
    group.add_argument(
        "--verbose",
        dest="log_level",
        action="store_const",
        const="info",
        help="log the settings and every step (default: what was opened, warnings, the summary)",
    )
    group.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
    group = parser.add_argument_group("cameras and long runs")
    group.add_argument(
        "--snapshots",
        metavar="DIR",
        help="keep the last three states there, and continue from them at the next start",
    )
    group.add_argument(
        "--mqtt",
        metavar="URL",
        help="publish every result: mqtt://[USER:PASSWORD@]HOST[:PORT]/TOPIC (extra: mqtt)",
    )


def _add_old(parser: argparse.ArgumentParser) -> None:
    """What flags were called in the release before."""
    others = {"--headless": "display=false", "--no-check-frames": "check-frames=false"}
    add_old_settings(parser, SETTINGS, others=others)
    for name in ("--fast-preprocess", "--no-fast-preprocess"):
        add_removed(parser, name, why="timm's very pixels take no longer")
    add_old(
        parser,
        "--no-json",
        now="nothing: leave json out of the settings file",
        store=lambda flags, _: setattr(flags, "json", None),
        nargs=0,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's; its exit status."""
    closed = open_missing_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    flags = vars(parse_arguments(build_parser(), arguments))
    try:
        status = _run(flags, arguments, closed)
        finish_output()
    except GainError as err:
        if flags.get("debug", False):
            traceback.print_exc()
        say(f"gain-stream: error: {one_line(err)}")
        status = int(getattr(err, "exit_status", 1))
        with suppress(GainError):
            finish_output()
    except KeyboardInterrupt:
        say("gain-stream: interrupted")
        status = 130
    return status


def _run(flags: dict[str, Any], arguments: list[str], closed: frozenset[int]) -> int:
    """Resolve the settings and run the streams."""
    # Imported late, so that --help and wrong usage do not wait for OpenCV and ONNX Runtime.
    from gain_apps.streaming.camera import CameraNameFormatter
    from gain_apps.streaming.config import LOG_LEVELS
    from gain_apps.streaming.control import StopRequest, signals_handled
    from gain_apps.streaming.run import run_stream
    from gain_apps.streaming.service import run_service
    from gain_apps.streaming.summary import ConsoleHandler, ErrorConsole
    from gain_apps.system import hide_credentials, logging_to

    plan, file = _planned(flags, closed)
    flags["debug"] = plan.shared.get("debug", False)
    console = ErrorConsole()
    handler = ConsoleHandler(console)
    handler.setFormatter(CameraNameFormatter())
    level = LOG_LEVELS["debug" if flags["debug"] else plan.shared.get("log_level", "note")]
    target, tables = plan.shared.get("json"), len(plan.configs) <= MOST_TABLES
    report = partial(_report, console=console, tables=tables, target=target, records=[])
    # Libraries warn by lines of their own.
    logging.captureWarnings(True)
    stop = StopRequest()
    try:
        with logging_to(handler, level):
            hide_credentials(arguments)
            with signals_handled(stop):
                if plan.is_service:
                    run_service(plan, stop, report=report, file=file)
                else:
                    run_stream(plan.configs[0], stop, console, report=report)
    finally:
        logging.captureWarnings(False)
    return stop.exit_status


def _planned(flags: dict[str, Any], closed: frozenset[int]) -> tuple[ProcessPlan, Path | None]:
    """What is to run, and the file that remembers cameras."""
    from gain_apps.streaming.plan import plan_streams, read_settings

    try:
        settings, file = read_settings(flags)
        if not settings.get("input") and "cameras" not in settings:
            build_parser().error("INPUT is required, here or as 'input' or cameras in --config")
        for wanted, number, name in (
            (settings.get("json") == STDOUT, 1, "--json -"),
            (settings.get("jsonl") == STDOUT, 1, "--jsonl -"),
            (settings.get("input") == STDOUT, 0, "INPUT -"),
        ):
            if wanted and number in closed:
                raise closed_stream(number, wanted_by=name)
        return plan_streams(settings), file
    except ConfigError as err:
        raise SettingsError(err) from err


def _report(
    summary: dict[str, Any],
    *,
    console: Console,
    tables: bool,
    target: str | None,
    records: list[dict[str, Any]],
) -> None:
    """Print a stream's summary, and write it after those in `records` where `--json` says."""
    from gain_apps.streaming.summary import NOTE, print_summary

    # A terminal that has gone takes nothing with it.
    with suppress(OSError):
        if tables and logging.getLogger("gain_apps").level <= NOTE:
            print_summary(summary, console)
    if target is not None:
        records.append(summary)
        write_json_lines(target, records[-1:] if target == STDOUT else records)


if __name__ == "__main__":
    sys.exit(main())

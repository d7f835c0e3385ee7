"""The applications on the GPU script's device, each command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_network import Scale, optional

__all__ = [
    "AbsentError",
    "CommandError",
    "need_onnx_cuda",
    "run_bench",
    "run_module",
    "run_stream",
    "seconds_left",
    "stream_faults",
]

MODULE_TIMEOUT_S = 60
BATCH_SIZE = 4
# The shipped network has 98 % of the drive right on the CPU.
LEAST_ACCURACY_PERCENT = 90.0
# Of the base install; the script itself needs less.
NEEDED = ("cv2", "onnx", "onnxruntime", "rich", "safetensors")
EXPORT = (
    "gain_apps.export models/roadsigns/roadsigns.onnx --labels models/roadsigns/labels.txt "
    "--img-size 64 --mean .5 .5 .5 --std .5 .5 .5 --interpolation bicubic --crop-pct 1"
)


class AbsentError(Exception):
    """A part has no library or device to run with here; nothing has failed."""


class CommandError(Exception):
    """A command failed, hung or said nothing that could be read."""


def need_onnx_cuda() -> None:
    """Raise `AbsentError` where ONNX Runtime is missing or was built without CUDA."""
    library = optional("onnxruntime")
    if library is None or "CUDAExecutionProvider" not in library.get_available_providers():
        raise AbsentError("no ONNX Runtime with CUDA is installed")


def run_bench(scale: Scale, *, ends_s: float) -> dict[str, Any]:
    """`gain-bench` on the shipped road signs.

    Parameters
    ----------
    scale : Scale
    ends_s : float
        Of `time.monotonic`, when the script must be done.

    Returns
    -------
    dict
        `device` and `result`, which is what the command wrote.

    Raises
    ------
    AbsentError
        If a library is missing, or ONNX Runtime's CUDA provider on a card.
    CommandError
        If a command fails.
    """
    _need_libraries(scale)
    device = _device(scale)
    with tempfile.TemporaryDirectory() as folder:
        artifact, result = _export(Path(folder), ends_s), Path(folder) / "bench.json"
        bench = f"gain_apps.bench {artifact} --device {device} --batch {BATCH_SIZE}"
        bench += f" --frames {_frames(scale)} --json {result}"
        run_module(bench.split(), timeout_s=seconds_left(ends_s))
        return {"ran": True, "device": device, "result": json.loads(result.read_text())}


def run_stream(scale: Scale, *, ends_s: float) -> list[dict[str, Any]]:
    """`gain-stream` on the drive with road signs, on a card with either preprocessing.

    Parameters
    ----------
    scale : Scale
    ends_s : float
        Of `time.monotonic`, when the script must be done.

    Returns
    -------
    list of dict
        `command`, `ok` and the printed `summary`; where it is not `ok`, `why`. A run is `ok` if
        every frame was classified on the device that was asked for, source and adapted prediction
        are right nine times in ten, and something was learned.

    Raises
    ------
    AbsentError, CommandError
        As `run_bench`; a stream that fails has its row and raises nothing.
    """
    _need_libraries(scale)
    flags = ("", " --device-preprocess") if scale.device == "cuda" else ("",)
    with tempfile.TemporaryDirectory() as folder:
        artifact = _export(Path(folder), ends_s)
        stream = f"gain_apps.stream test://drive --model {artifact} --device {_device(scale)}"
        stream += f" --batch {BATCH_SIZE} --max-frames {_frames(scale)} --warm-up 16 --json"
        return [_streamed(f"{stream}{flag}", scale, ends_s) for flag in flags]


def _streamed(command: str, scale: Scale, ends_s: float) -> dict[str, Any]:
    """One stream's row."""
    try:
        said = run_module(command.split(), timeout_s=seconds_left(ends_s))
        summary = json.loads((said.strip().splitlines() or [""])[-1])
    except (CommandError, json.JSONDecodeError) as err:
        return {"command": command, "ok": False, "why": str(err)}
    wrong = stream_faults(summary, scale)
    row = {"command": command, "ok": not wrong, "summary": summary}
    return row | {"why": "; ".join(wrong)} if wrong else row


def stream_faults(summary: dict[str, Any], scale: Scale, /) -> list[str]:
    """What a stream's summary should not say.

    Parameters
    ----------
    summary : dict
        Of `gain-stream --json`.
    scale : Scale

    Returns
    -------
    list of str
        Empty for a stream that went well.
    """
    provider = "CUDAExecutionProvider" if scale.device == "cuda" else "CPUExecutionProvider"
    expected = {"frames": _frames(scale), "rejected": 0, "dropped": 0, "provider": provider}
    faults = [
        f"{name}: expected {value}, got {summary[name]}"
        for name, value in expected.items()
        if summary[name] != value
    ]
    for variant in ("source", "adapted"):
        right = summary["truth"][variant]["accuracy_percent"]
        # Not at least, rather than less: NaN is no accuracy either.
        if not right >= LEAST_ACCURACY_PERCENT:
            faults.append(f"{variant}: expected {LEAST_ACCURACY_PERCENT} % right, got {right}")
    if not summary["frames_learned"]:
        faults.append("frames_learned: expected some, got 0")
    return faults


def run_module(command: list[str], /, *, timeout_s: float) -> str:
    """Run a module with its arguments.

    Parameters
    ----------
    command : list of str
    timeout_s : float

    Returns
    -------
    str
        What it printed to stdout.

    Raises
    ------
    CommandError
        With the last line of what went wrong.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise CommandError(f"{command[0]}: took more than {timeout_s:.4g} s") from err
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandError(f"{command[0]}: exit status {done.returncode}: {last}")
    return done.stdout


def seconds_left(ends_s: float, /, *, at_most: float = MODULE_TIMEOUT_S) -> float:
    """How long a process may take, so that the script is done when it must be.

    Parameters
    ----------
    ends_s : float
        Of `time.monotonic`.
    at_most : float, optional

    Returns
    -------
    float
        At least one second.
    """
    return max(1.0, min(at_most, ends_s - time.monotonic()))


def _need_libraries(scale: Scale) -> None:
    """What the applications import is there."""
    missing = [name for name in NEEDED if optional(name) is None]
    if missing:
        raise AbsentError(f"{', '.join(missing)} cannot be imported")
    if scale.device == "cuda":
        need_onnx_cuda()


def _export(folder: Path, ends_s: float) -> Path:
    """The shipped road signs as an artifact."""
    artifact = folder / "roadsigns.onnx"
    command = [*EXPORT.split(), "--output", os.fspath(artifact)]
    run_module(command, timeout_s=seconds_left(ends_s))
    return artifact


def _device(scale: Scale) -> str:
    """The applications' name of it."""
    return "cuda" if scale.device == "cuda" else "cpu"


def _frames(scale: Scale) -> int:
    """Whole batches."""
    return 2 * BATCH_SIZE * scale.rounds

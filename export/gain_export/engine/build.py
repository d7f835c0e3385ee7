"""Building the engine of an ONNX file beside it, and telling whether the one there still fits."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from gain_core import errors
from gain_core.errors import EngineError, GainError
from gain_export.engine.compile import EngineOptions
from gain_export.engine.verify import verify_engine
from gain_export.precision.lower import precision_of
from gain_export.write import OnStep, VerifyImages, choose_images
from gain_runtime.files.artifact import read_model
from gain_runtime.files.engine import (
    EngineHeader,
    engine_path,
    header_from_dict,
    read_engine,
    write_engine,
)
from gain_runtime.sessions.tensorrt_library import (
    current_gpu,
    expected_header,
    installed_library,
    load_library,
)

logger = logging.getLogger(__name__)

_STDERR_LINES = 3
_SECONDS_TO_STOP = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """An engine beside its ONNX file.

    Attributes
    ----------
    path : Path
        The `.engine` file.
    size_bytes : int
    header : EngineHeader
    built : bool
        Whether this call built it; False if the existing one still fits.
    seconds : float
        Wall-clock time of the build, in seconds.
    """

    path: Path
    size_bytes: int
    header: EngineHeader
    built: bool
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """The report as plain values for JSON."""
        return {**asdict(self), "path": str(self.path)}


def build_engine(
    onnx_path: str | Path,
    /,
    *,
    options: EngineOptions | None = None,
    verify_images: str | Path | None = None,
    allow_drift: bool = False,
    force: bool = False,
    on_step: OnStep | None = None,
) -> EngineReport:
    """Build the engine of an artifact or adaptive file, unless the one beside it still fits.

    An engine that can run here is verified before it is written, see `verify_engine`; otherwise its
    header says why it was not. An engine that still fits is verified again if images are given, if
    it never was verified, or if drift was accepted before and `allow_drift` is now false.

    Parameters
    ----------
    onnx_path : str or Path
        The engine is written beside it, with the suffix `.engine`; a failure leaves no partial
        file.
    options : EngineOptions, optional
    verify_images : str or Path, optional
        Folder of photographs to verify on; default: drawn images.
    allow_drift : bool, optional
        Write the engine even if it misses its bar, or does not run on the GPU that it is for.
    force : bool, optional
        Build even if the existing engine fits.
    on_step : callable, optional
        Called with the name and progress of each phase.

    Returns
    -------
    EngineReport

    Raises
    ------
    ArtifactError
        If the file is missing or no ONNX model, or the images cannot be read.
    BackendUnavailableError
        If no TensorRT library is installed.
    ConfigError
        If an option does not suit the library or the machine.
    EngineError
        If the library cannot read or build the network, its process is killed, or the engine does
        not run on the GPU that it is for.
    ParityError
        If the engine misses the bar of its precision. An existing engine stays as it was.
    """
    onnx_path, options = Path(onnx_path), options or EngineOptions()
    sha256, profile, precision = _identify(onnx_path, options)
    path = engine_path(onnx_path)
    kept = None
    if not force:
        try:
            kept = _report(path, sha256, profile, options=options)
        except EngineError as err:
            logger.info("%s", err)
    if kept is not None and _is_settled(kept, verify_images, allow_drift=allow_drift):
        return kept
    images = choose_images(verify_images)
    if kept is not None:
        return _verified_again(kept, onnx_path, images, allow_drift=allow_drift)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="gain-engine-") as folder:
        plan_file = Path(folder) / "plan"
        request = {
            "onnx": str(onnx_path),
            "sha256": sha256,
            "precision": precision,
            "plan": str(plan_file),
            "options": asdict(options),
        }
        record = _run(request, str(onnx_path), on_step or (lambda step: None))
        header = header_from_dict(record["header"], onnx_path)
        plan = plan_file.read_bytes()
        plan_file.unlink()
        candidate = Path(folder) / path.name
        write_engine(candidate, header, plan)
        verified = verify_engine(
            onnx_path, candidate, images, allow_drift=allow_drift, built_here=True
        )
        header = replace(header, verification=verified)
        write_engine(path, header, plan)
    return EngineReport(
        path=path,
        size_bytes=path.stat().st_size,
        header=header,
        built=True,
        seconds=time.perf_counter() - started,
    )


def check_engine_options(options: EngineOptions, /) -> None:
    """Refuse options that no engine can be built with here, before there is a network.

    Raises as `build_engine`, and EngineError if the library's process fails.
    """
    _run({"options": asdict(options)}, "engine", lambda step: None)


def check_engine(onnx_path: str | Path, /, *, options: EngineOptions | None = None) -> EngineReport:
    """Check that the engine beside an ONNX file fits the file, the options and this machine.

    Parameters
    ----------
    onnx_path : str or Path
        The ONNX file.
    options : EngineOptions, optional

    Returns
    -------
    EngineReport

    Raises
    ------
    ArtifactError
        If the ONNX file is missing or no ONNX model.
    BackendUnavailableError
        If no TensorRT library is installed.
    EngineError
        If the engine is missing, damaged, or differs; the message names the field.
    """
    onnx_path, options = Path(onnx_path), options or EngineOptions()
    sha256, profile, _ = _identify(onnx_path, options)
    return _report(engine_path(onnx_path), sha256, profile, options=options)


def _is_settled(
    report: EngineReport, verify_images: str | Path | None, *, allow_drift: bool
) -> bool:
    """Whether what its header says about verification is all that is asked for."""
    record = report.header.verification
    accepted = bool(record.get("accepted"))
    return verify_images is None and record["verified"] == "yes" and (allow_drift or not accepted)


def _verified_again(
    report: EngineReport, onnx_path: Path, images: VerifyImages, *, allow_drift: bool
) -> EngineReport:
    """An engine that still fits, with what running it here gave in its header."""
    record = verify_engine(
        onnx_path, report.path, images, allow_drift=allow_drift, built_here=False
    )
    if record["verified"] == "no":
        if report.header.verification["verified"] == "yes":
            logger.warning(
                "%s: is not verified on %s here: %s; its header keeps what it was verified on",
                report.path,
                images.source,
                record["reason"],
            )
        return report
    header = replace(report.header, verification=record)
    write_engine(report.path, header, read_engine(report.path).plan)
    return replace(report, header=header, size_bytes=report.path.stat().st_size)


def _identify(
    onnx_path: Path, options: EngineOptions
) -> tuple[str, tuple[int, int, int], str | None]:
    """The file's hash, the batch sizes an engine of it takes, and its precision."""
    model, sha256 = read_model(onnx_path)
    shapes = [value.type.tensor_type.shape.dim for value in model.graph.input]
    first = next((shape[0] for shape in shapes if shape), None)
    fixed_batch = first.dim_value if first is not None and first.dim_value > 0 else None
    return sha256, options.profile(fixed_batch), precision_of(model)


def _report(
    path: Path, sha256: str, profile: tuple[int, int, int], *, options: EngineOptions
) -> EngineReport:
    """The engine that lies there, if it is what the options ask for."""
    library = load_library(options.library or installed_library())
    header = read_engine(path).header
    # An engine for named GPUs is for elsewhere: the one here says nothing about it.
    gpu = None if options.compute_capabilities else current_gpu()
    expected = expected_header(sha256, library, gpu)
    if options.compute_capabilities:
        expected["compute_capabilities"] = tuple(sorted(set(options.compute_capabilities)))
    expected["profile"] = profile
    expected["builder_level"] = options.builder_level
    expected["hardware_compatible"] = options.hardware_compatible
    expected["version_compatible"] = options.version_compatible
    difference = header.difference(expected)
    if difference is not None:
        raise EngineError(f"{path}: does not fit: {difference}; build it again")
    return EngineReport(
        path=path, size_bytes=path.stat().st_size, header=header, built=False, seconds=0.0
    )


def _run(request: dict[str, Any], what: str, on_step: OnStep) -> dict[str, Any]:
    """Let a process of its own build or check; returns its last record."""
    with tempfile.TemporaryFile("w+") as stderr, _process(stderr) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # A process that dies at once never reads its request; its exit says why.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request))
            process.stdin.close()
        last: dict[str, Any] = {}
        for line in process.stdout:
            last = _record(line) or last
            if "phase" in last:
                on_step(f"{last['phase']} {last['step']}/{last['of']}")
        status = process.wait()
        stderr.seek(0)
        said = stderr.read().split("\n")
    if status == 0 and ("header" in last or "checked" in last):
        return last
    if "message" in last:
        kind = getattr(errors, last["error"], EngineError)
        assert issubclass(kind, GainError)
        raise kind(last["message"])
    raise EngineError(f"{what}: {_cause(status, [line for line in said if line.strip()])}")


@contextlib.contextmanager
def _process(stderr: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """The building process, which does not outlive this context: Ctrl-C ends it."""
    command = [sys.executable, "-m", "gain_export.engine.compile"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _record(line: str) -> dict[str, Any] | None:
    """A line of the process, unless the library printed it."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _cause(status: int, said: list[str]) -> str:
    """Why a process ended without an answer, and what to do about it."""
    if status < 0:
        name = signal.Signals(-status).name
        memory = "; the system ran out of memory" if name == "SIGKILL" else ""
        return (
            f"the building process was killed ({name}{memory}); close other programs, add swap "
            "or build with a smaller max-batch or --set builder-level=2"
        )
    tail = " ".join(" ".join(said[-_STDERR_LINES:]).split()) or "it said nothing"
    return f"the building process failed with status {status}: {tail}"

"""Compiling a plan with TensorRT's builder, in a process of its own that a crash cannot outlive.

The engine's precision is no option of it: the ONNX file states it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from gain_core.errors import ConfigError, EngineError, GainError
from gain_runtime.files.engine import EngineHeader
from gain_runtime.files.paths import write_atomically
from gain_runtime.optional import install_line
from gain_runtime.sessions.tensorrt_library import (
    Gpu,
    cache_file,
    create,
    current_gpu,
    installed_library,
    library_version,
    load_library,
    make_log,
)

logger = logging.getLogger(__name__)

DEFAULT_MAX_BATCH = 8

# Levels exist since TensorRT 8.6: 0 builds fastest, 5 looks longest for fast kernels.
_LEVELS = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine is built.

    Attributes
    ----------
    library : {"tensorrt", "tensorrt_rtx"} or None
        None takes the installed one.
    compute_capabilities : tuple of int
        The GPUs to build for, as 86 for 8.6; empty means the GPU of this machine. Only
        TensorRT-RTX builds for other GPUs.
    opt_batch, max_batch : int
        Batch size to tune for, and the largest one.
    builder_level : int or None
        TensorRT's optimisation level, 0 to 5; None is the library's default.
    workspace_bytes : int or None
        Scratch memory that kernels may use; None is half of the GPU's free memory, or the library's
        default without a GPU.
    hardware_compatible : bool
        Build for all GPUs of Ampere and later; TensorRT only.
    version_compatible : bool
        Build a plan that later versions of the library run; it holds host code, see
        `TensorRTSession`.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    library: str | None = None
    compute_capabilities: tuple[int, ...] = ()
    opt_batch: int = 1
    max_batch: int = DEFAULT_MAX_BATCH
    builder_level: int | None = None
    workspace_bytes: int | None = None
    hardware_compatible: bool = False
    version_compatible: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.opt_batch <= self.max_batch:
            raise ConfigError(
                f"opt_batch, max_batch: expected 1 <= opt_batch <= max_batch, got "
                f"{self.opt_batch} and {self.max_batch}"
            )
        if self.builder_level is not None and self.builder_level not in _LEVELS:
            raise ConfigError(
                f"builder_level: expected {_LEVELS[0]} to {_LEVELS[-1]}, got {self.builder_level}"
            )
        if self.workspace_bytes is not None and self.workspace_bytes < 1:
            raise ConfigError(f"workspace_bytes: expected at least 1, got {self.workspace_bytes}")
        for capability in self.compute_capabilities:
            if not 50 <= capability < 1000:
                raise ConfigError(
                    f"compute_capabilities: expected numbers as 86 for 8.6, got {capability}"
                )

    def profile(self, fixed_batch: int | None, /) -> tuple[int, int, int]:
        """Smallest, tuned and largest batch size of an engine.

        Parameters
        ----------
        fixed_batch : int or None
            The file's batch size, if it is fixed; the engine then takes no other.

        Returns
        -------
        (int, int, int)
        """
        if fixed_batch is not None:
            return fixed_batch, fixed_batch, fixed_batch
        return 1, self.opt_batch, self.max_batch


_MAX_PARSER_ERRORS = 3
_ASKING = f"that needs the NVIDIA driver and CuPy: {install_line('cuda12', 'cuda13')}"

# The name of a phase of the build, the step it is at and how many it has.
OnPhase = Callable[[str, int, int], None]


def _compile_plan(
    onnx_path: Path,
    sha256: str,
    options: EngineOptions,
    /,
    *,
    precision: str | None,
    on_phase: OnPhase,
) -> tuple[EngineHeader, bytes]:
    """Build the plan of an ONNX file."""
    library = load_library(options.library or installed_library())
    log, gpu = make_log(library), current_gpu()
    builder = create(library.Builder, log)
    network = _parse(library, builder, onnx_path, log)
    config = builder.create_builder_config()
    capabilities = set_target(library, config, options, gpu=gpu)
    profile = _set_profile(builder, network, config, options)
    levels = set_compatibility(library, config, options)
    _set_limits(library, config, options, gpu)
    if hasattr(config, "progress_monitor"):
        config.progress_monitor = _monitor(library, on_phase)
    cache = _load_timing_cache(library, config, gpu)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineError(
            f"{onnx_path}: {library.__name__} {library_version(library)} cannot build it: "
            f"{log.first_error()}"
        )
    if cache is not None:
        file = cache_file(library, gpu, "timing")
        # A disk that cannot take it costs time at the next build and nothing else.
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, bytes(cache.serialize()))
    plan = bytes(plan)
    members = library.BuilderFlag.__members__
    flags = tuple(name for name, flag in members.items() if config.get_flag(flag))
    header = EngineHeader(
        artifact_sha256=sha256,
        library=library.__name__,
        version=library_version(library),
        gpu=None if gpu is None else gpu.name,
        compute_capabilities=capabilities,
        profile=profile,
        precision=precision,
        builder_level=options.builder_level,
        flags=(*flags, *levels),
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        log_tail=tuple(log.tail),
    )
    return header, plan


def _check_options(options: EngineOptions, /) -> None:
    """Refuse what `_compile_plan` would refuse of the options, whatever the network."""
    library = load_library(options.library or installed_library())
    builder = create(library.Builder, make_log(library))
    config = builder.create_builder_config()
    set_target(library, config, options, gpu=current_gpu())
    set_compatibility(library, config, options)


def _parse(library: Any, builder: Any, onnx_path: Path, log: Any) -> Any:
    """The network in the file, strongly typed: every tensor keeps the type the file gives it."""
    flag = library.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    network = builder.create_network(1 << int(flag))
    parser = library.OnnxParser(network, log)
    if not parser.parse_from_file(str(onnx_path)):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        # What the parser did not like, and at which node.
        reason = "; ".join(
            f"{error.node_operator()} {error.node_name()}: {' '.join(str(error.desc()).split())}"
            for error in errors[:_MAX_PARSER_ERRORS]
        )
        raise EngineError(
            f"{onnx_path}: {library.__name__} {library_version(library)} cannot read it: "
            f"{reason or log.first_error()}"
        )
    return network


def set_target(
    library: Any, config: Any, options: EngineOptions, /, *, gpu: Gpu | None
) -> tuple[int, ...]:
    """Choose the GPUs to build for; returns their compute capabilities, ascending.

    `gpu` is the one here, None where none can be asked. Raises ConfigError if no GPU is known, or
    the library does not build for the one that is wanted.
    """
    here = None if gpu is None else gpu.compute_capability
    wanted = tuple(sorted(set(options.compute_capabilities))) or ((here,) if here else ())
    if not (
        hasattr(library, "ComputeCapability")
        and hasattr(config, "num_compute_capabilities")
        and hasattr(config, "set_compute_capability")
    ):
        return _gpu_at_hand(library, wanted, here)
    if not wanted:
        raise ConfigError(
            f"compute capability: none given, and no GPU can be asked here; {_ASKING}; or "
            "give one, as --set compute-capability=86"
        )
    config.num_compute_capabilities = len(wanted)
    for index, capability in enumerate(wanted):
        member = getattr(library.ComputeCapability, f"SM{capability}", None)
        if member is None:
            known = library.ComputeCapability.__members__
            names = " ".join(name[2:] for name in known if name.startswith("SM"))
            raise ConfigError(
                f"compute capability: {library.__name__} {library_version(library)} builds for "
                f"{names}, got {capability}"
            )
        if not config.set_compute_capability(member, index) and wanted != (here,):
            raise ConfigError(
                f"compute capability: {library.__name__} {library_version(library)} does not "
                f"build for {capability} here; build on the device"
            )
    return wanted


def _gpu_at_hand(library: Any, wanted: tuple[int, ...], here: int | None) -> tuple[int, ...]:
    """The only target of a library that builds for no other."""
    if here is None:
        raise ConfigError(
            f"compute capability: {library.__name__} builds for the GPU at hand only, and none can "
            f"be asked here; {_ASKING}"
        )
    if wanted != (here,):
        raise ConfigError(
            f"compute capability: {library.__name__} builds for the GPU at hand only ({here}), got "
            f"{' '.join(map(str, wanted))}; build on the device"
        )
    return wanted


def _set_profile(
    builder: Any, network: Any, config: Any, options: EngineOptions
) -> tuple[int, int, int]:
    """Set the batch sizes the engine takes; returns the smallest, best and largest."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    profile = builder.create_optimization_profile()
    fixed_batch = next((tensor.shape[0] for tensor in inputs if len(tensor.shape)), -1)
    batches = options.profile(None if fixed_batch == -1 else fixed_batch)
    for tensor in inputs:
        shape = tuple(tensor.shape)
        if -1 not in shape:
            continue
        if shape.index(-1) != 0 or shape.count(-1) != 1:
            raise EngineError(
                f"input {tensor.name}: expected a dynamic batch axis at most, got {shape}; "
                "export the model with fixed sizes"
            )
        profile.set_shape(tensor.name, *((batch, *shape[1:]) for batch in batches))
    config.add_optimization_profile(profile)
    return batches


def _set_limits(library: Any, config: Any, options: EngineOptions, gpu: Gpu | None) -> None:
    """Scratch memory and the effort of the search."""
    workspace = options.workspace_bytes
    if workspace is None and gpu is not None:
        # On a Jetson the GPU's memory is everybody's: the builder must not take it all.
        workspace = gpu.free_bytes // 2
    if workspace is not None:
        config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, workspace)
    if options.builder_level is not None:
        config.builder_optimization_level = options.builder_level


def set_compatibility(library: Any, config: Any, options: EngineOptions, /) -> tuple[str, ...]:
    """Widen where the plan runs, as the options ask; ConfigError if the library cannot.

    Returns the level of hardware compatibility, which is not among the builder's flags.
    """
    if options.version_compatible:
        if not hasattr(library.BuilderFlag, "VERSION_COMPATIBLE"):
            raise _incompatible(library, "version_compatible", "build on the device that runs it")
        config.set_flag(library.BuilderFlag.VERSION_COMPATIBLE)
    if not options.hardware_compatible:
        return ()
    # TensorRT-RTX has the name, says that it does nothing, and builds for named GPUs instead.
    if hasattr(config, "set_compute_capability"):
        raise _incompatible(library, "hardware_compatible", "name every compute-capability")
    if not hasattr(config, "hardware_compatibility_level"):
        raise _incompatible(library, "hardware_compatible", "build on the device that runs it")
    config.hardware_compatibility_level = library.HardwareCompatibilityLevel.AMPERE_PLUS
    return ("AMPERE_PLUS",)


def _incompatible(library: Any, option: str, remedy: str) -> ConfigError:
    """The error for a compatibility that a library does not have."""
    return ConfigError(
        f"{option}: {library.__name__} {library_version(library)} has no such compatibility; "
        f"{remedy}"
    )


def _monitor(library: Any, on_phase: OnPhase) -> Any:
    """A progress monitor that hands every step on."""

    class Monitor(library.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            library.IProgressMonitor.__init__(self)
            self._lengths: dict[str, int] = {}

        def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
            self._lengths[name] = num_steps

        def step_complete(self, name: str, step: int) -> bool:
            on_phase(name, step + 1, self._lengths.get(name, step + 1))
            return True

        def phase_finish(self, name: str) -> None:
            self._lengths.pop(name, None)

    return Monitor()


def _load_timing_cache(library: Any, config: Any, gpu: Gpu | None) -> Any:
    """Give the builder the measurements of earlier builds, where the library measures."""
    # TensorRT-RTX measures nothing while it builds: its timing cache is a deprecated no-op, its
    # kernels are cached by the session that runs them.
    if hasattr(library, "IRuntimeCache") or not hasattr(config, "create_timing_cache"):
        return None
    file = cache_file(library, gpu, "timing")
    cache = config.create_timing_cache(file.read_bytes() if file.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        logger.info("%s: does not fit here; kernels are measured again", file)
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


_SECONDS_BETWEEN_STEPS = 0.1


def say(stream: TextIO, record: dict[str, Any], /) -> None:
    """Write one line and send it off."""
    stream.write(json.dumps(record) + "\n")
    stream.flush()


def main() -> int:
    """Build what standard input asks for; without a file, only check the options.

    Returns 0 if built or checked, and the last line holds the header or says so; 1 if refused, and
    it holds the error.
    """
    request = json.load(sys.stdin)
    options = request["options"]
    options = EngineOptions(
        **options | {"compute_capabilities": tuple(options["compute_capabilities"])}
    )
    last_ns = 0

    def on_phase(name: str, step: int, num_steps: int) -> None:
        nonlocal last_ns
        now_ns = time.monotonic_ns()
        if now_ns - last_ns >= _SECONDS_BETWEEN_STEPS * 1e9:
            last_ns = now_ns
            say(sys.stdout, {"phase": name, "step": step, "of": num_steps})

    try:
        if "onnx" not in request:
            _check_options(options)
            say(sys.stdout, {"checked": True})
            return 0
        header, plan = _compile_plan(
            Path(request["onnx"]),
            request["sha256"],
            options,
            precision=request["precision"],
            on_phase=on_phase,
        )
        Path(request["plan"]).write_bytes(plan)
    except GainError as err:
        say(sys.stdout, {"error": type(err).__name__, "message": str(err)})
        return 1
    say(sys.stdout, {"header": asdict(header)})
    return 0


if __name__ == "__main__":
    sys.exit(main())

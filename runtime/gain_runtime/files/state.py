"""Saving what adaptation has learned, and loading it only where it fits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, to_device
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gain_core import Config, Method, __version__, config_to_dict
from gain_core.errors import ArrayError, ArtifactError, ConfigError
from gain_core.records import arrays_of, record_from_arrays
from gain_runtime.files.paths import write_atomically

STATE_SCHEMA_VERSION = "5"
_PREFIX = "gain.state."

HostArrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedState:
    """A state on the method's library and device, and the frames it has learned from."""

    state: Any
    frames: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateFile:
    """A whole state file; it may belong to any artifact.

    Attributes
    ----------
    path : Path
        The file.
    config : mapping
        The config it was learned with, as `config_to_dict` gives it; of any version.
    artifact_sha256 : str
        Hash of the artifact it was learned on.
    frames : int
        Number of frames it was learned from.
    arrays : mapping of str to array
        The state's arrays by field, NumPy, finite.
    """

    path: Path
    config: Mapping[str, object]
    artifact_sha256: str
    frames: int
    arrays: Mapping[str, npt.NDArray[Any]]

    def state(self, method: Method[Any], /) -> Any:
        """The state of a method, on the method's library and device.

        Parameters
        ----------
        method : Method

        Returns
        -------
        dataclass of arrays
            Of the class that `method.init_state` gives.

        Raises
        ------
        ArtifactError
            If the arrays are not those of the method's state.
        """
        fresh = method.init_state()
        like = next(iter(arrays_of(fresh).values()))
        xp, place = array_namespace(like), device(like)
        moved = {name: xp.asarray(array, device=place) for name, array in self.arrays.items()}
        try:
            return record_from_arrays(fresh, moved)
        except ArrayError as err:
            raise ArtifactError(f"{self.path}: {err}") from err


def save_state(
    path: str | Path,
    state: Any,
    /,
    *,
    config: Config,
    artifact_sha256: str,
    frames: int,
) -> None:
    """Write a state to one safetensors file; a failure leaves no partial file.

    Parameters
    ----------
    path : str or Path
        Replaced if it exists.
    state : dataclass of arrays
        A method's state, on any device. Pending frames of a `Gain` are not in it: flush first.
    config : Config
        The config it was learned with.
    artifact_sha256 : str
        Hash of the artifact it was learned on.
    frames : int
        Number of frames it was learned from.

    Raises
    ------
    ArtifactError
        If the state holds NaN or infinity, or the file cannot be written; an existing file stays
        as it was.
    ConfigError
        If `frames` is negative.
    """
    path = Path(path)
    if frames < 0:
        raise ConfigError(f"frames: expected 0 or more, got {frames}")
    arrays = {
        # Not ascontiguousarray, which gives scalars an axis.
        name: np.asarray(to_device(array, "cpu"), order="C")
        for name, array in arrays_of(state).items()
    }
    _refuse_non_finite(arrays, path)
    metadata = {
        "schema": STATE_SCHEMA_VERSION,
        "config": json.dumps(config_to_dict(config), sort_keys=True),
        "artifact_sha256": artifact_sha256,
        "frames": str(frames),
        "version": __version__,
        "arrays_sha256": _digest(arrays),
    }
    data = save(arrays, metadata={_PREFIX + key: value for key, value in metadata.items()})
    write_atomically(path, data, error=ArtifactError)


def load_state(
    path: str | Path,
    /,
    *,
    method: Method[Any],
    artifact_sha256: str,
) -> LoadedState:
    """Read a state and check that it belongs to this artifact and config.

    Parameters
    ----------
    path : str or Path
        Written by `save_state`.
    method : Method
        The one in use; the arrays are moved to its library and device.
    artifact_sha256 : str
        Hash of the artifact in use.

    Returns
    -------
    LoadedState

    Raises
    ------
    ArtifactError
        If the file is missing, truncated, corrupt, no state file, of another schema or artifact,
        or if its arrays do not fit the method.
    ConfigError
        If it was learned with another config; the message lists the fields that differ.
    """
    file = read_state(path)
    path = file.path
    if file.artifact_sha256 != artifact_sha256:
        raise ArtifactError(
            f"{path}: artifact hash: expected {artifact_sha256[:12]} (the artifact in use), got "
            f"{file.artifact_sha256[:12]}; load it with the artifact it was learned on, or start "
            "without it"
        )
    expected = json.loads(json.dumps(config_to_dict(method.config)))
    if differing := config_differences(file.config, expected):
        raise ConfigError(
            f"{path}: learned with another config: {differing}; "
            "use the preset and settings it was learned with, or start without it"
        )
    return LoadedState(state=file.state(method), frames=file.frames)


def read_state(path: str | Path, /) -> StateFile:
    """Read a state file without checking which artifact it belongs to.

    Parameters
    ----------
    path : str or Path
        Written by `save_state`.

    Returns
    -------
    StateFile

    Raises
    ------
    ArtifactError
        If the file is missing, truncated, corrupt, no state file, or of another schema.
    """
    path = Path(path)
    metadata, arrays = _read(path)
    _check_schema(metadata, path)
    try:
        file = StateFile(
            path=path,
            config=dict(json.loads(metadata["config"])),
            artifact_sha256=metadata["artifact_sha256"],
            frames=int(metadata["frames"]),
            arrays=arrays,
        )
        digest = metadata["arrays_sha256"]
    except (KeyError, TypeError, ValueError) as err:
        raise _corrupt(path, f"its metadata is malformed, {type(err).__name__}: {err}") from err
    if file.frames < 0:
        raise _corrupt(path, f"its frame count is {file.frames}")
    if _digest(arrays) != digest:
        raise _corrupt(path, "its arrays do not match their checksum")
    _refuse_non_finite(arrays, path)
    return file


def _read(path: Path) -> tuple[dict[str, str], HostArrays]:
    """Metadata, prefix removed, and arrays of a safetensors file."""
    try:
        with safe_open(path, framework="numpy") as file:
            entries = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError, ValueError) as err:
        raise _corrupt(path, f"not a complete safetensors file, {err}") from err
    except FileNotFoundError as err:
        raise ArtifactError(
            f"{path}: expected a state file, found no such file; check the path or start without it"
        ) from err
    except OSError as err:
        reason = "it is a folder" if path.is_dir() else err
        raise ArtifactError(
            f"{path}: expected a state file, but it cannot be read ({reason}); "
            "check the path and its permissions or start without it"
        ) from err
    metadata = {
        key.removeprefix(_PREFIX): value
        for key, value in entries.items()
        if key.startswith(_PREFIX)
    }
    return metadata, arrays


def _check_schema(metadata: Mapping[str, str], path: Path) -> None:
    """The file is a state file of this schema."""
    if "schema" not in metadata:
        raise ArtifactError(
            f"{path}: expected a state file, got a safetensors file without {_PREFIX}* metadata; "
            "name a file that was saved by gain-stream"
        )
    if metadata["schema"] != STATE_SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: expected state schema {STATE_SCHEMA_VERSION}, got {metadata['schema']} "
            f"(written by gain-edge {metadata.get('version', 'of an unknown version')}); "
            "use that version of gain-edge or start without it"
        )


def config_differences(saved: Mapping[str, object], expected: Mapping[str, object], /) -> str:
    """The fields in which two configs of `config_to_dict` differ, as text; empty for none."""
    return "; ".join(
        f"{name}: expected {expected.get(name, 'no such field')}, "
        f"got {saved.get(name, 'no such field')}"
        for name in sorted(saved.keys() | expected.keys())
        if name not in saved or name not in expected or saved[name] != expected[name]
    )


def _digest(arrays: HostArrays) -> str:
    """Hash of names, types, shapes and bytes; safetensors itself has no checksum."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _refuse_non_finite(arrays: HostArrays, path: Path) -> None:
    """A state with NaN in it would turn every later prediction into NaN."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ArtifactError(
                f"{path}: state.{name}: expected finite values, got NaN or infinity; "
                "start from a fresh state"
            )


def _corrupt(path: Path, reason: str) -> ArtifactError:
    """The error for a file that was damaged."""
    return ArtifactError(
        f"{path}: the state file is damaged ({reason}); restore a copy or start without it"
    )

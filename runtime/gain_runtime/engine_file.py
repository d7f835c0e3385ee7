"""Engine files: a length, a JSON header that says what the plan was made from, and the plan.

A plan runs on the library version and the kind of GPU it was built for and on nothing else, and
says so late and badly. The header says it first, before any library reads the plan.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from gain_core.errors import EngineError
from gain_runtime.atomic_file import write_atomically
from gain_runtime.engine_header import EngineHeader, header_from_dict, no_engine

__all__ = ["Engine", "engine_path", "plan_version", "read_engine", "write_engine"]

MAX_HEADER_BYTES = 1 << 20

_LENGTH_BYTES = 4
# How plans begin, and where they hold major, minor, patch and build, a byte each. `ftrt` is from
# NVIDIA's own sampleEngines.cpp, `vtrt` was read off the plans of TensorRT-RTX 1.7.1.116.
_MAGIC = {"tensorrt": b"ftrt", "tensorrt_rtx": b"vtrt"}
_VERSION_AT = slice(24, 28)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engine:
    """A whole engine file: its path, its header and its plan."""

    path: Path
    header: EngineHeader
    plan: bytes


def engine_path(artifact_path: Path, /) -> Path:
    """Where the engine of an ONNX file lies: beside it, with the suffix `.engine`.

    Parameters
    ----------
    artifact_path : Path

    Returns
    -------
    Path
    """
    return artifact_path.with_suffix(".engine")


def write_engine(path: Path, header: EngineHeader, plan: bytes, /) -> None:
    """Write an engine file whole or not at all.

    Parameters
    ----------
    path : Path
        Replaced if it exists.
    header : EngineHeader
        Its `plan_sha256` must be the plan's.
    plan : bytes

    Raises
    ------
    EngineError
        If the header is too long or the file cannot be written; nothing is left behind then.
    """
    assert header.plan_sha256 == hashlib.sha256(plan).hexdigest()
    text = json.dumps(asdict(header), ensure_ascii=False).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise EngineError(
            f"{path}: header: expected at most {MAX_HEADER_BYTES} bytes, got {len(text)}; "
            "build without the log"
        )
    try:
        write_atomically(path, len(text).to_bytes(_LENGTH_BYTES, "little") + text + plan)
    except OSError as err:
        raise EngineError(
            f"{path}: cannot be written ({err.strerror}); check the folder and the disk"
        ) from err


def read_engine(path: str | Path, /) -> Engine:
    """Read an engine file and check that it is whole.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Engine

    Raises
    ------
    EngineError
        If the file is missing, unreadable, truncated or damaged, is no engine file, has another
        schema, or if the plan's own version is not the header's.
    """
    path = Path(path)
    data = _read(path)
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or not 2 <= length <= MAX_HEADER_BYTES:
        raise no_engine(path, f"a header of 2 to {MAX_HEADER_BYTES} bytes", f"{length}")
    text, plan = data[_LENGTH_BYTES : _LENGTH_BYTES + length], data[_LENGTH_BYTES + length :]
    if len(text) < length:
        raise no_engine(path, f"a header of {length} bytes", f"{len(text)}, it is truncated")
    header = _parse_header(text, path)
    if hashlib.sha256(plan).hexdigest() != header.plan_sha256:
        raise no_engine(path, "the plan its header describes", f"{len(plan)} other bytes")
    inside = plan_version(plan, header.library)
    if inside is not None and not _same_version(header.version, inside):
        raise no_engine(path, f"a plan of {header.library} {header.version}", f"one of {inside}")
    return Engine(path=path, header=header, plan=plan)


def plan_version(plan: bytes, library: str, /) -> str | None:
    """The library version a plan states in its first bytes.

    Parameters
    ----------
    plan : bytes
    library : str
        `tensorrt` or `tensorrt_rtx`.

    Returns
    -------
    str or None
        As `10.3.0.26`; None where the plan's layout is not a known one.
    """
    magic = _MAGIC.get(library)
    if magic is None or not plan.startswith(magic) or len(plan) < _VERSION_AT.stop:
        return None
    return ".".join(str(byte) for byte in plan[_VERSION_AT])


def _same_version(stated: str, inside: str) -> bool:
    """Whether two versions agree in the parts both have; a wheel may add or drop the build."""
    parts = stated.split(".")[:3]
    return parts == inside.split(".")[: len(parts)]


def _read(path: Path) -> bytes:
    """The file's bytes."""
    try:
        return path.read_bytes()
    except FileNotFoundError as err:
        raise EngineError(
            f"{path}: expected an engine, found no such file; build it on the device with: "
            f"gain-export {path.with_suffix('.onnx')} --engine"
        ) from err
    except OSError as err:
        raise EngineError(
            f"{path}: cannot be read ({err.strerror}); check the path and its permissions"
        ) from err


def _parse_header(text: bytes, path: Path) -> EngineHeader:
    """The header in the bytes."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise no_engine(path, "a header in JSON", "something else") from err
    return header_from_dict(values, path)

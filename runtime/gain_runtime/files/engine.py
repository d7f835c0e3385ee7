"""Engine files: a length, a JSON header that says what the plan was made from, and the plan.

A plan runs on the library version and the kind of GPU it was built for and on nothing else, and
says so late and badly. The header says it first, before any library reads the plan.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gain_core.errors import EngineError
from gain_runtime.files.paths import write_atomically

SCHEMA = 3
PRECISIONS = ("fp32", "fp16", "bf16", "int8")

_AMPERE = 80
# What `verification` holds, and of which type.
_NOT_VERIFIED: dict[str, type] = {"verified": str, "reason": str}
_VERIFIED: dict[str, type] = {
    "verified": str,
    "reference": str,
    "reference_precision": str,
    "image_source": str,
    "images_drawn": str,
    "images": int,
    "batch_sizes": str,
    "top1_agreement": float,
    "features_cosine_min": float,
    "logits_cosine_min": float,
    "logits_max_abs_diff": float,
    "accepted": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHeader:
    """What a plan was made from, with what, and for which GPU.

    Attributes
    ----------
    artifact_sha256 : str
        Of the ONNX file's bytes, hexadecimal.
    library : str
        `tensorrt` or `tensorrt_rtx`.
    version : str
        Of the library.
    gpu : str or None
        Name of the GPU it was built on, None where it was built without one.
    compute_capabilities : tuple of int
        The GPUs it is for, as 86 for 8.6; ascending.
    profile : tuple of int
        Smallest, best and largest batch size.
    precision : str or None
        Of the ONNX file's matrix products, one of `PRECISIONS`; None where it records none.
    builder_level : int or None
        None is the library's own.
    flags : tuple of str
        Builder flags that were set and the level of hardware compatibility, by the library's
        names.
    plan_sha256 : str
        Of the plan, hexadecimal.
    log_tail : tuple of str
        The builder's last warnings and errors.
    verification : mapping
        `verified` is "no" and there is a `reason`, or it is "yes" and there are:

        - `reference`, the artifact that ONNX Runtime ran on the CPU, and `reference_precision`,
          one of `PRECISIONS` or "unknown";
        - `images`, their number, `image_source`, and `images_drawn`, "yes" where they were drawn
          by the program and nobody's photographs; `batch_sizes`, those the engine was run at;
        - `top1_agreement`, `features_cosine_min`, `logits_cosine_min`, `logits_max_abs_diff`;
        - `accepted`, what missed the bar and was allowed to, empty where nothing did.
    schema : int
        Version of this header.
    """

    artifact_sha256: str
    library: str
    version: str
    gpu: str | None
    compute_capabilities: tuple[int, ...]
    profile: tuple[int, ...]
    precision: str | None
    builder_level: int | None
    flags: tuple[str, ...]
    plan_sha256: str
    log_tail: tuple[str, ...] = ()
    verification: Mapping[str, float | int | str] = field(
        default_factory=lambda: {"verified": "no", "reason": "it has not been run"}
    )
    schema: int = SCHEMA

    @property
    def version_compatible(self) -> bool:
        """Whether later versions of the library, of the same major one, run the plan, too."""
        return "VERSION_COMPATIBLE" in self.flags

    @property
    def hardware_compatible(self) -> bool:
        """Whether every GPU of compute capability 8.0 or more runs the plan."""
        return "AMPERE_PLUS" in self.flags

    @property
    def carries_host_code(self) -> bool:
        """Whether the plan brings its own runtime, which the library would run on the host."""
        return self.version_compatible and "EXCLUDE_LEAN_RUNTIME" not in self.flags

    def difference(self, expected: Mapping[str, object], /) -> str | None:
        """The first field that is not as expected, in words.

        Parameters
        ----------
        expected : mapping
            Field names and the values they must have; for `compute_capability`, the GPU's one.

        Returns
        -------
        str or None
            As `version: built with 10.3.0, expected 10.16.1`; None where all agree.
        """
        for name, wanted in expected.items():
            if self._fits(name, wanted):
                continue
            if name == "compute_capability":
                return f"{name}: built for {_shown(self.compute_capabilities)}, expected {wanted}"
            return f"{name}: built with {_shown(getattr(self, name))}, expected {_shown(wanted)}"
        return None

    def _fits(self, name: str, wanted: object) -> bool:
        """Whether one field allows what is there."""
        if name == "compute_capability":
            newer = self.hardware_compatible and isinstance(wanted, int) and wanted >= _AMPERE
            return newer or wanted in self.compute_capabilities
        if name == "gpu" and self.hardware_compatible:
            return True
        if name == "version" and self.version_compatible:
            return _runs_on(self.version, str(wanted))
        return bool(getattr(self, name) == wanted)


def header_from_dict(values: object, path: Path, /) -> EngineHeader:
    """A header from plain values, as JSON gives them; `path` is for messages.

    Raises EngineError if a field is missing, unknown, or of another type or range, or the schema is
    another.
    """
    if not isinstance(values, dict):
        raise _no_engine(path, "a header of names and values", type(values).__name__)
    schema = values.get("schema")
    if type(schema) is not int or schema < 1:
        raise _no_engine(path, f"schema {SCHEMA}", _shown(schema))
    if schema != SCHEMA:
        raise EngineError(
            f"{path}: expected an engine header of schema {SCHEMA}, got {schema}; it was built by "
            f"{'an older' if schema < SCHEMA else 'a newer'} version of gain-edge, build it again "
            f"with: gain-export {path.with_suffix('.onnx')} --engine"
        )
    names = {item.name for item in fields(EngineHeader)}
    if set(values) != names:
        odd = ", ".join(sorted(set(values) ^ names))
        raise _no_engine(path, f"the header fields of schema {SCHEMA}", f"others: {_shown(odd)}")
    for name, value in values.items():
        if not _fits(name, value):
            raise _no_engine(path, f"a valid {name} in the header", _shown(value))
    typed: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return EngineHeader(**typed)


def _fits(name: str, value: Any) -> bool:
    """Whether a field's value has the field's type and range."""
    if name in ("compute_capabilities", "profile"):
        whole = isinstance(value, list) and all(type(v) is int and v >= 1 for v in value)
        if not whole or value != sorted(value):
            return False
        return len(value) == 3 if name == "profile" else len(value) >= 1
    if name in ("flags", "log_tail"):
        return isinstance(value, list) and all(isinstance(v, str) for v in value)
    if name == "verification":
        return _is_verification(value)
    if name == "precision":
        return value is None or value in PRECISIONS
    if name == "builder_level":
        return value is None or type(value) is int
    if name == "schema":
        return type(value) is int
    return isinstance(value, str) or (name == "gpu" and value is None)


def _is_verification(value: Any) -> bool:
    """Whether a value says that the engine was verified and how, or that it was not and why."""
    if not isinstance(value, dict) or value.get("verified") not in ("yes", "no"):
        return False
    kinds = _VERIFIED if value["verified"] == "yes" else _NOT_VERIFIED
    if {name: type(v) for name, v in value.items()} != kinds:
        return False
    # The texts are shown to people.
    return all(v.isprintable() if isinstance(v, str) else math.isfinite(v) for v in value.values())


def _shown(value: object) -> str:
    """A value from a file, short and on one line."""
    if isinstance(value, tuple):
        return ", ".join(str(v) for v in value) or "none"
    text = repr(value) if not isinstance(value, str) or not value.isprintable() else value
    return text if len(text) <= 80 else f"{text[:77]}..."


def _runs_on(built: str, here: str) -> bool:
    """Whether a version-compatible plan of one version runs on another: the same major, not older.

    NVIDIA's documents disagree about plans that cross a major version; the ONNX file is there to
    be built again.
    """
    old, new = ([int(part) for part in v.split(".") if part.isdigit()] for v in (built, here))
    return bool(old) and old[:1] == new[:1] and old <= new


def _no_engine(path: Path, expected: str, got: str, /) -> EngineError:
    """The error for a file that is no engine or a damaged one."""
    return EngineError(
        f"{path}: expected {expected}, got {got}; it is no engine or is damaged, build it again "
        f"with: gain-export {path.with_suffix('.onnx')} --engine"
    )


MAX_HEADER_BYTES = 1 << 20

_LENGTH_BYTES = 4
# How plans begin, and where they hold major, minor, patch and build, a byte each. `ftrt` is from
# NVIDIA's own sampleEngines.cpp, `vtrt` was read off the plans of TensorRT-RTX 1.7.1.116.
_MAGIC = {"tensorrt": b"ftrt", "tensorrt_rtx": b"vtrt"}
_VERSION_AT = slice(24, 28)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Engine:
    """A whole engine file; `plan` is the serialised TensorRT plan."""

    path: Path
    header: EngineHeader
    plan: bytes


def engine_path(artifact_path: Path, /) -> Path:
    """The engine file that belongs to an ONNX file: beside it, with the suffix `.engine`."""
    return artifact_path.with_suffix(".engine")


def write_engine(path: Path, header: EngineHeader, plan: bytes, /) -> None:
    """Write an engine file whole or not at all; `header.plan_sha256` must be the plan's.

    Raises EngineError if the header is too long or the file cannot be written; nothing is left
    behind then.
    """
    assert header.plan_sha256 == hashlib.sha256(plan).hexdigest()
    text = json.dumps(asdict(header), ensure_ascii=False).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise EngineError(
            f"{path}: header: expected at most {MAX_HEADER_BYTES} bytes, got {len(text)}; "
            "build without the log"
        )
    data = len(text).to_bytes(_LENGTH_BYTES, "little") + text + plan
    write_atomically(path, data, error=EngineError)


def read_engine(path: str | Path, /) -> Engine:
    """Read an engine file and check that it is whole.

    Parameters
    ----------
    path : str or Path
        The `.engine` file.

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
        raise _no_engine(path, f"a header of 2 to {MAX_HEADER_BYTES} bytes", f"{length}")
    text, plan = data[_LENGTH_BYTES : _LENGTH_BYTES + length], data[_LENGTH_BYTES + length :]
    if len(text) < length:
        raise _no_engine(path, f"a header of {length} bytes", f"{len(text)}, it is truncated")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise _no_engine(path, "a header in JSON", "something else") from err
    header = header_from_dict(values, path)
    if hashlib.sha256(plan).hexdigest() != header.plan_sha256:
        raise _no_engine(path, "the plan its header describes", f"{len(plan)} other bytes")
    inside = plan_version(plan, header.library)
    # A wheel may add or drop the build.
    stated = header.version.split(".")[:3]
    if inside is not None and stated != inside.split(".")[: len(stated)]:
        raise _no_engine(path, f"a plan of {header.library} {header.version}", f"one of {inside}")
    return Engine(path=path, header=header, plan=plan)


def plan_version(plan: bytes, library: str, /) -> str | None:
    """The library version that a plan begins with, as `10.3.0.26`; None if it is not found."""
    magic = _MAGIC.get(library)
    if magic is None or not plan.startswith(magic) or len(plan) < _VERSION_AT.stop:
        return None
    return ".".join(str(byte) for byte in plan[_VERSION_AT])


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

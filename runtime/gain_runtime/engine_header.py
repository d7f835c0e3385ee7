"""What an engine file says about its plan, and whether the plan fits what is here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gain_core.errors import EngineError

__all__ = ["PRECISIONS", "EngineHeader", "header_from_dict", "no_engine"]

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
    """A header from plain values, as JSON gives them.

    Parameters
    ----------
    values : object
        Anything; only a dict of the header's fields passes.
    path : Path
        For messages.

    Returns
    -------
    EngineHeader

    Raises
    ------
    EngineError
        If a field is missing, unknown, or of another type or range, or the schema is another.
    """
    if not isinstance(values, dict):
        raise no_engine(path, "a header of names and values", type(values).__name__)
    schema = values.get("schema")
    if type(schema) is not int or schema < 1:
        raise no_engine(path, f"schema {SCHEMA}", _shown(schema))
    if schema != SCHEMA:
        raise EngineError(
            f"{path}: expected an engine header of schema {SCHEMA}, got {schema}; it was built by "
            f"{'an older' if schema < SCHEMA else 'a newer'} version of gain-edge, build it again "
            f"with: gain-export {path.with_suffix('.onnx')} --engine"
        )
    names = {item.name for item in fields(EngineHeader)}
    if set(values) != names:
        odd = ", ".join(sorted(set(values) ^ names))
        raise no_engine(path, f"the header fields of schema {SCHEMA}", f"others: {_shown(odd)}")
    for name, value in values.items():
        if not _fits(name, value):
            raise no_engine(path, f"a valid {name} in the header", _shown(value))
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


def no_engine(path: Path, expected: str, got: str, /) -> EngineError:
    """The error for a file that is no engine or a damaged one.

    Parameters
    ----------
    path : Path
    expected, got : str

    Returns
    -------
    EngineError
    """
    return EngineError(
        f"{path}: expected {expected}, got {got}; it is no engine or is damaged, build it again "
        f"with: gain-export {path.with_suffix('.onnx')} --engine"
    )

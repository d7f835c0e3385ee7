"""Coverage-guided fuzzing of everything that reads bytes or text from outside, by atheris.

    python tests/faults/fuzz_readers.py TARGET CORPUS [-max_total_time=60] [more of libFuzzer's]

TARGET is model, artifact, adaptive, engine, state or uri, CORPUS a folder with at least one whole
example. The process ends with status 0 unless an input leads to something else than a result or a
`GainError`; libFuzzer then writes it to a file and prints the traceback.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gain_core", "gain_runtime", "gain_export"]):
    from gain_core import ShiftConfig
    from gain_core.errors import ConfigError, GainError
    from gain_export.onnx_file import load_onnx
    from gain_runtime.files.adaptive import load_adaptive
    from gain_runtime.files.artifact import load_artifact
    from gain_runtime.files.engine import read_engine
    from gain_runtime.files.state import load_state
    from gain_runtime.sources.uri import parse_uri, redact

import numpy as np

CONFIG = ShiftConfig()
# Of the tiny artifact that the corpus's states were learned on, as are both sizes.
NUM_CLASSES, FEATURE_DIM = 5, 7


def read_file(read: Callable[[Path], object], suffix: str) -> Callable[[bytes], None]:
    """What gives a reader of files the fuzzer's bytes as one."""
    folder = Path(tempfile.mkdtemp(prefix="gain-fuzz-"))
    path = folder / f"input{suffix}"

    def one(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read(path)
        except GainError as err:
            message = str(err)
            assert message
            assert "\n" not in message, f"more than one line: {message!r}"

    return one


def state(path: Path) -> object:
    """A state of any artifact: the hash it names is the one that is asked for."""
    head = np.eye(NUM_CLASSES, FEATURE_DIM, dtype=np.float32)
    return load_state(path, prototypes=head, config=CONFIG, artifact_sha256="0" * 64)


def uri(data: bytes) -> None:
    """A source's name; what is shown of it holds no password."""
    text = data.decode("utf-8", "replace")
    redact(text)
    try:
        parse_uri(text)
    except ConfigError:
        return


TARGETS: dict[str, Callable[[bytes], None]] = {
    "model": read_file(load_onnx, ".onnx"),
    "artifact": read_file(load_artifact, ".onnx"),
    "adaptive": read_file(load_adaptive, ".adaptive.onnx"),
    "engine": read_file(read_engine, ".engine"),
    "state": read_file(state, ".safetensors"),
    "uri": uri,
}


def main() -> None:
    """Fuzz one target until libFuzzer's own limits."""
    name, corpus, *flags = sys.argv[1:]
    atheris.Setup([sys.argv[0], corpus, *flags], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()

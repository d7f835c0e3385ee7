"""The process that builds one engine: a request on standard input, JSON lines on standard output.

A builder can exhaust the memory of a small board and be killed, or crash; in a process of its own
that is a message instead of the end of everything.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from gain_core.errors import GainError
from gain_export.engine.compile import check_options, compile_plan
from gain_export.engine.options import EngineOptions

__all__ = ["main", "say"]

_SECONDS_BETWEEN_STEPS = 0.1


def say(stream: TextIO, record: dict[str, Any], /) -> None:
    """Write one line and send it off.

    Parameters
    ----------
    stream : file
    record : dict
    """
    stream.write(json.dumps(record) + "\n")
    stream.flush()


def main() -> int:
    """Build what standard input asks for; without a file, only check the options.

    Returns
    -------
    int
        0 built or checked, and the last line holds the header or says so; 1 refused, and it holds
        the error.
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
            check_options(options)
            say(sys.stdout, {"checked": True})
            return 0
        header, plan = compile_plan(
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

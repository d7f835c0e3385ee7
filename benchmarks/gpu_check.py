"""What adaptation costs beside ViT-B/16 on a GPU, and whether it is right there; one JSON.

    pip install '.[export,cuda13]' pytest   # and ONNX Runtime as docs/how-to/gpu.md says
    benchmarks/gpu_check.sh --json gpu_check.json
    benchmarks/gpu_check.sh --cpu-dry-run             # the same code, the road signs, the CPU

Each way of adapting is timed beside the network it follows, turn about, and compared with a float64
step in NumPy. The times of a dry run mean nothing. The exit status is 1 where a result is wrong, a
test fails or a part breaks off; a target that is missed is a finding.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core import Gain, __version__, make_method
from gain_export import PreprocessOverrides, export_onnx
from gain_export.adaptive import add_adaptation
from gain_runtime.engine import NetworkEngine, artifact_method
from gain_runtime.files.paths import write_atomically
from gain_runtime.sessions.adaptive import AdaptiveSession
from gain_runtime.sessions.onnx import CPU_PROVIDER, CUDA_PROVIDER, OnnxSession

REPOSITORY = Path(__file__).resolve().parent.parent
ROAD_SIGNS = REPOSITORY / "models" / "roadsigns" / "roadsigns.onnx"
NETWORK = "vit_base_patch16_224.augreg2_in21k_ft_in1k"
# At B = 64 and K = 1000: adaptation beside the forward pass, throughput lost, error of p*.
MAX_SHARE_PERCENT, MAX_LOST_PERCENT, MAX_ERROR = 2.0, 2.0, 1e-5
UPDATE_EVERY = 16
WARM_UP, ERROR_BATCHES = 5, 24
TESTS_TIMEOUT_S = 300
# The parts that time something and compare it with float64.
COMPARED = ("host", "adaptive_file", "torch", "cupy")

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Where and how much is measured; `torch` is torch's name of the device."""

    provider: str
    torch: str
    batch_sizes: tuple[int, ...]
    rounds: int


CARD = Scale(provider=CUDA_PROVIDER, torch="cuda", batch_sizes=(1, 8, 64), rounds=50)
DRY = Scale(provider=CPU_PROVIDER, torch="cpu", batch_sizes=(1, 4), rounds=2)


class AbsentError(Exception):
    """A library that a part needs is not here."""


def main() -> int:
    """Measure, write the result and say what was met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("gpu_check.json"))
    parser.add_argument("--cpu-dry-run", action="store_true", help="in small, and no test is run")
    args = parser.parse_args()
    if not args.json.resolve().parent.is_dir():
        parser.error(f"--json: no such folder {args.json.parent}")
    scale = DRY if args.cpu_dry_run else CARD
    report: dict[str, Any] = {"dry_run": args.cpu_dry_run, **versions(scale)}
    with tempfile.TemporaryDirectory() as folder:
        parts: dict[str, Callable[[], Any]] = {
            "host": lambda: host_adaptation(network(Path(folder), scale), scale),
            "adaptive_file": lambda: adaptive_file(network(Path(folder), scale), scale),
            "torch": lambda: array_library("torch", scale),
            "cupy": lambda: array_library("cupy", scale),
        }
        if not args.cpu_dry_run:
            parts["tests"] = run_tests
        for name, part in parts.items():
            began = time.perf_counter()
            report[name] = attempt(part)
            print(f"{time.perf_counter() - began:6.1f} s  {name}", flush=True)
            # After every part, so that a run that is cut off leaves what it has measured.
            write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())
    report["targets"], report["wrong"] = targets(report, scale), wrong(report)
    write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())
    for target in report["targets"]:
        verdict = {None: "not judged", True: "met", False: "MISSED"}[target["met"]]
        print(f"{verdict:10s}  {target['name']}: {target['value']} (at most {target['limit']})")
    for line in [*left_out(report), *(f"WRONG       {fault}" for fault in report["wrong"])]:
        print(line)
    return 1 if report["wrong"] else 0


def attempt(part: Callable[[], Any]) -> Any:
    """What a part measured, or why it did not; whatever ends one part leaves the others alone."""
    try:
        return part()
    except AbsentError as err:
        return {"absent": str(err)}
    # The script's top: CuPy's CompileException, for one, is nothing but an Exception.
    except Exception as err:  # noqa: BLE001
        traceback.print_exc()
        return {"failed": f"{type(err).__name__}: {' '.join(str(err).split())[:500]}"}


def network(folder: Path, scale: Scale) -> Path:
    """ViT-B/16 of 1000 classes with random weights as an artifact; dry, the shipped road signs."""
    path = folder / "network.onnx"
    if path.exists():
        return path
    if scale is DRY:
        half = (0.5, 0.5, 0.5)
        preprocess = PreprocessOverrides(
            img_size=(64, 64), mean=half, std=half, interpolation="bicubic", crop_fraction=1.0
        )
        return export_onnx(ROAD_SIGNS, output=path, preprocess=preprocess).path
    # Late: a dry run needs neither torch nor timm.
    from gain_export import export_timm

    return export_timm(NETWORK, path, random_seed=0).path


def host_adaptation(path: Path, scale: Scale) -> dict[str, Any]:
    """The network and a softmax against the same session with `Gain` behind it."""
    rows = []
    with OnnxSession(path, provider=scale.provider) as session:
        for size in scale.batch_sizes:
            engine = NetworkEngine(session, update_every=UPDATE_EVERY)
            pixels = noise_images(session, size)
            adapt_ns: list[int] = []

            def adapted(engine=engine, pixels=pixels, adapt_ns=adapt_ns) -> None:  # type: ignore[no-untyped-def]
                adapt_ns.append(engine.step(pixels, learn=True)[1][1])

            spent = alternating(
                {
                    "frozen_ms": lambda pixels=pixels: softmax(session.infer(pixels).logits),
                    "adapted_ms": adapted,
                    "forward_ms": lambda pixels=pixels: session.infer(pixels),
                },
                scale.rounds,
            )
            adapt_ms = statistics.fmean(adapt_ns[WARM_UP:]) / 1e6
            rows.append(row_of(session, size, spent, adapt_ms) | {"adapt_ms": adapt_ms})
    error = largest_error(Gain(artifact_method(session.artifact)).step, session.artifact)
    return {"rows": rows, "error": error}


def adaptive_file(path: Path, scale: Scale) -> dict[str, Any]:
    """The plain file against the adaptive one, whose state stays on the device."""
    whole, bare = path.with_name("whole.adaptive.onnx"), path.with_name("step.adaptive.onnx")
    add_adaptation(path, whole, update_every=UPDATE_EVERY)
    add_adaptation(path, bare, update_every=UPDATE_EVERY, features_only=True)
    rows = []
    with (
        OnnxSession(path, provider=scale.provider) as plain,
        AdaptiveSession(whole, provider=scale.provider) as adaptive,
        AdaptiveSession(bare, provider=scale.provider) as step,
    ):
        for size in scale.batch_sizes:
            pixels = noise_images(plain, size)
            spent = alternating(
                {
                    "frozen_ms": lambda pixels=pixels: softmax(plain.infer(pixels).logits),
                    "adapted_ms": lambda pixels=pixels: adaptive.step(pixels),
                    "forward_ms": lambda pixels=pixels: plain.infer(pixels),
                },
                scale.rounds,
            )
            added = spent["adapted_ms"] - spent["forward_ms"]
            rows.append(row_of(plain, size, spent, added))
        error = largest_error(lambda _, logits: step.step(logits), plain.artifact)
    return {"rows": rows, "error": error}


def row_of(
    session: OnnxSession, size: int, spent: Mapping[str, float], added_ms: float
) -> dict[str, Any]:
    """Times of a batch size, and what adapting costs beside the network."""
    return {
        "batch_size": size,
        "num_classes": session.artifact.manifest.num_classes,
        **spent,
        "share_percent": 100.0 * added_ms / spent["forward_ms"],
        "lost_percent": 100.0 * (1.0 - spent["frozen_ms"] / spent["adapted_ms"]),
    }


def array_library(name: str, scale: Scale) -> dict[str, Any]:
    """`gain_core` on arrays of a library, as it is: K = 1000, or 53 dry."""
    try:
        library: Any = importlib.import_module(name)
    except ImportError as err:
        raise AbsentError(f"{name}: cannot be imported ({err})") from err
    if name == "cupy" and scale is DRY:
        raise AbsentError("cupy: a dry run has no card")
    if name == "torch":
        if scale is CARD and not library.cuda.is_available():
            raise AbsentError("torch: no CUDA device can be used")
        synchronise = library.cuda.synchronize if scale is CARD else (lambda: None)
        place = lambda array: library.asarray(array, device=scale.torch)  # noqa: E731
    else:
        place, synchronise = library.asarray, library.cuda.runtime.deviceSynchronize
    num_classes = 53 if scale is DRY else 1000
    rows = []
    for size in scale.batch_sizes:
        like = place(np.zeros((), dtype=np.float32))
        gain = Gain(num_classes, update_every=UPDATE_EVERY, like=like)
        logits = place(shifted_stream(num_classes, size, seed=size))

        def step(gain=gain, logits=logits) -> None:  # type: ignore[no-untyped-def]
            gain.step(None, logits)
            synchronise()

        spent = alternating({"step_ms": step}, scale.rounds)
        rows.append({"batch_size": size, "num_classes": num_classes, **spent})
    gain = Gain(num_classes, like=like)
    error = largest_error(lambda _, logits: gain.step(None, place(logits)), num_classes)
    return {"rows": rows, "error": error}


def largest_error(step: Callable[[None, Floats], Any], source: Any) -> dict[str, Any]:
    """Of a probability against `Gain` in float64, on a stream whose logits are shifted.

    `source` is an artifact, or K.
    """
    if isinstance(source, int):
        method = make_method(source, like=np.zeros((), dtype=np.float64))
    else:
        known = artifact_method(source)
        wide = np.zeros((), dtype=np.float64)
        method = make_method(known.num_classes, known.config, like=wide, **known.measured)
    exact = Gain(method)
    worst, corrected = 0.0, 0
    for number in range(ERROR_BATCHES):
        logits = shifted_stream(method.num_classes, 32, seed=number)
        expected = exact.step(None, logits.astype(np.float64))
        got = step(None, logits)
        probs = on_host(got.probs)
        worst = max(worst, float(np.max(np.abs(probs - expected.probs))))
        corrected += int(np.sum(on_host(got.strength) > 0.0))
    # A stream that needs no correction would show nothing.
    return {"largest": worst, "corrected": corrected, "of": 32 * ERROR_BATCHES}


def shifted_stream(num_classes: int, size: int, *, seed: int) -> Floats:
    """Logits (size, K) of a mixture of classes, all moved by one vector."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(size, num_classes))
    logits[np.arange(size), rng.integers(0, num_classes, size)] += rng.uniform(6.0, 16.0, size)
    logits += 1.5 * np.random.default_rng(99).normal(size=num_classes)
    return logits.astype(np.float32)


def noise_images(session: OnnxSession, size: int) -> Floats:
    """Pixel values of no meaning."""
    shape = session.artifact.manifest.preprocess
    rng = np.random.default_rng(size)
    return rng.standard_normal((size, 3, shape.height_px, shape.width_px), dtype=np.float32)


def softmax(logits: Floats) -> Floats:
    """What a stream without the method computes on the host."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def alternating(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Mean milliseconds of each, updates that come in few of the rounds included."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM_UP + rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if number >= WARM_UP:
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.fmean(values) for name, values in times.items()}


def on_host(array: Any) -> npt.NDArray[Any]:
    """NumPy's, from whichever library."""
    array = array.get() if hasattr(array, "get") else array
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def run_tests() -> dict[str, Any]:
    """The tests that are marked `gpu`, and CuPy's of the core."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command = [*pytest, "tests", "-m", "gpu and not slow"]
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=TESTS_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {TESTS_TIMEOUT_S} s"}
    tail = done.stdout.strip().splitlines()[-8:]
    return {"tail": tail} if done.returncode == 0 else {"failed": "\n".join(tail)}


def targets(report: Mapping[str, Any], scale: Scale) -> list[dict[str, Any]]:
    """Every target of the largest batch, met or not; None in a dry run or where it is missing."""
    found = []
    limits = {"share_percent": MAX_SHARE_PERCENT, "lost_percent": MAX_LOST_PERCENT}
    for name in COMPARED:
        largest = (report[name].get("rows") or [{}])[-1]
        if name in ("host", "adaptive_file"):
            for key, limit in limits.items():
                where = f"{name}, {key}, batch {scale.batch_sizes[-1]}"
                found.append((where, largest.get(key), limit))
        found.append((f"{name}, error", report[name].get("error", {}).get("largest"), MAX_ERROR))
    return [
        {
            "name": name,
            "value": None if value is None else float(f"{value:.3g}"),
            "limit": limit,
            "met": None if value is None or scale is DRY else value <= limit,
        }
        for name, value, limit in found
    ]


def wrong(report: Mapping[str, Any]) -> list[str]:
    """What is not as it has to be; times are never wrong."""
    parts = {name: report[name] for name in (*COMPARED, "tests") if name in report}
    faults = [f"{name}: {part['failed']}" for name, part in parts.items() if "failed" in part]
    for name, part in parts.items():
        error = part.get("error", {"largest": 0.0, "corrected": 1})
        if not error["largest"] <= MAX_ERROR:
            faults.append(f"{name}: a probability is off by {error['largest']:.2g}")
        if not error["corrected"]:
            faults.append(f"{name}: nothing was corrected, so nothing was compared")
    return faults


def left_out(report: Mapping[str, Any]) -> list[str]:
    """Parts whose libraries are not here."""
    return [
        f"not run     {report[name]['absent']}" for name in COMPARED if "absent" in report[name]
    ]


def versions(scale: Scale) -> dict[str, Any]:
    """Of the libraries, and the card's name."""
    found: dict[str, Any] = {"gain-edge": __version__, "numpy": np.__version__}
    for name in ("onnxruntime", "torch", "cupy"):
        try:
            found[name] = importlib.import_module(name).__version__
        except ImportError:
            found[name] = None
    card = None
    if scale is CARD and found["torch"] is not None:
        torch: Any = importlib.import_module("torch")
        card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {"python": platform.python_version(), "versions": found, "card": card}


if __name__ == "__main__":
    sys.exit(main())

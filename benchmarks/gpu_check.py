"""GAIN on a CUDA device: tests, agreement with NumPy, cost, launches, throughput; one JSON.

    benchmarks/gpu_check.sh --json benchmarks/results/gpu_check.json

`--cpu-dry-run` runs the same code on torch's CPU with small sizes: it proves that the script runs,
and its times mean nothing.
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
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gain_core import Gain, GainConfig, Prediction, __version__
from gain_core.errors import GainError
from gain_runtime.atomic_file import write_atomically

PRESETS = ("tracked", "balanced")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# Largest error of a field against float64, relative to one plus its largest magnitude.
AGREEMENT = 1e-3
# A backbone's forward pass must not be measured while the allocator and cuBLAS still warm up.
WARM_UP = 5


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured; `device` is torch's name of where."""

    device: str
    batch_sizes: tuple[int, ...]
    class_counts: tuple[int, ...]
    image_px: int
    patch_px: int
    width: int
    depth: int
    heads: int
    rounds: int
    suite: tuple[str, ...]
    suite_timeout_s: int


CARD = Scale(
    device="cuda",
    batch_sizes=(1, 8, 64),
    class_counts=(1000, 21_843),
    image_px=224,
    patch_px=16,
    width=768,
    depth=12,
    heads=12,
    rounds=40,
    suite=("tests/core", "-k", "cupy or torch-cuda"),
    suite_timeout_s=300,
)
DRY = Scale(
    device="cpu",
    batch_sizes=(1, 4),
    class_counts=(10, 33),
    image_px=32,
    patch_px=16,
    width=32,
    depth=2,
    heads=2,
    rounds=3,
    suite=("tests/core/test_namespaces.py", "-k", "every_public_function"),
    suite_timeout_s=120,
)


class PlainViT(torch.nn.Module):
    """A vision transformer with random weights, for machines without timm."""

    def __init__(self, scale: Scale, num_classes: int) -> None:
        super().__init__()
        side = scale.image_px // scale.patch_px
        self.patches = torch.nn.Conv2d(3, scale.width, scale.patch_px, stride=scale.patch_px)
        self.token = torch.nn.Parameter(torch.randn(1, 1, scale.width) * 0.02)
        self.position = torch.nn.Parameter(torch.randn(1, side**2 + 1, scale.width) * 0.02)
        block = torch.nn.TransformerEncoderLayer(
            scale.width,
            scale.heads,
            4 * scale.width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = torch.nn.TransformerEncoder(block, scale.depth, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(scale.width)
        self.head = torch.nn.Linear(scale.width, num_classes)

    def features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Pre-logits features, (B, D)."""
        tokens = self.patches(pixel_values).flatten(2).transpose(1, 2)
        token = self.token.expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([token, tokens], dim=1) + self.position
        return self.norm(self.blocks(tokens))[:, 0]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A backbone with its head: (B, 3, H, W) to features (B, D) and logits (B, K)."""

    name: str
    head: torch.nn.Linear
    features: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.features(pixel_values)
        return features, self.head(features)


def main() -> int:
    """Run every part, write the result and say which targets were met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--cpu-dry-run", action="store_true", help="torch's CPU, in small")
    args = parser.parse_args()
    if not args.json.parent.is_dir():
        parser.error(f"--json: no such folder {args.json.parent}")
    scale = DRY if args.cpu_dry_run else CARD
    if scale.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: error: torch finds no CUDA device; --cpu-dry-run needs none")
        return 1
    torch.manual_seed(0)
    report: dict[str, Any] = {"command": "benchmarks/gpu_check.sh", **describe(args.cpu_dry_run)}
    parts: tuple[tuple[str, Callable[[Scale], Any]], ...] = (
        ("cost", measure_cost),
        ("agreement", compare_with_numpy),
        ("launches", count_launches),
        ("throughput", measure_throughput),
        ("stream", run_bench),
        ("suite", run_suite),
    )
    began = time.monotonic()
    for name, part in parts:
        report[name] = part(scale)
        print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
        report["seconds"] = round(time.monotonic() - began, 1)
        # After every part, so that a run that is cut off leaves what it has measured.
        write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())
    report["targets"] = judge(report)
    write_atomically(args.json, (json.dumps(report, indent=1) + "\n").encode())
    for target in report["targets"]:
        verdict = "not measured" if target["met"] is None else "met" if target["met"] else "MISSED"
        print(f"{verdict:12s}  {target['name']}: {target['value']} (at most {target['limit']})")
    # Speed is a finding; a test that fails or a number that is wrong is a failure.
    sound = report["suite"]["ok"] and all(row["ok"] for row in report["agreement"])
    return 0 if sound else 1


def describe(dry_run: bool) -> dict[str, Any]:
    """The card and the versions."""
    versions = {"gain-edge": __version__, "numpy": np.__version__, "torch": torch.__version__}
    for name in ("cupy", "timm", "onnxruntime"):
        module = optional(name)
        versions[name] = None if module is None else module.__version__
    record: dict[str, Any] = {
        "dry_run": dry_run,
        "python": platform.python_version(),
        "versions": versions,
        "card": None,
    }
    if not dry_run:
        card = torch.cuda.get_device_properties(0)
        record["card"] = card.name
        record["compute_capability"] = f"{card.major}.{card.minor}"
        record["memory_bytes"] = card.total_memory
        record["cuda"] = torch.version.cuda
    return record


def optional(name: str) -> Any:
    """A library that may be missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def libraries(scale: Scale) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Array libraries with the way from a tensor into them, without a copy."""
    found: dict[str, Callable[[torch.Tensor], Any]] = {"torch": lambda tensor: tensor}
    cupy = optional("cupy") if scale.device == "cuda" else None
    if cupy is not None and cupy.cuda.runtime.getDeviceCount():
        found["cupy"] = cupy.from_dlpack
    return found


def build(scale: Scale, num_classes: int, dtype: torch.dtype) -> Network:
    """ViT-B/16 with random weights, of timm where it is there and the sizes are the card's."""
    timm = optional("timm") if scale is CARD else None
    if timm is None:
        model: Any = PlainViT(scale, num_classes)
        name, features = "plain torch ViT", model.features
    else:
        model = timm.create_model("vit_base_patch16_224", num_classes=num_classes)
        name = "timm vit_base_patch16_224"

        def features(pixel_values: torch.Tensor) -> torch.Tensor:
            return model.forward_head(model.forward_features(pixel_values), pre_logits=True)

    model.eval().to(scale.device, dtype)
    return Network(name=name, head=model.head, features=features)


def timed_ms(action: Callable[[], object], scale: Scale) -> dict[str, float]:
    """Median milliseconds of an action: on the device's own clock, and until the host has it."""
    for _ in range(WARM_UP):
        action()
    device, host = [], []
    for _ in range(scale.rounds):
        synchronise(scale)
        began = time.perf_counter()
        if scale.device == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            action()
            last.record()
            last.synchronize()
            device.append(first.elapsed_time(last))
        else:
            action()
        host.append(1e3 * (time.perf_counter() - began))
    return {
        "device_ms": round(statistics.median(device or host), 4),
        "host_ms": round(statistics.median(host), 4),
    }


def synchronise(scale: Scale) -> None:
    """Wait for the device."""
    if scale.device == "cuda":
        torch.cuda.synchronize()


def on_torch_stream(library: str, action: Callable[[], object]) -> Callable[[], object]:
    """The action, with CuPy's kernels on the stream that torch's events are recorded on."""
    if library != "cupy":
        return action
    cupy = optional("cupy")

    def run() -> object:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            return action()

    return run


@torch.inference_mode()
def measure_cost(scale: Scale) -> list[dict[str, Any]]:
    """The step beside the forward pass it follows, over sizes, precisions and libraries."""
    rows = []
    for num_classes in scale.class_counts:
        for precision, dtype in DTYPES.items():
            network = build(scale, num_classes, dtype)
            for batch_size in scale.batch_sizes:
                shape = (batch_size, 3, scale.image_px, scale.image_px)
                pixels = torch.randn(shape, device=scale.device, dtype=dtype)
                forward = timed_ms(lambda: network(pixels), scale)  # noqa: B023
                features, logits = (array.float() for array in network(pixels))
                for library, into in libraries(scale).items():
                    gain = Gain(into(network.head.weight.detach().float()))
                    arrays = into(features), into(logits)
                    action = on_torch_stream(library, lambda: gain.step(*arrays))  # noqa: B023
                    step = timed_ms(action, scale)
                    rows.append(
                        {
                            "network": network.name,
                            "precision": precision,
                            "library": library,
                            "batch_size": batch_size,
                            "num_classes": num_classes,
                            "forward": forward,
                            "step": step,
                            "percent": round(100.0 * step["device_ms"] / forward["device_ms"], 3),
                        }
                    )
    return rows


def evidence(
    num_classes: int, feature_dim: int, *, batches: int, batch_size: int
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """A head, and features around its rows with their logits, in float32."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((num_classes, feature_dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    made = []
    for _ in range(batches):
        labels = rng.integers(0, num_classes, batch_size)
        noise = rng.standard_normal((batch_size, feature_dim)) / np.sqrt(feature_dim)
        features = (8.0 * rows[labels] + 4.0 * noise + 0.5).astype(np.float32)
        made.append((features, features @ rows.T))
    return rows, made


def compare_with_numpy(scale: Scale) -> list[dict[str, Any]]:
    """Largest error of float32 on the device against float64 on NumPy, field by field."""
    rows = []
    for num_classes in scale.class_counts:
        head, batches = evidence(num_classes, scale.width, batches=4, batch_size=16)
        for preset in PRESETS:
            for library, into in libraries(scale).items():
                errors: Counter[str] = Counter()
                config = GainConfig.preset(preset)
                exact = Gain(head.astype(np.float64), config)
                gain = Gain(into(torch.from_numpy(head).to(scale.device)), config)
                for features, logits in batches:
                    expected = exact.step(features.astype(np.float64), logits.astype(np.float64))
                    arrays = (torch.from_numpy(a).to(scale.device) for a in (features, logits))
                    result = gain.step(*(into(array) for array in arrays))
                    for item in fields(Prediction):
                        error = relative(getattr(result, item.name), getattr(expected, item.name))
                        errors[item.name] = max(errors[item.name], error)
                rows.append(
                    {
                        "library": library,
                        "preset": preset,
                        "num_classes": num_classes,
                        "largest_errors": dict(errors),
                        "ok": all(error <= AGREEMENT for error in judged(errors).values()),
                    }
                )
    return rows


def judged(errors: Counter[str]) -> dict[str, float]:
    """All but the strength, which is anything where the evidence is nearly flat."""
    return {name: error for name, error in errors.items() if name != "strength"}


def relative(result: Any, expected: np.ndarray) -> float:
    """Largest difference over one plus the largest magnitude; infinite where not finite."""
    host = torch.as_tensor(result).cpu().numpy().astype(np.float64)
    wanted = np.asarray(expected, dtype=np.float64)
    error = float(np.max(np.abs(host - wanted)) / (1.0 + np.max(np.abs(wanted))))
    return error if np.isfinite(error) else 1e300


@torch.inference_mode()
def count_launches(scale: Scale) -> list[dict[str, Any]]:
    """Kernels and copies of one step: torch's operators in a dry run, which has no kernels."""
    num_classes = scale.class_counts[0]
    head, batches = evidence(num_classes, scale.width, batches=1, batch_size=1)
    arrays = [torch.from_numpy(array).to(scale.device) for array in batches[0]]
    rows = []
    for preset in PRESETS:
        gain = Gain(torch.from_numpy(head).to(scale.device), GainConfig.preset(preset))
        for _ in range(WARM_UP):
            gain.step(*arrays)
        synchronise(scale)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if scale.device == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profile:
            gain.step(*arrays)
            synchronise(scale)
        rows.append({"preset": preset, "num_classes": num_classes, **launches(profile, scale)})
    return rows


def launches(profile: Any, scale: Scale) -> dict[str, Any]:
    """What the profiler saw, counted by name."""
    kind = torch.autograd.DeviceType.CUDA if scale.device == "cuda" else None
    names = [
        event.name
        for event in profile.events()
        if (event.device_type == kind if kind is not None else event.name.startswith("aten::"))
    ]
    copies = sum(name.startswith(("Memcpy", "Memset")) for name in names)
    return {
        "unit": "kernels" if kind is not None else "operators",
        "count": len(names) - copies,
        "copies": copies,
        "most": Counter(names).most_common(8),
    }


@torch.inference_mode()
def measure_throughput(scale: Scale) -> list[dict[str, Any]]:
    """Frames per second of frozen and adapted, batch about, each with one copy to the host."""
    network = build(scale, scale.class_counts[0], torch.float16)
    rows = []
    for batch_size in scale.batch_sizes:
        shape = (batch_size, 3, scale.image_px, scale.image_px)
        pixels = torch.randn(shape, device=scale.device, dtype=torch.float16)
        gain = Gain(network.head.weight.detach().float())

        def frozen(pixels: torch.Tensor = pixels) -> torch.Tensor:
            return network(pixels)[1].float().softmax(dim=1).cpu()

        def adapted(pixels: torch.Tensor = pixels, gain: Gain = gain) -> torch.Tensor:
            features, logits = network(pixels)
            return gain.step(features.float(), logits.float()).probs.cpu()

        spent: dict[str, list[float]] = {"frozen": [], "adapted": []}
        for index in range(WARM_UP + scale.rounds):
            for name, action in (("frozen", frozen), ("adapted", adapted)):
                began = time.perf_counter()
                action()
                if index >= WARM_UP:
                    spent[name].append(time.perf_counter() - began)
        frozen_hz, adapted_hz = (batch_size * scale.rounds / sum(s) for s in spent.values())
        rows.append(
            {
                "batch_size": batch_size,
                "frozen_hz": round(frozen_hz, 2),
                "adapted_hz": round(adapted_hz, 2),
                "ratio": round(adapted_hz / frozen_hz, 4),
            }
        )
    return rows


def run_bench(scale: Scale) -> dict[str, Any]:
    """`gain-bench` on the shipped road signs, on the device where ONNX Runtime has it."""
    device = "cuda" if scale.device == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        artifact, result = Path(folder) / "roadsigns.onnx", Path(folder) / "bench.json"
        settings = "--img-size 64 --mean .5 .5 .5 --std .5 .5 .5 --interpolation bicubic"
        commands = (
            ["gain_apps.export", "models/roadsigns/roadsigns.onnx", "--output", str(artifact)]
            + ["--labels", "models/roadsigns/labels.txt", "--crop-pct", "1", *settings.split()],
            ["gain_apps.bench", str(artifact), "--device", device, "--json", str(result)]
            + ["--frames", str(8 * scale.rounds), "--batch", "4"],
        )
        for command in commands:
            done = subprocess.run(
                [sys.executable, "-m", *command],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            if done.returncode:
                why = (done.stderr.strip().splitlines() or ["no message"])[-1]
                return {"ran": False, "command": command[0], "device": device, "why": why}
        return {"ran": True, "device": device, "result": json.loads(result.read_text())}


def run_suite(scale: Scale) -> dict[str, Any]:
    """The core's own tests, with the device's array libraries among them."""
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "suite.xml"
        command = [sys.executable, "-m", "pytest", *scale.suite, "-m", "gpu or not gpu", "-q"]
        try:
            done = subprocess.run(
                [*command, "-p", "no:cacheprovider", f"--junit-xml={xml}"],
                capture_output=True,
                text=True,
                timeout=scale.suite_timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"ok": False, "why": f"took more than {scale.suite_timeout_s} s"}
        counts = count_cases(xml)
        tail = done.stdout.strip().splitlines()[-5:]
    ran = sum(outcomes["passed"] for outcomes in counts.values())
    return {
        "ok": done.returncode == 0 and ran > 0,
        "command": " ".join(command[1:]),
        "by_library": counts,
        "tail": tail,
    }


def count_cases(xml: Path) -> dict[str, dict[str, int]]:
    """Outcomes by array library; a library that is missing shows as skipped."""
    counts: dict[str, Counter[str]] = {}
    if not xml.is_file():
        return {}
    for case in ElementTree.parse(xml).iter("testcase"):
        name = case.get("name", "")
        library = next((n for n in ("torch-cuda", "cupy", "torch") if n in name), "others")
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        outcome = "skipped" if "skipped" in kinds else outcome
        counts.setdefault(library, Counter(passed=0, failed=0, skipped=0))[outcome] += 1
    return {library: dict(outcomes) for library, outcomes in counts.items()}


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Every target with the best library's value; None where nothing was measured for it."""
    fp16 = [row for row in report["cost"] if row["precision"] == "fp16"]

    def least(values: list[float]) -> float | None:
        return min(values, default=None)

    def cost(batch_size: int) -> list[dict[str, Any]]:
        wanted = (batch_size, 1000)
        return [row for row in fp16 if (row["batch_size"], row["num_classes"]) == wanted]

    ratios = [abs(1.0 - row["ratio"]) * 100.0 for row in report["throughput"]]
    worst = [
        error for row in report["agreement"] for error in judged(row["largest_errors"]).values()
    ]
    values = (
        (
            "adapt over fp16 forward at B = 64, percent",
            least([r["percent"] for r in cost(64)]),
            2.0,
        ),
        ("adapt over fp16 forward at B = 1, percent", least([r["percent"] for r in cost(1)]), 5.0),
        (
            "step at B = 1 and K = 1000, microseconds",
            least([1e3 * r["step"]["device_ms"] for r in cost(1)]),
            60.0,
        ),
        ("adapted and frozen throughput apart, percent", max(ratios), 2.0),
        ("largest error against float64 NumPy", max(worst), AGREEMENT),
        ("failed tests", failed(report["suite"]), 0),
    )
    return [
        {"name": name, "value": value, "limit": limit, "met": met(value, limit, report["dry_run"])}
        for name, value, limit in values
    ]


def met(value: float | None, limit: float, dry_run: bool) -> bool | None:
    """Whether a target was met; a dry run's times mean nothing."""
    return None if value is None or dry_run else value <= limit


def failed(suite: dict[str, Any]) -> int | None:
    """Tests that failed; None where the suite did not finish."""
    counts = suite.get("by_library")
    return sum(outcomes["failed"] for outcomes in counts.values()) if counts else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GainError as err:
        sys.exit(f"gpu_check: error: {err}")

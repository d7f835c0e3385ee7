"""The GPU script's measurements: cost, agreement, launches and throughput of a step."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import torch
from gpu_network import Scale, build, optional, synchronise

from gain_core import Gain, GainConfig, Prediction

__all__ = [
    "AGREEMENT",
    "compare_with_numpy",
    "count_launches",
    "judged",
    "measure_cost",
    "measure_throughput",
    "relative",
]

PRESETS = ("tracked", "balanced")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# Largest error of a field against float64, relative to one plus its largest magnitude.
AGREEMENT = 1e-4
# A backbone's forward pass must not be measured while the allocator and cuBLAS still warm up.
WARM_UP = 5
# Actions per burst: a step alone is shorter than what waiting for a device takes.
BURST = 10


def libraries(scale: Scale) -> dict[str, tuple[Callable[[torch.Tensor], Any], Callable[..., Any]]]:
    """Ways to run a step: from a tensor into the array library without a copy, and the class."""
    found: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[..., Any]]] = {
        "torch": (lambda tensor: tensor, Gain)
    }
    cupy = optional("cupy") if scale.device == "cuda" else None
    if cupy is not None and cupy.cuda.runtime.getDeviceCount():
        found["cupy"] = (cupy.from_dlpack, Gain)
        fused = optional("gain_runtime.cuda.cuda_gain")
        if fused is not None:
            found["fused"] = (cupy.from_dlpack, fused.CudaGain)
    return found


def timed_ms(action: Callable[[], object], scale: Scale) -> dict[str, float]:
    """Median milliseconds of an action, in bursts that are enqueued without a pause.

    `host_ms` is what enqueuing costs the host, `device_ms` what a burst takes on the device's own
    clock, over its length: the larger of the device's work and the host's.
    """
    for _ in range(WARM_UP):
        action()
    device, host = [], []
    for _ in range(scale.rounds):
        synchronise(scale)
        began = time.perf_counter()
        if scale.device == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(BURST):
                action()
            last.record()
            host.append(1e3 * (time.perf_counter() - began) / BURST)
            last.synchronize()
            device.append(first.elapsed_time(last) / BURST)
        else:
            action()
            host.append(1e3 * (time.perf_counter() - began))
    return {
        "device_ms": round(statistics.median(device or host), 4),
        "host_ms": round(statistics.median(host), 4),
    }


def as_graph(action: Callable[[], object]) -> Callable[[], object]:
    """The action as one CUDA graph, as an engine would run it: without the host's part."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    return graph.replay


def on_torch_stream(library: str, action: Callable[[], object]) -> Callable[[], object]:
    """The action, with CuPy's kernels on the stream that torch's events are recorded on."""
    if library == "torch":
        return action
    cupy = optional("cupy")

    def run() -> object:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            return action()

    return run


@torch.inference_mode()
def measure_cost(scale: Scale) -> list[dict[str, Any]]:
    """The step beside the forward pass it follows, over sizes, precisions and libraries.

    The forward pass is measured as one CUDA graph, which is what an engine makes of it; eagerly it
    takes several times as long at batch size 1, and any step would look small beside it.
    """
    rows = []
    for num_classes in scale.class_counts:
        for precision, dtype in DTYPES.items():
            network = build(scale, num_classes, dtype)
            for batch_size in scale.batch_sizes:
                shape = (batch_size, 3, scale.image_px, scale.image_px)
                pixels = torch.randn(shape, device=scale.device, dtype=dtype)
                infer = partial(network, pixels)
                eager = timed_ms(infer, scale)
                forward = timed_ms(as_graph(infer), scale) if scale.device == "cuda" else eager
                features, logits = (array.float() for array in network(pixels))
                for library, (into, make) in libraries(scale).items():
                    gain = make(into(network.head.weight.detach().float()))
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
                            "eager_forward": eager,
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
            for library, (into, make) in libraries(scale).items():
                errors: Counter[str] = Counter()
                config = GainConfig.preset(preset)
                exact = Gain(head.astype(np.float64), config)
                gain = make(into(torch.from_numpy(head).to(scale.device)), config)
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
    rows = []
    for preset in PRESETS:
        for library, (into, make) in libraries(scale).items():
            gain = make(into(torch.from_numpy(head).to(scale.device)), GainConfig.preset(preset))
            arrays = [into(torch.from_numpy(array).to(scale.device)) for array in batches[0]]
            for _ in range(WARM_UP):
                gain.step(*arrays)
            synchronise(scale)
            activities = [torch.profiler.ProfilerActivity.CPU]
            if scale.device == "cuda":
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            with torch.profiler.profile(activities=activities) as profile:
                gain.step(*arrays)
                synchronise(scale)
            row = {"library": library, "preset": preset, "num_classes": num_classes}
            rows.append({**row, **launches(profile, scale)})
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
        "graphs": sum(event.name == "cudaGraphLaunch" for event in profile.events()),
        "most": Counter(names).most_common(8),
    }


@torch.inference_mode()
def measure_throughput(scale: Scale) -> list[dict[str, Any]]:
    """Frames per second of frozen and adapted, batch about, each with one copy to the host."""
    network = build(scale, scale.class_counts[0], torch.float16)
    library, (into, make) = list(libraries(scale).items())[-1]
    rows = []
    for batch_size in scale.batch_sizes:
        shape = (batch_size, 3, scale.image_px, scale.image_px)
        pixels = torch.randn(shape, device=scale.device, dtype=torch.float16)
        gain = make(into(network.head.weight.detach().float()))

        def frozen(pixels: torch.Tensor = pixels) -> torch.Tensor:
            return network(pixels)[1].float().softmax(dim=1).cpu()

        def adapted(pixels: torch.Tensor = pixels, gain: Any = gain) -> torch.Tensor:
            features, logits = (into(array.float()) for array in network(pixels))
            step = on_torch_stream(library, partial(gain.step, features, logits))
            return torch.from_dlpack(step().probs).cpu()

        spent: dict[str, list[float]] = {"frozen": [], "adapted": []}
        for index in range(WARM_UP + 2 * scale.rounds):
            for name, action in (("frozen", frozen), ("adapted", adapted)):
                began = time.perf_counter()
                action()
                if index >= WARM_UP:
                    spent[name].append(time.perf_counter() - began)
        frozen_hz, adapted_hz = (batch_size / statistics.median(s) for s in spent.values())
        rows.append(
            {
                "library": library,
                "batch_size": batch_size,
                "frozen_hz": round(frozen_hz, 2),
                "adapted_hz": round(adapted_hz, 2),
                "ratio": round(adapted_hz / frozen_hz, 4),
            }
        )
    return rows

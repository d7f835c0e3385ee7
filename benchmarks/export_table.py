"""What gain-export makes of the classifiers of five libraries: exported, refused or failed.

    python benchmarks/export_table.py --minutes 40 --output benchmarks/results/export_table.json
    python benchmarks/export_table.py --times          # on an idle machine

One model at a time in a child process with a limit of memory and processor time; the table is saved
after each, and a model that is in it already is not run again. The weights are random, and batch
norms normalise the pictures that they have seen. Of every family the smallest member is taken.
"Right" means that the artifact agrees with the library's own forward pass: to a thousandth of its
largest value or, in a network of random weights that rounds worse than that, as the library's
float32 agrees with its float64.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")

CLASSES = 20
LIMIT_BYTES, LIMIT_S = 12 << 30, 600
SMALL_PX = 128
RTOL = 1e-3
RESULTS = Path(__file__).parent / "results" / "export_table.json"
TORCHVISION = [
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "resnet18",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11",
    "vit_b_32",
    "wide_resnet50_2",
]
KERAS = [
    "ConvNeXtTiny",
    "DenseNet121",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "NASNetMobile",
    "ResNet50",
    "ResNet50V2",
    "VGG16",
    "Xception",
]


def pictures(size: tuple[int, int]) -> np.ndarray:
    """Drawn images of one size, (12, 3, H, W) float32, as a network takes them."""
    from gain_export.images import synthetic_images
    from gain_runtime.files.manifest import Preprocess
    from gain_runtime.preprocess import preprocess_batch

    spec = Preprocess(
        height_px=size[0],
        width_px=size[1],
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        crop_fraction=1.0,
        interpolation="bilinear",
    )
    return preprocess_batch(synthetic_images(12, seed=1), spec)


def settle(model: Any, size: tuple[int, int]) -> Any:
    """Let batch norms normalise and heads differ from zero: else all images are answered alike."""
    import torch

    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    # Nothing else trains: dropout would give them other statistics than they will meet.
    for layer in model.eval().modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.train().momentum = 1.0
    with torch.no_grad(), contextlib.suppress(RuntimeError, ValueError):
        model(torch.from_numpy(pictures(size)))
    return model.eval()


def torch_file(model: Any, size: tuple[int, int], path: Path) -> Path:
    """What most people have: a file of torch's older exporter, or else of its newer one."""
    import torch

    example = (torch.randn(2, 3, *size),)
    settings: dict[str, Any] = {
        "opset_version": 18,
        "input_names": ["x"],
        "output_names": ["y"],
    }
    # Its fused attention is nothing that the exporter knows.
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        try:
            axes = {"x": {0: "batch"}, "y": {0: "batch"}}
            torch.onnx.export(model, example, path, dynamo=False, dynamic_axes=axes, **settings)
        except (RuntimeError, TypeError):
            shapes = ({0: torch.export.Dim("batch")},)
            torch.onnx.export(model, example, path, dynamo=True, dynamic_shapes=shapes, **settings)
    return path


def export_file(path: Path, *, normalised: bool = True) -> Any:
    """gain-export FILE."""
    from gain_export import PreprocessOverrides, export_onnx

    mean = (0.5,) * 3 if normalised else None
    spec = PreprocessOverrides(
        img_size=None, mean=mean, std=mean, crop_fraction=1.0, interpolation="bilinear"
    )
    return export_onnx(path, preprocess=spec, force=True)


def right(
    report: Any,
    run: Callable[[np.ndarray], np.ndarray],
    pixels: np.ndarray,
    *,
    after: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> tuple[float, float]:
    """Largest difference from the library's own forward pass, over its largest value; the bar."""
    from gain_runtime.sessions.onnx import OnnxSession

    with OnnxSession(report.path) as session:
        found = after(np.asarray(session.infer(pixels).logits))
    expected = run(pixels)
    peak = np.abs(expected).max()
    difference, allowed = float(np.abs(found - expected).max() / peak), RTOL
    if difference > allowed:
        rounding = np.abs(run(pixels.astype(np.float64)) - expected).max()
        allowed = max(allowed, 2.0 * float(rounding / peak))
    return difference, allowed


def torch_run(model: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A torch model as a function of arrays."""
    import torch

    def run(pixels: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found = model.to(getattr(torch, str(pixels.dtype)))(torch.from_numpy(pixels)).numpy()
        model.float()
        return found

    return run


def by_file(model: Any, size: tuple[int, int], folder: Path) -> tuple[Any, tuple[float, float]]:
    """A torch model by way of a file, and how right the artifact is."""
    report = export_file(torch_file(model, size, folder / "net.onnx"))
    return report, right(report, torch_run(model), pictures(size)[:2])


def light_files() -> list[Path]:
    """The models of the onnx wheel."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return sorted(folder.glob("*.onnx"))


def light(name: str, folder: Path) -> tuple[Any, tuple[float, float] | None]:
    """A model of the onnx wheel, whose weights are left out: drawn ones in their place."""
    import onnx
    from onnx import helper, numpy_helper

    (data,) = (path for path in light_files() if path.stem == name)
    model = onnx.load(data)
    graph, rng = model.graph, np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
        graph.node.remove(node)
        shape = [int(length) for length in shapes[node.input[0]]]
        # Small enough that no softmax saturates; variances of batch norms are positive.
        scale = (0.1 if len(shape) == 2 else 1.0) / np.sqrt(np.prod(shape[1:]))
        array = rng.standard_normal(shape, np.float32) * np.float32(scale)
        array = array if shape[1:] else rng.uniform(0.8, 1.2, shape).astype(np.float32)
        tensor = numpy_helper.from_array(array, node.output[0])
        graph.initializer.append(tensor)
        # Files of IR version 3 list their weights among the inputs.
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
    path = folder / data.name
    onnx.save(model, path)
    # The library's own forward pass is what the export compares with already.
    return export_file(path), None


def torchvision(name: str, folder: Path) -> tuple[Any, tuple[float, float] | None]:
    """A classifier of torchvision, by way of a file."""
    import torchvision.models as models

    size = (299, 299) if name == "inception_v3" else (224, 224)
    extra = {}
    if name in ("googlenet", "inception_v3"):
        extra = {"aux_logits": False, "init_weights": False}
    model = settle(getattr(models, name)(weights=None, num_classes=CLASSES, **extra), size)
    return by_file(model, size, folder)


def timm_model(name: str) -> tuple[Any, tuple[int, int]]:
    """The smallest member of a family at a small size, where it takes one."""
    import timm

    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    size = tuple(config.input_size[1:]) if config else (224, 224)
    model = timm.create_model(name, num_classes=CLASSES)
    if config and not config.fixed_input_size and min(size) > SMALL_PX:
        # Attention within blocks takes only sizes that they divide.
        with contextlib.suppress(AssertionError):
            return settle(model, (SMALL_PX, SMALL_PX)), (SMALL_PX, SMALL_PX)
    return settle(model, size), size


def timm_file(name: str, folder: Path) -> tuple[Any, tuple[float, float] | None]:
    """A timm model by way of a file, which does not say that it is timm's."""
    import timm.layers

    timm.layers.set_fused_attn(False)
    model, size = timm_model(name)
    return by_file(model, size, folder)


def timm_name(name: str, folder: Path) -> tuple[Any, tuple[float, float] | None]:
    """gain-export --timm NAME --weights FILE."""
    import timm
    import torch

    from gain_export import PreprocessOverrides, export_timm

    model, size = timm_model(name)
    torch.save({"state_dict": model.state_dict()}, folder / "weights.pth")
    tags = timm.list_pretrained(f"{name}.*")
    report = export_timm(
        tags[0] if tags else name,
        folder / "net.onnx",
        weights=folder / "weights.pth",
        preprocess=PreprocessOverrides(img_size=size),
    )
    return report, right(report, torch_run(model), pictures(size)[:2])


def huggingface(name: str, folder: Path) -> tuple[Any, tuple[float, float] | None]:
    """An image classifier of transformers from its default configuration, two layers deep."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    config = transformers.CONFIG_MAPPING[name](num_labels=CLASSES)
    if isinstance(getattr(config, "num_hidden_layers", None), int):
        with contextlib.suppress(NotImplementedError, ValueError):
            config.num_hidden_layers = 2
    kind = modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES[name]
    kind = kind[0] if isinstance(kind, tuple | list) else kind

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(transformers, kind)(config)

        def forward(self, x: Any) -> Any:
            return self.inner(x).logits

    size = getattr(config, "image_size", None) or 224
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    model = settle(Logits(), size)
    return by_file(model, size, folder)


def keras(name: str, folder: Path) -> tuple[Any, tuple[float, float] | None]:
    """A Keras application on torch, exported as its own documentation says."""
    import keras as library
    import torch

    layers = library.layers
    # Some leave their size open otherwise.
    size = (224, 224)
    make = getattr(library.applications, name)
    model = make(weights=None, classes=CLASSES, input_shape=(*size, 3))
    pixels = pictures(size)
    if any(isinstance(layer, layers.Rescaling) for layer in model.layers):
        pixels = 127.5 + 127.5 * pixels
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.0
        elif isinstance(layer, layers.Dropout):
            layer.rate = 0.0
    # It exports what was called once.
    with torch.no_grad():
        model(pixels.transpose(0, 2, 3, 1), training=True)
    path = folder / "net.onnx"
    model.export(path, format="onnx", verbose=False)
    report = export_file(path, normalised=not shows_range(path))

    def run(pixels: np.ndarray) -> np.ndarray:
        probs = model(pixels.transpose(0, 2, 3, 1), training=False)
        return np.asarray(library.ops.convert_to_numpy(probs))

    return report, right(report, run, pixels[:2], after=softmax)


def softmax(logits: np.ndarray) -> np.ndarray:
    """What Keras' applications end in."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def shows_range(path: Path) -> bool:
    """Whether the file normalises its pixels itself."""
    import onnx

    from gain_export.preprocessing import read_input

    return read_input(onnx.load(path), path=path).value_range is not None


GROUPS: dict[str, Callable[[str, Path], tuple[Any, tuple[float, float] | None]]] = {
    "onnx wheel, light": light,
    "torchvision": torchvision,
    "timm, from a file": timm_file,
    "Hugging Face": huggingface,
    "Keras 3": keras,
    "timm, by name": timm_name,
}


def members(group: str, smallest: Path) -> list[str]:
    """The models of a group."""
    if group == "onnx wheel, light":
        return [path.stem for path in light_files()]
    if group == "torchvision":
        return TORCHVISION
    if group == "Keras 3":
        return KERAS
    if group == "Hugging Face":
        from transformers.models.auto import modeling_auto

        return sorted(modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)
    return timm_families(smallest)


def timm_families(cache: Path) -> list[str]:
    """The member with the fewest parameters of every module of timm, smallest first."""
    import timm
    import torch
    from timm.models import _registry

    if not cache.exists():
        best: dict[str, tuple[int, str]] = {}
        for name in timm.list_models():
            try:
                with torch.device("meta"):
                    model = timm.create_model(name, num_classes=CLASSES)
            except (RuntimeError, NotImplementedError, ValueError, TypeError):
                continue
            count = sum(parameter.numel() for parameter in model.parameters())
            family = _registry._model_to_module[name]
            best[family] = min(best.get(family, (count, name)), (count, name))
        cache.write_text(json.dumps([name for _, name in sorted(best.values())]))
    names: list[str] = json.loads(cache.read_text())
    return names


def run_one(group: str, name: str, sender: Any) -> None:
    """The child: one model, its outcome sent back."""
    soft = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (soft, soft))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 10))
    import torch

    from gain_core.errors import GainError

    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    row: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                report, compared = GROUPS[group](name, Path(folder))
            difference, allowed = compared or (None, None)
            fits = compared is None or difference <= allowed
            row = {
                "outcome": "exported" if fits else "failed",
                "reason": report.verification.get("reason", "")
                if fits
                else f"differs by {difference:.1e} from the library, allowed {allowed:.1e}",
                "feature_dim": report.feature_dim,
                "verified": report.verification["verified"],
                "difference": difference,
                "allowed": allowed,
                "notes": list(report.notes),
            }
        except GainError as err:
            row = {"outcome": "refused", "reason": str(err).replace(folder + "/", "")[:400]}
        except BaseException as err:  # noqa: BLE001  the table says what was raised
            row = {"outcome": "failed", "reason": f"{type(err).__name__}: {err}"[:400]}
            # What the library or torch's exporter cannot do is not this project's to export.
            files = {frame.filename for frame in traceback.extract_tb(err.__traceback__)}
            if not any("gain_" in file for file in files - {__file__}):
                row["outcome"] = "no file"
    sender.send(row)


def measured(group: str, name: str) -> dict[str, object]:
    """One row."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=run_one, args=(group, name, sender))
    began = time.monotonic()
    child.start()
    sender.close()
    # A child that waits for ever uses no processor time.
    if not receiver.poll(10 * LIMIT_S):
        child.kill()
    try:
        row = receiver.recv()
        child.join()
    except EOFError:
        child.join()
        row = {"outcome": "failed", "reason": f"the process ended, status {child.exitcode}"}
        if child.exitcode == -signal.SIGXCPU:
            row = {"outcome": "not finished", "reason": f"more than {LIMIT_S} s of a processor"}
    spent = round(time.monotonic() - began, 1)
    return {"group": group, "model": name, **row, "seconds": spent}


def times(folder: Path) -> dict[str, Any]:
    """Seconds of an export by name, random weights, and the machine they were measured on."""
    from gain_apps.benchmarking.machine import Machine
    from gain_export import export_timm

    load = os.getloadavg()[0]
    found: dict[str, float] = {}
    for name in ("vit_base_patch16_224.augreg_in21k_ft_in1k", "mobilenetv3_large_100.ra_in1k"):
        began = time.monotonic()
        export_timm(name, folder / f"{name}.onnx", random_seed=0)
        found[name] = round(time.monotonic() - began, 1)
    return {"seconds": found, "load_before": round(load, 1), "machine": Machine().facts()}


def pending(table: dict[str, Any], smallest: Path, groups: list[str]) -> Iterator[tuple[str, str]]:
    """What is not in the table yet."""
    done = {(row["group"], row["model"]) for row in table["rows"]}
    for group in groups:
        yield from ((group, name) for name in members(group, smallest) if (group, name) not in done)


def counts(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Outcomes by group."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        group = found.setdefault(row["group"], {})
        group[row["outcome"]] = group.get(row["outcome"], 0) + 1
        if row["outcome"] == "exported" and row.get("feature_dim") is None:
            group["of these logits only"] = group.get("of these logits only", 0) + 1
    return found


def main() -> None:
    """Fill the table until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--times", action="store_true", help="only measure what an export takes")
    args = parser.parse_args()
    import onnx
    import onnxruntime
    import timm
    import torch
    import torch.onnx._internal.torchscript_exporter.utils  # else in every child
    import torchvision.models  # noqa: F401

    import gain_export.from_onnx
    import gain_export.from_timm  # noqa: F401

    ends = time.monotonic() + 60.0 * args.minutes
    smallest = Path(tempfile.gettempdir()) / f"timm-families-{timm.__version__}.json"
    table: dict[str, Any] = {"rows": []}
    if args.output.exists():
        table = json.loads(args.output.read_text())
    libraries = (torch, timm, onnx, onnxruntime)
    table["versions"] = {module.__name__: module.__version__ for module in libraries}
    if args.times:
        with tempfile.TemporaryDirectory() as folder:
            table["times"] = times(Path(folder))
        args.output.write_text(json.dumps(table, indent=1) + "\n")
        return
    for group, name in pending(table, smallest, args.groups):
        if time.monotonic() > ends:
            break
        row = measured(group, name)
        table["rows"].append(row)
        table["counts"] = counts(table["rows"])
        args.output.write_text(json.dumps(table, indent=1) + "\n")
        print(f"{row['outcome']:>12} {row['seconds']:6.1f} s  {group}: {name}  {row['reason']}")
    for group, outcome in table.get("counts", {}).items():
        print(f"{group:>20}: {', '.join(f'{number} {kind}' for kind, number in outcome.items())}")


if __name__ == "__main__":
    main()

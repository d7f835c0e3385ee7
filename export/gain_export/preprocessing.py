"""How frames become a network's input: what the graph says, what was asked for, what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from gain_core.errors import ArtifactError, ConfigError
from gain_export.graph import Graph, attribute, describe, free_name, release_name, rename_value
from gain_runtime.files.artifact import dtype_name
from gain_runtime.files.manifest import Preprocess

PIXEL_VALUES, BATCH = "pixel_values", "batch"
Layout = Literal["NCHW", "NHWC"]

# Weights of red, green and blue in grey: ITU-R BT.601, as Pillow and torchvision have them.
_LUMA = (0.299, 0.587, 0.114)
_DTYPES: dict[int, Any] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.FLOAT16: np.float16,
    TensorProto.DOUBLE: np.float64,
    TensorProto.UINT8: np.uint8,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputForm:
    """How a network takes its images; None is what the graph leaves open."""

    name: str
    layout: Layout
    channels: int  # 1 or 3
    elem_type: int  # of `onnx.TensorProto`
    batch: int | None
    height_px: int | None
    width_px: int | None
    # What black and white are, where the graph normalises the pixels itself.
    value_range: tuple[float, float] | None
    seen: tuple[str, ...]  # what of it was read off the graph, for the report

    @property
    def is_plain(self) -> bool:
        """Whether `pixel_values` can be fed as they are."""
        return (self.layout, self.channels, self.elem_type) == ("NCHW", 3, TensorProto.FLOAT)


def read_input(
    model: onnx.ModelProto,
    /,
    *,
    path: Path,
    layout: Layout | None = None,
    value_range: tuple[float, float] | None = None,
) -> InputForm:
    """Read off a graph how it takes its images.

    `layout` and `value_range` say where the channels are, and what black and white are, if the
    graph leaves it open. Raises ArtifactError if the model takes anything but one batch of RGB or
    grey images, and ConfigError if they contradict the graph, or the layout cannot be told.
    """
    graph = Graph(model)
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initializers]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs) or "none"
        raise ArtifactError(
            f"{path}: expected one input (a batch of images), got {len(inputs)} ({names}); "
            "export the image classifier alone"
        )
    name, tensor = inputs[0].name, inputs[0].type.tensor_type
    where = f"{path}: input {name}"
    if tensor.elem_type not in _DTYPES:
        raise ArtifactError(
            f"{where}: expected images of float32, float16, float64 or uint8, got "
            f"{dtype_name(tensor.elem_type)}; only image classifiers can be exported"
        )
    sizes = [dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim]
    written = ", ".join(str(d.dim_value or d.dim_param or "?") for d in tensor.shape.dim)
    if len(sizes) != 4:
        raise ArtifactError(
            f"{where}: expected images (B, 3, H, W) or (B, H, W, 3), got ({written}); "
            "only image classifiers can be exported"
        )
    found, how = _layout(graph, name, sizes)
    if layout is not None and found not in (None, layout):
        raise ConfigError(f"--set layout={layout}: {where} is {found} ({how}); leave it out")
    chosen = layout or found
    if chosen is None and None not in (sizes[1], sizes[3]):
        raise ArtifactError(
            f"{where}: expected 3 colour channels, or 1 of grey, got ({written}); "
            "only RGB, BGR and grey classifiers can be exported"
        )
    if chosen is None:
        raise ConfigError(
            f"{where}: its shape ({written}) does not say where the channels are; give --set "
            "layout=NCHW or layout=NHWC"
        )
    channels = sizes[1 if chosen == "NCHW" else 3] or _kernel_channels(graph, name) or 3
    if channels not in (1, 3):
        raise ArtifactError(
            f"{where}: expected 3 colour channels, or 1 of grey, got {channels} in ({written}); "
            "only RGB, BGR and grey classifiers can be exported"
        )
    seen = [f"layout {chosen} ({how})"] if chosen == "NHWC" and layout is None else []
    if value_range is None:
        value_range, why = _value_range(graph, name, tensor.elem_type)
        seen += [why] if why else []
    height, width = sizes[2:] if chosen == "NCHW" else sizes[1:3]
    return InputForm(
        name=name,
        layout=chosen,
        channels=channels,
        elem_type=tensor.elem_type,
        batch=sizes[0],
        height_px=height,
        width_px=width,
        value_range=value_range,
        seen=tuple(seen),
    )


def check_range(form: InputForm, spec: Preprocess, /, *, path: Path) -> None:
    """Raise ConfigError for pixels that are normalised twice, and grey from planes not alike."""
    if form.channels == 1 and (len(set(spec.mean)) > 1 or len(set(spec.std)) > 1):
        raise ConfigError(
            f"--mean, --std: {path} takes one grey channel, got three different numbers; give one"
        )
    if form.channels == 1 and spec.channel_order != "RGB":
        raise ConfigError(f"--set channel-order: {path} takes one grey channel; leave it out")
    if form.value_range is not None and not np.allclose(
        (spec.mean, spec.std), plain_settings(form.value_range)
    ):
        raise ConfigError(
            f"--mean, --std: {path} normalises its pixels itself ({'; '.join(form.seen)}) and "
            "would see them normalised twice; leave both out"
        )


def plain_settings(value_range: tuple[float, float], /) -> tuple[tuple[float, ...], ...]:
    """The mean and std that turn [0, 1] pixels into a range of values."""
    low, high = value_range
    return (0.0 - low / (high - low),) * 3, (1.0 / (high - low),) * 3


def feed(form: InputForm, pixel_values: npt.NDArray[np.float32], /) -> npt.NDArray[np.generic]:
    """The original's own input, of its shape and type, for `pixel_values` (B, 3, H, W) float32."""
    values = pixel_values
    if form.channels == 1:
        luma = np.asarray(_LUMA, dtype=np.float32).reshape(1, 3, 1, 1)
        values = (values * luma).sum(axis=1, keepdims=True, dtype=np.float32)
    if form.layout == "NHWC":
        values = values.transpose(0, 2, 3, 1)
    dtype = _DTYPES[form.elem_type]
    if dtype is np.uint8:
        values = np.clip(np.rint(values), 0.0, 255.0)
    return np.ascontiguousarray(values.astype(dtype))


def rewrite_input(model: onnx.ModelProto, form: InputForm, spec: Preprocess, /) -> None:
    """Make `pixel_values` (B, 3, H, W) float32 the graph's input, whatever it was; in place."""
    graph = model.graph
    if form.is_plain:
        rename_value(model, form.name, PIXEL_VALUES)
    else:
        release_name(model, PIXEL_VALUES)
        _prepend(model, form)
    shape = [BATCH, 3, spec.height_px, spec.width_px]
    for value in graph.input:
        if value.name in (PIXEL_VALUES, form.name):
            value.CopyFrom(helper.make_tensor_value_info(PIXEL_VALUES, TensorProto.FLOAT, shape))
    # What is noted about values inside may state another batch or image size.
    del graph.value_info[:]


def state_batch(model: onnx.ModelProto, batch: int, /) -> None:
    """Declare that the graph takes batches of one size only, in place."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch


def _prepend(model: onnx.ModelProto, form: InputForm) -> None:
    """The nodes from `pixel_values` to the network's own input."""
    nodes: list[onnx.NodeProto] = []
    value = PIXEL_VALUES

    def step(kind: str, *arrays: npt.ArrayLike, **attributes: object) -> None:
        nonlocal value
        names: list[str] = []
        for array in arrays:
            names.append(free_name(model, f"gain.input.{kind.lower()}.{len(names)}"))
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), names[-1]))
        target = f"gain.input.{len(nodes)}"
        nodes.append(helper.make_node(kind, [value, *names], [target], **attributes))
        value = target

    if form.channels == 1:
        step("Conv", np.asarray(_LUMA, dtype=np.float32).reshape(1, 3, 1, 1))
    if form.layout == "NHWC":
        step("Transpose", perm=[0, 2, 3, 1])
    if form.elem_type == TensorProto.UINT8:
        step("Round")
        step("Clip", np.float32(0.0), np.float32(255.0))
    if form.elem_type != TensorProto.FLOAT:
        step("Cast", to=form.elem_type)
    # The last of them gives the value that the graph knows as its input.
    nodes[-1].output[0] = form.name
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def _layout(graph: Graph, name: str, sizes: list[int | None]) -> tuple[Layout | None, str]:
    """Where the channels are, and how that is known."""
    first, last = sizes[1] in (1, 3), sizes[3] in (1, 3)
    if first != last:
        return ("NCHW", "its shape") if first else ("NHWC", "its shape")
    for node in _first_nodes(graph, name):
        if node.op_type == "Transpose":
            perm = attribute(node, "perm", [])
            if perm == [0, 3, 1, 2]:
                return "NHWC", f"{describe(node)} brings the channels forward"
        if node.op_type == "Conv":
            return "NCHW", f"{describe(node)} reads it"
    if sizes[1] is not None and sizes[3] is None:
        return "NCHW", "its shape"
    return None, ""


def _first_nodes(graph: Graph, name: str) -> Iterator[onnx.NodeProto]:
    """The only node that reads the input, the only one that reads its result, and so on."""
    for _ in range(8):
        readers = graph.consumers(name)
        if len(readers) != 1 or not readers[0].output:
            return
        yield readers[0]
        name = readers[0].output[0]


def _kernel_channels(graph: Graph, name: str) -> int | None:
    """The number of planes that the first convolution reads."""
    for node in _first_nodes(graph, name):
        if node.op_type == "Conv":
            kernel = graph.constant(node.input[1])
            return None if kernel is None else int(kernel.shape[1])
    return None


def _value_range(graph: Graph, name: str, elem_type: int) -> tuple[tuple[float, float] | None, str]:
    """What black and white are where the graph's first steps show it, and what they are."""
    if elem_type == TensorProto.UINT8:
        return (0.0, 255.0), "pixels 0 to 255 (uint8)"
    for node in _first_nodes(graph, name):
        if node.op_type in ("Cast", "Transpose", "Identity"):
            continue
        if node.op_type not in ("Mul", "Div", "Sub", "Add"):
            break
        constants = [graph.constant(other) for other in node.input]
        array = next((item for item in constants if item is not None), None)
        if array is None or array.dtype.kind not in "fiu" or array.size not in (1, 3):
            break
        largest = float(np.abs(array.astype(np.float64)).max())
        # Levels of a byte are divided by 255 or 127.5, or have means of up to 255 taken off.
        scaled = {"Div": largest, "Mul": 1.0 / largest if largest else 0.0}.get(node.op_type)
        if scaled is not None and 100.0 <= scaled <= 260.0:
            return (0.0, 255.0), f"pixels 0 to 255 ({describe(node)} divides by {scaled:.4g})"
        if node.op_type in ("Sub", "Add") and 1.5 < largest <= 255.0:
            return (0.0, 255.0), f"pixels 0 to 255 ({describe(node)} takes off {largest:.4g})"
        if node.op_type == "Sub" and array.size == 3 and 0.0 < largest <= 1.0:
            return (0.0, 1.0), f"pixels 0 to 1 ({describe(node)} takes off {largest:.4g})"
        break
    return None, ""


_FLAGS = {
    "height_px": "--img-size",
    "width_px": "--img-size",
    "mean": "--mean",
    "std": "--std",
    "crop_fraction": "--crop-pct",
    "interpolation": "--interpolation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessOverrides:
    """Preprocessing settings that a user gives; None leaves a setting to the model.

    Attributes
    ----------
    img_size : (int, int) or None
        Height and width in px.
    mean, std : (float, float, float) or None
        In units of [0, 1] pixels, in the order of `channel_order`.
    crop_fraction, interpolation, crop_mode, channel_order
        As in `gain_runtime.files.manifest.Preprocess`.
    value_range : (float, float) or None
        Values of black and white, for a network that normalises its pixels itself.

    Raises
    ------
    ConfigError
        If `mean` or `std` is outside [0, 1], the range does not rise, or both are given.
    """

    img_size: tuple[int, int] | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    crop_fraction: float | None = None
    interpolation: str | None = None
    crop_mode: str | None = None
    channel_order: str | None = None
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is None:
                continue
            if any(not math.isfinite(value) or value > 1.0 or value < 0.0 for value in values):
                shown = " ".join(f"{value:g}" for value in values)
                scaled = " ".join(f"{value / 255.0:.4g}" for value in values)
                raise ConfigError(
                    f"--{name}: expected numbers of [0, 1] pixels, got {shown}; if these are of "
                    f"0 to 255, divide by 255: --{name} {scaled}"
                )
        if self.value_range is not None:
            low, high = self.value_range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ConfigError(f"--input-range: expected low < high, got {low:g} {high:g}")
            if self.mean is not None or self.std is not None:
                raise ConfigError(
                    "--input-range: is for a network that normalises its pixels itself, and --mean "
                    "and --std for one that does not; give one of them"
                )

    def given(self) -> dict[str, object]:
        """The settings that are not None, keyed as `Preprocess` names them.

        Returns
        -------
        dict
            Without `value_range`.
        """
        names = ("mean", "std", "crop_fraction", "interpolation", "crop_mode", "channel_order")
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.img_size is not None:
            values["height_px"], values["width_px"] = self.img_size
        return values


def complete(
    overrides: PreprocessOverrides, known: Mapping[str, object], /, *, what: str
) -> Preprocess:
    """Join the fields of `Preprocess` that are known with what the user gave, which wins.

    Raises ConfigError, naming the model as `what`, if a setting is missing (the flags are named) or
    out of range.
    """
    values = {**known, **overrides.given()}
    missing = [flag for name, flag in _FLAGS.items() if name not in values]
    if missing:
        raise ConfigError(
            f"{what}: its preprocessing is not known; give {', '.join(dict.fromkeys(missing))}, "
            "or --like with the timm model whose preprocessing it shares"
        )
    for name in ("mean", "std"):
        numbers = values[name]
        assert isinstance(numbers, list | tuple)
        values[name] = tuple(float(number) for number in numbers)
    return Preprocess(**values)  # type: ignore[arg-type]


def from_timm_config(config: Mapping[str, object], /) -> dict[str, object]:
    """The fields of `Preprocess` in timm's resolved data configuration.

    Raises ConfigError if timm wants images of another kind than three colour planes, or a crop this
    project does not offer.
    """
    size = config["input_size"]
    assert isinstance(size, list | tuple)
    channels, height_px, width_px = size
    if channels != 3:
        raise ConfigError(f"input size: expected 3 colour channels, got {channels}")
    return {
        "height_px": int(height_px),
        "width_px": int(width_px),
        "mean": config["mean"],
        "std": config["std"],
        "crop_fraction": config["crop_pct"],
        "interpolation": config["interpolation"],
        "crop_mode": config["crop_mode"],
    }

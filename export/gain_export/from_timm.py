"""timm models as artifacts: built or fetched, with their data configuration, traced and written."""

from __future__ import annotations

import http.client
import logging
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_core.errors import ArtifactError, ConfigError, one_line
from gain_export.labels import Alias, choose_labels, load_aliases
from gain_export.onnx_file import DEFAULT_OPSET, MAX_OPSET, MIN_OPSET, settle_versions
from gain_export.outputs import Values
from gain_export.preprocessing import (
    PreprocessOverrides,
    complete,
    from_timm_config,
    read_input,
    rewrite_input,
)
from gain_export.surgery import freed
from gain_export.torch_model import (
    cause_line,
    count_classes,
    decomposed_attention,
    fill,
    hash_weights,
    package_file,
    quiet,
    read_checkpoint,
    trace,
)
from gain_export.verify import Reference
from gain_export.write import (
    Classifier,
    ExportReport,
    OnStep,
    Steps,
    choose_images,
    verification_pixels,
    write_classifier,
)
from gain_runtime.files.paths import check_output
from gain_runtime.optional import require

logger = logging.getLogger(__name__)

timm = require("timm", extra="export")
hub_constants: Any = require("huggingface_hub.constants", extra="export")


_TIMEOUT_S = 5.0


def create_pretrained(tag: str, /, **settings: Any) -> Any:
    """Create a timm model with its published weights, from the local cache or the hub.

    `settings` go to `timm.create_model`. Raises ArtifactError if the weights are neither cached nor
    to be had; what was tried is named.
    """
    chosen: bool = hub_constants.HF_HUB_OFFLINE
    unreachable = None if chosen else _why_unreachable()
    offline = chosen or unreachable is not None
    try:
        with _hub_offline(offline):
            return timm.create_model(tag, pretrained=True, **settings)
    except _hub_errors() as err:
        reason = (unreachable or "HF_HUB_OFFLINE is set") if offline else one_line(err)
        name = timm.get_pretrained_cfg(tag).hf_hub_id or f"timm/{tag}"
        page = f"{hub_constants.ENDPOINT}/{name}"
        raise ArtifactError(
            f"{tag}: its weights are not in the cache {hub_constants.HF_HUB_CACHE} and cannot be "
            f"fetched from {page} ({reason}); fetch model.safetensors from there on another "
            "machine and give it with --weights FILE"
        ) from err


def _why_unreachable() -> str | None:
    """Why the hub does not answer; None if it does.

    Asked once up front, because the hub's client retries for most of a minute.
    """
    request = urllib.request.Request(hub_constants.ENDPOINT, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return None
    except urllib.error.URLError as err:
        return str(err.reason)
    except (OSError, ValueError, http.client.HTTPException) as err:
        return str(err) or type(err).__name__
    return None


@contextmanager
def _hub_offline(offline: bool) -> Iterator[None]:
    """Keep the hub's client to its cache meanwhile."""
    before: bool = hub_constants.HF_HUB_OFFLINE
    hub_constants.HF_HUB_OFFLINE = before or offline
    try:
        yield
    finally:
        hub_constants.HF_HUB_OFFLINE = before


def _hub_errors() -> tuple[type[Exception], ...]:
    """What loading from the hub can raise; its HTTP library's errors have a base of their own."""
    httpx = sys.modules.get("httpx")
    return (OSError, RuntimeError, ValueError, *([httpx.HTTPError] if httpx else []))


torch = require("torch", extra="export")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A timm model in evaluation mode and where its weights came from.

    `is_imagenet`: the tag is of ImageNet's 1000 classes. `notes`: what was chosen and changed in
    the weights, one line each.
    """

    model: Any
    name: str
    weights_sha256: str
    preprocess: dict[str, object]
    is_imagenet: bool
    notes: tuple[str, ...]


def _resolve_tag(name: str, /) -> str:
    """Check that a name is a full timm tag."""
    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        near = timm.list_models(f"*{architecture[:12]}*")[:5]
        hint = f"; near: {', '.join(near)}" if near else ""
        raise ConfigError(f"{name}: timm {timm.__version__} has no such model{hint}")
    tags = timm.list_pretrained(f"{architecture}.*")
    if name not in tags and (tags or "." in name):
        raise ConfigError(
            f"{name}: expected a full timm tag, because the tag decides the preprocessing; "
            f"one of: {', '.join(tags) or architecture}"
        )
    return name


def preprocess_of(name: str, /) -> dict[str, object]:
    """The preprocessing timm states for a tag, as fields of `Preprocess`; no weights are read."""
    config = timm.get_pretrained_cfg(_resolve_tag(name)).to_dict()
    return from_timm_config(timm.data.resolve_data_config(pretrained_cfg=config))


def build(
    alias: Alias,
    /,
    *,
    weights: Path | None = None,
    random_seed: int | None = None,
    num_classes: int | None = None,
    img_size: tuple[int, int] | None = None,
    ema: bool | None = None,
) -> Source:
    """Create the model and put its weights in: the alias's, a checkpoint's or random ones.

    A checkpoint sets K unless `num_classes` does; `ema` as in `read_checkpoint`. The position
    embedding is resampled to `img_size`, (height, width) in px, once, here. Raises ArtifactError if
    weights are missing, corrupt or do not fit, and ConfigError if timm has no such model, it has no
    classifier, or K is asked for that only other weights have.
    """
    tag = _resolve_tag(alias.model)
    config = timm.get_pretrained_cfg(tag)
    settings: dict[str, Any] = {}
    # Networks that take any size have no such argument.
    if img_size is not None and config.fixed_input_size:
        settings["img_size"] = img_size
    name, preprocess = f"timm/{tag}", preprocess_of(tag)
    notes: list[str] = []
    in_order = False
    if random_seed is None and weights is None and alias.weights_package is not None:
        weights, in_order = package_file(alias), alias.weights_match == "order"
        preprocess |= alias.preprocess()
    if random_seed is not None:
        if num_classes is not None:
            settings["num_classes"] = num_classes
        # torch's own generator is left as it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random_seed)
            model = timm.create_model(tag, pretrained=False, **settings)
        name += f" (random weights, seed {random_seed})"
    elif weights is not None:
        checkpoint = read_checkpoint(weights, ema=ema)
        # They state K unless the user does.
        num_classes = num_classes or count_classes(checkpoint.state, config.classifier)
        if num_classes is not None:
            settings["num_classes"] = num_classes
        model = timm.create_model(tag, pretrained=False, **settings)
        changes = fill(model, checkpoint.state, path=weights, in_order=in_order)
        notes = [f"weights: {note}" for note in (*checkpoint.notes, *changes)]
        name += f" ({weights.name})"
    else:
        if num_classes not in (None, config.num_classes):
            raise ConfigError(
                f"--classes {num_classes}: the published weights of {tag} have "
                f"{config.num_classes} classes and a new head would be untrained; give the "
                "fine-tuned model with --weights FILE"
            )
        model = create_pretrained(tag, **settings)
    model = model.float().eval()
    if not model.num_classes:
        raise ConfigError(
            f"{tag}: has no classifier, only features; fine-tune it on your classes and give the "
            "checkpoint with --weights FILE"
        )
    return Source(
        model=model,
        name=name,
        weights_sha256=hash_weights(model),
        preprocess=preprocess,
        is_imagenet="in1k" in tag.partition(".")[2],
        notes=tuple(notes),
    )


Floats = npt.NDArray[np.float32]

_CHUNK = 8
_TOOLS = ("gain-edge", "torch", "timm", "onnx", "onnxscript", "onnxruntime")


def export_timm(
    name: str,
    output: str | Path,
    /,
    *,
    weights: str | Path | None = None,
    random_seed: int | None = None,
    num_classes: int | None = None,
    labels: str | Path | None = None,
    preprocess: PreprocessOverrides | None = None,
    opset: int = DEFAULT_OPSET,
    ema: bool | None = None,
    verify_images: str | Path | None = None,
    force: bool = False,
    on_step: OnStep | None = None,
) -> ExportReport:
    """Write an artifact from a timm model, verified against timm's own forward pass.

    Parameters
    ----------
    name : str
        An alias of `models/*.toml` or a full timm tag.
    output : str or Path
        The `.onnx` file to write.
    weights : str or Path, optional
        Local checkpoint instead of the published weights.
    random_seed : int, optional
        Seed of random weights, for benchmarks and tests.
    num_classes : int, optional
        K; default: that of the weights, or timm's with random ones.
    labels : str or Path, optional
        One class name per line.
    preprocess : PreprocessOverrides, optional
        Settings that differ from timm's; `img_size` is fixed in the graph.
    opset : int, optional
        ONNX opset, 17 to 20.
    ema : bool, optional
        For a checkpoint with both: take the weights averaged over training (default) or the last
        ones.
    verify_images : str or Path, optional
        Folder of photographs to verify on; default: drawn images.
    force : bool, optional
        Replace an existing file.
    on_step : callable, optional
        Called with each step's name as it begins.

    Returns
    -------
    ExportReport

    Raises
    ------
    ArtifactError
        If weights, labels or photographs cannot be read, or the output cannot be written.
    BackendUnavailableError
        If torch, timm or onnxscript is missing.
    ConfigError
        If timm has no such model, the model cannot be used, or a setting is out of its range.
    EngineError
        If the model cannot be traced or run.
    ParityError
        If the graph and the model disagree.
    """
    output = Path(output)
    overrides = preprocess or PreprocessOverrides()
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise ConfigError(f"opset: expected {MIN_OPSET} to {MAX_OPSET}, got {opset}")
    if weights is not None and random_seed is not None:
        raise ConfigError("--weights and --set random-weights: give one of them")
    if ema is not None and weights is None:
        raise ConfigError("--set ema: chooses weights of a checkpoint; add --weights FILE")
    check_output(output, force=force)
    # Wrong flags are found before the minutes of work.
    images = choose_images(verify_images)
    steps = Steps(on_step)
    # Its absence would show only after the model is built.
    require("onnxscript", extra="export")
    with steps("build"), quiet(), decomposed_attention():
        source = build(
            load_aliases().get(name) or Alias(model=name),
            weights=None if weights is None else Path(weights),
            random_seed=random_seed,
            num_classes=num_classes,
            img_size=overrides.img_size,
            ema=ema,
        )
    spec = complete(overrides, source.preprocess, what=name)
    names = choose_labels(labels, num_classes=source.model.num_classes, imagenet=source.is_imagenet)
    size = {"height_px": spec.height_px, "width_px": spec.width_px}
    pixel_values = verification_pixels(images, spec)
    with steps("run original"):
        expected = _run(source.model, pixel_values, **size)
    with steps("trace"):
        model = trace(source.model, **size, opset=opset)
        model, changes = settle_versions(model, path=name)
        form = read_input(model, path=output)
        rewrite_input(model, form, spec)
        known: Values = {model.graph.output[0].name: expected}
        model, fixed_batch = freed(model, form.batch, pixel_values, known)
    classifier = Classifier(
        model=model,
        logits=model.graph.output[0].name,
        num_classes=expected.shape[1],
        activation="none",
        fixed_batch=fixed_batch,
        source=source.name,
        weights_sha256=source.weights_sha256,
        labels=names,
        preprocess=spec,
        tools=_TOOLS,
        notes=(*source.notes, *(f"changed: {change}" for change in changes)),
    )
    reference = Reference(
        name=f"timm {version('timm')} on torch {torch.__version__}",
        pixel_values=pixel_values,
        images=len(images.images),
        image_source=images.source,
        output=expected,
    )
    return write_classifier(classifier, reference, output=output, steps=steps)


def _run(model: Any, pixel_values: Floats, *, height_px: int, width_px: int) -> Floats:
    """timm's own forward pass, (N, K)."""
    kind = type(model).__name__
    logits = []
    try:
        with quiet(), torch.no_grad():
            for start in range(0, len(pixel_values), _CHUNK):
                logits.append(model(torch.from_numpy(pixel_values[start : start + _CHUNK])))
            found = torch.cat(logits)
    except (RuntimeError, AssertionError, TypeError, ValueError) as err:
        raise ConfigError(
            f"{kind}: cannot be run at {width_px} x {height_px} px ({cause_line(err)}); "
            "give the --img-size it was made for"
        ) from err
    if found.ndim != 2:
        raise ConfigError(
            f"{kind}: expected one score per class, got {tuple(found.shape[1:])} per image; "
            "choose another model"
        )
    expected: Floats = found.float().numpy()
    return expected

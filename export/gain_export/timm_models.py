"""Building the timm model an export starts from, and reading its data configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gain_core._optional import require
from gain_core.errors import ConfigError
from gain_export.aliases import Alias
from gain_export.hub import create_pretrained
from gain_export.preprocessing import from_timm_config
from gain_export.weights import count_classes, fill, hash_weights, package_file, read_checkpoint

torch = require("torch", extra="export")
timm = require("timm", extra="export")

__all__ = ["Source", "build", "preprocess_of", "resolve_tag"]


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


def resolve_tag(name: str, /) -> str:
    """Check that a name is a full timm tag.

    Raises
    ------
    ConfigError
        If timm has no such model, or the tag is missing or wrong: it decides the preprocessing.
    """
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
    config = timm.get_pretrained_cfg(resolve_tag(name)).to_dict()
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
    """Create the model and put its weights in.

    Parameters
    ----------
    alias : Alias
        Its `model` alone for a plain timm tag.
    weights : Path, optional
        A local checkpoint, matched by name. It sets K unless `num_classes` does.
    random_seed : int, optional
        Random weights instead of any others.
    num_classes : int, optional
        K, where it is not that of the published weights.
    img_size : (height, width) in px, optional
        The position embedding is resampled to it once, here.
    ema : bool, optional
        Which of a checkpoint's two sets of weights to take; see `read_checkpoint`.

    Returns
    -------
    Source

    Raises
    ------
    ArtifactError
        If weights are missing, corrupt or do not fit.
    ConfigError
        If timm has no such model, or K is asked for that only other weights have.
    """
    tag = resolve_tag(alias.model)
    config = timm.get_pretrained_cfg(tag)
    settings: dict[str, Any] = {}
    # Networks that take any size have no such argument.
    if img_size is not None and config.fixed_input_size:
        settings["img_size"] = img_size
    name, preprocess = f"timm/{tag}", preprocess_of(tag)
    notes: list[str] = []
    if random_seed is not None:
        model = _random(tag, random_seed, num_classes=num_classes, settings=settings)
        name += f" (random weights, seed {random_seed})"
    elif weights is not None:
        model, notes = _from_file(tag, weights, num_classes=num_classes, settings=settings, ema=ema)
        name += f" ({weights.name})"
    elif alias.weights_package is not None:
        path = package_file(alias)
        model, notes = _from_file(
            tag,
            path,
            num_classes=num_classes,
            settings=settings,
            in_order=alias.weights_match == "order",
        )
        name += f" ({path.name})"
        preprocess |= alias.preprocess()
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


def _random(tag: str, seed: int, *, num_classes: int | None, settings: dict[str, Any]) -> Any:
    """The model with weights drawn from a seed; torch's own generator is left as it was."""
    if num_classes is not None:
        settings = {**settings, "num_classes": num_classes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return timm.create_model(tag, pretrained=False, **settings)


def _from_file(
    tag: str,
    path: Path,
    *,
    num_classes: int | None,
    settings: dict[str, Any],
    in_order: bool = False,
    ema: bool | None = None,
) -> tuple[Any, list[str]]:
    """The model with a file's weights, which state K unless the user does."""
    checkpoint = read_checkpoint(path, ema=ema)
    classifier = timm.get_pretrained_cfg(tag).classifier
    num_classes = num_classes or count_classes(checkpoint.state, classifier)
    if num_classes is not None:
        settings = {**settings, "num_classes": num_classes}
    model = timm.create_model(tag, pretrained=False, **settings)
    notes = fill(model, checkpoint.state, path=path, in_order=in_order)
    return model, [f"weights: {note}" for note in (*checkpoint.notes, *notes)]

"""What an experiment is about: a bed, or an artifact together with a data set."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.beds import is_bed, load_bed
from gain_apps.evaluation.methods.torch_network import TorchNetwork
from gain_apps.evaluation.orders import Order
from gain_apps.evaluation.store import FeatureStore
from gain_core.errors import ConfigError

__all__ = ["Subject", "open_subject"]

OnImages = Callable[[str, int], Callable[[], None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """Features to stream, and what they are of.

    Attributes
    ----------
    store : FeatureStore
    record : mapping
        `model` and `data` as plain values for the result file.
    default_order : str
        Of the images within a domain.
    single_severity : bool
        Whether there is no choice of severity.
    recorded : array, (N,) int64, or None
        Domain of each image where the stream is a recording, shown as it is.
    network : callable, or None
        Makes the network in torch where it was named.
    """

    store: FeatureStore
    record: Mapping[str, Any]
    default_order: Order
    single_severity: bool
    recorded: npt.NDArray[np.int64] | None = None
    network: Callable[[], TorchNetwork] | None = None


def open_subject(args: Namespace, /, *, on_images: OnImages | None = None) -> Subject:
    """Open what the command line names, computing features that are not cached yet.

    Parameters
    ----------
    args : Namespace
        Of `gain-eval`. A bed is `BED.npz` alone, or DATA beside the MODEL `-`.
    on_images : callable, optional
        Called with a title and a number of steps before each forward pass over a domain; what it
        returns is called after every step.

    Returns
    -------
    Subject

    Raises
    ------
    ConfigError
        If model and data do not fit each other, or a setting does not fit them.
    ArtifactError, StreamError
        If a file is missing or damaged.
    """
    if args.model == "-":
        if args.data is None:
            raise ConfigError("MODEL -: expected a bed as DATA, got none")
        return _open_bed(args, args.data)
    if args.data is None:
        if Path(args.model).suffix != ".npz":
            raise ConfigError(f"{args.model}: expected DATA beside an artifact, got none")
        return _open_bed(args, args.model)
    if is_bed(args.data):
        raise ConfigError(
            f"{args.data}: a bed holds its own network's features; give it alone, without MODEL"
        )
    # Imported late: a bed needs no OpenCV and no ONNX Runtime.
    from gain_apps.evaluation.images_subject import open_images

    return open_images(args, on_images=on_images)


def _open_bed(args: Namespace, path: str) -> Subject:
    """A bed as a subject."""
    for flag, unset in (
        ("views", 1),
        ("normalise", "timm"),
        ("image_list", None),
        ("source_data", None),
        ("classes", None),
        ("class_subset", "all"),
        ("torch_model", None),
        ("torch_weights", None),
    ):
        if getattr(args, flag) != unset:
            raise ConfigError(
                f"--{flag.replace('_', '-')}: a bed holds features, not images; leave it out"
            )
    if args.stream == "recorded":
        raise ConfigError("--stream recorded: for test:// sources only")
    bed = load_bed(path, domains=args.domains)
    weight = bed.store.head.weight
    model = {"kind": "bed", "path": path, "sha256": bed.sha256}
    return Subject(
        store=bed.store,
        record={
            "model": {**model, "num_classes": weight.shape[0], "feature_dim": weight.shape[1]},
            "data": {"kind": "bed", "path": path, "images": len(bed.store.labels)},
        },
        default_order="shuffled",
        single_severity=True,
    )

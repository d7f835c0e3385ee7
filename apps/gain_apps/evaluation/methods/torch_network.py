"""The original network in torch, for methods that need gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gain_apps.evaluation.methods.protocol import Batch, Floats
from gain_core.errors import ConfigError, NumericsError, ParityError
from gain_runtime.optional import require

__all__ = ["NetworkMaker", "SourcePixels", "TorchNetwork", "timm_network"]

# Of the largest logit: other kernels round differently, other weights are far beyond.
PARITY = 0.02

# Makes the source network anew, in evaluation mode.
NetworkMaker = Callable[[], Any]
# (number of images) to pixel values of that many uncorrupted images, or of all where there are
# fewer, (N, 3, H, W).
SourcePixels = Callable[[int], npt.NDArray[np.float32]]


def timm_network(name: str, weights: Path, num_classes: int, /) -> NetworkMaker:
    """A timm model with weights from a file.

    Parameters
    ----------
    name : str
        timm's.
    weights : Path
        Checkpoint (.pt, .pth, .safetensors).
    num_classes : int
        K.

    Returns
    -------
    callable
        Gives an independent copy with every call.

    Raises
    ------
    ConfigError
        If timm knows no such model.
    BackendUnavailableError, ArtifactError
        If torch or timm are missing, or the weights do not fit.
    """
    timm = require("timm", extra="eval")
    from gain_export.weights import fill, read_checkpoint

    if not timm.is_model(name):
        raise ConfigError(f"--timm: timm has no model {name}; see timm.list_models()")
    model = timm.create_model(name, pretrained=False, num_classes=num_classes)
    fill(model, read_checkpoint(weights).state, path=weights)
    model.eval()
    return lambda: copy.deepcopy(model)


class TorchNetwork:
    """A network that a method trains, with what every such method needs around it.

    Parameters
    ----------
    make : NetworkMaker
    columns : array, (K,) int64, or None
        Which of the network's logits count.
    source : SourcePixels, optional
        Uncorrupted images, for methods that measure the source first.
    """

    def __init__(
        self,
        make: NetworkMaker,
        /,
        *,
        columns: npt.NDArray[np.int64] | None = None,
        source: SourcePixels | None = None,
    ) -> None:
        self.torch = require("torch", extra="eval")
        self._make = make
        self._columns = columns
        self._source = source
        self._checked = False
        self.model: Any = make()

    def reset(self) -> None:
        """The source's weights again, none of them trained."""
        self.model = self._make()
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

    def norm_parameters(self, *, skip: Callable[[str], bool] | None = None) -> list[Any]:
        """Switch training of the layer norms' weights and biases on, and return them.

        Raises
        ------
        ConfigError
            If the network has none.
        """
        norm = self.torch.nn.LayerNorm
        chosen = [
            parameter
            for name, module in self.model.named_modules()
            if isinstance(module, norm) and not (skip is not None and skip(name))
            for parameter in module.parameters(recurse=False)
        ]
        if not chosen:
            raise ConfigError(
                f"{type(self.model).__name__}: expected layer norms to train, found none; "
                "use a vision transformer"
            )
        for parameter in chosen:
            parameter.requires_grad_(True)
        return chosen

    def pixels(self, batch: Batch, /) -> Any:
        """The batch's pixel values as a tensor."""
        if batch.pixel_values is None:
            raise ConfigError(
                "torch methods: expected pixel values, got features only; "
                "run them on an artifact and images, not on a feature dump"
            )
        return self.torch.from_numpy(batch.pixel_values)

    def source_pixels(self, count: int, /, *, method: str, instead: str = "") -> Any:
        """Pixel values of some uncorrupted images as a tensor, (N, 3, H, W).

        Raises
        ------
        ConfigError
            If there are none; `instead` says how to do without.
        """
        if self._source is None:
            raise ConfigError(
                f"{method}: expected uncorrupted images to measure the source on, got none; "
                f"give --source-images{instead}"
            )
        return self.torch.from_numpy(self._source(count))

    def logits(self, pixel_values: Any, /, *, model: Any = None) -> Any:
        """The network's logits, (B, K), with gradients where parameters are trained."""
        logits = (self.model if model is None else model)(pixel_values)
        return logits if self._columns is None else logits[:, self._columns]

    def check_parity(self, logits: Any, batch: Batch, /) -> None:
        """The untrained network is the artifact's; tested on the first batch only.

        Raises
        ------
        ParityError
            If its logits are others.
        """
        if self._checked:
            return
        self._checked = True
        apart = float(np.abs(logits.detach().numpy() - batch.logits).max())
        scale = float(np.abs(batch.logits).max())
        if not apart <= PARITY * scale:
            raise ParityError(
                f"--weights: its logits differ from the artifact's by {apart:.3g} where the "
                f"largest is {scale:.3g}; give the weights that the artifact was exported from"
            )

    def log_probs(self, logits: Any, /) -> Floats:
        """log-softmax of the logits, as NumPy.

        Raises
        ------
        NumericsError
            If they are not finite.
        """
        if not bool(self.torch.isfinite(logits).all()):
            raise NumericsError("torch method: expected finite logits, got NaN or infinity")
        result: Floats = self.torch.log_softmax(logits.detach().float(), dim=1).numpy()
        return result

    def entropy(self, logits: Any, /) -> Any:
        """Entropy of each row, (B,)."""
        log_probs = self.torch.log_softmax(logits, dim=1)
        return -(log_probs.exp() * log_probs).sum(dim=1)

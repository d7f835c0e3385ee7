"""What a method is given, the network in torch too, what it owes, and what it says it costs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gain_core.errors import ConfigError, NumericsError, ParityError
from gain_runtime.optional import require

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """The frozen head, (K, D) and (K,) float32, and what clean images said of it, if any.

    Where the network gives `logits_only`, these stand in the features' place: D = K.
    """

    weight: Floats
    bias: Floats
    source_mean: Floats | None = None  # (D,), of the features of uncorrupted images
    # What their logits show, as `gain_core.make_method` takes it; empty also where that is nothing.
    measured: Mapping[str, Any] = field(default_factory=dict)
    logits_only: bool = False

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.weight.shape[0])

    def logits(self, features: Floats, /) -> Floats:
        """W z + b, (B, K)."""
        result: Floats = features @ self.weight.T + self.bias
        return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One batch as a method sees it, float32: never its labels or its domain."""

    features: Floats  # (B, D)
    logits: Floats  # (B, K), of the frozen source
    # (B, 3, H, W), for methods that run the backbone themselves.
    pixel_values: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a method costs beside storing the network."""

    num_forward: float = 1.0  # passes of the backbone per batch
    num_backward: float = 0.0
    num_parameters: int = 0  # trained
    state_bytes: int = 0  # all that is kept from one batch to the next, as of now

    def to_dict(self) -> dict[str, float | int]:
        """Plain values for a result file."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diagnosis:
    """What GAIN's parts say about a batch before it is learned from.

    The strength and the expected gain in nats, (B,), and the evidence, (B, K): log(proposal /
    source), which at the true class is the realised gain.
    """

    strength: Floats
    gain: Floats
    evidence: Floats


class Method(Protocol):
    """A classifier that may adapt while it predicts."""

    @property
    def cost(self) -> Cost: ...

    def predict(self, batch: Batch, /) -> Floats:
        """Normalised log-probabilities (B, K) of a batch; adapts when and as its paper says."""
        ...

    def reset(self) -> None:
        """Return to the source."""
        ...


@runtime_checkable
class OnPixels(Protocol):
    """A method that runs the network itself: it is given pixel values, and its time is all of it.

    `uses_pixels` is always true; its presence is the mark.
    """

    uses_pixels: bool


@runtime_checkable
class Diagnosing(Protocol):
    """A method that can say what its state makes of a batch, without changing it."""

    def diagnose(self, batch: Batch, /) -> Diagnosis: ...


LEAST_NORM = 1e-12


def log_softmax(scores: Floats, /) -> Floats:
    """Logarithm of the softmax of each row."""
    shifted = scores - scores.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def entropy(log_probs: Floats, /) -> Floats:
    """Entropy of each row in nats; a probability of zero adds nothing."""
    probs = np.exp(log_probs)
    products = np.where(probs > 0, probs * np.where(probs > 0, log_probs, 0.0), 0.0)
    result: Floats = -products.sum(axis=-1)
    return result


def unit_rows(rows: Floats, /) -> Floats:
    """Rows scaled to unit length; a zero row stays zero."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    result: Floats = rows / np.maximum(norms, LEAST_NORM)
    return result


# Of the largest logit: other kernels round differently, other weights are far beyond.
PARITY = 0.02

# Makes the source network anew, in evaluation mode.
NetworkMaker = Callable[[], Any]
# (number of images) to pixel values of that many uncorrupted images, or of all where there are
# fewer, (N, 3, H, W).
SourcePixels = Callable[[int], npt.NDArray[np.float32]]


def timm_network(name: str, weights: Path, num_classes: int, /) -> NetworkMaker:
    """A timm model with K classes and weights from a file: an independent copy with every call.

    `ConfigError` if timm knows no such model, `BackendUnavailableError` or `ArtifactError` if torch
    or timm are missing, or the weights do not fit.
    """
    timm = require("timm", extra="eval")
    from gain_export.torch_model import fill, read_checkpoint

    if not timm.is_model(name):
        raise ConfigError(f"--timm: timm has no model {name}; see timm.list_models()")
    model = timm.create_model(name, pretrained=False, num_classes=num_classes)
    fill(model, read_checkpoint(weights).state, path=weights)
    model.eval()
    return lambda: copy.deepcopy(model)


def trained_cost(
    trained: Iterable[Any], /, *, num_forward: float, num_backward: float, copies: int = 2
) -> Cost:
    """Cost of training parameters, of which so many copies are kept in float32.

    By default those are weights and momentum; the source's own weights are there to return to.
    """
    count = sum(parameter.numel() for parameter in trained)
    return Cost(
        num_forward=num_forward,
        num_backward=num_backward,
        num_parameters=count,
        state_bytes=copies * 4 * count,
    )


@dataclass(eq=False)
class TorchNetwork:
    """A network that a method trains, with what every such method needs around it."""

    make: NetworkMaker
    _: KW_ONLY
    columns: npt.NDArray[np.int64] | None = None  # (K,), which of the network's logits count
    source: SourcePixels | None = None  # for methods that measure the source first

    def __post_init__(self) -> None:
        self.torch = require("torch", extra="eval")
        self._checked = False
        self.model: Any = self.make()

    def reset(self) -> None:
        """The source's weights again, none of them trained."""
        self.model = self.make()
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

    def norm_parameters(self, *, skip: Callable[[str], bool] | None = None) -> list[Any]:
        """Switch training of the layer norms' weights and biases on, and return them.

        A network that has none is a `ConfigError`.
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

    def sgd(self, parameters: Iterable[Any], /, *, rate: float) -> Any:
        """The optimiser of every method that trains: SGD with a momentum of 0.9."""
        return self.torch.optim.SGD(parameters, lr=rate, momentum=0.9)

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

        If there are none it is a `ConfigError`, in which `instead` says how to do without.
        """
        if self.source is None:
            raise ConfigError(
                f"{method}: expected uncorrupted images to measure the source on, got none; "
                f"give --source-images{instead}"
            )
        return self.torch.from_numpy(self.source(count))

    def logits(self, pixel_values: Any, /, *, model: Any = None) -> Any:
        """The network's logits, (B, K), with gradients where parameters are trained."""
        logits = (self.model if model is None else model)(pixel_values)
        return logits if self.columns is None else logits[:, self.columns]

    def check_parity(self, logits: Any, batch: Batch, /) -> None:
        """The untrained network is the artifact's, or this is a `ParityError`.

        Only the first batch is tested.
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
        """log-softmax of the logits, as NumPy; `NumericsError` if they are not finite."""
        if not bool(self.torch.isfinite(logits).all()):
            raise NumericsError("torch method: expected finite logits, got NaN or infinity")
        result: Floats = self.torch.log_softmax(logits.detach().float(), dim=1).numpy()
        return result

    def entropy(self, logits: Any, /) -> Any:
        """Entropy of each row, (B,)."""
        log_probs = self.torch.log_softmax(logits, dim=1)
        return -(log_probs.exp() * log_probs).sum(dim=1)

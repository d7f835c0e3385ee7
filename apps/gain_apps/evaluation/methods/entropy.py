"""Methods that minimise entropy through the layer norms: Tent, SAR, EATA; the source in torch."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats, TorchNetwork, trained_cost

FULL_BATCH = 64


class TorchSource:
    """The source run by torch: what the forward pass alone costs there."""

    uses_pixels = True

    cost = Cost()

    def __init__(self, network: TorchNetwork, /) -> None:
        self._network = network
        self.reset()

    def predict(self, batch: Batch, /) -> Floats:
        """log-softmax of the network's logits, (B, K)."""
        with self._network.torch.no_grad():
            logits = self._network.logits(self._network.pixels(batch))
        self._network.check_parity(logits, batch)
        return self._network.log_probs(logits)

    def reset(self) -> None:
        """The source's weights."""
        self._network.reset()


@dataclass(eq=False)
class Tent:
    """Entropy minimisation over the layer norms' weights and biases.

    SGD with momentum 0.9 and a rate of 1e-3 for a batch of 64, in proportion for others. The
    answer is that of the forward pass whose entropy is then minimised.
    """

    uses_pixels = True
    _network: TorchNetwork
    _: KW_ONLY
    rate: float = 1e-3

    def __post_init__(self) -> None:
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward and one backward pass; the norms and their momentum."""
        return trained_cost(self._trained, num_forward=1.0, num_backward=1.0)

    def predict(self, batch: Batch, /) -> Floats:
        """Predict, then take one step, (B, K)."""
        logits = self._network.logits(self._network.pixels(batch))
        self._network.check_parity(logits, batch)
        self._optimiser.param_groups[0]["lr"] = self.rate * len(logits) / FULL_BATCH
        self._optimiser.zero_grad()
        self._network.entropy(logits).mean().backward()
        self._optimiser.step()
        return self._network.log_probs(logits)

    def reset(self) -> None:
        """The source's weights."""
        self._network.reset()
        self._trained: list[Any] = self._network.norm_parameters()
        self._optimiser: Any = self._network.sgd(self._trained, rate=self.rate)


@dataclass(eq=False)
class Sar:
    """Sharpness-aware and reliable entropy minimisation.

    The norms of the last three blocks and the final norm stay as they are. Only samples with an
    entropy below 0.4 ln K count; the step is taken where the loss within `rho` is highest; the
    network returns to the source when the running mean of the loss falls below 0.2.
    """

    uses_pixels = True
    _network: TorchNetwork
    _: KW_ONLY
    rate: float = 1e-3
    rho: float = 0.05
    collapse: float = 0.2

    def __post_init__(self) -> None:
        self.reset()

    @property
    def cost(self) -> Cost:
        """Two forward and two backward passes; the norms and their momentum."""
        return trained_cost(self._trained, num_forward=2.0, num_backward=2.0)

    def predict(self, batch: Batch, /) -> Floats:
        """Predict, then take one sharpness-aware step, (B, K)."""
        pixels = self._network.pixels(batch)
        logits = self._network.logits(pixels)
        self._network.check_parity(logits, batch)
        margin = 0.4 * math.log(logits.shape[1])
        entropy = self._network.entropy(logits)
        reliable = entropy < margin
        if bool(reliable.any()):
            entropy[reliable].mean().backward()
            self._watch(self._step(pixels, reliable, margin=margin))
        return self._network.log_probs(logits)

    def reset(self) -> None:
        """The source's weights."""
        self._network.reset()
        self._trained: list[Any] = self._network.norm_parameters(skip=self._is_late)
        self._optimiser: Any = self._network.sgd(self._trained, rate=self.rate)
        self._mean_loss: float | None = None

    def _step(self, pixels: Any, reliable: Any, *, margin: float) -> float:
        """Climb to the sharpest point within rho, and descend with the gradient found there."""
        torch = self._network.torch
        grads = [parameter.grad for parameter in self._trained]
        length = torch.sqrt(sum((grad * grad).sum() for grad in grads)) + 1e-12
        climb = [grad * (self.rho / length) for grad in grads]
        self._move(climb, sign=1.0)
        self._optimiser.zero_grad()
        entropy = self._network.entropy(self._network.logits(pixels))[reliable]
        still = entropy < margin
        loss = float(entropy.detach().mean())
        if bool(still.any()):
            entropy[still].mean().backward()
        self._move(climb, sign=-1.0)
        if bool(still.any()):
            self._optimiser.step()
        self._optimiser.zero_grad()
        return loss

    def _move(self, steps: list[Any], *, sign: float) -> None:
        """Add to the trained parameters."""
        with self._network.torch.no_grad():
            for parameter, step in zip(self._trained, steps, strict=True):
                parameter.add_(step, alpha=sign)

    def _watch(self, loss: float) -> None:
        """Return to the source when the running loss says that the network has collapsed."""
        if math.isnan(loss):
            return
        self._mean_loss = loss if self._mean_loss is None else 0.9 * self._mean_loss + 0.1 * loss
        if self._mean_loss < self.collapse:
            self.reset()

    def _is_late(self, name: str) -> bool:
        """Whether a norm belongs to the last three blocks or comes after them."""
        blocks = len(getattr(self._network.model, "blocks", ()))
        late = tuple(f"blocks.{number}." for number in range(max(blocks - 3, 0), blocks))
        return name.startswith(late) or not name.startswith("blocks.")


PROBS_MOMENTUM = 0.9
FISHER_BATCH = 64


@dataclass(eq=False)
class Eata:
    """Efficient anti-forgetting test-time adaptation.

    Only samples with an entropy below 0.4 ln K count, the surer the more, and of those only the
    ones whose prediction is unlike the running mean of the predictions that counted before. Norms
    that matter to the source are held near it by their Fisher information.
    """

    uses_pixels = True
    _network: TorchNetwork
    _: KW_ONLY
    rate: float = 2.5e-4  # for a batch of any size; SGD with momentum 0.9
    # Largest absolute cosine to the running mean, for ImageNet's thousand classes; 0.4 for ten.
    similarity: float = 0.05
    fisher: float = 2000.0  # weight of the regulariser; 0 leaves it out and needs no source images
    num_source: int = 2000  # uncorrupted images on which it is measured, without labels

    def __post_init__(self) -> None:
        self._information: list[Any] | None = None
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass, one backward pass where samples counted; the Fisher pass is before."""
        return trained_cost(
            self._trained,
            num_forward=1.0,
            num_backward=self._stepped / max(self._batches, 1),
            # With the regulariser the anchor and its information too.
            copies=4 if self.fisher else 2,
        )

    def predict(self, batch: Batch, /) -> Floats:
        """Predict, then take one step on the samples that count, (B, K)."""
        network = self._network
        logits = network.logits(network.pixels(batch))
        network.check_parity(logits, batch)
        self._batches += 1
        chosen = self._chosen(logits.detach())
        if len(chosen):
            entropy = network.entropy(logits[chosen])
            margin = 0.4 * math.log(logits.shape[1])
            loss = (entropy * (margin - entropy.detach()).exp()).mean() + self._penalty()
            self._optimiser.zero_grad()
            loss.backward()
            self._optimiser.step()
            self._stepped += 1
        return network.log_probs(logits)

    def reset(self) -> None:
        """The source's weights."""
        network = self._network
        network.reset()
        self._trained: list[Any] = network.norm_parameters()
        self._source = [parameter.detach().clone() for parameter in self._trained]
        if self.fisher and self._information is None:
            self._information = self._measure()
        self._optimiser: Any = network.sgd(self._trained, rate=self.rate)
        self._mean_probs: Any = None
        self._batches = self._stepped = 0

    def _chosen(self, logits: Any) -> Any:
        """Indices of the reliable samples that are not redundant; notes their predictions."""
        torch = self._network.torch
        margin = 0.4 * math.log(logits.shape[1])
        chosen = (self._network.entropy(logits) < margin).nonzero().squeeze(1)
        probs = torch.softmax(logits, dim=1)
        if self._mean_probs is not None and len(chosen):
            closeness = torch.nn.functional.cosine_similarity(
                self._mean_probs[None], probs[chosen], dim=1
            )
            chosen = chosen[closeness.abs() < self.similarity]
        if len(chosen):
            mean = probs[chosen].mean(dim=0)
            self._mean_probs = (
                mean
                if self._mean_probs is None
                else PROBS_MOMENTUM * self._mean_probs + (1.0 - PROBS_MOMENTUM) * mean
            )
        return chosen

    def _penalty(self) -> Any:
        """Fisher-weighted squared distance to the source."""
        if self._information is None:
            return 0.0
        parts = zip(self._information, self._trained, self._source, strict=True)
        return self.fisher * sum(
            (weight * (trained - source) ** 2).sum() for weight, trained, source in parts
        )

    def _measure(self) -> list[Any]:
        """Mean over source batches of the squared gradient of the cross-entropy with the answer."""
        network, torch = self._network, self._network.torch
        pixels = network.source_pixels(self.num_source, method="eata", instead=", or eata:fisher=0")
        batches = pixels.split(FISHER_BATCH)
        total = [torch.zeros_like(parameter) for parameter in self._source]
        for part in batches:
            logits = network.logits(part)
            loss = torch.nn.functional.cross_entropy(logits, logits.detach().argmax(dim=1))
            for sums, grad in zip(total, torch.autograd.grad(loss, self._trained), strict=True):
                sums.add_(grad**2, alpha=1.0 / len(batches))
        return total

"""ROID: weighted soft likelihood ratio, consistency under augmentation, weight ensembling."""

from __future__ import annotations

from typing import Any

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats
from gain_apps.evaluation.methods.torch_augment import augmented
from gain_apps.evaluation.methods.torch_network import TorchNetwork

__all__ = ["Roid", "soft_likelihood_ratio"]

TEMPERATURE = 1.0 / 3.0
PROBS_MOMENTUM = 0.9
LEAST_PROB = 1e-6


class Roid:
    """Robust test-time adaptation by the layer norms.

    A sample's weight grows with how sure the network is of it and with how far its prediction is
    from the running mean of all; samples nearer to that mean than the average are left out. The
    trained weights are drawn back to the source after each step. The answer is the softmax of
    the network's own logits; prior correction, which the published code multiplies onto the
    logits and which costs it its calibration, is left out.

    Parameters
    ----------
    network : TorchNetwork
    rate : float
    ensembling : float
        What is kept of the trained weights after each step.
    """

    uses_pixels = True

    def __init__(
        self, network: TorchNetwork, /, *, rate: float = 2.5e-4, ensembling: float = 0.99
    ) -> None:
        self._network = network
        self._rate = rate
        self._ensembling = ensembling
        self.reset()

    @property
    def cost(self) -> Cost:
        """Two forward passes and one backward pass through both; the norms three times."""
        count = sum(parameter.numel() for parameter in self._trained)
        return Cost(
            num_forward=2.0,
            num_backward=2.0,
            num_parameters=count,
            state_bytes=3 * 4 * count,
        )

    def predict(self, batch: Batch, /) -> Floats:
        """Predict, then take one step, (B, K)."""
        network, torch = self._network, self._network.torch
        pixels = network.pixels(batch)
        logits = network.logits(pixels)
        network.check_parity(logits, batch)
        weights = self._weights(logits.detach())
        kept = weights > 0
        if bool(kept.any()):
            copies = augmented(pixels[kept], torch=torch, random=self._random)
            ratio = soft_likelihood_ratio(logits[kept], torch=torch)
            agreement = _symmetric_cross_entropy(network.logits(copies), logits[kept], torch=torch)
            loss = ((ratio + agreement) * weights[kept]).sum() / len(logits)
            self._optimiser.zero_grad()
            loss.backward()
            self._optimiser.step()
            self._draw_back()
        return network.log_probs(logits)

    def reset(self) -> None:
        """The source's weights."""
        network = self._network
        network.reset()
        self._trained: list[Any] = network.norm_parameters()
        self._source = [parameter.detach().clone() for parameter in self._trained]
        self._optimiser: Any = network.torch.optim.SGD(self._trained, lr=self._rate, momentum=0.9)
        self._mean_probs: Any = None
        self._random: Any = network.torch.Generator().manual_seed(0)

    def _weights(self, logits: Any) -> Any:
        """Weight of each sample: exp(diversity x certainty / temperature), or zero, (B,)."""
        torch = self._network.torch
        probs = torch.softmax(logits, dim=1)
        if self._mean_probs is None:
            self._mean_probs = torch.full_like(probs[0], 1.0 / probs.shape[1])
        closeness = torch.nn.functional.cosine_similarity(self._mean_probs[None], probs, dim=1)
        diversity = _to_unit_range(1.0 - closeness)
        certainty = _to_unit_range(-self._network.entropy(logits))
        weights = torch.exp(diversity * certainty / TEMPERATURE)
        self._mean_probs = PROBS_MOMENTUM * self._mean_probs + (1.0 - PROBS_MOMENTUM) * probs.mean(
            dim=0
        )
        return torch.where(diversity < diversity.mean(), torch.zeros_like(weights), weights)

    def _draw_back(self) -> None:
        """Weight ensembling with the source."""
        with self._network.torch.no_grad():
            for parameter, source in zip(self._trained, self._source, strict=True):
                parameter.mul_(self._ensembling).add_(source, alpha=1.0 - self._ensembling)


def soft_likelihood_ratio(logits: Any, /, *, torch: Any) -> Any:
    """-sum over classes of p log(p / (1 - p)), (B,): its gradient does not vanish at certainty."""
    probs = torch.softmax(logits, dim=1).clamp(LEAST_PROB, 1.0 - LEAST_PROB)
    return -(probs * torch.log(probs / (1.0 - probs))).sum(dim=1)


def _symmetric_cross_entropy(first: Any, second: Any, *, torch: Any) -> Any:
    """Mean of both cross-entropies, (B,)."""
    log_first, log_second = torch.log_softmax(first, dim=1), torch.log_softmax(second, dim=1)
    forward = -(log_first.exp() * log_second).sum(dim=1)
    backward = -(log_second.exp() * log_first).sum(dim=1)
    return 0.5 * (forward + backward)


def _to_unit_range(values: Any) -> Any:
    """Values moved and scaled to [0, 1]; all alike become zero."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low).clamp(min=1e-12)

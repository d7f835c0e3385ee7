"""EATA: Tent on reliable samples that are not redundant, held to the source where it matters."""

from __future__ import annotations

import math
from typing import Any

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats
from gain_apps.evaluation.methods.torch_network import TorchNetwork

__all__ = ["Eata"]

PROBS_MOMENTUM = 0.9
FISHER_BATCH = 64


class Eata:
    """Efficient anti-forgetting test-time adaptation.

    Only samples with an entropy below 0.4 ln K count, the surer the more, and of those only the
    ones whose prediction is unlike the running mean of the predictions that counted before.
    Norms that matter to the source are held near it by their Fisher information.

    Parameters
    ----------
    network : TorchNetwork
    rate : float
        For a batch of any size; SGD with momentum 0.9.
    similarity : float
        Largest absolute cosine to the running mean: 0.05 for ImageNet's thousand classes, 0.4
        for ten.
    fisher : float
        Weight of the regulariser; 0 leaves it out and needs no source images.
    num_source : int
        Uncorrupted images on which the Fisher information is measured, without labels.
    """

    uses_pixels = True

    def __init__(
        self,
        network: TorchNetwork,
        /,
        *,
        rate: float = 2.5e-4,
        similarity: float = 0.05,
        fisher: float = 2000.0,
        num_source: int = 2000,
    ) -> None:
        self._network = network
        self._rate = rate
        self._similarity = similarity
        self._fisher = fisher
        self._num_source = num_source
        self._information: list[Any] | None = None
        self.reset()

    @property
    def cost(self) -> Cost:
        """One forward pass, one backward pass where samples counted; the Fisher pass is before."""
        count = sum(parameter.numel() for parameter in self._trained)
        return Cost(
            num_forward=1.0,
            num_backward=self._stepped / max(self._batches, 1),
            num_parameters=count,
            # Weights and momentum, and with the regulariser the anchor and its information.
            state_bytes=(4 if self._fisher else 2) * 4 * count,
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
        if self._fisher and self._information is None:
            self._information = self._measure()
        self._optimiser: Any = network.torch.optim.SGD(self._trained, lr=self._rate, momentum=0.9)
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
            chosen = chosen[closeness.abs() < self._similarity]
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
        return self._fisher * sum(
            (weight * (trained - source) ** 2).sum() for weight, trained, source in parts
        )

    def _measure(self) -> list[Any]:
        """Mean over source batches of the squared gradient of the cross-entropy with the answer."""
        network, torch = self._network, self._network.torch
        pixels = network.source_pixels(
            self._num_source, method="eata", instead=", or eata:fisher=0"
        )
        batches = pixels.split(FISHER_BATCH)
        total = [torch.zeros_like(parameter) for parameter in self._source]
        for part in batches:
            logits = network.logits(part)
            loss = torch.nn.functional.cross_entropy(logits, logits.detach().argmax(dim=1))
            for sums, grad in zip(total, torch.autograd.grad(loss, self._trained), strict=True):
                sums.add_(grad**2, alpha=1.0 / len(batches))
        return total

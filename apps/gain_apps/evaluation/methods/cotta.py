"""CoTTA: a student taught by its own slow average, with random returns to the source."""

from __future__ import annotations

from typing import Any

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats
from gain_apps.evaluation.methods.torch_augment import augmented
from gain_apps.evaluation.methods.torch_network import TorchNetwork

__all__ = ["Cotta"]


class Cotta:
    """Continual test-time adaptation with a teacher.

    All parameters of the student learn from the teacher by cross-entropy (SGD, momentum 0.9); the
    teacher follows the student slowly and gives the answer. Where the source is unsure of a batch
    (mean top probability below `threshold`), the teacher's answer is the mean of its logits over
    augmented copies. After each step every weight returns to the source with a small chance.

    Parameters
    ----------
    network : TorchNetwork
    rate : float
    momentum : float
        Of the teacher.
    num_augmented : int
    threshold : float
    restore : float
        Chance of a weight to return.
    """

    uses_pixels = True

    def __init__(
        self,
        network: TorchNetwork,
        /,
        *,
        rate: float = 1e-4,
        momentum: float = 0.999,
        num_augmented: int = 32,
        threshold: float = 0.1,
        restore: float = 0.001,
    ) -> None:
        self._network = network
        self._rate = rate
        self._momentum = momentum
        self._num_augmented = num_augmented
        self._threshold = threshold
        self._restore = restore
        self.reset()

    @property
    def cost(self) -> Cost:
        """Student, teacher and anchor once each, and the teacher's augmented copies."""
        count = sum(parameter.numel() for parameter in self._network.model.parameters())
        forward = 3.0 + self._num_augmented * self._augmented / max(self._batches, 1)
        return Cost(
            num_forward=forward,
            num_backward=1.0,
            num_parameters=count,
            # Student, teacher, anchor and momentum in float32.
            state_bytes=4 * 4 * count,
        )

    def predict(self, batch: Batch, /) -> Floats:
        """The teacher's answer before the step it teaches, (B, K)."""
        network, torch = self._network, self._network.torch
        pixels = network.pixels(batch)
        with torch.no_grad():
            anchored = network.logits(pixels, model=self._anchor)
            network.check_parity(anchored, batch)
            sure = float(torch.softmax(anchored, dim=1).max(dim=1).values.mean())
            taught = self._teach(pixels, unsure=sure < self._threshold)
        self._batches += 1
        logits = network.logits(pixels)
        loss = -(torch.softmax(taught, dim=1) * torch.log_softmax(logits, dim=1)).sum(dim=1)
        self._optimiser.zero_grad()
        loss.mean().backward()
        self._optimiser.step()
        self._follow()
        return network.log_probs(taught)

    def reset(self) -> None:
        """Student, teacher and anchor are the source."""
        network = self._network
        network.reset()
        self._anchor: Any = network.model
        network.reset()
        self._teacher: Any = network.model
        network.reset()
        for parameter in network.model.parameters():
            parameter.requires_grad_(True)
        self._optimiser: Any = network.torch.optim.SGD(
            network.model.parameters(), lr=self._rate, momentum=0.9
        )
        self._random: Any = network.torch.Generator().manual_seed(0)
        self._batches = self._augmented = 0

    def _teach(self, pixels: Any, *, unsure: bool) -> Any:
        """The teacher's logits, averaged over augmented copies where the source is unsure."""
        network = self._network
        if not unsure:
            return network.logits(pixels, model=self._teacher)
        self._augmented += 1
        total = 0.0
        for _ in range(self._num_augmented):
            copies = augmented(pixels, torch=network.torch, random=self._random)
            total = total + network.logits(copies, model=self._teacher)
        return total / self._num_augmented

    def _follow(self) -> None:
        """Move the teacher towards the student, then return some weights to the source."""
        torch = self._network.torch
        students = self._network.model.parameters()
        with torch.no_grad():
            for teacher, student, anchor in zip(
                self._teacher.parameters(), students, self._anchor.parameters(), strict=True
            ):
                teacher.mul_(self._momentum).add_(student, alpha=1.0 - self._momentum)
                chance = torch.rand(student.shape, generator=self._random)
                student.copy_(torch.where(chance < self._restore, anchor, student))

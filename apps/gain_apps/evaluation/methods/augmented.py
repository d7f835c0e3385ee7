"""Methods that compare a batch with its augmented self: CoTTA and ROID."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

from gain_apps.evaluation.methods.protocol import Batch, Cost, Floats, TorchNetwork, trained_cost

MAX_DEGREES = 15.0
MAX_SHIFT = 1.0 / 16.0
SCALE = (0.9, 1.1)
CONTRAST = (0.7, 1.3)
BRIGHTNESS = 0.3
NOISE = 0.02


def augmented(pixel_values: Any, /, *, torch: Any, random: Any) -> Any:
    """Flip, turn, shift, scale, change contrast and brightness, and add noise, image by image.

    The images, (B, 3, H, W), are normalised; contrast, brightness and noise are in their units.
    CoTTA's and ROID's own lists are longer (blur, saturation, hue) and work on [0, 1] pixels.
    """
    size = len(pixel_values)

    def uniform(low: float, high: float) -> Any:
        return torch.rand(size, generator=random) * (high - low) + low

    angle = uniform(-MAX_DEGREES, MAX_DEGREES) * (math.pi / 180.0)
    scale = uniform(*SCALE)
    mirror = torch.where(torch.rand(size, generator=random) < 0.5, -1.0, 1.0)
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    turn = torch.stack(
        [
            torch.stack([cos * mirror, -sin, uniform(-2 * MAX_SHIFT, 2 * MAX_SHIFT)], dim=1),
            torch.stack([sin * mirror, cos, uniform(-2 * MAX_SHIFT, 2 * MAX_SHIFT)], dim=1),
        ],
        dim=1,
    )
    functional = torch.nn.functional
    grid = functional.affine_grid(turn, list(pixel_values.shape), align_corners=False)
    moved = functional.grid_sample(
        pixel_values, grid, padding_mode="reflection", align_corners=False
    )
    contrast = uniform(*CONTRAST)[:, None, None, None]
    brightness = uniform(-BRIGHTNESS, BRIGHTNESS)[:, None, None, None]
    noise = torch.randn(moved.shape, generator=random) * NOISE
    return moved * contrast + brightness + noise


@dataclass(eq=False)
class Cotta:
    """Continual test-time adaptation with a teacher.

    All parameters of the student learn from the teacher by cross-entropy (SGD, momentum 0.9); the
    teacher follows the student slowly and gives the answer. Where the source is unsure of a batch
    (mean top probability below `threshold`), the teacher's answer is the mean of its logits over
    augmented copies. After each step every weight returns to the source with a small chance.
    """

    uses_pixels = True
    _network: TorchNetwork
    _: KW_ONLY
    rate: float = 1e-4
    momentum: float = 0.999  # of the teacher
    num_augmented: int = 32
    threshold: float = 0.1
    restore: float = 0.001  # chance of a weight to return

    def __post_init__(self) -> None:
        self.reset()

    @property
    def cost(self) -> Cost:
        """Student, teacher and anchor once each, and the teacher's augmented copies."""
        forward = 3.0 + self.num_augmented * self._augmented / max(self._batches, 1)
        # Kept are student, teacher, anchor and momentum.
        trained = self._network.model.parameters()
        return trained_cost(trained, num_forward=forward, num_backward=1.0, copies=4)

    def predict(self, batch: Batch, /) -> Floats:
        """The teacher's answer before the step it teaches, (B, K)."""
        network, torch = self._network, self._network.torch
        pixels = network.pixels(batch)
        with torch.no_grad():
            anchored = network.logits(pixels, model=self._anchor)
            network.check_parity(anchored, batch)
            sure = float(torch.softmax(anchored, dim=1).max(dim=1).values.mean())
            taught = self._teach(pixels, unsure=sure < self.threshold)
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
        self._optimiser: Any = network.sgd(network.model.parameters(), rate=self.rate)
        self._random: Any = network.torch.Generator().manual_seed(0)
        self._batches = self._augmented = 0

    def _teach(self, pixels: Any, *, unsure: bool) -> Any:
        """The teacher's logits, averaged over augmented copies where the source is unsure."""
        network = self._network
        if not unsure:
            return network.logits(pixels, model=self._teacher)
        self._augmented += 1
        total = 0.0
        for _ in range(self.num_augmented):
            copies = augmented(pixels, torch=network.torch, random=self._random)
            total = total + network.logits(copies, model=self._teacher)
        return total / self.num_augmented

    def _follow(self) -> None:
        """Move the teacher towards the student, then return some weights to the source."""
        torch = self._network.torch
        students = self._network.model.parameters()
        with torch.no_grad():
            for teacher, student, anchor in zip(
                self._teacher.parameters(), students, self._anchor.parameters(), strict=True
            ):
                teacher.mul_(self.momentum).add_(student, alpha=1.0 - self.momentum)
                chance = torch.rand(student.shape, generator=self._random)
                student.copy_(torch.where(chance < self.restore, anchor, student))


TEMPERATURE = 1.0 / 3.0
PROBS_MOMENTUM = 0.9
LEAST_PROB = 1e-6


@dataclass(eq=False)
class Roid:
    """Robust test-time adaptation by the layer norms.

    A sample's weight grows with how sure the network is of it and with how far its prediction is
    from the running mean of all; samples nearer to that mean than the average are left out. The
    trained weights are drawn back to the source after each step. The answer is the softmax of the
    network's own logits; prior correction, which the published code multiplies onto the logits and
    which costs it its calibration, is left out.
    """

    uses_pixels = True
    _network: TorchNetwork
    _: KW_ONLY
    rate: float = 2.5e-4
    ensembling: float = 0.99  # what is kept of the trained weights after each step

    def __post_init__(self) -> None:
        self.reset()

    @property
    def cost(self) -> Cost:
        """Two forward passes and one backward pass through both; the norms three times."""
        return trained_cost(self._trained, num_forward=2.0, num_backward=2.0, copies=3)

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
        self._optimiser: Any = network.sgd(self._trained, rate=self.rate)
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
                parameter.mul_(self.ensembling).add_(source, alpha=1.0 - self.ensembling)


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

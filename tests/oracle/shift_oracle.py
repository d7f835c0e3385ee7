"""The shift of the logits in float64, one frame, class and timescale at a time, from its equations.

Every memory is a plain list of (frames ago, what was seen), so that forgetting is a weight that is
worked out anew each time. Nothing is shared with `gain_core` but the names of the settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from gain_oracle import OracleStep, log_softmax, row_answer

Floats = npt.NDArray[np.float64]


@dataclass
class Block:
    """Frames that may be accepted together: weight, x, s and q of each, and what they show."""

    frames: list[tuple[float, Floats, Floats, Floats]] = field(default_factory=list)
    skew: list[float] = field(default_factory=list)
    span: list[float] = field(default_factory=list)
    independent: float = 0.0


class ShiftOracle:
    """A stream's history; `config` has `ShiftConfig`'s names, `pair` is the skewness."""

    def __init__(
        self, num_classes: int, pair: tuple[float, float], config: Any, clean: Any = (0.0, 0.0)
    ) -> None:
        self.K, self.pair, self.config = num_classes, pair, config
        self.clean, self.clean_logs = (np.zeros(num_classes) + row for row in clean)
        self.now = 0
        self.seen: list[tuple[int, Floats, Floats]] = []  # the update's end, x, w of every frame
        self.steps: list[tuple[int, float]] = []
        self.blocks: list[tuple[int, Block, float]] = []  # accepted: when, and its draws
        self.open, self.unconfirmed = Block(), 0.0
        zeros = np.zeros(num_classes)
        self.shift, self.log_scale, self.log_prior = zeros, zeros, zeros
        self.variance = self.trust = self.confirmed = 0.0
        self.last: Floats | None = None

    def half_life(self, j: int) -> float:
        """Of the j-th timescale, 1 being the longer."""
        return self.config.half_life / self.config.timescale_ratio ** (1 - j)

    def kept(self, when: int, half_life: float) -> float:
        """Weight of what was learned at the end of the update at frame `when`."""
        return 0.5 ** ((self.now - when) / half_life)

    def predict(self, logits: npt.ArrayLike) -> OracleStep:
        """The prediction of every row of a batch; the state does not change."""
        shift, log_scale = self.trust * self.shift, self.confirmed * self.log_scale
        log_prior, rows = self.confirmed * self.log_prior, []
        for row in np.asarray(logits, dtype=np.float64):
            log_s = log_softmax(row)
            moved = self._moved(log_s - np.mean(log_s), shift, log_scale)
            flat = math.sqrt(1.0 + math.pi / 4.0 * self.variance)
            proposal, evaluator = moved + log_prior, moved / flat + log_prior
            rows.append(row_answer(log_s, log_s, log_softmax(proposal), log_softmax(evaluator)))
        return OracleStep(*(np.stack(column) for column in zip(*rows, strict=True)))

    def _moved(self, centered: Floats, shift: Any, log_scale: Any) -> Floats:
        """log q of a frame: scaled about what clean frames show."""
        rest = (centered - self.clean - shift) / np.exp(log_scale)
        return log_softmax(rest + self.clean)

    def update(self, logits: npt.ArrayLike) -> None:
        """Learn from the frames since the last update, under the state as it was."""
        rows = [log_softmax(row) for row in np.asarray(logits, dtype=np.float64)]
        reference, frames = self._reference(), []
        self.now += len(rows)
        for log_s in rows:
            x = log_s - np.mean(log_s) - self.clean
            s = np.exp(log_s)
            q = np.exp(self._moved(log_s - np.mean(log_s), self.shift, self.log_scale))
            frames.append((x, s, q))
            self.steps.append((self.now, 0.0 if self.last is None else half_square(x - self.last)))
            self.last = x
            self.seen.append((self.now, x, own(s, q)))
        ratio = self._ratio()
        config = self.config
        self.unconfirmed += len(rows) * min(ratio / config.block, 1.0 / config.patience)
        if reference is not None:  # the first frames give the reference only
            for frame in frames:
                self.open.frames.append((1.0, *frame))
                y = frame[0] - reference
                self.open.skew.append(float(np.max(y) + np.min(y)))
                self.open.span.append(float(np.max(y) - np.min(y)))
            self.open.independent += ratio * len(rows)
        self._judge()
        self._estimate()

    def _reference(self) -> Floats | None:
        """Mean of x over all frames before this update, at the shorter timescale."""
        if not self.seen:
            return None
        weights = [self.kept(when, self.half_life(0)) for when, _, _ in self.seen]
        return weighted_mean(weights, [x for _, x, _ in self.seen])

    def _ratio(self) -> float:
        """Von Neumann's, at the longer timescale."""
        weights = np.array([self.kept(when, self.half_life(1)) for when, _, _ in self.seen])
        x = np.stack([x for _, x, _ in self.seen])
        mean = np.sum(weights[:, None] * x, axis=0) / np.sum(weights)
        scatter = float(np.sum(weights[:, None] * (x - mean) ** 2))
        steps = float(np.sum(weights * np.array([step for _, step in self.steps])))
        return min(max(steps / max(scatter, 1e-9), 0.01), 1.0)

    def _judge(self) -> None:
        """Accept the open block where it shows a mixture; forget half of one that does not."""
        block, config, (one, mixture) = self.open, self.config, self.pair
        if not block.frames:
            return
        weights = [frame[0] for frame in block.frames]
        corrected, source = (
            self._draws(np.average([f[part] for f in block.frames], axis=0, weights=weights))
            for part in (3, 2)
        )
        many = corrected >= config.min_classes and source >= config.min_classes / 2.0
        span, skew = (np.average(part, weights=weights) for part in (block.span, block.skew))
        variance = np.average((np.array(block.skew) - skew) ** 2, weights=weights)
        errors = math.sqrt(variance / max(block.independent, 1.0))
        beyond = skew - one * span
        skewed = beyond >= config.min_skewness * (mixture - one) * span
        skewed = skewed and beyond >= config.standard_errors * errors
        if many and skewed and block.independent >= config.block:
            self.blocks.append((self.now, block, corrected))
            self.open, self.unconfirmed = Block(), 0.0
        elif block.independent >= config.patience:
            block.frames = [(weight / 2.0, *frame) for weight, *frame in block.frames]
            block.independent /= 2.0

    def _draws(self, share: Floats) -> float:
        """Effective number of draws of a class, from the classes' shares."""
        excess = float(np.sum(share**2)) - 1.0 / self.K
        return 1.0 / max(excess, 1.0 / max(self.open.independent, 1.0))

    def _moments(self, j: int) -> tuple[Floats, Floats, float]:
        """Mean and variance of each class over frames that are not its own, and draws."""
        half_life, weights, values = self.half_life(j), [], []
        for when, block, _ in self.blocks:
            for weight, x, s, q in block.frames:
                weights.append(self.kept(when, half_life) * weight * own(s, q))
                values.append(x)
        mean = weighted_mean(weights, values)
        square = weighted_mean(weights, [(x - mean) ** 2 for x in values])
        return mean, square, sum(d * self.kept(when, half_life) for when, _, d in self.blocks)

    def _estimate(self) -> None:
        """Shift, scale, prior and how much of them is believed."""
        if not self.blocks:
            return
        K, moments = self.K, [self._moments(j) for j in range(2)]
        held = [
            (self.kept(when, self.half_life(1)) * weight, q)
            for when, block, _ in self.blocks
            for weight, _, _, q in block.frames
        ]
        share = weighted_mean([weight for weight, _ in held], [q for _, q in held])
        total = sum(weight for weight, _ in held)
        sharp = sum(weight * float(np.sum(q**2)) for weight, q in held) / total - 1.0 / K
        excess, sharp = float(np.sum(share**2)) - 1.0 / K, max(sharp, 1e-9)
        shift, log_scale, variance = np.zeros(K), np.zeros(K), 0.0
        scatter = float(np.sum(moments[1][1]))
        for j in (1, 0):
            mean, square, draws = moments[j]
            error, log_error = (
                max(excess / divisor, 1.0 / max(draws, 1e-9)) for divisor in (sharp, sharp**2)
            )
            move = mean - np.mean(mean) - shift
            kept = stein(move, scatter * error)
            if j == 1:
                variance = scatter * error / K
            variance = variance + kept * (scatter * error / K - variance)
            shift = shift + kept * move
            logs = 0.5 * np.log(np.maximum(square, 1e-6 * np.mean(square)))
            move = logs - np.mean(logs) - self.clean_logs - log_scale
            log_scale = log_scale + stein(move, 0.5 * K * log_error) * move
        self.shift, self.log_scale, self.variance = shift, log_scale, variance
        weights = [self.kept(when, self.config.recent) * w for when, _, w in self.seen]
        newest = weighted_mean(weights, [x for _, x, _ in self.seen])
        agreement = float((newest - np.mean(newest)) @ shift) / max(float(shift @ shift), 1e-9)
        self.confirmed = min(max(2.0 - self.unconfirmed, 0.0), 1.0)
        self.trust = self.confirmed * min(max(agreement, 0.0), 1.0)
        away = share - 1.0 / K
        prior = 1.0 / K + stein(away, 1.0 / moments[1][2] + 0.05 / K) * away
        log_prior = np.log(np.clip(prior, 0.5 / K, 2.0 / K))
        self.log_prior = log_prior - np.mean(log_prior)


def own(s: Floats, q: Floats) -> Floats:
    """How far a frame is not a class's own, of every class."""
    return 1.0 - np.minimum(s, q)


def half_square(step: Floats) -> float:
    return 0.5 * float(np.sum(step**2))


def weighted_mean(weights: list[Any], values: list[Floats]) -> Floats:
    """Of each class, over frames; a weight is one number, or one of each class."""
    total = sum(np.maximum(weight, 0.0) for weight in weights)
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / total


def stein(move: Floats, noise: float) -> float:
    """James and Stein's shrinkage: the share of a move that is kept."""
    return max(0.0, 1.0 - noise / max(float(np.sum(move**2)), 1e-9))

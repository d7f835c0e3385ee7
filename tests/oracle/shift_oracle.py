"""GAIN with a tracked shift and its guard in slow float64 NumPy: what the fast code is held to.

Every frame is kept, with the number of frames learned after it; each sum is taken anew over all
of them, a frame of age t weighing 2^(-t / half-life). Nothing decays in place and nothing is
shared with `gain_core` but the settings' names. A batch that was rejected is a `None` among those
to learn from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gain_oracle import OracleStep, along_path, floored, log_softmax, root_of_slope

__all__ = ["ASYMMETRY", "DEVIATIONS", "MEANS", "ShiftOracle"]

Floats = npt.NDArray[np.float64]

NUM_WINDOWS = 5
# Each memory is three times as long as the one before it, and frames lean about the third's mean.
RATIO = 3.0
LEANT_ON = 2
# Squared lengths below this are told from zero by nobody.
LEAST_POWER = 1e-9
LEAST_SPREAD = 0.25
# Share of the scatter that a mean's square must reach for labels to explain all they can of it.
LABELS_POWER = 0.5

# Asymmetry of one class and of all, where it was not measured, and how far apart they must be.
ASYMMETRY = (0.06, 0.5)
LEAST_GAP = 0.02
# How few classes labels are of, 0 to 1, where they are of many for sure and where they are not; how
# many frames that takes; the asymmetry of these where it is believed not at all and wholly; what a
# single class has of it.
SPREAD = (0.02, 0.03)
SURE = 100.0
BELIEVED = (0.1, 0.15)
OF_ONE = 0.3
# Before, where labels are of many classes and where of few, what a single class is taken to have.
GUESSED = (0.05, 0.1)
LEAST_OF_ONE = 0.02
# Shares of the way between the two where a memory begins to be a mixture, and where it is one: for
# the means, and, more strictly, for the deviations.
MEANS = (0.12, 0.22)
DEVIATIONS = (0.25, 0.45)
# Half the mean square of the steps over the variance: a frame says much of the next, nothing.
STEPS = (0.65, 0.8)
# For the classes to be counted; how much longer their shares last; what equal shares differ by, in
# units of 1/K; the power of the shares, and what a share is bounded by.
COUNTED = (0.4, 0.6)
# The memory whose labels are asked whether they are few: more than twice what chance leaves of a
# mixture's, and so much over K.
NEWEST = 1
ERRING = 0.8
# What the newest means are compared with; squared moves, over the scatter and over the move beside
# the head's rows, where classes begin to have changed and where they have; how many random
# directions that is seen in, and where there is no room for them; how many times fewer classes than
# of a mixture keep one class there.
MOVED_FROM = 3
MOVES = (0.1, 0.2)
BESIDE = (1.6, 2.0)
DIRECTIONS = 64
LEAST_ROOM = 16
ROUNDING = 1e-4
KEEPS = 3.0
SHARES_LAST = 4.0
EQUAL_SHARES = 0.05
SHARES_POWER = 2.0
SHARES_WITHIN = (0.5, 2.0)
# The share of the shrinkage that independent frames do without.
SLACK = 0.2
# Memories that move the means, and the deviations, only as far as frames are independent.
HASTY_MEANS = (0, 1)
HASTY_DEVIATIONS = (2,)
# Variance of the logarithm of a deviation over one draw, and the memories that are asked for it.
LOG_DEVIATION_VARIANCE = 1.5
DEVIATION_WINDOWS = (4, 3, 2)
# Least variance of a class in units of the classes' mean, and least square of a row's length.
LEAST_SHARE = 1e-6

GUARD_HALF_LIFE = 256.0
GUARD_LEAST_FRAMES = 256.0
GUARD_LEAST_RATIO = 0.2
HOLDS = (256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


@dataclass
class Frame:
    """What one frame leaves behind; `born` is how many frames were learned when it was.

    `p` is the proposal without the prior. `lean` and `range` are of the frame about the mean of
    what came before it, 0 where nothing did. `step` is half the squared distance to the frame that
    it follows, `follows` 1 if it follows one. `counted` is how far its label counts among the
    classes' shares. `beside` are its features in random directions that the head does not read.
    """

    born: int
    x: Floats
    p: Floats
    zeta: float
    own: float
    power: float
    lean: float
    range: float
    step: float
    follows: float
    counted: float
    beside: Floats
    s: Floats


class Columns(NamedTuple):
    """Of all frames, one row each."""

    x: Floats
    p: Floats
    s: Floats
    zeta: Floats
    own: Floats
    power: Floats
    lean: Floats
    range: Floats
    step: Floats
    follows: Floats
    counted: Floats
    beside: Floats


class Window(NamedTuple):
    """Sums over all frames in one memory: x^2 is by class."""

    count: float
    x: Floats
    powers: Floats
    mass: Floats
    lean: float
    range: float
    beside: Floats
    beside_power: float


@dataclass
class Watched:
    """What the guard keeps of one frame."""

    born: int
    agreed: float
    confidence: float


class ShiftOracle:
    """One stream: a step is a prediction of every row, learning from all of them, and a revision.

    `config` is anything with `GainConfig`'s attributes.
    """

    def __init__(
        self,
        prototypes: npt.ArrayLike,
        config: Any,
        *,
        bias: npt.ArrayLike | None = None,
        asymmetry: tuple[float, float] | None = None,
    ) -> None:
        c = np.asarray(prototypes, dtype=np.float64)
        if config.normalise:
            c = np.stack([row / np.linalg.norm(row) for row in c])
        self.config = config
        middle = np.sum(c, axis=0) / len(c)
        self.c = np.stack([row - middle for row in c])
        self.K = len(c)
        self.power = [float(np.dot(row, row)) for row in self.c]
        self.measured = asymmetry is not None
        self.single, mixed = asymmetry or ASYMMETRY
        self.mixed = max(mixed, self.single + LEAST_GAP)
        self.learned_asymmetry = 0.0
        self.log_lengths = _less_mean(_log_roots(np.array(self.power), least=0.0))
        self.thresholds = np.zeros(self.K)
        if bias is not None:
            self.thresholds = self._thresholds(_less_mean(np.asarray(bias, dtype=np.float64)))
        self.directions = self._directions()
        self.departure = 0.0
        self.learned = 0
        self.frames: list[Frame] = []
        self.watched: list[Watched] = []
        self.hold, self.trips = 0.0, 0
        self.last: Floats | None = None
        self.columns: Columns | None = None
        self.windows = [self._window(window) for window in range(NUM_WINDOWS)]
        self._nothing()

    def _nothing(self) -> None:
        """No shift, no stretch."""
        self.beta, self.v, self.trust, self.iota = np.zeros(self.K), 0.0, 0.0, 0.0
        self.stretch, self.log_prior = np.ones(self.K), np.zeros(self.K)

    def _thresholds(self, bias: Floats) -> Floats:
        """The part of the bias along -|c_k|^2 / 2, if it points that way."""
        direction = _less_mean(np.array([-0.5 * power for power in self.power]))
        length = float(np.dot(direction, direction))
        along = float(np.dot(bias, direction)) / length if length > 0 else 0.0
        return max(along, 0.0) * direction

    def _directions(self) -> Floats:
        """Random directions (D, M) without what the head's rows span."""
        dims = self.c.shape[1]
        if dims - (self.K - 1) < LEAST_ROOM:
            return np.zeros((dims, DIRECTIONS))
        signs = 2.0 * np.random.RandomState(0).randint(0, 2, size=(dims, DIRECTIONS)) - 1.0
        _, lengths, basis = np.linalg.svd(self.c, full_matrices=False)
        for row in basis[lengths > 1e-6 * max(lengths)]:
            signs = signs - np.outer(row, row @ signs)
        return signs / math.sqrt(DIRECTIONS)

    def step(
        self,
        logits: npt.ArrayLike,
        *waiting: OracleStep | None,
        features: npt.ArrayLike | None = None,
    ) -> OracleStep:
        """Predict one batch, learn from it and what waited before it, and predict it once more.

        The second time by the guard as it is then, and by a shift on the way to the new one, as
        far along it as frames are independent. Where that is never tested, the first prediction
        stands.
        """
        first = self.predict(logits, features)
        beta, stretch, log_prior, v = self.beta, self.stretch, self.log_prior, self.v
        self.update(*waiting, first)
        if not self._tests_steps():
            return first
        after = self.beta, self.stretch, self.log_prior, self.v
        self.beta = self.iota * self.beta + (1.0 - self.iota) * beta
        self.stretch = self.iota * self.stretch + (1.0 - self.iota) * stretch
        self.log_prior = self.iota * self.log_prior + (1.0 - self.iota) * log_prior
        self.v = self.iota * self.v + (1.0 - self.iota) * v
        second = self.predict(logits)
        self.beta, self.stretch, self.log_prior, self.v = after
        return second

    def predict(self, logits: npt.ArrayLike, features: npt.ArrayLike | None = None) -> OracleStep:
        """The prediction of every row of a batch; the state does not change."""
        rows = [self._predict_row(log_softmax(row)) for row in np.asarray(logits, dtype=np.float64)]
        given = None if features is None else np.asarray(features, dtype=np.float64)
        return OracleStep(*(np.stack(column) for column in zip(*rows, strict=True)), given)

    def _predict_row(self, log_s: Floats) -> Sequence[Any]:
        log_proposal = log_softmax(self._unshifted(log_s) + self.log_prior)
        # Two entries of the shift differ by a variance of 2 v; Gaussian logits of variance w are
        # averaged by dividing them by sqrt(1 + pi w / 8).
        averaged = log_proposal / math.sqrt(1.0 + math.pi * 2.0 * self.v / 8.0)
        log_evaluator = log_softmax(averaged + self.log_prior)
        if not self._proposes():
            nothing = np.zeros(self.K)
            return np.exp(log_s), log_s, 0.0, 0.0, log_s, nothing, log_proposal, log_evaluator
        log_start = floored(log_s, self.config.prob_floor)
        xi = floored(log_proposal, self.config.prob_floor) - log_start
        gain = float(np.sum(np.exp(log_evaluator) * xi))
        strength = root_of_slope(log_start, xi, gain)
        log_p = log_s if strength == 0.0 else along_path(log_start, xi, strength)
        return np.exp(log_p), log_p, strength, gain, log_s, xi, log_proposal, log_evaluator

    def _unshifted(self, log_s: Floats) -> Floats:
        """The source's logits without the shift, their deviations matched."""
        return (_less_mean(log_s) - self.beta) * self.stretch

    def _proposes(self) -> bool:
        """Whether there is a correction, and no guard that holds it."""
        moved = np.any(self.beta) or np.any(self.stretch != 1.0) or np.any(self.log_prior)
        return bool(moved) and not self.hold > 0

    def update(self, *results: OracleStep | None) -> None:
        """Learn from batches that were predicted against the state as it stands."""
        num_frames = sum(len(result.probs) for result in results if result is not None)
        # The state's mean, which knows none of the frames to come.
        known = self.window_sums(LEANT_ON)
        mean = known.x / known.count if known.count > 0 else None
        counted = self._counted()
        self.learned += num_frames
        for result in results:
            if result is None:
                self.last = None
                continue
            beside = self._beside(result)
            for p, log_s, u in zip(result.probs, result.source_log_probs, beside, strict=True):
                self._remember(p, log_s, mean, counted, u)
        self._guard(num_frames)
        self.columns = _columns(self.frames) if self.frames else None
        self.windows = [self._window(window) for window in range(NUM_WINDOWS)]
        self.learned_asymmetry = self._learned_asymmetry()
        self.departure = self._departure(num_frames)
        self._estimate()

    def _beside(self, result: OracleStep) -> Floats:
        """The batch's features in the random directions; nothing of another number of features."""
        rows = result.features
        if rows is None or rows.shape[1] != len(self.directions):
            return np.zeros((len(result.probs), DIRECTIONS))
        if self.config.normalise:
            rows = np.stack([row / np.linalg.norm(row) for row in rows])
        return rows @ self.directions

    def _remember(
        self, p: Floats, log_s: Floats, mean: Floats | None, counted: float, beside: Floats
    ) -> None:
        """Keep what one frame leaves behind, for the sums and for the guard."""
        answered, source = int(np.argmax(p)), int(np.argmax(log_s))
        # A prior that learned from what it said itself would confirm itself.
        if self._expects_classes():
            p = np.exp(log_softmax(self._unshifted(log_s)) if self._proposes() else log_s)
        k = int(np.argmax(p))
        x = _less_mean(log_s)
        own, zeta = float(x[k] - self.beta[k]), math.exp(log_s[k])
        lean, span = _lean_and_range(x, mean)
        step = 0.0 if self.last is None else float(np.sum((x - self.last) ** 2)) / 2.0
        steps = (step, float(self.last is not None))
        others = (lean, span, *steps, counted, beside, np.exp(log_s))
        self.frames.append(Frame(self.learned, x, p, zeta, own, self.power[k], *others))
        self.last = x
        agreed = float(answered == source)
        self.watched.append(Watched(self.learned, agreed, math.exp(log_s[source])))

    def _guard(self, num_frames: int) -> None:
        """Count a hold down, or test the agreement and begin one."""
        if not self.config.guard:
            self.watched = []
            return
        if self.hold > 0:
            self.hold = max(self.hold - num_frames, 0.0)
            self.watched = []
            return
        count, agreement, confidence = self.guard_sums()
        beyond_chance = agreement - count / self.K
        expected = GUARD_LEAST_RATIO * (confidence - count / self.K)
        if count >= GUARD_LEAST_FRAMES and beyond_chance < expected:
            self.hold = HOLDS[min(self.trips, len(HOLDS) - 1)]
            self.trips += 1
            self.frames, self.watched = [], []

    def guard_sums(self) -> tuple[float, float, float]:
        """Frames, agreements and confidence, each decayed."""
        weights = self._weights(self.watched, GUARD_HALF_LIFE)
        agreed = np.array([frame.agreed for frame in self.watched])
        confidence = np.array([frame.confidence for frame in self.watched])
        return np.sum(weights), np.sum(weights * agreed), np.sum(weights * confidence)

    def window_sums(self, window: int) -> Window:
        """Of the memory that halves at half_life / 3^(4-j), as of the last update."""
        return self.windows[window]

    def _window(self, window: int) -> Window:
        """All frames, each with its weight."""
        if self.columns is None:
            nothing = np.zeros(self.K)
            return Window(0.0, nothing, nothing, nothing, 0.0, 0.0, np.zeros(DIRECTIONS), 0.0)
        weights = self._weights(self.frames, self._half_life(window))
        of = self.columns
        lean, span = float(weights @ of.lean), float(weights @ of.range)
        logits = (np.sum(weights), weights @ of.x, weights @ of.x**2, weights @ of.p)
        beside, power = weights @ of.beside, float(np.sum(weights @ of.beside**2))
        return Window(*logits, lean, span, beside, power)

    def source_sums(self) -> Floats:
        """What the source says of the newest frames."""
        if self.columns is None:
            return np.zeros(self.K)
        return self._weights(self.frames, self._half_life(NEWEST)) @ self.columns.s

    def _half_life(self, window: int) -> float:
        """Of a memory, in frames."""
        return float(self.config.half_life) / RATIO ** (NUM_WINDOWS - 1 - window)

    def _departure(self, num_frames: int) -> float:
        """How surely one class has come after a mixture, now that so many frames were learned."""
        if not self.frames or not self._tests_steps():
            return 0.0
        newest, before = self.window_sums(NEWEST), self.window_sums(MOVED_FROM)
        move, _, _ = _moved_by(newest.x, before.x, newest, before, np.sum(before.powers))
        powers = before.beside_power
        beside, scatter, length = _moved_by(newest.beside, before.beside, newest, before, powers)
        changed = 0.0
        if scatter > ROUNDING * length:
            changed = _ramp(move, MOVES) * _ramp(move / max(beside, LEAST_POWER), BESIDE)
        q = self.source_sums() / newest.count
        mixed = 1.0 / newest.count + ERRING / self.K
        few = min(max(KEEPS * (float(np.dot(q, q)) - 1.0 / self.K) / mixed - 1.0, 0.0), 1.0)
        left = max(few, 0.5 ** (num_frames / self._half_life(NEWEST)))
        _, counted = self.share_sums()
        known = min(counted / self.config.half_life, 1.0)
        return max(changed * few * known, self.departure * (1.0 - changed * (1.0 - few)) * left)

    def _learned_asymmetry(self) -> float:
        """The most that frames of many classes have leant, since the guard forgot them all."""
        if not self.frames or not self._tests_mixtures():
            return 0.0
        sums = self.window_sums(LEANT_ON)
        few = _few_classes(sums.mass / sums.count)
        sure = (1.0 - _ramp(few, SPREAD)) * min(sums.count / SURE, 1.0)
        return max(self.learned_asymmetry, sure * self.asymmetry(LEANT_ON))

    def scale_sums(self) -> tuple[float, float]:
        """Numerator and denominator of own = a |c_k|^2 fitted with the weights zeta."""
        weights = self._weights(self.frames, self.config.scale_half_life)
        assert self.columns is not None
        weights, power = weights * self.columns.zeta, self.columns.power
        return np.sum(weights * power * self.columns.own), np.sum(weights * power**2)

    def share_sums(self) -> tuple[Floats, float]:
        """Proposals and frames, as far as their labels count."""
        assert self.columns is not None
        weights = self._weights(self.frames, SHARES_LAST * self.config.half_life)
        weights = weights * self.columns.counted
        return weights @ self.columns.p, float(np.sum(weights))

    def step_sums(self) -> tuple[float, float]:
        """Halves of the squared steps between frames that follow one another, and how many."""
        weights = self._weights(self.frames, self.config.half_life)
        assert self.columns is not None
        return float(weights @ self.columns.step), float(weights @ self.columns.follows)

    def _weights(self, frames: Sequence[Frame | Watched], half_life: float) -> Floats:
        """2^(-age / half_life) of each."""
        ages = np.array([self.learned - frame.born for frame in frames], dtype=np.float64)
        return 0.5 ** (ages / half_life)

    def _estimate(self) -> None:
        """iota; beta, v and trust from the longest memory to the shortest; and the stretch."""
        self._nothing()
        if not self.frames:
            return
        self.iota = self._independence()
        numerator, denominator = self.scale_sums()
        a = max(numerator / max(denominator, LEAST_POWER), 0.0)
        margin = (1.0 - self.iota * SLACK) * self.config.shrinkage
        for window in reversed(range(NUM_WINDOWS)):
            moved, spread, draws = self._moved(window, a)
            step = moved - self.beta
            power = float(np.dot(step, step))
            alike = 1.0 - spread / max(LEAST_SPREAD * power, LEAST_POWER)
            inverse_draws = max(draws, self._one_class(window))
            noise = (spread + power) * max(inverse_draws, alike)
            kept = max(1.0 - margin * noise / max(power, LEAST_POWER), 0.0)
            kept *= self.iota if window in HASTY_MEANS else 1.0
            if window == NUM_WINDOWS - 1:
                self.v = noise / self.K
            self.v = (1.0 - kept) * self.v + kept * noise / self.K
            self.beta = self.beta + kept * step
            self.trust = 1.0 - (1.0 - self.trust) * (1.0 - kept)
        if self.config.match_scale:
            self.stretch = self._stretch()
        if self._expects_classes():
            many = 1.0 - self._one_class(NUM_WINDOWS - 1)
            self.log_prior = self.iota * many * self._log_shares()

    def _expects_classes(self) -> bool:
        """Whether there is ever a prior."""
        return bool(self.config.class_prior) and self._tests_steps()

    def _counted(self) -> float:
        """How surely the shortest memory shows many classes, so that labels can be counted."""
        if not (self._expects_classes() and self.frames):
            return 0.0
        return 1.0 - self.single_class(0, *COUNTED)

    def _log_shares(self) -> Floats:
        """Logarithms of K q, shrunk towards equal shares and to a power."""
        mass, count = self.share_sums()
        if count == 0.0:
            return np.zeros(self.K)
        excess = mass / count - 1.0 / self.K
        noise = 1.0 / count + EQUAL_SHARES / self.K
        kept = max(1.0 - noise / max(float(np.dot(excess, excess)), LEAST_POWER), 0.0)
        least, most = SHARES_WITHIN
        shares = [min(max(1.0 + self.K * kept * entry, least), most) for entry in excess]
        return np.array([SHARES_POWER * math.log(share) for share in shares])

    def _tests_mixtures(self) -> bool:
        """Whether one class is told from many at all."""
        return bool(self.config.mixture_test) and self.K >= 3

    def _tests_steps(self) -> bool:
        """Whether frames can ever be independent."""
        return bool(self.config.independence_test) and self._tests_mixtures()

    def _independence(self) -> float:
        """How far frames say nothing of those that follow: their steps over the variance."""
        power, count = self.step_sums()
        if not self._tests_steps() or count == 0.0:
            return 0.0
        _, spread, _, _ = self._moments(NUM_WINDOWS - 1)
        begins, ends = STEPS
        way = (power / count / max(spread, LEAST_POWER) - begins) / (ends - begins)
        return min(max(way, 0.0), 1.0)

    def asymmetry(self, window: int) -> float:
        """The least of lean / range over this memory and all longer ones."""
        longer = [self.window_sums(other) for other in range(window, NUM_WINDOWS)]
        return min(sums.lean / max(sums.range, LEAST_POWER) for sums in longer)

    def single_class(self, window: int, begins: float, ends: float) -> float:
        """How surely the frames are of one class: 1 up to `begins`, 0 from `ends` on."""
        if not self._tests_mixtures():
            return 0.0
        single, mixed = self.single, self.mixed
        if not self.measured:
            believed = _ramp(self.learned_asymmetry, BELIEVED)
            single = self._guessed(single)
            single = (1.0 - believed) * single + believed * OF_ONE * self.learned_asymmetry
            mixed = (1.0 - believed) * mixed + believed * self.learned_asymmetry
        way = (self.asymmetry(window) - single) / (mixed - single)
        return 1.0 - min(max((way - begins) / (ends - begins), 0.0), 1.0)

    def _guessed(self, most: float) -> float:
        """What a single class has, by how few classes the source's newest labels are of."""
        if not self.frames:
            return LEAST_OF_ONE
        count = self.window_sums(NEWEST).count
        few = _few_classes(self.source_sums() / count) - 1.0 / count
        return LEAST_OF_ONE + _ramp(few, GUESSED) * (most - LEAST_OF_ONE)

    def _one_class(self, window: int) -> float:
        """How surely a memory's mean is of one class, by its scatter and by the newest labels."""
        seen_now = self._few() * self.single_class(NEWEST, *MEANS)
        seen_now = self.iota * max(seen_now, self.departure)
        return max(self.single_class(window, *MEANS) * (1.0 - self._hidden()), seen_now)

    def _few(self) -> float:
        """How surely the newest labels are of few classes."""
        _, _, _, diversity = self._moments(NEWEST)
        mixed = 1.0 / self.window_sums(NEWEST).count + ERRING / self.K
        return min(max(diversity - mixed, 0.0), mixed) / mixed

    def _hidden(self) -> float:
        """How surely an even scatter hides a mixture, of which enough frames were counted."""
        _, counted = self.share_sums()
        return self.iota * (1.0 - self._few()) * min(counted / self.config.half_life, 1.0)

    def _stretch(self) -> Floats:
        """exp(-z) for log deviations z beyond the head's own, the logits' power as it was."""
        z = np.zeros(self.K)
        for window in DEVIATION_WINDOWS:
            variances, inverse_draws = self._deviations(window)
            logs = self._beyond(_less_mean(_log_roots(variances)), self.log_lengths)
            power = max(float(np.dot(logs - z, logs - z)), LEAST_POWER)
            noise = LOG_DEVIATION_VARIANCE * self.K * inverse_draws
            kept = max(1.0 - self.config.shrinkage * noise / power, 0.0)
            kept *= self.iota if window in HASTY_DEVIATIONS else 1.0
            z = z + kept * (logs - z)
        variances, _ = self._deviations(NUM_WINDOWS - 1)
        variances = _at_least(variances)
        after = sum(variances[k] * math.exp(-2.0 * z[k]) for k in range(self.K))
        return np.exp(-z) * math.sqrt(np.sum(variances) / after)

    def _deviations(self, window: int) -> tuple[Floats, float]:
        """Variances of the classes' logits, and 1 / n_eff of them."""
        mean, _, _, diversity = self._moments(window)
        scattering = self.single_class(window, *DEVIATIONS) * (1.0 - self._hidden())
        certain = max(diversity, self._one_class(window), scattering)
        views, sums = self._views(), self.window_sums(window)
        return sums.powers / sums.count - mean**2, views * max(certain, 1.0 - 1.0 / views)

    def _views(self) -> float:
        """How much smaller than a quarter of its mean's square the least scatter is; 1 or more."""
        found = 1.0
        for window in range(NUM_WINDOWS):
            mean, spread, _, _ = self._moments(window)
            length = float(np.dot(mean, mean))
            found = max(found, LEAST_SPREAD * length / max(spread, LEAST_POWER))
        return found

    def _moments(self, window: int) -> tuple[Floats, float, Floats, float]:
        """Mean logits, the spread about them, the shares q of the classes, 1 / n_eff by those."""
        sums = self.window_sums(window)
        mean, q = sums.x / sums.count, sums.mass / sums.count
        spread = max(float(np.sum(sums.powers)) / sums.count - float(np.dot(mean, mean)), 0.0)
        return mean, spread, q, max(float(np.dot(q, q)) - 1.0 / self.K, 1.0 / sums.count)

    def _moved(self, window: int, a: float) -> tuple[Floats, float, float]:
        """Mean logits less what the classes seen explain, the spread about them, 1 / n_eff."""
        mean, spread, q, diversity = self._moments(window)
        mean_prototype = sum((q[k] - 1.0 / self.K) * self.c[k] for k in range(self.K))
        explained = np.array([a * float(np.dot(self.c[k], mean_prototype)) for k in range(self.K)])
        weight = min(self.config.label_draws * diversity, 1.0)
        weight *= min(float(np.dot(mean, mean)) / max(LABELS_POWER * spread, LEAST_POWER), 1.0)
        moved = self._beyond(mean - weight * explained, self.thresholds)
        return moved, spread, diversity

    def _beyond(self, row: Floats, pattern: Floats) -> Floats:
        """Less as much of the head's own pattern as the row holds, none to all of it."""
        length = float(np.dot(pattern, pattern))
        along = float(np.dot(row, pattern)) / max(length, LEAST_POWER)
        return row - min(max(along, 0.0), 1.0) * pattern


def _columns(frames: Sequence[Frame]) -> Columns:
    """Once for all sums of an update."""
    return Columns(*(np.array([getattr(f, name) for f in frames]) for name in Columns._fields))


def _lean_and_range(x: Floats, mean: Floats | None) -> tuple[float, float]:
    """Sum and difference of the highest and the lowest of x about the mean."""
    if mean is None:
        return 0.0, 0.0
    highest, lowest = max(x - mean), min(x - mean)
    return float(highest + lowest), float(highest - lowest)


def _moved_by(
    first: Floats, second: Floats, newest: Window, before: Window, power: float
) -> tuple[float, float, float]:
    """Squared distance of two means over the scatter, less chance's; the scatter; |mean|^2."""
    mean = second / before.count
    length = float(np.dot(mean, mean))
    scatter = max(power / before.count - length, 0.0)
    step = first / newest.count - mean
    moved = float(np.dot(step, step)) / max(scatter, LEAST_POWER)
    return moved - 1.0 / newest.count, scatter, length


def _few_classes(q: Floats) -> float:
    """0 where all are alike, 1 where there is one."""
    return (float(np.dot(q, q)) - 1.0 / len(q)) / (1.0 - 1.0 / len(q))


def _ramp(value: float, ends: tuple[float, float]) -> float:
    """From 0 at the first of them to 1 at the second."""
    return min(max((value - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0)


def _at_least(squares: Floats, least: float = LEAST_POWER) -> Floats:
    """None of them next to nothing beside the others."""
    return np.maximum(squares, max(LEAST_SHARE * np.sum(squares) / len(squares), least))


def _log_roots(squares: Floats, least: float = LEAST_POWER) -> Floats:
    """Logarithms of the square roots; all alike where all are zero."""
    squares = _at_least(squares, least)
    return np.array([0.5 * math.log(square) if square > 0 else 0.0 for square in squares])


def _less_mean(row: Floats) -> Floats:
    """What a softmax sees of it."""
    return row - np.sum(row) / len(row)

"""The shift of the logits, read from the frames that are not a class's own.

A domain moves the logit of a class on every frame, a frequent class only on its own. So the shift
of a class is read from frames of others, in blocks that show many classes by their labels and by
their skewness. It is taken out as far as it stands out of its sampling error, the newest frames
still show it and a block has just confirmed it; else the source answers. The derivation is in
`docs/explanation/method.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device, is_numpy_namespace

from gain_core._arrays import (
    Array,
    Namespace,
    any_of,
    choose,
    detached,
    float_like,
    log_softmax,
    matrix_like,
    max_of,
    min_of,
    namespace,
    refuse_below_two,
    softmax,
    sum_of,
)
from gain_core.method import Posteriors, Prediction, all_finite, answer, quiet
from gain_core.records import arrays_of, refuse_foreign
from gain_core.shift.clean import (
    DEFAULT_SKEWNESS,
    EPS,
    MIN_SEPARATION,
    checked_moments,
    checked_pair,
    james_stein,
    log_deviations,
    one_over_draws,
    skewness_of_head,
)
from gain_core.shift.config import ShiftConfig

NUM_TIMESCALES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftEvidence:
    """Sums over the frames since the last update.

    x are logits less their mean over classes, and less their clean mean where it is known.

    Attributes
    ----------
    count : array, ()
    sums : array, (5, K)
        Of w, w x, w x^2, q and s: q is the source less its shift, and w = 1 - min(s, q) how far a
        frame is not a class's own. A class that is there is called so by both; one that the weather
        puts everywhere by s alone, and one that a correction talks itself into by q alone.
    logits, last : array, (K,)
        Sum of x, and the newest x.
    scatter : array, (6,)
        Sums of a = max y + min y, max y - min y, y = x - the reference mean, |q|^2, a^2, |x|^2 and
        |x - x'|^2 / 2, x' being the frame before. The first four are 0 without a reference.
    """

    count: Array
    sums: Array
    logits: Array
    last: Array
    scatter: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftState:
    """What was learned; zeros before the first frame. J timescales, the longest last.

    Attributes
    ----------
    draws, memory : array, (J,) and (3, J, K)
        Of the accepted blocks: effective number of draws of a class, and the first three of
        `ShiftEvidence.sums`, each timescale forgetting at its own rate.
    labels, label_facts : array, (K,) and (2,)
        Sum of q over them at the longest timescale; their frames, and sum of |q|^2.
    block, block_facts : array, (5, K) and (6,)
        Sums over the open block, its frames, independent frames, and the first four of `scatter`.
    unconfirmed : array, ()
        Frames since a block was accepted, in units of what a block may take.
    recent : array, (2, K)
        Sums of w and w x over all frames, at the half-life `recent`.
    reference_count, reference_logits : array, () and (K,)
        Over all frames at the shortest timescale; their mean is what skewness is taken about.
    all_facts, all_logits : array, (3,) and (K,)
        Over all frames at the longest timescale: count, |x|^2, |x - x'|^2 / 2; x.
    last : array, (K,)
        The newest x.
    shift, log_scale, log_prior : array, (K,)
        Derived: what is taken out of x; what the rest is divided by, in logs; prior on classes.
    variance : array, ()
        Derived: of one entry of the shift.
    trust, confirmed : array, ()
        Derived: the shares of the shift, and of scale and prior, that predictions take.
    """

    draws: Array
    memory: Array
    labels: Array
    label_facts: Array
    block: Array
    block_facts: Array
    unconfirmed: Array
    recent: Array
    reference_count: Array
    reference_logits: Array
    all_facts: Array
    all_logits: Array
    last: Array
    shift: Array
    log_scale: Array
    log_prior: Array
    variance: Array
    trust: Array
    confirmed: Array


class Shift:
    """The default method. It reads logits only.

    Parameters
    ----------
    head_or_num_classes : array, (K, D) floating, or int
        The head's weight, of which the skewness is guessed where none is given; or K.
    config : ShiftConfig, optional
    skewness : pair of float, optional
        Of the source's logits on clean frames of one class, and of many.
    clean_moments : array or sequence, (2, K) floating, optional
        What clean frames show, see `clean_moments`: shift and scale are counted from it. Default:
        zeros.
    like : array, optional
        Its library, device and precision are the state's; default: the head's, or NumPy's float32.

    Raises
    ------
    ArrayError
        If the head is no floating matrix of at least two rows and one column.
    ConfigError
        If K is below 2, `skewness` is no pair of finite numbers, or `clean_moments` has not twice
        K finite ones.

    Attributes
    ----------
    separable : bool
        Whether a mixture can be told from one class. Where it cannot, as of two classes, nothing
        is learned and the source answers.
    """

    feature_dim = None

    def __init__(
        self,
        head_or_num_classes: Array | int,
        config: ShiftConfig | None = None,
        /,
        *,
        skewness: tuple[float, float] | None = None,
        clean_moments: Sequence[Sequence[float]] | None = None,
        like: Array | None = None,
    ) -> None:
        self.config = config or ShiftConfig()
        self.num_classes, self._like = float_like(head_or_num_classes, like)
        refuse_below_two("num_classes", self.num_classes)
        if skewness is None:
            known = not isinstance(head_or_num_classes, int)
            skewness = skewness_of_head(head_or_num_classes) if known else DEFAULT_SKEWNESS
        self.skewness = one_class, mixture = checked_pair(skewness)
        # Of two classes one logit is the other's negative: their third moment is zero.
        told = mixture - one_class >= MIN_SEPARATION - EPS
        self.separable = told and self.num_classes > 2
        longest, ratio = self.config.half_life, self.config.timescale_ratio
        half_lives = [longest / ratio**j for j in reversed(range(NUM_TIMESCALES))]
        self._rates = self._constant(
            [-math.log(2.0) / frames for frames in (*half_lives, self.config.recent)]
        )
        self.clean_moments = checked_moments(clean_moments, num_classes=self.num_classes)
        rows = self.clean_moments or ((0.0,) * self.num_classes,) * 2
        self._clean, self._clean_logs = (self._constant(row) for row in rows)

    @property
    def measured(self) -> dict[str, Any]:
        """See `Method`."""
        return {"skewness": self.skewness, "clean_moments": self.clean_moments}

    def init_state(self) -> ShiftState:
        """Zeros: nothing learned, and the source answers."""
        J, K = NUM_TIMESCALES, self.num_classes
        zeros = {name: self._zeros() for name in ShiftState.__dataclass_fields__}
        derived = ("shift", "log_scale", "log_prior")
        wide = ("labels", "reference_logits", "all_logits", "last", *derived)
        return ShiftState(
            **zeros
            | {name: self._zeros(K) for name in wide}
            | {
                "draws": self._zeros(J),
                "memory": self._zeros(3, J, K),
                "label_facts": self._zeros(2),
                "block": self._zeros(5, K),
                "block_facts": self._zeros(6),
                "recent": self._zeros(2, K),
                "all_facts": self._zeros(3),
            }
        )

    @quiet
    def posteriors(self, features: Array | None, logits: Array, state: ShiftState, /) -> Posteriors:
        """The source less its shift, and the same averaged over what the shift may be.

        The entries of the shift have the variance v, so that a difference of two logits has 2 v:
        the probit approximation 1 / sqrt(1 + pi 2 v / 8) of a softmax under Gaussian logits.

        Parameters
        ----------
        features : None, or an array
            Not read.
        logits : array, (B, K) floating
        state : ShiftState

        Raises
        ------
        ArrayError
            If a shape, dtype, device or namespace does not fit the state.
        """
        xp = namespace(state.shift)
        logits = matrix_like("logits", logits, num_columns=self.num_classes, like=state.shift)
        logits = detached(logits, xp=xp)
        source, adapts = log_softmax(logits, xp=xp), state.confirmed > 0
        proposal = evaluator = source
        if not is_numpy_namespace(xp) or adapts:
            shift, log_scale = state.trust * state.shift, state.confirmed * state.log_scale
            prior = state.confirmed * state.log_prior
            moved = self._moved(self._centered(source, xp=xp), shift, log_scale, xp=xp)
            spread = xp.sqrt(1.0 + (math.pi / 4.0) * state.variance)
            proposal = log_softmax(moved + prior, xp=xp)
            evaluator = log_softmax(moved / spread + prior, xp=xp)
        return Posteriors(
            source=source,
            start=source,
            log_proposal=proposal,
            log_evaluator=evaluator,
            adapts=adapts,
            finite=all_finite(logits),
        )

    @quiet
    def predict(self, features: Array | None, logits: Array, state: ShiftState, /) -> Prediction:
        """See `Method`."""
        return answer(self.posteriors(features, logits, state))

    @quiet
    def collect(
        self,
        features: Array | None,
        prediction: Prediction,
        state: ShiftState,
        waiting: ShiftEvidence | None = None,
        /,
    ) -> ShiftEvidence:
        """Sums over a predicted batch on top of what waits; one that is not finite adds nothing."""
        xp = namespace(state.shift)
        waiting = self.no_evidence() if waiting is None else waiting
        source, keep = prediction.source_log_probs, prediction.finite
        if source.shape[0] == 0 or (is_numpy_namespace(xp) and not keep):
            return waiting
        x, named = self._centered(source, xp=xp), xp.exp(source)
        labels = softmax(self._moved(x, state.shift, state.log_scale, xp=xp), xp=xp)
        weights = 1.0 - xp.minimum(named, labels)
        if not is_numpy_namespace(xp):
            x, named, labels, weights = (
                xp.where(keep, array, xp.zeros_like(array)) for array in (x, named, labels, weights)
            )
        weighted = weights * x
        terms = (weights, weighted, weighted * x, labels, named)
        y = x - _mean(state.reference_logits, state.reference_count, xp=xp)
        high, low = max_of(y, xp=xp), min_of(y, xp=xp)
        both = high + low
        referenced = state.reference_count > 0
        last = choose(referenced, state.last, x[0, :], xp=xp)
        last = choose(waiting.count > 0, waiting.last, last, xp=xp)
        steps = x - xp.concat([last[None, :], x[:-1, :]], axis=0)
        known = xp.astype(referenced, x.dtype)
        scatter = (
            known * sum_of(both, xp=xp),
            known * sum_of(high - low, xp=xp),
            known * sum_of(sum_of(labels * labels, xp=xp), xp=xp),
            known * sum_of(both * both, xp=xp),
            sum_of(sum_of(x * x, xp=xp), xp=xp),
            0.5 * sum_of(sum_of(steps * steps, xp=xp), xp=xp),
        )
        accepted = xp.astype(keep, x.dtype)
        return ShiftEvidence(
            count=waiting.count + accepted * sum_of(xp.ones_like(high), xp=xp),
            sums=waiting.sums + xp.stack([sum_of(term, axis=0, xp=xp) for term in terms]),
            logits=waiting.logits + sum_of(x, axis=0, xp=xp),
            last=choose(keep, x[-1, :], waiting.last, xp=xp),
            scatter=waiting.scatter + accepted * xp.stack(scatter),
        )

    def no_evidence(self, capacity: int = 0, /) -> ShiftEvidence:
        """Zeros: sums need no room for frames."""
        wide = self._zeros(self.num_classes)
        return ShiftEvidence(
            count=self._zeros(),
            sums=self._zeros(5, self.num_classes),
            logits=wide,
            last=wide,
            scatter=self._zeros(6),
        )

    def hold(self, evidence: ShiftEvidence, capacity: int, /) -> ShiftEvidence:
        """As it is: sums need no room for frames."""
        return evidence

    def count(self, evidence: ShiftEvidence, /) -> Array:
        """Frames in it, ()."""
        return evidence.count

    @quiet
    def update(self, evidence: ShiftEvidence, state: ShiftState, /) -> ShiftState:
        """Forget a little, put the evidence into the open block, and accept it or wait."""
        xp = namespace(state.shift)
        config, count = self.config, evidence.count
        one, nothing = xp.ones_like(count), xp.zeros_like(count)
        fades = xp.exp(count * self._rates)
        fade, longest = fades[:NUM_TIMESCALES], fades[NUM_TIMESCALES - 1]
        facts = xp.concat([count[None], evidence.scatter[4:]], axis=0)
        all_facts = state.all_facts * longest + facts
        all_logits = state.all_logits * longest + evidence.logits
        ratio = _independence_ratio(all_facts, all_logits, xp=xp)
        # The first update gives the reference only.
        known = xp.where(state.reference_count > 0, one, nothing)
        seen = known * count
        block = state.block + known * evidence.sums
        facts = xp.concat([xp.stack([seen, seen * ratio]), evidence.scatter[:4]], axis=0)
        facts = state.block_facts + facts
        accepted, left, draws = self._judge(block, facts, xp=xp)
        waited = state.unconfirmed + count * xp.minimum(ratio / config.block, one / config.patience)
        sums = {
            "draws": state.draws * fade + accepted * draws,
            "memory": state.memory * fade[:, None] + accepted * block[:3, None, :],
            "labels": state.labels * longest + accepted * block[3, :],
            "label_facts": state.label_facts * longest + accepted * xp.stack([facts[0], facts[4]]),
            "recent": state.recent * fades[NUM_TIMESCALES] + evidence.sums[:2, :],
            "unconfirmed": waited * (1.0 - accepted),
        }
        return ShiftState(
            **sums,
            **self._estimate(sums, xp=xp),
            block=block * left,
            block_facts=facts * left,
            reference_count=state.reference_count * fade[0] + count,
            reference_logits=state.reference_logits * fade[0] + evidence.logits,
            all_facts=all_facts,
            all_logits=all_logits,
            last=xp.where(count > 0, evidence.last, state.last),
        )

    def merge(self, first: ShiftState, second: ShiftState, /) -> ShiftState:
        """Sums over accepted blocks add up; the open blocks are dropped.

        Raises
        ------
        ArrayError
            If a state is of another method or number of classes.
        """
        fresh = self.init_state()
        refuse_foreign(fresh, first, name="first state")
        refuse_foreign(fresh, second, name="second state")
        dropped = ("block", "block_facts", "last")
        total = {name: getattr(first, name) + getattr(second, name) for name in arrays_of(fresh)}
        total |= {name: getattr(fresh, name) for name in dropped}
        # What one of them has not seen confirmed for long is not confirmed by merging; one that has
        # learned nothing says nothing of it.
        xp = namespace(first.shift)
        waited = [
            xp.where(state.draws[-1] > 0, state.unconfirmed, 0.0 * state.unconfirmed)
            for state in (first, second)
        ]
        total["unconfirmed"] = xp.maximum(*waited)
        return self.update(self.no_evidence(), ShiftState(**total))

    def summary(self, state: ShiftState, /) -> dict[str, Array]:
        """`shift_nats`, its root mean square over the classes; `draws` behind it."""
        xp = namespace(state.shift)
        size = state.trust * xp.sqrt(xp.mean(state.shift * state.shift))
        return {"shift_nats": size, "draws": state.draws[-1]}

    def _judge(self, block: Array, facts: Array, *, xp: Namespace) -> tuple[Array, Array, Array]:
        """Whether the open block is accepted, 0 or 1; the share of it that stays; its draws; ().

        One that has shown too little for long forgets half: dropped, it would be judged by few
        frames again and again, until chance makes them look like a mixture.
        """
        config, (one_class, mixture) = self.config, self.skewness
        independent = facts[1]
        one, nothing = xp.ones_like(independent), xp.zeros_like(independent)
        count = xp.maximum(facts[0], one)
        skew, span, square = (facts[i] / count for i in (2, 3, 5))
        shares = block[3:, :] / count
        excess = xp.sum(shares * shares, axis=1) - 1.0 / self.num_classes
        draws = 1.0 / xp.maximum(excess, one / xp.maximum(independent, one))
        variance = xp.maximum(square - skew * skew, nothing) / xp.maximum(independent, one)
        least = xp.maximum(
            config.min_skewness * (mixture - one_class) * span,
            config.standard_errors * xp.sqrt(variance),
        )
        if not self.separable:
            least = math.inf * one
        skewed = skew - one_class * span >= least
        # An attractor may take half of the source's labels, and none of the corrected ones.
        many = (draws[0] >= config.min_classes) & (draws[1] >= 0.5 * config.min_classes)
        accepted = many & skewed & (independent >= config.block)
        left = xp.where(independent >= config.patience, 0.5 * one, one)
        return xp.where(accepted, one, nothing), xp.where(accepted, nothing, left), draws[0]

    def _estimate(self, sums: dict[str, Array], *, xp: Namespace) -> dict[str, Array]:
        """What predictions read, from the longest timescale to the shortest.

        A shorter timescale moves the estimate only as far as the square of the move exceeds its
        sampling error, by James and Stein's shrinkage.
        """
        K, some = self.num_classes, self._zeros() + EPS
        draws, count = xp.maximum(sums["draws"], some), xp.maximum(sums["label_facts"][0], some)
        weights = xp.maximum(sums["memory"][0, ...], some)
        mean = sums["memory"][1, ...] / weights
        square = sums["memory"][2, ...] / weights - mean * mean
        square = xp.maximum(square, 0.0 * square)
        mean = mean - xp.mean(mean, axis=1, keepdims=True)
        logs = log_deviations(square, xp=xp) - self._clean_logs
        share = sums["labels"] / count
        squared = sums["label_facts"][1] / count
        error, log_error = one_over_draws(share, squared, 1.0 / draws, some=some, xp=xp)
        total = xp.sum(square[-1, :])
        shift, log_scale = 0.0 * share, 0.0 * share
        variance = total * error[-1] / K
        for j in reversed(range(NUM_TIMESCALES)):
            move, noise = mean[j, :] - shift, total * error[j]
            kept = james_stein(move, noise, some=some, xp=xp)
            variance = variance + kept * (noise / K - variance)
            shift = shift + kept * move
            # The logarithm of a deviation has the variance 1/2 a draw.
            move = logs[j, :] - log_scale
            kept = james_stein(move, 0.5 * K * log_error[j], some=some, xp=xp)
            log_scale = log_scale + kept * move
        # How much of it the newest frames show: the regression of their mean on it.
        newest = sums["recent"][1, :] / xp.maximum(sums["recent"][0, :], some)
        newest = newest - xp.mean(newest)
        one, nothing = xp.ones_like(variance), xp.zeros_like(variance)
        agreement = xp.sum(newest * shift) / xp.maximum(xp.sum(shift * shift), some)
        confirmed = xp.minimum(xp.maximum(2.0 - sums["unconfirmed"], nothing), one)
        # Frequent classes of the place: shares shrunk towards equal ones, within twice of them.
        away, noise = share - 1.0 / K, 1.0 / draws[-1] + 0.05 / K
        prior = 1.0 / K + james_stein(away, noise, some=some, xp=xp) * away
        bounds = self._zeros() + 0.5 / K, self._zeros() + 2.0 / K
        log_prior = xp.log(xp.minimum(xp.maximum(prior, bounds[0]), bounds[1]))
        log_prior = log_prior - xp.mean(log_prior)
        # Nothing to take back is as good as nothing confirmed: the source answers, bit for bit.
        something = any_of(xp.abs(shift) + xp.abs(log_scale) + xp.abs(log_prior) > 0, xp=xp)
        confirmed = xp.where(something, confirmed, nothing)
        found = {
            "shift": shift,
            "log_scale": log_scale,
            "log_prior": log_prior,
            "variance": variance,
            "trust": confirmed * xp.minimum(xp.maximum(agreement, nothing), one),
            "confirmed": confirmed,
        }
        known = sums["label_facts"][0] > 0
        return {name: xp.where(known, value, 0.0 * value) for name, value in found.items()}

    def _centered(self, logits: Array, *, xp: Namespace) -> Array:
        """x, (B, K)."""
        return logits - sum_of(logits, keepdims=True, xp=xp) / self.num_classes - self._clean

    def _moved(self, x: Array, shift: Array, log_scale: Array, *, xp: Namespace) -> Array:
        """The logits without the shift, (B, K)."""
        return (x - shift) * xp.exp(-log_scale) + self._clean

    def _constant(self, values: Sequence[float]) -> Array:
        xp = array_namespace(self._like)
        return xp.asarray(values, dtype=self._like.dtype, device=device(self._like))

    def _zeros(self, *shape: int) -> Array:
        like = self._like
        return array_namespace(like).zeros(shape, dtype=like.dtype, device=device(like))


def _independence_ratio(facts: Array, logits: Array, *, xp: Namespace) -> Array:
    """Von Neumann's: half the squared step from frame to frame over the frames' variance."""
    count, squares, steps = facts[0], facts[1], facts[2]
    one = xp.ones_like(count)
    variance = squares - xp.sum(logits * logits) / xp.maximum(count, one)
    return xp.minimum(xp.maximum(steps / xp.maximum(variance, EPS * one), 0.01 * one), one)


def _mean(total: Array, count: Array, *, xp: Namespace) -> Array:
    """The mean, 0 of nothing."""
    some = count > 0
    if is_numpy_namespace(xp):
        return total / count if some else 0.0 * total
    return xp.where(some, total / xp.where(some, count, xp.ones_like(count)), 0.0 * total)

"""The shift of the logits, read where another class is shown.

A domain moves the logit of a class on every frame, a frequent class only on its own: so the shift
of a class is read from frames that the source calls something else, in blocks that show many
classes. It is taken out as far as it stands out of its sampling error and the newest frames still
show it; else the source answers. `docs/method.md` has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device, is_numpy_namespace

from gain_core._checks import detached, float_like, matrix_like, refuse_below_two
from gain_core._logspace import log_softmax, softmax
from gain_core._rows import any_of, choose, max_of, min_of, namespace, sum_of
from gain_core._typing import Array, Namespace
from gain_core.method import Posteriors, Prediction, all_finite, answer, quiet
from gain_core.records import arrays_of, refuse_foreign
from gain_core.shift.config import ShiftConfig
from gain_core.shift.skewness import DEFAULT_SKEWNESS, checked_pair, skewness_of_head

__all__ = ["NUM_TIMESCALES", "Shift", "ShiftEvidence", "ShiftState"]

NUM_TIMESCALES = 3
# Divisor floor for sums over no frame, where the numerator is zero as well.
EPS = 1e-9
# A class's variance counts as at least this share of the classes' mean.
MIN_VARIANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftEvidence:
    """Sums over the frames since the last update; x are logits less their mean over classes.

    Attributes
    ----------
    count : array, ()
    sums : array, (4, K)
        Of w, w x, w x^2 and q: w = 1 - s, how far the source calls a frame something else than a
        class, and q the source less its shift.
    logits, last : array, (K,)
        Sum of x, and the newest x.
    scatter : array, (4,)
        Sums of max y + min y, max y - min y and |y|^2, y = x - the reference mean; and of
        |x - x'|^2 / 2, x' being the frame before. Zeros while there is no reference.
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
    count, draws : array, (J,)
        Frames of the accepted blocks, and their effective number of draws of a class.
    memory : array, (4, J, K)
        `ShiftEvidence.sums` over the accepted blocks, each timescale forgetting at its own rate.
    block : array, (4, K)
        The same of the open block.
    block_facts : array, (4,)
        Of the open block: frames, independent frames, and the first two of `scatter`.
    recent : array, (2, K)
        Sums of w and w x over all frames, at the half-life `recent`.
    reference_count, reference_logits : array, () and (K,)
        Over all frames at the middle timescale; their mean is what skewness is taken about.
    scatter : array, (2,)
        Sums of |y|^2 and |x - x'|^2 / 2 over all frames at the longest timescale.
    last : array, (K,)
        The newest x.
    shift, log_scale, log_prior : array, (K,)
        Derived: taken out of x; what the rest is multiplied by, in logs; the prior on classes.
    variance, iid : array, ()
        Derived: of one entry of the shift; how far frames are independent, in [0, 1].
    """

    count: Array
    draws: Array
    memory: Array
    block: Array
    block_facts: Array
    recent: Array
    reference_count: Array
    reference_logits: Array
    scatter: Array
    last: Array
    shift: Array
    log_scale: Array
    log_prior: Array
    variance: Array
    iid: Array


_READ = ("shift", "log_scale", "log_prior", "variance")


class Shift:
    """The default method. It reads logits only.

    Parameters
    ----------
    head_or_num_classes : array, (K, D) floating, or int
        The head's weight, of which the skewness is guessed where none is given; or K.
    config : ShiftConfig, optional
    skewness : pair of float, optional
        Of the source's logits on clean frames of one class, and of many.
    like : array, optional
        Its library, device and precision are the state's; default: the head's, or NumPy's float32.

    Raises
    ------
    ArrayError
        If the head is no floating matrix of at least two rows and one column.
    ConfigError
        If K is below 2, or `skewness` is no pair of finite numbers, the second the larger.
    """

    feature_dim = None

    def __init__(
        self,
        head_or_num_classes: Array | int,
        config: ShiftConfig | None = None,
        /,
        *,
        skewness: tuple[float, float] | None = None,
        like: Array | None = None,
    ) -> None:
        self.config = config or ShiftConfig()
        self.num_classes, self._like = float_like(head_or_num_classes, like)
        refuse_below_two("num_classes", self.num_classes)
        if skewness is None:
            known = not isinstance(head_or_num_classes, int)
            skewness = skewness_of_head(head_or_num_classes) if known else DEFAULT_SKEWNESS
        self.skewness = checked_pair(skewness)
        longest, ratio = self.config.half_life, self.config.timescale_ratio
        half_lives = [longest / ratio**j for j in reversed(range(NUM_TIMESCALES))]
        rates = [-math.log(2.0) / frames for frames in (*half_lives, self.config.recent)]
        self._rates = array_namespace(self._like).asarray(
            rates, dtype=self._like.dtype, device=device(self._like)
        )

    @property
    def measured(self) -> dict[str, Any]:
        """See `Method`."""
        return {"skewness": self.skewness}

    def init_state(self) -> ShiftState:
        """Zeros: nothing learned, and the source answers."""
        J, K = NUM_TIMESCALES, self.num_classes
        wide = self._zeros(K)
        return ShiftState(
            count=self._zeros(J),
            draws=self._zeros(J),
            memory=self._zeros(4, J, K),
            block=self._zeros(4, K),
            block_facts=self._zeros(4),
            recent=self._zeros(2, K),
            reference_count=self._zeros(),
            reference_logits=wide,
            scatter=self._zeros(2),
            last=wide,
            shift=wide,
            log_scale=wide,
            log_prior=wide,
            variance=self._zeros(),
            iid=self._zeros(),
        )

    @quiet
    def posteriors(self, features: Array | None, logits: Array, state: ShiftState, /) -> Posteriors:
        """The source less its shift, and the same averaged over what the shift may be.

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
        return _posteriors(log_softmax(logits, xp=xp), state, finite=all_finite(logits))

    @quiet
    def predict(self, features: Array | None, logits: Array, state: ShiftState, /) -> Prediction:
        """See `Method`."""
        return answer(self.posteriors(features, logits, state))

    def revises(self, after: ShiftState, /) -> Array:
        """Where frames are independent to some part."""
        return after.iid > 0

    @quiet
    def revise(
        self, prediction: Prediction, before: ShiftState, after: ShiftState, /
    ) -> Prediction:
        """With the shift moved towards the new one, as far as frames are independent.

        What a frame's neighbours taught serves it only where they say nothing of its class.
        """
        if is_numpy_namespace(namespace(after.shift)) and not self.revises(after):
            return prediction
        moved = {
            name: getattr(before, name) + after.iid * (getattr(after, name) - getattr(before, name))
            for name in _READ
        }
        state = ShiftState(**{**arrays_of(after), **moved})
        return answer(_posteriors(prediction.source_log_probs, state, finite=prediction.finite))

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
        x = _centered(source, xp=xp)
        weights = 1.0 - xp.exp(source)
        labels = softmax((x - state.shift) * xp.exp(state.log_scale), xp=xp)
        if not is_numpy_namespace(xp):
            x, weights, labels = (
                xp.where(keep, array, xp.zeros_like(array)) for array in (x, weights, labels)
            )
        weighted = weights * x
        terms = (weights, weighted, weighted * x, labels)
        y = x - _mean(state.reference_logits, state.reference_count, xp=xp)
        high, low = max_of(y, xp=xp), min_of(y, xp=xp)
        last = choose(waiting.count > 0, waiting.last, state.last, xp=xp)
        steps = x - xp.concat([last[None, :], x[:-1, :]], axis=0)
        scatter = (
            sum_of(high + low, xp=xp),
            sum_of(high - low, xp=xp),
            sum_of(sum_of(y * y, xp=xp), xp=xp),
            0.5 * sum_of(sum_of(steps * steps, xp=xp), xp=xp),
        )
        rows = xp.astype(keep, x.dtype) * sum_of(xp.ones_like(high), xp=xp)
        known = keep & (state.reference_count > 0)
        return ShiftEvidence(
            count=waiting.count + rows,
            sums=waiting.sums + xp.stack([sum_of(term, axis=0, xp=xp) for term in terms]),
            logits=waiting.logits + sum_of(x, axis=0, xp=xp),
            last=choose(keep, x[-1, :], waiting.last, xp=xp),
            scatter=waiting.scatter
            + choose(known, xp.stack(scatter), xp.zeros_like(waiting.scatter), xp=xp),
        )

    def no_evidence(self, capacity: int = 0, /) -> ShiftEvidence:
        """Zeros: sums need no room for frames."""
        wide = self._zeros(self.num_classes)
        return ShiftEvidence(
            count=self._zeros(),
            sums=self._zeros(4, self.num_classes),
            logits=wide,
            last=wide,
            scatter=self._zeros(4),
        )

    def hold(self, evidence: ShiftEvidence, capacity: int, /) -> ShiftEvidence:
        """As it is: sums need no room for frames."""
        return evidence

    def count(self, evidence: ShiftEvidence, /) -> Array:
        """Frames in it, ()."""
        return evidence.count

    @quiet
    def update(self, evidence: ShiftEvidence, state: ShiftState, /) -> ShiftState:
        """Forget a little, put the evidence into the open block, and accept or drop that."""
        xp = namespace(state.shift)
        config, count = self.config, evidence.count
        fades = xp.exp(count * self._rates)
        fade, longest = fades[:NUM_TIMESCALES], fades[NUM_TIMESCALES - 1]
        scatter = state.scatter * longest + evidence.scatter[2:]
        # Von Neumann's ratio: half the squared step from frame to frame over the variance.
        one = xp.ones_like(count)
        ratio = xp.where(scatter[0] > 0, _mean(scatter[1], scatter[0], xp=xp), one)
        ratio = xp.minimum(xp.maximum(ratio, 0.01 * one), one)
        low, high = config.iid_ratio
        iid = xp.minimum(xp.maximum((ratio - low) / (high - low), 0.0 * one), one)
        # The first update gives the reference only.
        known = xp.where(state.reference_count > 0, one, 0.0 * one)
        seen = known * count
        block = state.block + known * evidence.sums
        facts = state.block_facts + xp.concat(
            [xp.stack([seen, seen * ratio]), evidence.scatter[:2]], axis=0
        )
        accepted, closed, draws = self._judge(block, facts, xp=xp)
        memory = state.memory * fade[:, None] + accepted * block[:, None, :]
        counts = state.count * fade + accepted * facts[0]
        all_draws = state.draws * fade + accepted * draws
        recent = state.recent * fades[NUM_TIMESCALES] + evidence.sums[:2, :]
        derived = self._estimate(memory, counts, all_draws, recent=recent, iid=iid, xp=xp)
        return ShiftState(
            count=counts,
            draws=all_draws,
            memory=memory,
            block=block * (1.0 - closed),
            block_facts=facts * (1.0 - closed),
            recent=recent,
            reference_count=state.reference_count * fade[-2] + count,
            reference_logits=state.reference_logits * fade[-2] + evidence.logits,
            scatter=scatter,
            last=xp.where(count > 0, evidence.last, state.last),
            iid=iid,
            **derived,
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
        total = {
            name: getattr(first, name) + getattr(second, name)
            for name in arrays_of(fresh)
            if name not in ("block", "block_facts", "last")
        }
        dropped = {name: getattr(fresh, name) for name in ("block", "block_facts")}
        return self.update(self.no_evidence(), ShiftState(**total, **dropped, last=first.last))

    def summary(self, state: ShiftState, /) -> dict[str, Array]:
        """`shift_nats`, its root mean square over the classes; `draws` behind it; `iid`."""
        xp = namespace(state.shift)
        size = xp.sqrt(xp.mean(state.shift * state.shift))
        return {"shift_nats": size, "draws": state.draws[-1], "iid": state.iid}

    def _judge(self, block: Array, facts: Array, *, xp: Namespace) -> tuple[Array, Array, Array]:
        """Whether the open block is accepted, whether it ends, and its draws; 0 or 1, ()."""
        config, (one_class, mixture) = self.config, self.skewness
        count, independent, skew, span = (facts[i] for i in range(4))
        one = xp.ones_like(count)
        share = block[3, :] / xp.maximum(count, one)
        excess = sum_of(share * share, xp=xp) - 1.0 / self.num_classes
        draws = 1.0 / xp.maximum(excess, 1.0 / xp.maximum(independent, one))
        least = one_class + config.min_skewness * (mixture - one_class)
        many = (draws >= config.min_classes) & (skew >= least * span)
        accepted = many & (independent >= config.block)
        closed = accepted | (independent >= config.max_block)
        return xp.where(accepted, one, 0.0 * one), xp.where(closed, one, 0.0 * one), draws

    def _estimate(
        self, memory: Array, count: Array, draws: Array, *, recent: Array, iid: Array, xp: Namespace
    ) -> dict[str, Array]:
        """What predictions read, from the longest timescale to the shortest.

        A shorter timescale moves the estimate only as far as the square of the move exceeds its
        sampling error, by James and Stein's shrinkage.
        """
        K, some = self.num_classes, self._zeros() + EPS
        weights = xp.maximum(memory[0, ...], some)
        mean = memory[1, ...] / weights
        square = xp.maximum(memory[2, ...] / weights - mean * mean, 0.0 * mean)
        mean = _centered(mean, xp=xp)
        share = memory[3, ...] / xp.maximum(count, some)[:, None]
        # One over the number of draws.
        error = xp.maximum(sum_of(share * share, xp=xp) - 1.0 / K, 1.0 / xp.maximum(draws, some))
        floor = xp.maximum(MIN_VARIANCE * xp.mean(square, axis=1, keepdims=True), some)
        logs = 0.5 * xp.log(xp.maximum(square, floor))
        logs = _centered(logs, xp=xp)
        shift, log_scale, variance = 0.0 * mean[0, :], 0.0 * mean[0, :], 0.0 * iid
        for j in reversed(range(NUM_TIMESCALES)):
            longest = j == NUM_TIMESCALES - 1
            move, noise = mean[j, :] - shift, sum_of(square[j, :], xp=xp) * error[j]
            kept = _james_stein(move, (1.0 - 0.2 * iid) * noise, some=some, xp=xp)
            # The shortest timescale, in a video, shows what the next frame will show.
            kept = iid * kept if j == 0 else kept
            variance = noise / K if longest else variance + kept * (noise / K - variance)
            shift = shift + kept * move
            if j > 0:
                # The logarithm of a deviation has the variance 1/2 a draw.
                move = logs[j, :] - log_scale
                kept = _james_stein(move, 0.5 * K * error[j], some=some, xp=xp)
                log_scale = log_scale + (kept if longest else iid * kept) * move
        # How much of it the newest frames show: the regression of their mean on it.
        newest = recent[1, :] / xp.maximum(recent[0, :], some)
        newest = newest - xp.mean(newest)
        agreement = sum_of(newest * shift, xp=xp) / xp.maximum(sum_of(shift * shift, xp=xp), some)
        agreement = xp.minimum(xp.maximum(agreement, 0.0 * iid), 0.0 * iid + 1.0)
        # The logits keep their size.
        rest = sum_of(square[-1, :] * xp.exp(-2.0 * log_scale), xp=xp)
        size = xp.log(xp.maximum(sum_of(square[-1, :], xp=xp), some) / xp.maximum(rest, some))
        # Frequent classes of the place: shares shrunk towards equal ones, within twice of them.
        away = share[-1, :] - 1.0 / K
        noise = 1.0 / xp.maximum(draws[-1], some) + 0.05 / K
        prior = 1.0 / K + _james_stein(away, noise, some=some, xp=xp) * away
        nothing = 0.0 * prior
        prior = xp.minimum(xp.maximum(prior, nothing + 0.5 / K), nothing + 2.0 / K)
        log_prior = xp.log(prior)
        found = {
            "shift": agreement * shift,
            "log_scale": agreement * (0.5 * size - log_scale),
            "log_prior": log_prior - xp.mean(log_prior),
            "variance": variance,
        }
        known = count[-1] > 0
        return {name: xp.where(known, value, 0.0 * value) for name, value in found.items()}

    def _zeros(self, *shape: int) -> Array:
        like = self._like
        return array_namespace(like).zeros(shape, dtype=like.dtype, device=device(like))


def _posteriors(source: Array, state: ShiftState, *, finite: Array) -> Posteriors:
    """Of log s (B, K).

    The evaluator averages over a shift whose entries have the variance v, so that a difference of
    two logits has 2 v, by the probit approximation 1 / sqrt(1 + pi 2 v / 8) of a softmax under
    Gaussian logits.
    """
    xp = namespace(source)
    read = xp.abs(state.shift) + xp.abs(state.log_scale) + xp.abs(state.log_prior)
    adapts = any_of(read > 0, xp=xp)
    if is_numpy_namespace(xp) and not adapts:
        log_proposal = log_evaluator = source
    else:
        moved = (_centered(source, xp=xp) - state.shift) * xp.exp(state.log_scale)
        moved = log_softmax(moved, xp=xp)
        spread = xp.sqrt(1.0 + (math.pi / 4.0) * state.variance)
        log_proposal = log_softmax(moved + state.log_prior, xp=xp)
        log_evaluator = log_softmax(moved / spread + state.log_prior, xp=xp)
    return Posteriors(
        source=source,
        start=source,
        log_proposal=log_proposal,
        log_evaluator=log_evaluator,
        adapts=adapts,
        finite=finite,
    )


def _centered(logits: Array, *, xp: Namespace) -> Array:
    """x, (B, K)."""
    return logits - sum_of(logits, keepdims=True, xp=xp) / logits.shape[1]


def _mean(total: Array, count: Array, *, xp: Namespace) -> Array:
    """The mean, 0 of nothing."""
    some = count > 0
    if is_numpy_namespace(xp):
        return total / count if some else 0.0 * total
    return xp.where(some, total / xp.where(some, count, xp.ones_like(count)), 0.0 * total)


def _james_stein(move: Array, noise: Array, *, some: Array, xp: Namespace) -> Array:
    """The share of a move that is kept, in [0, 1]."""
    return xp.maximum(1.0 - noise / xp.maximum(sum_of(move * move, xp=xp), some), 0.0 * noise)

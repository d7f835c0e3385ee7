"""The shift of the logits, learned from blocks of frames that show a mixture.

Weather moves the mean of a network's logits; so does seeing one class for a while. A frame teaches
only as part of a block that shows many classes by two signs that do not depend on each other: the
labels, under the shift as it was before the block, and the skewness of the logits. What no block
confirms fades, and the source answers. `docs/method.md` has the derivation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from array_api_compat import array_namespace, device, is_numpy_namespace

from gain_core._checks import detached, float_like, matrix_like, refuse_below_two
from gain_core._logspace import log_softmax
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
# Variance of the logarithm of a deviation, times the number of draws. That of a Gaussian would be
# a half; a class's logit is mostly low and seldom high, which is why it is more.
LOG_SCALE_NOISE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftEvidence:
    """Sums over the frames since the last update; x are logits less their mean over classes.

    Attributes
    ----------
    count : array, ()
    logits, squares, class_mass : array, (K,)
        Sums of x, of x^2 and of p*.
    skew, span : array, ()
        Sums of max y + min y and of max y - min y, y = x - the reference mean.
    step_squares, step_count : array, ()
        Sums of |x - x'|^2 / 2 and of 1 over frames that follow one another, x' being the one before.
    last : array, (K,)
        The newest x.
    valid : array, ()
        1, or 0 where there is none.
    """

    count: Array
    logits: Array
    squares: Array
    class_mass: Array
    skew: Array
    span: Array
    step_squares: Array
    step_count: Array
    last: Array
    valid: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftState:
    """What was learned; zeros before the first frame. J timescales, the longest last.

    Attributes
    ----------
    count, draws : array, (J,)
        Frames of the accepted blocks, and their effective number of draws of a class.
    logits, squares, class_mass : array, (J, K)
        As in `ShiftEvidence`, of the accepted blocks, each timescale forgetting at its own rate.
    block_count, block_independent, block_skew, block_span : array, ()
        Of the open block.
    block_logits, block_squares, block_class_mass : array, (K,)
    reference_count, reference_logits : array, () and (K,)
        Sums over all frames at the middle timescale; their mean is what skewness is taken about.
    all_count, all_squares, step_squares, step_count : array, ()
        Sums over all frames at the longest timescale, for von Neumann's ratio.
    all_logits : array, (K,)
    last, valid : array, (K,) and ()
        The newest x, and whether there is one.
    shift, log_scale : array, (K,)
        Derived: what is taken out of x, and the logarithm of what x is divided by then.
    variance, iid : array, ()
        Derived: of one entry of the shift; how far frames are independent, in [0, 1].
    """

    count: Array
    draws: Array
    logits: Array
    squares: Array
    class_mass: Array
    block_count: Array
    block_independent: Array
    block_skew: Array
    block_span: Array
    block_logits: Array
    block_squares: Array
    block_class_mass: Array
    reference_count: Array
    reference_logits: Array
    all_count: Array
    all_squares: Array
    step_squares: Array
    step_count: Array
    all_logits: Array
    last: Array
    valid: Array
    shift: Array
    log_scale: Array
    variance: Array
    iid: Array


_PER_TIMESCALE = ("count", "draws")
_PER_TIMESCALE_AND_CLASS = ("logits", "squares", "class_mass")
_PER_CLASS = (
    "block_logits",
    "block_squares",
    "block_class_mass",
    "reference_logits",
    "all_logits",
    "last",
    "shift",
    "log_scale",
)
_BLOCK = ("logits", "squares", "class_mass", "count", "skew", "span")


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
        num_classes, like = float_like(head_or_num_classes, like)
        refuse_below_two("num_classes", num_classes)
        self.num_classes, self._like = num_classes, like
        if skewness is None:
            known = not isinstance(head_or_num_classes, int)
            skewness = skewness_of_head(head_or_num_classes) if known else DEFAULT_SKEWNESS
        self.skewness = checked_pair(skewness)
        ratio = self.config.timescale_ratio
        half_lives = [self.config.half_life / ratio**j for j in reversed(range(NUM_TIMESCALES))]
        xp = array_namespace(like)
        self._rates = xp.asarray(
            [-math.log(2.0) / frames for frames in half_lives],
            dtype=like.dtype,
            device=device(like),
        )

    def init_state(self) -> ShiftState:
        """Zeros: nothing learned, and the source answers."""
        zeros = dict.fromkeys(ShiftState.__dataclass_fields__, self._zeros())
        zeros |= dict.fromkeys(_PER_CLASS, self._zeros(self.num_classes))
        zeros |= dict.fromkeys(_PER_TIMESCALE, self._zeros(NUM_TIMESCALES))
        wide = self._zeros(NUM_TIMESCALES, self.num_classes)
        zeros |= dict.fromkeys(_PER_TIMESCALE_AND_CLASS, wide)
        return ShiftState(**zeros)

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
        xp = array_namespace(state.shift)
        logits = matrix_like("logits", logits, num_columns=self.num_classes, like=state.shift)
        logits = detached(logits, xp=xp)
        return _posteriors(log_softmax(logits, xp=xp), state, finite=all_finite(logits))

    @quiet
    def predict(self, features: Array | None, logits: Array, state: ShiftState, /) -> Prediction:
        """See `Method`."""
        return answer(self.posteriors(features, logits, state))

    def revise(
        self, prediction: Prediction, before: ShiftState, after: ShiftState, /
    ) -> Prediction:
        """With the shift moved towards the new one, as far as frames are independent.

        What a frame's neighbours taught serves it only where they say nothing of its class.
        """
        xp = array_namespace(after.shift)
        if is_numpy_namespace(xp) and not after.iid > 0:
            return prediction
        names = ("shift", "log_scale", "variance")
        moved = {
            name: getattr(before, name) + after.iid * (getattr(after, name) - getattr(before, name))
            for name in names
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
        """Sums over a predicted batch, on top of what waits; one that is not finite adds nothing."""
        xp = array_namespace(state.shift)
        waiting = self.no_evidence() if waiting is None else waiting
        if prediction.probs.shape[0] == 0:
            return waiting
        keep = prediction.finite
        x = _centered(prediction.source_log_probs, xp=xp)
        x = xp.where(keep, x, xp.zeros_like(x))
        probs = xp.where(keep, prediction.probs, xp.zeros_like(x))
        accepted = xp.where(keep, xp.ones_like(state.valid), xp.zeros_like(state.valid))
        y = x - _mean(state.reference_logits, state.reference_count, xp=xp)
        high, low = xp.max(y, axis=1), xp.min(y, axis=1)
        rows = xp.sum(xp.ones_like(high))
        # The first frames have no mean to be skewed about.
        skewed = xp.where(state.reference_count > 0, accepted, xp.zeros_like(accepted))
        last = xp.where(waiting.valid > 0, waiting.last, state.last)
        unknown = 1.0 - xp.maximum(waiting.valid, state.valid)
        steps = xp.sum((x - xp.concat([last[None, :], x[:-1, :]], axis=0)) ** 2, axis=1)
        return ShiftEvidence(
            count=waiting.count + accepted * rows,
            logits=waiting.logits + xp.sum(x, axis=0),
            squares=waiting.squares + xp.sum(x * x, axis=0),
            class_mass=waiting.class_mass + xp.sum(probs, axis=0),
            skew=waiting.skew + skewed * xp.sum(high + low),
            span=waiting.span + skewed * xp.sum(high - low),
            step_squares=waiting.step_squares
            + 0.5 * accepted * (xp.sum(steps) - unknown * steps[0]),
            step_count=waiting.step_count + accepted * (rows - unknown),
            last=xp.where(keep, x[-1, :], waiting.last),
            valid=xp.maximum(accepted, waiting.valid),
        )

    def no_evidence(self, capacity: int = 0, /) -> ShiftEvidence:
        """Zeros: sums need no room for frames."""
        zeros = dict.fromkeys(ShiftEvidence.__dataclass_fields__, self._zeros())
        zeros |= dict.fromkeys(
            ("logits", "squares", "class_mass", "last"), self._zeros(self.num_classes)
        )
        return ShiftEvidence(**zeros)

    def hold(self, evidence: ShiftEvidence, capacity: int, /) -> ShiftEvidence:
        """As it is: sums need no room for frames."""
        return evidence

    def count(self, evidence: ShiftEvidence, /) -> Array:
        """Frames in it, ()."""
        return evidence.count

    @quiet
    def update(self, evidence: ShiftEvidence, state: ShiftState, /) -> ShiftState:
        """Forget a little, put the evidence into the open block, and accept or drop that."""
        xp = array_namespace(state.shift)
        fade = xp.exp(evidence.count * self._rates)
        steady = self._watched(evidence, state, fade=fade, xp=xp)
        ratio = _independence_ratio(steady, xp=xp)
        block = {name: getattr(state, f"block_{name}") + getattr(evidence, name) for name in _BLOCK}
        independent = state.block_independent + evidence.count * ratio
        accepted, closed, draws = self._judge(block, independent, xp=xp)
        sums = {
            "count": state.count * fade + accepted * block["count"],
            "draws": state.draws * fade + accepted * draws,
        } | {
            name: getattr(state, name) * fade[:, None] + accepted * block[name]
            for name in _PER_TIMESCALE_AND_CLASS
        }
        low, high = self.config.iid_ratio
        iid = xp.clip((ratio - low) / (high - low), 0.0, 1.0)
        opened = {f"block_{name}": value * (1.0 - closed) for name, value in block.items()}
        return ShiftState(
            **sums,
            **opened,
            **steady,
            **self._estimate(sums, iid, xp=xp),
            block_independent=independent * (1.0 - closed),
            iid=iid,
        )

    def merge(self, first: ShiftState, second: ShiftState, /) -> ShiftState:
        """Sums of accepted blocks add up; open blocks are dropped, and no frame follows another.

        Raises
        ------
        ArrayError
            If a state is of another method or number of classes.
        """
        xp = array_namespace(first.shift)
        fresh = self.init_state()
        refuse_foreign(fresh, first, name="first state")
        refuse_foreign(fresh, second, name="second state")
        kept = ("last", "valid", *(name for name in arrays_of(fresh) if name.startswith("block_")))
        sums = {
            name: fresh_array if name in kept else getattr(first, name) + getattr(second, name)
            for name, fresh_array in arrays_of(fresh).items()
        }
        merged = ShiftState(**sums)
        return self.update(self.no_evidence(), merged)

    def summary(self, state: ShiftState, /) -> dict[str, Array]:
        """`shift_nats`, its root mean square over the classes; `draws` behind it; `iid`."""
        xp = array_namespace(state.shift)
        size = xp.sqrt(xp.mean(state.shift * state.shift))
        return {"shift_nats": size, "draws": state.draws[-1], "iid": state.iid}

    def _watched(
        self, evidence: ShiftEvidence, state: ShiftState, *, fade: Array, xp: Namespace
    ) -> dict[str, Array]:
        """Sums over all frames, whatever they show."""
        middle, longest = fade[-2], fade[-1]
        return {
            "reference_count": state.reference_count * middle + evidence.count,
            "reference_logits": state.reference_logits * middle + evidence.logits,
            "all_count": state.all_count * longest + evidence.count,
            "all_logits": state.all_logits * longest + evidence.logits,
            "all_squares": state.all_squares * longest + xp.sum(evidence.squares),
            "step_squares": state.step_squares * longest + evidence.step_squares,
            "step_count": state.step_count * longest + evidence.step_count,
            "last": xp.where(evidence.valid > 0, evidence.last, state.last),
            "valid": xp.maximum(evidence.valid, state.valid),
        }

    def _judge(
        self, block: dict[str, Array], independent: Array, *, xp: Namespace
    ) -> tuple[Array, Array, Array]:
        """Whether the open block is accepted, whether it ends, and its draws; 0 or 1, ()."""
        config, (one_class, mixture) = self.config, self.skewness
        share = _mean(block["class_mass"], block["count"], xp=xp)
        excess = xp.sum(share * share) - 1.0 / self.num_classes
        draws = 1.0 / xp.maximum(excess, 1.0 / xp.maximum(independent, self._number(EPS)))
        skew = _mean(block["skew"], block["span"], xp=xp)
        mixed = skew >= one_class + config.min_skewness * (mixture - one_class)
        accepted = (independent >= config.block) & (draws >= config.min_classes) & mixed
        closed = accepted | (independent >= config.max_block)
        one, zero = xp.ones_like(draws), xp.zeros_like(draws)
        return xp.where(accepted, one, zero), xp.where(closed, one, zero), draws

    def _estimate(self, sums: dict[str, Array], iid: Array, *, xp: Namespace) -> dict[str, Array]:
        """Shift, scale and variance, from the longest timescale to the shortest.

        A shorter timescale moves the estimate only as far as the square of the move exceeds its
        noise, by James and Stein's shrinkage.
        """
        K, config = self.num_classes, self.config
        count = xp.maximum(sums["count"], self._number(EPS))[:, None]
        mean = sums["logits"] / count
        square = xp.maximum(sums["squares"] / count - mean * mean, self._number(0.0))
        share = sums["class_mass"] / count
        draws = 1.0 / xp.maximum(sums["draws"], self._number(EPS))
        inverse_draws = xp.maximum(xp.sum(share * share, axis=1) - 1.0 / K, draws)
        floor = MIN_VARIANCE * xp.mean(square, axis=1, keepdims=True)
        logs = 0.5 * xp.log(xp.maximum(square, xp.maximum(floor, self._number(EPS))))
        logs = logs - xp.mean(logs, axis=1, keepdims=True)
        shift, log_scale = xp.zeros_like(mean[0, :]), xp.zeros_like(mean[0, :])
        variance = xp.zeros_like(iid)
        # The shortest timescale, in a video, shows what the next frame will show.
        reaches = (iid, xp.ones_like(iid), xp.ones_like(iid))
        scale_reaches = (0.0 * iid, iid, xp.ones_like(iid))
        factor = config.shrinkage * (1.0 - 0.2 * iid)
        for j in reversed(range(NUM_TIMESCALES)):
            move = mean[j, :] - shift
            power = xp.sum(move * move)
            noise = (xp.sum(square[j, :]) + power) * inverse_draws[j]
            kept = reaches[j] * _james_stein(power, factor * noise, xp=xp)
            longest = j == NUM_TIMESCALES - 1
            variance = noise / K if longest else variance + kept * (noise / K - variance)
            shift = shift + kept * move
            move = logs[j, :] - log_scale
            noise = LOG_SCALE_NOISE * K * inverse_draws[j]
            kept = _james_stein(xp.sum(move * move), config.shrinkage * noise, xp=xp)
            log_scale = log_scale + scale_reaches[j] * kept * move
        # The logits keep their size.
        power = xp.sum(square[-1, :])
        scaled = xp.sum(square[-1, :] * xp.exp(-2.0 * log_scale))
        some = self._number(EPS)
        log_scale = log_scale - 0.5 * xp.log(xp.maximum(power, some) / xp.maximum(scaled, some))
        known = sums["count"][-1] > 0
        found = {"shift": shift, "log_scale": log_scale, "variance": variance}
        return {name: xp.where(known, value, xp.zeros_like(value)) for name, value in found.items()}

    def _zeros(self, *shape: int) -> Array:
        like = self._like
        return array_namespace(like).zeros(shape, dtype=like.dtype, device=device(like))

    def _number(self, value: float) -> Array:
        like = self._like
        return array_namespace(like).asarray(value, dtype=like.dtype, device=device(like))


def _posteriors(source: Array, state: ShiftState, *, finite: Array) -> Posteriors:
    """Of log s (B, K).

    The evaluator averages over a shift whose entries have the variance v, so that a difference of
    two logits has 2 v, by the probit approximation 1 / sqrt(1 + pi 2 v / 8) of a softmax under
    Gaussian logits.
    """
    xp = array_namespace(source)
    x = (_centered(source, xp=xp) - state.shift) * xp.exp(-state.log_scale)
    log_proposal = log_softmax(x, xp=xp)
    spread = xp.sqrt(1.0 + (math.pi / 4.0) * state.variance)
    return Posteriors(
        source=source,
        start=source,
        log_proposal=log_proposal,
        log_evaluator=log_softmax(log_proposal / spread, xp=xp),
        adapts=xp.any(xp.abs(state.shift) + xp.abs(state.log_scale) > 0),
        finite=finite,
    )


def _centered(logits: Array, *, xp: Namespace) -> Array:
    """x, (B, K)."""
    return logits - xp.mean(logits, axis=1, keepdims=True)


def _mean(total: Array, count: Array, *, xp: Namespace) -> Array:
    """The mean, 0 of nothing."""
    some = count > 0
    return xp.where(some, total / xp.where(some, count, xp.ones_like(count)), xp.zeros_like(total))


def _independence_ratio(sums: dict[str, Array], *, xp: Namespace) -> Array:
    """Von Neumann's: half the squared step from frame to frame over the frames' variance."""
    mean = _mean(sums["all_logits"], sums["all_count"], xp=xp)
    square = _mean(sums["all_squares"], sums["all_count"], xp=xp)
    step = _mean(sums["step_squares"], sums["step_count"], xp=xp)
    return xp.clip(_mean(step, square - xp.sum(mean * mean), xp=xp), 0.01, 1.0)


def _james_stein(power: Array, noise: Array, *, xp: Namespace) -> Array:
    """The share of a move that is kept, in [0, 1]."""
    return xp.clip(1.0 - _mean(noise, power, xp=xp), 0.0, 1.0) * xp.where(
        power > 0, xp.ones_like(power), xp.zeros_like(power)
    )

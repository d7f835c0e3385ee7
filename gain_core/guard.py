"""The guard: an online test that the adapted prediction is still worth more than the source's.

The source says how often it expects to be right, and on shifted data it overstates that. An
adapted prediction that agrees with it, beyond chance, less often than a fifth of what it expects
beyond chance has left everything the source knows. Then the state is dropped and the source
answers for a while, longer after every trip.
"""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace, device

from gain_core._checks import scalar
from gain_core._typing import Array
from gain_core.statistics import Evidence, decay_factor

__all__ = [
    "Guard",
    "GuardSums",
    "armed_guard",
    "combine_guard_sums",
    "no_guard_sums",
    "observe",
    "watch",
]

# Memory of the test, in frames, and the decayed count it wants to have before it judges, which
# some 440 frames make: a run of one class that only the source or only adapting gets right is
# over by then.
HALF_LIFE_FRAMES = 256.0
MIN_FRAMES = 256.0
# Agreement below this share of the source's own confidence, both beyond one in K, trips it. Where
# a source is sure and wrong on nearly every frame, as on road signs under the worst corruptions,
# adapting wins fifteen points at shares down to 0.3; elsewhere it is 0.55 and more.
LEAST_RATIO = 0.2
# Frames the source answers after the first trip; doubled with every further one up to the last.
FIRST_HOLD_FRAMES = 256.0
MOST_DOUBLINGS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSums:
    """Sums over a batch, all (): frames, agreements with the source, the source's confidence."""

    count: Array
    agreement: Array
    confidence: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The guard's state, all arrays (), zero at first.

    Attributes
    ----------
    count, agreement, confidence : array, ()
        Decayed sums, see `GuardSums`; empty while the source answers.
    hold : array, ()
        Frames for which the source still answers.
    trips : array, ()
        How often it has tripped.
    """

    count: Array
    agreement: Array
    confidence: Array
    hold: Array
    trips: Array

    @property
    def holds(self) -> Array:
        """Whether the source answers, () bool."""
        return self.hold > 0


def armed_guard(*, like: Array) -> Guard:
    """A guard that has seen nothing."""
    zero = scalar(0.0, like=like, xp=array_namespace(like))
    return Guard(count=zero, agreement=zero, confidence=zero, hold=zero, trips=zero)


def no_guard_sums(*, like: Array) -> GuardSums:
    """Sums over no frame."""
    zero = scalar(0.0, like=like, xp=array_namespace(like))
    return GuardSums(count=zero, agreement=zero, confidence=zero)


def combine_guard_sums(first: GuardSums, second: GuardSums, /) -> GuardSums:
    """Sums over the frames of both."""
    return GuardSums(
        count=first.count + second.count,
        agreement=first.agreement + second.agreement,
        confidence=first.confidence + second.confidence,
    )


def observe(evidence: Evidence, /) -> GuardSums:
    """Sums over a batch; rows that were not accepted do not count."""
    xp = array_namespace(evidence.probs)
    same = evidence.answered == xp.argmax(evidence.source_log_probs, axis=1)
    agreed = xp.where(same, evidence.accepted, xp.zeros_like(evidence.accepted))
    confidence = xp.exp(xp.max(evidence.source_log_probs, axis=1))
    return GuardSums(
        count=xp.sum(evidence.accepted),
        agreement=xp.sum(agreed),
        confidence=xp.sum(confidence * evidence.accepted),
    )


def watch(guard: Guard, added: GuardSums, /, *, num_classes: int) -> tuple[Guard, Array]:
    """Take a batch into account.

    Parameters
    ----------
    guard : Guard
    added : GuardSums
    num_classes : int
        K; of so many, one agreement in K is chance.

    Returns
    -------
    Guard
    tripped : array, () bool
        Whether the state is to be dropped now.
    """
    xp = array_namespace(guard.count)
    zero, one = xp.zeros_like(guard.count), xp.ones_like(guard.count)
    decay = decay_factor(added.count, HALF_LIFE_FRAMES, xp=xp)
    count = guard.count * decay + added.count
    agreement = guard.agreement * decay + added.agreement
    confidence = guard.confidence * decay + added.confidence
    watching = ~guard.holds
    chance = count / num_classes
    lost = agreement - chance < LEAST_RATIO * (confidence - chance)
    tripped = watching & (count >= MIN_FRAMES) & lost
    doublings = xp.minimum(guard.trips, one * MOST_DOUBLINGS)
    first = xp.asarray(FIRST_HOLD_FRAMES, dtype=guard.count.dtype, device=device(guard.count))
    hold = xp.where(tripped, first * 2.0**doublings, xp.maximum(guard.hold - added.count, zero))
    kept = xp.where(watching & ~tripped, one, zero)
    return Guard(
        count=count * kept,
        agreement=agreement * kept,
        confidence=confidence * kept,
        hold=hold,
        trips=guard.trips + xp.where(tripped, one, zero),
    ), tripped

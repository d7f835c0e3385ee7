"""A prior on the classes: that the frames to come show them as often as those before did.

A street shows the same few of a thousand classes all day. Where frames say nothing of each other,
what is expected of the next one is the shares of the classes so far, as far as these differ from
equal ones by more than chance and than a network's mistakes. The shares are of the proposals
without the prior, which would otherwise confirm itself.
"""

from __future__ import annotations

from array_api_compat import array_namespace

from gain_core._checks import scalar
from gain_core._typing import Array

__all__ = ["log_class_prior"]

# Divisor floor for sums over no frame, where the numerator is zero as well.
TINY = 1e-9
# What shares of classes that come equally often differ by because the network errs: |q|^2 - 1/K
# times K. A tail of classes that are up to a hundred times as rare has ten times that.
SHARE_NOISE = 0.05
# The shares are told too alike, because some of every class is taken for others and because a part
# of what they move the mean logits by is taken for a shift; so they count squared. A network that
# is rightly unsure is harmed by more than that.
SHARE_POWER = 2.0
# Bound on a share in units of 1/K, and on its inverse: a domain that makes one class win too often
# looks like a class that comes often.
MOST_SHARE = 2.0


def log_class_prior(mass: Array, count: Array, /) -> Array:
    """Logarithm of the classes' shares in units of 1/K, shrunk towards equal ones and sharpened.

    Parameters
    ----------
    mass : array, (K,)
        Sum of the proposals over frames whose labels can be counted.
    count : array, ()
        Number of these frames.

    Returns
    -------
    array, (K,)
        Zeros where no frame was counted.

    Notes
    -----
    r = max(0, 1 - (1/N + `SHARE_NOISE` / K) / (|q|^2 - 1/K)) of the shares q is James and Stein's
    shrinkage; 1/N is the square that N draws of equal classes leave.
    """
    xp = array_namespace(mass)
    num_classes = mass.shape[0]
    tiny = scalar(TINY, like=mass, xp=xp)
    counted = xp.maximum(count, tiny)
    excess = mass / counted - 1.0 / num_classes
    noise = 1.0 / counted + SHARE_NOISE / num_classes
    kept = 1.0 - noise / xp.maximum(xp.sum(excess * excess), tiny)
    kept = xp.where(count > 0, xp.maximum(kept, xp.zeros_like(kept)), xp.zeros_like(kept))
    shares = xp.clip(1.0 + num_classes * kept * excess, 1.0 / MOST_SHARE, MOST_SHARE)
    return SHARE_POWER * xp.log(shares)

"""The constants of the tracked shift's rules, as its kernels get them."""

from __future__ import annotations

import math

from gain_core import GainConfig, class_prior, departure
from gain_core import guard as guard_rules
from gain_core import shift as shift_rules

__all__ = ["shift_settings"]


def shift_settings(config: GainConfig, *, num_classes: int, measured: bool) -> list[float]:
    """Numbers in the order of the kernels' enum; rates are of the natural exponent, per frame.

    Parameters
    ----------
    config : GainConfig
        With ``proposal == "shift"``.
    num_classes : int
    measured : bool
        Whether the head's asymmetry was, see `Prototypes`.

    Returns
    -------
    list of float
    """
    forgetting = -math.log(2.0)
    backs = reversed(range(shift_rules.NUM_WINDOWS))
    rates = [forgetting * shift_rules.WINDOW_RATIO**back / config.half_life for back in backs]
    return [
        *rates,
        forgetting / config.scale_half_life,
        forgetting / guard_rules.HALF_LIFE_FRAMES,
        config.label_draws,
        config.shrinkage,
        shift_rules.SLACK,
        shift_rules.TINY,
        shift_rules.LEAST_SPREAD,
        shift_rules.LEAST_POWER,
        float(shift_rules.tests_mixtures(config, num_classes=num_classes)),
        float(shift_rules.may_be_independent(config, num_classes=num_classes)),
        float(measured),
        *shift_rules.SPREAD_RAMP,
        shift_rules.SURE_FRAMES,
        shift_rules.LEAST_SINGLE,
        *shift_rules.GUESS_RAMP,
        *shift_rules.LEARNED_RAMP,
        shift_rules.SINGLE_SHARE,
        *shift_rules.SHIFT_RAMP,
        *shift_rules.SCALE_RAMP,
        *shift_rules.STEP_RAMP,
        shift_rules.FIRST_SHIFT_WINDOW,
        shift_rules.FIRST_SCALE_WINDOW,
        float(shift_rules.expects_classes(config, num_classes=num_classes)),
        forgetting / (shift_rules.SHARE_MEMORY * config.half_life),
        *shift_rules.SHARE_RAMP,
        config.half_life,
        shift_rules.FEW_SHARE,
        *departure.MOVE_RAMP,
        *departure.BESIDE_RAMP,
        departure.LEAST_SCATTER,
        departure.MOST_POWER,
        departure.HOLD,
        class_prior.SHARE_NOISE,
        class_prior.SHARE_POWER,
        class_prior.MOST_SHARE,
        float(config.match_scale),
        shift_rules.SCALE_NOISE,
        shift_rules.LEAST_VARIANCE,
        float(config.guard),
        guard_rules.MIN_FRAMES,
        guard_rules.LEAST_RATIO,
        1.0 / num_classes,
        guard_rules.FIRST_HOLD_FRAMES,
        guard_rules.MOST_DOUBLINGS,
    ]

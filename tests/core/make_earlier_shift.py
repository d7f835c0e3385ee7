"""Rewrite `earlier_shift.npz`: what the shift predicts without its tests, as it began.

The record is the float64 oracle's, with neither tests nor the matching of the deviations::

    PYTHONPATH=tests/oracle .venv/bin/python tests/core/make_earlier_shift.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from gaussian_world import gaussian_world
from shift_oracle import ShiftOracle

from gain_core import GainConfig

TARGET = Path(__file__).with_name("earlier_shift.npz")
EARLIER = replace(GainConfig(), num_iters=60, mixture_test=False, match_scale=False)


def main() -> None:
    """Stream a world whose logits' offset jumps half-way."""
    world = gaussian_world(7, 10, num_batches=60, batch_sizes=(8,), seed=2)
    offsets = np.random.default_rng(7).normal(size=(2, 7)) * 2.0
    logits = np.stack([raw for _, raw, _ in world.batches])
    logits = (logits + np.repeat(offsets, 30, axis=0)[:, None, :]).astype(np.float32)
    oracle = ShiftOracle(world.prototypes, EARLIER)
    probs = np.stack([oracle.step(batch).probs for batch in logits])
    np.savez_compressed(
        TARGET, prototypes=world.prototypes.astype(np.float32), logits=logits, probs=probs
    )


if __name__ == "__main__":
    main()

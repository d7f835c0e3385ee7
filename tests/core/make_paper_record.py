"""Rewrite `paper_record.npz`: what `paper` and `paper-l2` predict, which is not to change.

The record is the project's own, at float64::

    PYTHONPATH=tests/oracle .venv/bin/python tests/core/make_paper_record.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gaussian_world import gaussian_world

from gain_core import Gain, preset

TARGET = Path(__file__).with_name("paper_record.npz")
NAMES = ("paper", "paper-l2")


def main() -> None:
    """Stream one world through both, an update a batch."""
    world = gaussian_world(6, 8, num_batches=24, batch_sizes=(8,), seed=31)
    features, logits = (np.stack([batch[part] for batch in world.batches]) for part in (0, 1))
    found = {"prototypes": world.prototypes, "features": features, "logits": logits}
    found = {name: array.astype(np.float32) for name, array in found.items()}
    for name in NAMES:
        gain = Gain(world.prototypes, preset(name), update_every=1, warmup_frames=1)
        results = [gain.step(z, raw) for z, raw in zip(features, logits, strict=True)]
        found[name] = np.stack([result.probs for result in results])
        found[f"{name}, strength"] = np.stack([result.strength for result in results])
    np.savez_compressed(TARGET, **found)


if __name__ == "__main__":
    main()

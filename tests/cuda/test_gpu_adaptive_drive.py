"""What `test_gpu_adaptive.py` streams on a card, replayed on the CPU: it has to be corrected."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from gain_core import GainConfig
from gain_export.adaptive import add_adaptation
from gain_runtime.adaptive_session import AdaptiveSession

ON_THE_CARD = runpy.run_path(str(Path(__file__).with_name("test_gpu_adaptive.py")))


@pytest.mark.parametrize("sizes", [(1,), (3, 1, 8)], ids=["frames", "batches"])
@pytest.mark.parametrize("preset", ON_THE_CARD["PRESETS"])
def test_the_drive_needs_as_much_correction_as_is_asked_for(
    roadsigns_artifact, tmp_path, preset, sizes
):
    path = tmp_path / "signs.adaptive.onnx"
    add_adaptation(roadsigns_artifact, path, config=GainConfig.preset(preset))
    with AdaptiveSession(path, num_threads=1) as host:
        strengths = [host.step(pixels).strength for pixels in ON_THE_CARD["drive"](sizes)]
    corrected = int(np.sum(np.concatenate(strengths) > 0.0))
    # Twice what the card's test asks for.
    assert corrected > ON_THE_CARD["NUM_FRAMES"] // 2

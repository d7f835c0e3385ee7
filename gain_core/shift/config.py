"""Every number of the default method, each with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from gain_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftConfig:
    """Settings of the shift.

    Attributes
    ----------
    half_life : float
        Frames after which what was learned has lost half its weight, at the longer of two
        timescales: some forty seconds of video at 25 Hz, the time that weather takes to change.
    timescale_ratio : float
        How much longer it is than the shorter one: that follows a jump of the domain, and needs
        some hundred frames to show more than a few objects of a video.
    min_classes : float
        Effective number of classes that a block has to show in corrected labels, and half of it in
        the source's. Of fewer, the mean of the logits is rather that of the classes than of the
        domain.
    min_skewness : float
        Skewness that a block has to show, as a share of the way from what frames of one class have
        to what those of many have. On the near side of the middle, since a heavy corruption lessens
        the skewness of a mixture; beyond the classes, whose own skewness has a deviation of about a
        tenth of the way.
    standard_errors : float
        How far its skewness has to exceed that of one class, in standard errors of its independent
        frames. Three and not the usual two, since an open block is judged at every update.
    block : float
        Independent frames in a block: two draws for each of `min_classes`.
    patience : float
        Independent frames after which a block that shows too little forgets half of them, and
        frames for which what a block confirmed is believed in full, nothing of it after twice as
        many: ten seconds of video.
    recent : float
        Half-life of the newest frames, which have to agree with the shift: two seconds of video,
        after which a scene may be another.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    """

    half_life: float = 1024.0
    timescale_ratio: float = 9.0
    min_classes: float = 8.0
    min_skewness: float = 0.3
    standard_errors: float = 3.0
    block: float = 16.0
    patience: float = 256.0
    recent: float = 48.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not 0.0 < value < math.inf:  # so that NaN fails it
                raise ConfigError(f"{item.name}: expected a finite number > 0, got {value!r}")
